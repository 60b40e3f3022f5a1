//! A value that was recorded, as text: what [`Shown`](probe_engine::capture::shape::Shown) has written as JSON is shown as
//! it shows it.

use super::address;
use super::hit::unhex;
use probe_engine::capture::names::{errno, errno_of};
use probe_engine::capture::shape::{DEEPEST, Shape};
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
                Some(Value::String(at)) => write!(f, "{} (not present)", at),
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
    let bytes = object.get("bytes").and_then(Value::as_str).and_then(unhex);
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
                None => write!(f, "{} (not present)", at),
            }
        }
        Some(Value::Object(to)) if is_missing(to) => write!(f, "{} (missing)", at),
        value => Recorded::of(to, value).text(f, depth - 1),
    }
}
