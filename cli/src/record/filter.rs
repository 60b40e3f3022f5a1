//! Which hits of a recording are wanted: the condition of a definition, on values that were recorded.

use super::task::unhex;
use super::{Hit, Kind, Probe, address};
use probe_engine::capture::filter::Circumstances;
use probe_engine::capture::shape::Shape;
use probe_engine::capture::{Base, Capture, Fetch, Field, Plain, Values};
use probe_engine::lang::ast::{self, Spanned};
use probe_engine::lang::compile;
use probe_engine::lang::{self, Error};
use serde_json::Value;
use std::collections::BTreeMap;

/// A condition on hits. Hits of probes that lack a field of it are not wanted.
pub(crate) struct Filter {
    written: Spanned<ast::FilterExpr>,
    /// By the numbers of the probes that it was compiled for.
    compiled: BTreeMap<u32, Capture>,
    /// Why it was not, for the first probe of those for which it was not.
    failed: Option<Error>,
}

impl Filter {
    /// What `text` says, in the language of definitions.
    ///
    /// # Errors
    /// [`Error`], where in the text it is not understood.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self { written: lang::parse_filter(text)?, compiled: BTreeMap::new(), failed: None })
    }

    /// Why it applies to no probe at all, if there was one.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failed.as_ref().filter(|_| self.compiled.is_empty())
    }

    /// Hits of this probe will be looked at.
    pub(super) fn register(&mut self, probe: &Probe) {
        let field = |field: &super::Field| Field {
            name: field.name.clone(),
            // It is not read again, and no address from which more could be read.
            fetch: Fetch::word(Base::Unknown, 0),
            shape: match is_text(&field.shape) {
                true => Shape::Text,
                false => field.shape.clone(),
            },
        };
        let of_probe = texts_of(probe).map(|(name, _)| Field {
            name: name.to_owned(),
            fetch: Fetch::word(Base::Unknown, 0),
            shape: Shape::Text,
        });
        let fields = probe.fields.iter().map(field).chain(of_probe).collect();
        let mut capture = Capture { fields, ..Capture::default() };
        let kind = match probe.kind {
            Kind::Return => ast::DefinitionKind::Return,
            Kind::Instruction | Kind::Watch => ast::DefinitionKind::Instruction,
        };
        match compile::filter(&self.written.value, kind, &[], &mut capture) {
            Ok(()) => {
                self.compiled.insert(probe.id, capture);
            }
            Err(error) if probe.shown => {
                self.failed.get_or_insert(error);
            }
            Err(_) => {}
        }
    }

    /// Whether a hit of `probe` is wanted.
    pub(super) fn passes(&self, hit: &Hit, probe: &Probe) -> bool {
        let Some(capture) = self.compiled.get(&probe.id) else { return false };
        let Some(condition) = &capture.filter else { return false };
        let mut record = Vec::new();
        for field in &probe.fields {
            put(&field.shape, hit.fields.get(&field.name), &mut record);
        }
        for (_, text) in texts_of(probe) {
            text.map_or(Plain::Missing, |text| Plain::Text(text.as_bytes())).put(&mut record);
        }
        let event = &hit.event;
        let at = Circumstances { cpu: event.vcpu, task: event.task.as_ref(), ip: event.rip.0 };
        condition.passes(capture, Values::of(&record), &at)
    }
}

/// What a probe is called, which a condition may compare as well, unless a field has that name.
fn texts_of(probe: &Probe) -> impl Iterator<Item = (&'static str, Option<&str>)> {
    let texts = [
        ("probe", Some(probe.probe.as_str())),
        ("event", probe.event.as_deref()),
        ("rule", probe.rule.as_deref()),
    ];
    texts.into_iter().filter(|(name, _)| probe.fields.iter().all(|field| field.name != *name))
}

/// Whether text was recorded. That is so of an address as well whose symbol was recorded.
fn is_text(shape: &Shape) -> bool {
    matches!(shape, Shape::Text | Shape::Symbol | Shape::SymbolText)
}

/// Puts a value that was recorded behind those of a record.
fn put(shape: &Shape, value: Option<&Value>, record: &mut Vec<u8>) {
    let Some(value) = value else { return Plain::Missing.put(record) };
    if is_text(shape) {
        return match value {
            Value::String(text) if *shape == Shape::SymbolText => {
                Plain::Text(text.trim_matches('"').as_bytes()).put(record)
            }
            Value::String(text) => Plain::Text(text.as_bytes()).put(record),
            Value::Object(object) => {
                let bytes = object.get("bytes").and_then(Value::as_str).and_then(unhex);
                let text = object.get("text").and_then(Value::as_str);
                match (bytes, text) {
                    (Some(bytes), _) => Plain::Text(&bytes).put(record),
                    (None, Some(text)) => Plain::Text(text.as_bytes()).put(record),
                    (None, None) => Plain::Missing.put(record),
                }
            }
            _ => Plain::Missing.put(record),
        };
    }
    number(shape, value).map_or(Plain::Missing, Plain::Number).put(record);
}

/// The number that was recorded as `value`; `None` for what names no number.
fn number(shape: &Shape, value: &Value) -> Option<u64> {
    match (shape, value) {
        (Shape::BitField { low, width, of }, value) => {
            let mask = u64::MAX.checked_shr(64 - u32::from(*width)).unwrap_or(0);
            (number(of, value)? & mask).checked_shl((*low).into())
        }
        (_, Value::Number(number)) => number.as_u64().or_else(|| Some(number.as_i64()?.cast_unsigned())),
        (_, Value::Bool(value)) => Some((*value).into()),
        (Shape::Pointer(_), Value::Null) => Some(0),
        (Shape::Pointer(_), Value::Object(object)) => address::parse(object.get("pointer")?.as_str()?),
        (Shape::Enum(names), Value::String(text)) => match names.iter().find(|(_, name)| name == text) {
            Some((number, _)) => Some(number.cast_unsigned()),
            None => Some(text.parse::<i64>().ok()?.cast_unsigned()),
        },
        (Shape::Flags(flags), Value::String(text)) => text.split('|').try_fold(0, |all, name| {
            let flag = flags.iter().find(|flag| flag.name == name).map(|flag| flag.value);
            Some(all | flag.or_else(|| address::parse(name))?)
        }),
        (Shape::Octal, Value::String(text)) => u64::from_str_radix(text.strip_prefix("0o")?, 8).ok(),
        (Shape::Char, Value::String(text)) => {
            let c = text.strip_prefix('\'')?.strip_suffix('\'')?;
            match c.strip_prefix("\\x") {
                Some(digits) if c.len() == 4 => u64::from_str_radix(digits, 16).ok(),
                _ => Some(u32::from(c.chars().next()?).into()),
            }
        }
        // An error has its number before its name.
        (Shape::Pointer(_), Value::String(text)) => address::parse(text)
            .or_else(|| Some(text.split(' ').next()?.parse::<i64>().ok()?.cast_unsigned())),
        (_, Value::String(text)) => address::parse(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Line, Reader, example};
    use probe_engine::capture::names;
    use probe_engine::capture::{shape::Flag, shown::Shown};

    /// The places of the hits that are left of `recording`, and why the filter applies to no probe.
    fn left(recording: &str, filter: &str) -> (Vec<String>, Option<String>) {
        let mut reader = Reader::open(recording.as_bytes()).unwrap();
        reader.filter(Filter::parse(filter).unwrap());
        let mut left = Vec::new();
        while let Some(line) = reader.next().unwrap() {
            if let Line::Hit(hit) = line {
                left.push(reader.probe(hit.event.probe.0).unwrap().place.clone());
            }
        }
        (left, reader.filter_failure().map(ToString::to_string))
    }

    #[test]
    fn hits_are_chosen_by_what_was_recorded() {
        const OPEN: &str = "do_sys_openat2";
        for (filter, expected) in [
            ("dfd == -100", &[OPEN][..]),
            ("filename ~ \"/etc/*\" && comm == \"head\"", &[OPEN]),
            ("filename == \"/etc/group\"", &[]),
            ("common_pid == 135", &[OPEN, "vfs_read"]),
            ("return < 0", &["vfs_read"]),
            ("cpu > 0", &[]),
            ("probe ~ \"vfs_*\"", &["vfs_read"]),
            ("rule == \"secrets\"", &[]),
        ] {
            let expected = expected.iter().map(|place| (*place).to_owned()).collect();
            assert_eq!(left(example("json"), filter), (expected, None), "{filter}");
        }
    }

    #[test]
    fn an_address_with_a_symbol_is_compared_as_the_text_that_was_recorded() {
        for (shape, value) in [("Symbol", "vfs_read+0x4/0x370"), ("SymbolText", "\\\"vfs_read+0x4/0x370\\\"")]
        {
            let recording = example("json")
                .replace(
                    "\"name\":\"dfd\",\"type\":\"s32\",\"shape\":\"Signed\"",
                    &format!("\"name\":\"dfd\",\"type\":\"s32\",\"shape\":\"{shape}\""),
                )
                .replace("\"dfd\":-100", &format!("\"dfd\":\"{value}\""));
            assert_eq!(left(&recording, "dfd ~ \"vfs_read+*\"").0.len(), 1, "{shape}");
            assert_eq!(left(&recording, "dfd == \"vfs_read+0x4/0x370\"").0.len(), 1, "{shape}");
        }
    }

    #[test]
    fn a_filter_that_applies_to_no_probe_is_a_mistake() {
        for (filter, expected) in [
            ("nothing == 1", "there is no field `nothing`"),
            ("dfd == \"a\"", "`dfd` is a number"),
            ("filename.ustring == \"a\"", "`filename` is no address that a string could lie at"),
        ] {
            let (left, failure) = left(example("json"), filter);
            assert!(
                left.is_empty() && failure.as_ref().is_some_and(|text| text.contains(expected)),
                "{failure:?}"
            );
        }
    }

    #[test]
    fn numbers_are_those_that_were_shown() {
        let flag = |mask, value, name: &str| Flag { mask, value, name: name.to_owned() };
        let bits = |of| Shape::BitField { low: 3, width: 5, of: Box::new(of) };
        for (shape, bytes, expected) in [
            (Shape::Unsigned, u64::MAX, u64::MAX),
            (Shape::Signed, u64::MAX, u64::MAX),
            (Shape::Result, u64::MAX - 1, u64::MAX - 1),
            (Shape::Octal, 0o644, 0o644),
            (Shape::Hex, 0xfe, 0xfe),
            (Shape::Bool, 7, 1),
            (Shape::Char, 0x5c, 0x5c),
            (Shape::Char, 7, 7),
            (Shape::Enum(vec![(-1, "MINUS".to_owned())]), u64::MAX, u64::MAX),
            (Shape::Enum(vec![(-1, "MINUS".to_owned())]), 5, 5),
            (Shape::Flags(vec![flag(3, 1, "WO"), flag(4, 4, "ONE")]), 0x85, 0x85),
            (Shape::Flags(vec![flag(3, 0, "RO")]), 0, 0),
            (Shape::Pointer(None), 0, 0),
            (Shape::Pointer(None), 0x1000, 0x1000),
            (Shape::Pointer(None), u64::MAX - 1, u64::MAX - 1),
            (bits(Shape::Unsigned), 0xfa, 0xf8),
            (bits(Shape::Signed), 0xfa, 0xf8),
        ] {
            let bytes = bytes.to_le_bytes();
            let value = probe_engine::capture::Value::Bytes(&bytes);
            let json = serde_json::to_value(Shown { shape: &shape, value, names: &names::none }).unwrap();
            assert_eq!(number(&shape, &json), Some(expected), "{shape:?} {json}");
        }
    }
}
