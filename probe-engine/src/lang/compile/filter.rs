//! From a filter's text to its comparisons: names become numbers of fields.

use super::super::ast::{Filter, Operator, Spanned, Value};
use super::super::error::{Error, Mistake};
use crate::capture::Field;
use crate::capture::filter::{Filter as Condition, Operand, Order, Test};
use crate::capture::shape::Shape;
use crate::linux::glob::Glob;

/// The condition that `filter` is on hits with `fields`, which have been [checked](super::super::check_fields).
pub(super) fn compile(filter: &Filter, fields: &[Field]) -> Result<Condition, Error> {
    // As deep as the parser lets it be.
    Ok(match filter {
        Filter::And(left, right) => Condition::All(vec![compile(left, fields)?, compile(right, fields)?]),
        Filter::Or(left, right) => Condition::Any(vec![compile(left, fields)?, compile(right, fields)?]),
        Filter::Not(inner) => Condition::Not(Box::new(compile(inner, fields)?)),
        Filter::Compare { field, user_string, op, value } => {
            if *user_string {
                return Err(Error { span: field.span.clone(), mistake: Mistake::FetchUserString });
            }
            let (operand, is_text) = operand(field, fields)?;
            let (negated, test) = test(*op, value, is_text, field)?;
            let test = Condition::Test(operand, test);
            if negated { Condition::Not(Box::new(test)) } else { test }
        }
    })
}

/// What a name means, and whether that is text.
fn operand(field: &Spanned<String>, fields: &[Field]) -> Result<(Operand, bool), Error> {
    let name = field.value.as_str();
    if let Some(index) = fields.iter().position(|own| own.name == name) {
        let is_text = fields.get(index).is_some_and(|own| own.shape == Shape::Text);
        return Ok((Operand::Field(index as u16), is_text));
    }
    Ok(match name {
        "common_pid" => (Operand::Pid, false),
        "common_cpu" | "cpu" | "CPU" => (Operand::Cpu, false),
        "comm" | "COMM" => (Operand::Comm, true),
        "__probe_ip" | "__probe_ret_ip" => (Operand::Ip, false),
        _ => {
            let mistake = Mistake::NotFilterable(name.to_owned());
            return Err(Error { span: field.span.clone(), mistake });
        }
    })
}

/// A comparison, and whether its opposite is meant.
fn test(
    op: Operator,
    value: &Spanned<Value>,
    is_text: bool,
    field: &Spanned<String>,
) -> Result<(bool, Test), Error> {
    let wrong = |mistake| Err(Error { span: value.span.clone(), mistake });
    Ok(match (&value.value, is_text) {
        (Value::Cpus(ranges), false) => (op == Operator::NotEqual, Test::Among(ranges.clone())),
        (Value::Text(text), true) if op == Operator::Glob => match Glob::new(text) {
            Ok(glob) => (false, Test::Glob(glob)),
            Err(error) => return wrong(Mistake::Pattern(error)),
        },
        (Value::Text(text), true) => (false, Test::Text(op == Operator::Equal, text.clone())),
        (Value::Number(number), false) => match order(op) {
            Some(order) => (false, Test::Number(order, *number)),
            None => (false, Test::Bits(*number as u64)),
        },
        (Value::Text(_), false) => return wrong(Mistake::TextForNumber(field.value.clone())),
        (Value::Number(_) | Value::Cpus(_), true) => {
            return wrong(Mistake::NumberForText(field.value.clone()));
        }
    })
}

fn order(op: Operator) -> Option<Order> {
    Some(match op {
        Operator::Equal => Order::Equal,
        Operator::NotEqual => Order::NotEqual,
        Operator::Less => Order::Less,
        Operator::LessOrEqual => Order::LessOrEqual,
        Operator::Greater => Order::Greater,
        Operator::GreaterOrEqual => Order::GreaterOrEqual,
        Operator::And | Operator::Glob => return None,
    })
}
