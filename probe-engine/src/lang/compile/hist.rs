//! From a histogram's text to its plan: names become numbers of fields.

use super::super::ast::{self, Definition, FilterExpr, Hist, KeyModifier, Spanned};
use super::super::error::{Error, Mistake};
use super::operand::{Class, operand};
use crate::capture::Field;
use crate::capture::hist::{By, Form, Histogram, Key, Sort, Summed};

/// As many keys as the kernel keeps without being told.
const SIZE: u32 = 2048;

/// What `definition` counts by at a probe that reads `fields`, if it has a histogram; [its fields](super::capture)
/// were checked.
///
/// # Errors
/// The first [`Error`]: a key that is no number and no text, a modifier for numbers on text, a sum of texts.
pub fn histogram(definition: &Definition, fields: &[Field]) -> Result<Option<Histogram>, Error> {
    let Some(Spanned { value: hist, .. }) = &definition.hist else { return Ok(None) };
    Ok(Some(Histogram {
        said: said(hist, definition.filter.as_ref().map(|filter| &filter.value)),
        keys: hist.keys.iter().map(|written| key(written, fields)).collect::<Result<_, _>>()?,
        values: hist.values.iter().map(|value| summed(value, fields)).collect::<Result<_, _>>()?,
        sort: hist.sort.iter().filter_map(|written| sort(written, hist)).collect(),
        size: size(hist),
    }))
}

fn size(hist: &Hist) -> u32 {
    hist.size.as_ref().map_or(SIZE, |size| size.value)
}

fn key(written: &ast::KeyExpr, fields: &[Field]) -> Result<Key, Error> {
    let ast::KeyExpr { field, modifier } = written;
    let wrong = |mistake| Error { span: field.span.clone(), mistake };
    let name = &field.value;
    let (operand, class) = operand(name, fields).ok_or_else(|| wrong(Mistake::NotCountable(name.clone())))?;
    let form = match (class, modifier) {
        (Class::Text, KeyModifier::Plain) => Form::Text,
        (Class::Text, _) => return Err(wrong(Mistake::ModifierOfText(name.clone()))),
        (Class::Number(shape), KeyModifier::Plain) => Form::Number(shape),
        (_, KeyModifier::Hex) => Form::Hex,
        (_, KeyModifier::Symbol) => Form::Symbol,
        (_, KeyModifier::SymbolOffset) => Form::SymbolOffset,
        (_, KeyModifier::SystemCall) => Form::SystemCall,
        (_, KeyModifier::Execname) => Form::Process,
        (_, KeyModifier::Log2) => Form::Log2,
        (_, KeyModifier::Buckets(width)) => Form::Buckets(*width),
    };
    Ok(Key { name: name.clone(), operand, form })
}

fn summed(value: &Spanned<String>, fields: &[Field]) -> Result<Summed, Error> {
    let name = value.value.clone();
    let wrong = |mistake| Err(Error { span: value.span.clone(), mistake });
    match operand(&name, fields) {
        Some((operand, Class::Number(_))) => Ok(Summed { name, operand }),
        Some((_, Class::Text)) => wrong(Mistake::SumOfText(name)),
        None => wrong(Mistake::NotCountable(name)),
    }
}

/// One that the parser knows to be there.
fn sort(written: &ast::SortExpr, hist: &Hist) -> Option<Sort> {
    let name = &written.field.value;
    let value = hist.values.iter().position(|value| value.value == *name);
    let key = hist.keys.iter().position(|key| key.field.value == *name);
    let by = match (name.as_str(), value, key) {
        ("hitcount", ..) => By::Hits,
        (_, Some(n), _) => By::Value(n as u8),
        (_, None, Some(n)) => By::Key(n as u8),
        (_, None, None) => return None,
    };
    Some(Sort { by, descending: written.descending })
}

/// A histogram with what was left out of it, and what is counted.
fn said(hist: &Hist, filter: Option<&FilterExpr>) -> String {
    let nowhere = |value| Spanned { value, span: 0..0 };
    let mut full = hist.clone();
    full.values.insert(0, nowhere("hitcount".to_owned()));
    if full.sort.is_empty() {
        full.sort.push(ast::SortExpr { field: nowhere("hitcount".to_owned()), descending: false });
    }
    full.size = Some(Spanned { value: size(hist), span: 0..0 });
    let condition = filter.map(|filter| format!(" if {filter}")).unwrap_or_default();
    format!("{full}{condition}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::filter::Operand;
    use crate::capture::shape::{MemberShape, Shape};
    use crate::capture::{Base, Fetch};
    use crate::lang::ast::Statement;

    fn fields() -> Vec<Field> {
        let structure = Shape::Struct { members: Vec::<MemberShape>::new(), more: true };
        let pointer = Shape::Pointer(Some(Box::new(structure.clone())));
        [("name", Shape::Text), ("count", Shape::Unsigned), ("file", pointer), ("how", structure)]
            .map(|(name, shape)| Field { name: name.to_owned(), fetch: Fetch::word(Base::Unknown, 8), shape })
            .into()
    }

    fn plan(text: &str) -> Result<Histogram, Error> {
        let Statement::Define(definition) = crate::lang::parse(text).unwrap() else { panic!("{text}") };
        histogram(&definition, &fields()).map(Option::unwrap)
    }

    #[test]
    fn names_become_fields() {
        let text = "p x hist:keys=name,common_pid.execname,file:values=count:sort=count.descending,name:size=100 if count > 4";
        let plan = plan(text).unwrap();
        let key = |name: &str, operand, form| Key { name: name.to_owned(), operand, form };
        let keys = [
            key("name", Operand::Field(0), Form::Text),
            key("common_pid", Operand::Pid, Form::Process),
            key("file", Operand::Field(2), Form::Number(Shape::Pointer(None))),
        ];
        assert_eq!(plan.keys, keys);
        assert_eq!(plan.values, [Summed { name: "count".to_owned(), operand: Operand::Field(1) }]);
        let sort = [(By::Value(0), true), (By::Key(0), false)];
        assert_eq!(plan.sort, sort.map(|(by, descending)| Sort { by, descending }));
        assert_eq!(plan.size, 128);
        assert_eq!(
            plan.said,
            "hist:keys=name,common_pid.execname,file:values=hitcount,count:sort=count.descending,name:size=128 if count > 4"
        );
    }

    #[test]
    fn what_is_left_out_is_as_in_the_kernel() {
        let plan = plan("p x hist:keys=cpu").unwrap();
        assert_eq!((plan.size, plan.sort.as_slice()), (2048, [].as_slice()));
        assert_eq!(plan.said, "hist:keys=cpu:values=hitcount:sort=hitcount:size=2048");
        assert_eq!(plan.keys.first().map(|key| &key.form), Some(&Form::Number(Shape::Unsigned)));
    }

    #[test]
    fn what_cannot_be_counted_is_refused_where_it_stands() {
        for (text, at, sentence) in [
            ("p x hist:keys=name.log2", "name", "`name` is text, and stands for itself as a key"),
            ("p x hist:keys=comm.hex", "comm", "`comm` is text, and stands for itself as a key"),
            ("p x hist:keys=cpu:values=name", "name", "`name` is text, and cannot be summed up"),
            ("p x hist:keys=how", "how", "hits cannot be counted by `how` here"),
            (
                "p x hist:keys=count,stacktrace",
                "stacktrace",
                "hits cannot be counted by `common_stacktrace` here",
            ),
            (
                "p x hist:keys=common_timestamp",
                "common_timestamp",
                "hits cannot be counted by `common_timestamp` here",
            ),
        ] {
            let error = plan(text).unwrap_err();
            assert_eq!((text.get(error.span.clone()), error.to_string().as_str()), (Some(at), sentence));
        }
    }
}
