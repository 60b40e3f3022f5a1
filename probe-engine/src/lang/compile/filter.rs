//! From a filter's text to its comparisons: names become numbers of fields.

use super::super::ast::{Filter, Operator, Spanned, Value};
use super::super::error::{Error, Mistake};
use super::operand::{Class, operand};
use crate::capture::Field;
use crate::capture::filter::{Filter as Condition, Order, Test};
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
            let (operand, class) = operand(&field.value, fields).ok_or_else(|| Error {
                span: field.span.clone(),
                mistake: Mistake::NotFilterable(field.value.clone()),
            })?;
            let (negated, test) = test(*op, value, matches!(class, Class::Text), field)?;
            let test = Condition::Test(operand, test);
            if negated { Condition::Not(Box::new(test)) } else { test }
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
