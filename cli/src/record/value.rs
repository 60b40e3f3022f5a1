//! A value that was recorded, as text: what [`Shown`](probe_engine::capture::shape::Shown) has written as JSON is shown as
//! it shows it.

use super::address;
use super::bounded::MOST_OF_A_HIT;
use super::task::unhex;
use probe_engine::capture::names::{errno, errno_of};
use probe_engine::capture::shape::Shape;
use probe_engine::capture::shown::DEEPEST;
use probe_engine::guest_text::Quoted;
use serde_json::{Map, Value};
use std::fmt;

/// A value, and how it is shown. What is not as the shape would have written it is shown as JSON.
#[derive(Clone, Copy)]
pub(crate) struct Recorded<'a> {
    pub(crate) shape: &'a Shape,
    /// `None` is shown as missing.
    pub(crate) value: Option<&'a Value>,
}

impl fmt::Display for Recorded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text(f, DEEPEST)
    }
}

impl<'a> Recorded<'a> {
    fn of(shape: &'a Shape, value: Option<&'a Value>) -> Self {
        Self { shape, value }
    }

    fn text(self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        if depth == 0 {
            return f.write_str("...");
        }
        let Some(value) = self.value else { return f.write_str("(missing)") };
        if let Value::Object(object) = value {
            if is_missing(object) {
                return f.write_str("(missing)");
            }
            // Deeper than is shown.
            if object.len() == 1 && object.get("more") == Some(&Value::Bool(true)) {
                return f.write_str("...");
            }
            if is_fault(object) {
                return f.write_str("(fault)");
            }
        }
        match (self.shape, value) {
            (Shape::Struct { members, more }, Value::Object(object)) => {
                let mut comma = "";
                f.write_str("{")?;
                for member in members {
                    write!(f, "{comma}{}=", member.name)?;
                    Self::of(&member.shape, object.get(&member.name)).text(f, depth - 1)?;
                    comma = ", ";
                }
                write!(f, "{}}}", if *more { "..." } else { "" })
            }
            (Shape::Array { of, .. }, Value::Array(elements)) => {
                let mut comma = "";
                f.write_str("{")?;
                for element in elements {
                    f.write_str(comma)?;
                    Self::of(of, Some(element)).text(f, depth - 1)?;
                    comma = ",";
                }
                f.write_str("}")
            }
            (Shape::BitField { of, .. }, value) => Self::of(of, Some(value)).text(f, depth - 1),
            (Shape::Text | Shape::Pointer(_), Value::Null) => f.write_str("NULL"),
            (Shape::Text, Value::String(text)) => {
                write!(f, "{}", Quoted { text: text.as_bytes(), cut: false })
            }
            (Shape::Text, Value::Object(object)) => match object.get("pointer") {
                Some(Value::String(at)) => write!(f, "{at} (not present)"),
                _ => text_of(f, object),
            },
            (Shape::Pointer(Some(to)), Value::Object(object)) => pointer(f, to, object, depth),
            (Shape::Result, Value::Number(number)) => {
                write!(f, "{number}")?;
                match number.as_i64().and_then(errno) {
                    Some(name) => write!(f, " ({name})"),
                    None => Ok(()),
                }
            }
            (_, Value::String(text)) => f.write_str(text),
            (_, value) => write!(f, "{}", value),
        }
    }
}

fn is_fault(object: &Map<String, Value>) -> bool {
    object.len() == 1 && object.get("fault").is_some_and(Value::is_string)
}

fn is_missing(object: &Map<String, Value>) -> bool {
    object.len() == 1 && object.get("missing") == Some(&Value::Bool(true))
}

/// A string that was cut, or is no UTF-8.
fn text_of(f: &mut fmt::Formatter<'_>, object: &Map<String, Value>) -> fmt::Result {
    let text = object.get("text").and_then(Value::as_str).unwrap_or_default();
    let bytes = object.get("bytes").and_then(Value::as_str);
    // No hit has more, and each of its fields may ask for the same ones.
    let bytes = bytes.filter(|digits| digits.len() <= MOST_OF_A_HIT).and_then(unhex);
    let cut = object.get("cut") == Some(&Value::Bool(true));
    write!(f, "{}", Quoted { text: bytes.as_deref().unwrap_or(text.as_bytes()), cut })
}

/// A pointer that is not NULL, and what it leads to.
fn pointer(f: &mut fmt::Formatter<'_>, to: &Shape, object: &Map<String, Value>, depth: usize) -> fmt::Result {
    let at = object.get("pointer").and_then(Value::as_str).unwrap_or_default();
    match object.get("to") {
        Some(Value::Object(to)) if is_fault(to) => {
            match address::parse(at).and_then(|at| Some((at, errno_of(at)?))) {
                Some((at, name)) => write!(f, "{} ({name})", at.cast_signed()),
                None => write!(f, "{at} (not present)"),
            }
        }
        Some(Value::Object(to)) if is_missing(to) => write!(f, "{at} (missing)"),
        value => Recorded::of(to, value).text(f, depth - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::capture::{Value as Captured, Values};
    use probe_engine::capture::{
        shape::{Flag, MemberShape},
        shown::Shown,
    };
    use proptest::prelude::*;

    fn shapes() -> Vec<Shape> {
        let flag = |mask, value, name: &str| Flag { mask, value, name: name.to_owned() };
        let member =
            |name: &str, offset, len, shape| MemberShape { name: name.to_owned(), offset, len, shape };
        let bits = |of| Shape::BitField { low: 3, width: 5, of: Box::new(of) };
        let array = |of| Shape::Array { count: 3, of: Box::new(of) };
        let names = Shape::Enum(vec![(-1, "MINUS".to_owned()), (2, "TWO".to_owned())]);
        let flags = Shape::Flags(vec![flag(3, 1, "WO"), flag(4, 4, "ONE")]);
        let structure = |more| Shape::Struct {
            members: vec![
                member("x", 0, 1, Shape::Unsigned),
                member("name", 1, 4, Shape::Text),
                member("next", 2, 8, Shape::Pointer(None)),
            ],
            more,
        };
        let mut all = vec![
            Shape::Unsigned,
            Shape::Signed,
            Shape::Octal,
            Shape::Hex,
            Shape::Bool,
            Shape::Char,
            Shape::Symbol,
            Shape::SymbolText,
            names,
            flags,
            Shape::Result,
            Shape::Pointer(None),
            Shape::Text,
            structure(true),
            structure(false),
        ];
        all.extend([Shape::Signed, Shape::Unsigned, Shape::Bool].map(bits));
        all.extend([Shape::Text, Shape::Unsigned, structure(true)].map(array));
        let pointers = all.iter().map(|shape| Shape::Pointer(Some(Box::new(shape.clone()))));
        all.extend(pointers.collect::<Vec<_>>());
        all
    }

    /// Values as a hit records them: missing, bytes, a string, a string that was cut, strings, a pointer, a fault.
    fn values() -> impl Strategy<Value = Vec<u8>> {
        let bytes = |tag: u8, most: usize| {
            proptest::collection::vec(any::<u8>(), 0..most)
                .prop_map(move |bytes| [&[tag, bytes.len() as u8, 0][..], &bytes].concat())
        };
        let address = |tag: u8| {
            prop_oneof![Just(0), Just(u64::MAX - 1), any::<u64>()]
                .prop_map(move |at: u64| [&[tag][..], &at.to_le_bytes()].concat())
        };
        let plain = prop_oneof![
            Just(vec![0]),
            bytes(1, 12),
            Just(vec![1, 8, 0, 0xfe, 255, 255, 255, 255, 255, 255, 255]),
            bytes(2, 6),
            bytes(3, 6),
            address(6),
        ];
        let strings = proptest::collection::vec(plain.clone(), 0..4)
            .prop_map(|all| [&[4, all.len() as u8, 0][..], &all.concat()].concat());
        // NULL leads nowhere.
        let pointer =
            (address(5), plain.clone()).prop_map(|(pointer, to)| match pointer.ends_with(&[0; 8]) {
                true => [pointer, vec![0]].concat(),
                false => [pointer, to].concat(),
            });
        prop_oneof![plain, strings, pointer]
    }

    proptest! {
        #[test]
        fn what_was_recorded_is_shown_as_it_was_seen(record in values()) {
            let names = |at: Gva| at.0.is_multiple_of(2).then(|| "vfs_read+0x4/0x370".to_owned());
            for shape in &shapes() {
                let value = Values::of(&record).next().unwrap();
                let shown = Shown { shape, value, names: &names };
                let is_pointer = matches!(shape, Shape::Pointer(Some(_))) && matches!(value, Captured::Pointer { .. });
                // No hit reads a target that its shape cannot show.
                if is_pointer && shown.to_string() == "(missing)" {
                    continue;
                }
                let json = serde_json::to_string(&shown).unwrap();
                let value = serde_json::from_str::<Value>(&json).unwrap();
                let recorded = Recorded { shape, value: Some(&value) }.to_string();
                prop_assert_eq!(&recorded, &shown.to_string(), "{:?} {} {:?}", shape, json, record);
            }
        }
    }
}
