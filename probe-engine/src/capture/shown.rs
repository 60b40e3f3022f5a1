//! A value is shown: as text for people, or as JSON.

use super::names::{self, Names};
use super::shape::{Flag, MemberShape, Shape, up_to_nul};
use super::value::Value;
use crate::addr::Gva;
use crate::guest_text::Quoted;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt::{self, Write};

/// A value with its shape: displayed as text, serialised as JSON would have it.
///
/// With the shape, the JSON has all that the text shows: a NULL pointer is `null`; what is no number, truth, string, list or
/// structure of its own is an object, of which `docs/recording.md` has the list.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    /// How.
    pub shape: &'a Shape,
    /// What.
    pub value: Value<'a>,
    /// The symbols at addresses.
    pub names: Names<'a>,
}

/// Most structures and arrays in each other that are shown.
pub const DEEPEST: usize = 8;

impl<'a> Shown<'a> {
    fn of(self, shape: &'a Shape, value: Value<'a>) -> Self {
        Self { shape, value, names: self.names }
    }

    /// A part of a structure's or an array's bytes.
    fn part(self, shape: &'a Shape, at: usize, len: usize) -> Self {
        let value = match self.value {
            Value::Bytes(bytes) => {
                at.checked_add(len).and_then(|end| bytes.get(at..end)).map_or(Value::Missing, Value::Bytes)
            }
            Value::Fault(at) => Value::Fault(at),
            _ => Value::Missing,
        };
        self.of(shape, value)
    }

    /// The elements of an array.
    fn elements(self, count: u16, of: &'a Shape) -> impl Iterator<Item = Self> {
        let len = match self.value {
            Value::Bytes(bytes) => bytes.len() / usize::from(count.max(1)),
            _ => 0,
        };
        let texts = match self.value {
            Value::Texts(texts) => Some(texts),
            _ => None,
        };
        let parts = (0..usize::from(count))
            .map(move |n| self.part(of, n * len, len))
            .filter(move |_| texts.is_none());
        parts.chain(texts.into_iter().flatten().map(move |text| self.of(of, text)))
    }

    fn members(self, members: &'a [MemberShape]) -> impl Iterator<Item = (&'a str, Self)> {
        members.iter().map(move |member| {
            let part = self.part(&member.shape, usize::from(member.offset), usize::from(member.len));
            (member.name.as_str(), part)
        })
    }

    /// What a pointer leads to.
    fn pointee(self, shape: &'a Shape) -> Option<Self> {
        match self.value {
            Value::Pointer { mut to, .. } => {
                let value = to.next().filter(|value| *value != Value::Missing)?;
                Some(self.of(shape, value))
            }
            _ => None,
        }
    }

    fn text(self, f: &mut impl Write, depth: usize) -> fmt::Result {
        if depth == 0 {
            return f.write_str("...");
        }
        match (self.shape, self.value) {
            (_, Value::Missing) => return f.write_str("(missing)"),
            (_, Value::Fault(_)) => return f.write_str("(fault)"),
            (Shape::Struct { members, more }, _) => {
                let mut comma = "";
                f.write_char('{')?;
                for (name, member) in self.members(members) {
                    write!(f, "{comma}{name}=")?;
                    member.text(f, depth - 1)?;
                    comma = ", ";
                }
                return write!(f, "{}}}", if *more { "..." } else { "" });
            }
            (Shape::Array { count, of }, _) => {
                let mut comma = "";
                f.write_char('{')?;
                for element in self.elements(*count, of) {
                    f.write_str(comma)?;
                    element.text(f, depth - 1)?;
                    comma = ",";
                }
                return f.write_char('}');
            }
            (Shape::Text, Value::Pointer { at, .. }) => {
                return match self.pointee(self.shape) {
                    Some(text) if matches!(text.value, Value::Fault(_)) => write!(f, "{at} (not present)"),
                    Some(text) => text.text(f, depth - 1),
                    None if at == Gva(0) => f.write_str("NULL"),
                    None => f.write_str("(missing)"),
                };
            }
            (Shape::Text, Value::Bytes(bytes)) => {
                return write!(f, "{}", Quoted { text: up_to_nul(bytes), cut: false });
            }
            (Shape::Text, Value::Text { bytes, cut }) => return write!(f, "{}", Quoted { text: bytes, cut }),
            (Shape::Pointer(Some(to)), Value::Pointer { at, .. }) => {
                return match self.pointee(to) {
                    Some(pointee) if matches!(pointee.value, Value::Fault(_)) => {
                        self.number(f, at.0)?;
                        f.write_str(if names::errno_of(at.0).is_some() { "" } else { " (not present)" })
                    }
                    Some(pointee) => pointee.text(f, depth - 1),
                    None if at == Gva(0) => f.write_str("NULL"),
                    None => write!(f, "{at} (missing)"),
                };
            }
            (Shape::BitField { low, width, of }, _) => {
                let Some(bytes) = self.value.number().map(|number| cut_out(number, *low, *width, of)) else {
                    return f.write_str("(missing)");
                };
                return self.of(of, Value::Bytes(&bytes)).text(f, depth - 1);
            }
            _ => {}
        }
        match self.value.number() {
            Some(number) => self.number(f, number),
            None => f.write_str("(missing)"),
        }
    }

    /// A number that is no bit-field.
    fn number(self, f: &mut impl Write, number: u64) -> fmt::Result {
        let signed = self.value.signed().unwrap_or_default();
        match self.shape {
            Shape::Unsigned => write!(f, "{number}"),
            Shape::Signed => write!(f, "{signed}"),
            Shape::Octal => write!(f, "{number:#o}"),
            Shape::Bool => write!(f, "{}", number != 0),
            Shape::Char => match char::from(number as u8) {
                c @ ' '..='~' => write!(f, "'{c}'"),
                _ => write!(f, "'\\x{:02x}'", number as u8),
            },
            Shape::SymbolText => match (self.names)(Gva(number)) {
                Some(name) => write!(f, "\"{name}\""),
                None => write!(f, "\"{number:#x}\""),
            },
            Shape::Symbol => match (self.names)(Gva(number)) {
                Some(name) => f.write_str(&name),
                None => write!(f, "{number:#x}"),
            },
            Shape::Enum(names) => {
                match names.iter().find(|(value, _)| *value == signed || *value == number.cast_signed()) {
                    Some((_, name)) => f.write_str(name),
                    None => write!(f, "{signed}"),
                }
            }
            Shape::Flags(flags) => show_flags(f, flags, number),
            Shape::Result => match names::errno(signed) {
                Some(name) => write!(f, "{signed} ({name})"),
                None => write!(f, "{signed}"),
            },
            Shape::Pointer(_) => match (number, names::errno_of(number)) {
                (0, _) => f.write_str("NULL"),
                (_, Some(name)) => write!(f, "{} ({name})", number.cast_signed()),
                (_, None) => write!(f, "{number:#x}"),
            },
            Shape::Hex
            | Shape::Text
            | Shape::BitField { .. }
            | Shape::Array { .. }
            | Shape::Struct { .. } => write!(f, "{number:#x}"),
        }
    }

    fn json<S: Serializer>(self, serializer: S, depth: usize) -> Result<S::Ok, S::Error> {
        if depth == 0 {
            return told(serializer, "more", &true);
        }
        match (self.shape, self.value) {
            (_, Value::Missing) => missing(serializer),
            (_, Value::Fault(at)) => told(serializer, "fault", &at.to_string()),
            (Shape::Struct { members, .. }, _) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, member) in self.members(members) {
                    map.serialize_entry(name, &JsonToDepth(member, depth - 1))?;
                }
                map.end()
            }
            (Shape::Array { count, of }, _) => {
                let mut seq = serializer.serialize_seq(None)?;
                for element in self.elements(*count, of) {
                    seq.serialize_element(&JsonToDepth(element, depth - 1))?;
                }
                seq.end()
            }
            (Shape::Text, Value::Pointer { at, .. }) => match self.pointee(self.shape) {
                Some(text) if matches!(text.value, Value::Fault(_)) => pointer(serializer, at, text, depth),
                Some(text) => text.json(serializer, depth - 1),
                None if at == Gva(0) => serializer.serialize_none(),
                None => missing(serializer),
            },
            (Shape::Text, Value::Bytes(bytes)) => text(serializer, up_to_nul(bytes), false),
            (Shape::Text, Value::Text { bytes, cut }) => text(serializer, bytes, cut),
            (Shape::Pointer(Some(to)), Value::Pointer { at, .. }) => {
                let pointee = self.pointee(to);
                if pointee.is_none() && at == Gva(0) {
                    return serializer.serialize_none();
                }
                pointer(serializer, at, pointee.unwrap_or(self.of(to, Value::Missing)), depth)
            }
            (Shape::BitField { low, width, of }, value) => match value.number() {
                Some(number) => {
                    let bytes = cut_out(number, *low, *width, of);
                    self.of(of, Value::Bytes(&bytes)).json(serializer, depth - 1)
                }
                None => missing(serializer),
            },
            (shape, value) => match (shape, value.number(), value.signed()) {
                (_, None, _) => missing(serializer),
                (Shape::Unsigned, Some(number), _) => serializer.serialize_u64(number),
                (Shape::Signed | Shape::Result, _, Some(number)) => serializer.serialize_i64(number),
                (Shape::Bool, Some(number), _) => serializer.serialize_bool(number != 0),
                (Shape::Pointer(_), Some(0), _) => serializer.serialize_none(),
                _ => {
                    let mut text = String::new();
                    // Writing to a string does not fail.
                    let _ = self.text(&mut text, depth);
                    serializer.serialize_str(&text)
                }
            },
        }
    }
}

/// What could not be read, or had no room.
fn missing<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
    told(serializer, "missing", &true)
}

/// A pointer that is not NULL, and what it leads to.
fn pointer<S: Serializer>(
    serializer: S,
    at: Gva,
    pointee: Shown<'_>,
    depth: usize,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("pointer", &at.to_string())?;
    map.serialize_entry("to", &JsonToDepth(pointee, depth - 1))?;
    map.end()
}

/// An object that tells one thing.
fn told<S: Serializer>(serializer: S, name: &str, value: &impl Serialize) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(name, value)?;
    map.end()
}

/// A string; an object where it was cut, or is no UTF-8.
fn text<S: Serializer>(serializer: S, bytes: &[u8], cut: bool) -> Result<S::Ok, S::Error> {
    let text = String::from_utf8_lossy(bytes);
    let is_exact = matches!(text, Cow::Borrowed(_));
    if is_exact && !cut {
        return serializer.serialize_str(&text);
    }
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("text", &text)?;
    if !is_exact {
        let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        map.serialize_entry("bytes", &bytes)?;
    }
    if cut {
        map.serialize_entry("cut", &true)?;
    }
    map.end()
}

/// Serialises down to a depth.
struct JsonToDepth<'a>(Shown<'a>, usize);

impl Serialize for JsonToDepth<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.json(serializer, self.1)
    }
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json(serializer, DEEPEST)
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text(f, DEEPEST)
    }
}

/// Bits of a number, extended with the highest of them where that is a sign.
fn cut_out(number: u64, low: u8, width: u8, shape: &Shape) -> [u8; 8] {
    let width = u32::from(width).clamp(1, 64);
    let top = number.checked_shr(u32::from(low)).unwrap_or(0) << (64 - width);
    let bits = match shape {
        Shape::Signed | Shape::Enum(_) | Shape::Result => (top.cast_signed() >> (64 - width)).cast_unsigned(),
        _ => top >> (64 - width),
    };
    bits.to_le_bytes()
}

fn show_flags(f: &mut impl Write, flags: &[Flag], number: u64) -> fmt::Result {
    let mut rest = number;
    let mut bar = "";
    // What has several bits comes before those that are among them.
    for flag in flags.iter().filter(|flag| number & flag.mask == flag.value) {
        if flag.value != 0 && rest & flag.value == 0 {
            continue;
        }
        rest &= !flag.mask;
        write!(f, "{bar}{}", flag.name)?;
        bar = "|";
    }
    if rest != 0 || bar.is_empty() { write!(f, "{bar}{rest:#x}") } else { Ok(()) }
}
