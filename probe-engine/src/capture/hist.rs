//! What a histogram counts hits by: a plan, as plain data, and how its keys are grouped and shown.

use super::filter::{Is, Operand};
use super::names::Names;
use super::shape::Shape;
use super::shown::Shown;
use super::value::Value;
use crate::addr::Gva;
use crate::guest_text::Escaped;
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use syscalls::x86_64::Sysno;

/// Most bytes of a text that tell one key from another (the kernel's MAX_FILTER_STR_VAL).
const LONGEST_TEXT: usize = 256;

/// What is counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// All of it in the language of definitions, with what was left out.
    pub said: String,
    /// By what hits are told apart.
    pub keys: Vec<Key>,
    /// What is summed up besides their number.
    pub values: Vec<Summed>,
    /// In what order the lines come.
    pub sort: Vec<Sort>,
    /// How many different keys are kept.
    pub size: u32,
}

/// By what hits are told apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// What it is called.
    pub name: String,
    /// Where it comes from.
    pub operand: Operand,
    /// How it is grouped and shown.
    pub form: Form,
}

/// How a key is grouped and shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// A text.
    Text,
    /// A number, as the field is shown.
    Number(Shape),
    /// A number in hexadecimal.
    Hex,
    /// An address as its symbol.
    Symbol,
    /// An address as its symbol, and how far behind that it is.
    SymbolOffset,
    /// The number of a system call, and its name.
    SystemCall,
    /// The number of a thread, and its name.
    Process,
    /// Up to this power of two.
    Log2,
    /// So many numbers side by side.
    Buckets(u64),
}

/// What is summed up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summed {
    /// What it is called.
    pub name: String,
    /// Where it comes from.
    pub operand: Operand,
}

/// One key of the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sort {
    /// By what.
    pub by: By,
    /// The greatest come first.
    pub descending: bool,
}

/// By what lines are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// By the number of hits.
    Hits,
    /// By a key.
    Key(u8),
    /// By a sum.
    Value(u8),
}

/// What a key was at a hit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum KeyValue {
    /// It could not be read.
    Missing,
    Number(i128),
    Text(Box<[u8]>),
}

impl Form {
    /// What is the same for all hits that are counted together.
    pub(super) fn group(&self, is: Option<Is<'_>>) -> KeyValue {
        match (is, self) {
            (None, _) => KeyValue::Missing,
            (Some(Is::Text(text)), _) => KeyValue::Text(text.get(..LONGEST_TEXT).unwrap_or(text).into()),
            (Some(Is::Number(number)), Self::Log2) => KeyValue::Number(power(number as u64).into()),
            (Some(Is::Number(number)), Self::Buckets(width)) => {
                let width = i128::from(*width).max(1);
                KeyValue::Number(number.div_euclid(width) * width)
            }
            (Some(Is::Number(number)), _) => KeyValue::Number(number),
        }
    }

    /// The least and the greatest number that are counted together as `number`.
    fn range(&self, number: i128) -> Option<(i128, i128)> {
        match self {
            Self::Log2 => {
                let most = 1_i128.checked_shl(u32::try_from(number).ok()?)?;
                Some((if number == 0 { 0 } else { most / 2 + 1 }, most))
            }
            Self::Buckets(width) => Some((number, number + i128::from(*width).max(1) - 1)),
            _ => None,
        }
    }
}

/// The power of two that a number goes up to, as the kernel has it: 3 and 4 are below 2^2.
fn power(number: u64) -> u32 {
    number.saturating_sub(1).checked_ilog2().map_or(0, |below| below + 1)
}

/// A key with what it was: a part of a line as the kernel writes it (`hist_trigger_print_key`), and of a JSON object.
pub(super) struct ShownKey<'a> {
    pub(super) key: &'a Key,
    pub(super) part: &'a KeyValue,
    /// The name of the thread.
    pub(super) comm: &'a [u8],
    pub(super) names: Names<'a>,
}

impl ShownKey<'_> {
    /// `vfs_read+0x1a/0x300 [module]`, or without the numbers.
    fn symbol(&self, at: u64) -> String {
        let Some(name) = (self.names)(Gva(at)) else { return format!("{at:#x}") };
        match (name.split_once('+'), &self.key.form) {
            (Some((symbol, rest)), Form::Symbol) => {
                let module = rest.split_once(' ').map(|(_, module)| format!(" {module}"));
                format!("{symbol}{}", module.unwrap_or_default())
            }
            _ => name,
        }
    }

    /// As its field is shown, without a value yet.
    fn shown(&self) -> Shown<'_> {
        let shape = match &self.key.form {
            Form::Number(shape) => shape,
            _ => &Shape::Unsigned,
        };
        Shown { shape, value: Value::Missing, names: self.names }
    }
}

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.key.name)?;
        let number = match self.part {
            KeyValue::Missing => return write!(f, "{:>10}", "(missing)"),
            KeyValue::Text(bytes) => return write!(f, "{:<50}", Escaped(bytes).to_string()),
            KeyValue::Number(number) => *number,
        };
        let bits = number as u64;
        match &self.key.form {
            Form::Text | Form::Number(_) => {
                let shown = Shown { value: Value::Bytes(&bits.to_le_bytes()), ..self.shown() }.to_string();
                write!(f, "{shown:>10}")
            }
            Form::Hex => write!(f, "{bits:x}"),
            Form::Symbol => write!(f, "[{bits:x}] {:<45}", self.symbol(bits)),
            Form::SymbolOffset => write!(f, "[{bits:x}] {:<55}", self.symbol(bits)),
            Form::SystemCall => write!(f, "{:<30}[{bits:>3}]", system_call(bits)),
            Form::Process => write!(f, "{:<16}[{bits:>10}]", Escaped(self.comm).to_string()),
            Form::Log2 => write!(f, "~ 2^{bits:<2}"),
            Form::Buckets(_) => {
                let (least, most) = self.key.form.range(number).unwrap_or((number, number));
                write!(f, "~ {least}-{most}")
            }
        }
    }
}

impl Serialize for ShownKey<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = match self.part {
            KeyValue::Missing => return serializer.serialize_none(),
            KeyValue::Text(bytes) => return serializer.serialize_str(&String::from_utf8_lossy(bytes)),
            KeyValue::Number(number) => *number,
        };
        let bits = number as u64;
        let shown = match &self.key.form {
            Form::Text | Form::Number(_) => {
                return Shown { value: Value::Bytes(&bits.to_le_bytes()), ..self.shown() }
                    .serialize(serializer);
            }
            Form::Hex => KeyJson::Text(format!("{bits:#x}")),
            Form::Symbol | Form::SymbolOffset => KeyJson::Text(self.symbol(bits)),
            Form::SystemCall => KeyJson::SystemCall { name: system_call(bits), number: bits },
            Form::Process => KeyJson::Process { comm: String::from_utf8_lossy(self.comm), pid: bits },
            Form::Log2 | Form::Buckets(_) => {
                let (from, to) = self.key.form.range(number).unwrap_or((number, number));
                KeyJson::Range { from, to }
            }
        };
        shown.serialize(serializer)
    }
}

/// A key that is no plain number or text.
#[derive(Serialize)]
#[serde(untagged)]
enum KeyJson<'a> {
    Text(String),
    SystemCall { name: &'static str, number: u64 },
    Process { comm: Cow<'a, str>, pid: u64 },
    Range { from: i128, to: i128 },
}

/// The name of a system call of x86-64.
fn system_call(number: u64) -> &'static str {
    let known = usize::try_from(number).ok().and_then(Sysno::new);
    known.map_or("unknown_syscall", |known| known.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_the_kernel() {
        let powers = [0, 1, 2, 3, 4, 5, 8, 9, 1 << 63, u64::MAX].map(power);
        assert_eq!(powers, [0, 0, 1, 2, 2, 3, 3, 4, 63, 64]);
        let ranges = [0, 1, 2, 3].map(|power| Form::Log2.range(power));
        assert_eq!(ranges, [Some((0, 1)), Some((2, 2)), Some((3, 4)), Some((5, 8))]);
        assert_eq!(Form::Log2.range(64), Some(((1 << 63) + 1, 1 << 64)));
    }

    #[test]
    fn buckets_hold_so_many_numbers() {
        let bucket = |number| Form::Buckets(10).group(Some(Is::Number(number)));
        assert_eq!([-11, -1, 0, 9, 10].map(bucket), [-20, -10, 0, 0, 10].map(KeyValue::Number));
        assert_eq!(Form::Buckets(10).range(-20), Some((-20, -11)));
        let widest = Form::Buckets(u64::MAX);
        assert_eq!(widest.group(Some(Is::Number(u64::MAX.into()))), KeyValue::Number(u64::MAX.into()));
    }

    #[test]
    fn keys_are_shown_as_the_kernel_shows_them() {
        let names = |at: Gva| match at.0 {
            0x10 => Some("vfs_read+0x8/0x40".to_owned()),
            0x20 => Some("ext4_read+0x8/0x40 [ext4]".to_owned()),
            _ => None,
        };
        let shown = |form: Form, part: KeyValue| {
            let key = Key { name: "k".to_owned(), operand: Operand::Ip, form };
            let shown = ShownKey { key: &key, part: &part, comm: b"cat", names: &names };
            (shown.to_string().trim_end().to_owned(), serde_json::to_string(&shown).unwrap())
        };
        let number = KeyValue::Number;
        for (form, part, text, json) in [
            (Form::Number(Shape::Signed), number(-2), "k:         -2", "-2"),
            (
                Form::Number(Shape::Unsigned),
                number(u64::MAX.into()),
                "k: 18446744073709551615",
                "18446744073709551615",
            ),
            (Form::Number(Shape::Hex), number(16), "k:       0x10", r#""0x10""#),
            (Form::Hex, number(-1), "k: ffffffffffffffff", r#""0xffffffffffffffff""#),
            (Form::Text, KeyValue::Text(b"a\nb".as_slice().into()), "k: a\\nb", r#""a\nb""#),
            (Form::Text, KeyValue::Missing, "k:  (missing)", "null"),
            (Form::Symbol, number(0x10), "k: [10] vfs_read", r#""vfs_read""#),
            (Form::Symbol, number(0x20), "k: [20] ext4_read [ext4]", r#""ext4_read [ext4]""#),
            (Form::SymbolOffset, number(0x10), "k: [10] vfs_read+0x8/0x40", r#""vfs_read+0x8/0x40""#),
            (Form::Symbol, number(0x30), "k: [30] 0x30", r#""0x30""#),
            (
                Form::SystemCall,
                number(257),
                "k: openat                        [257]",
                r#"{"name":"openat","number":257}"#,
            ),
            (
                Form::SystemCall,
                number(9999),
                "k: unknown_syscall               [9999]",
                r#"{"name":"unknown_syscall","number":9999}"#,
            ),
            (Form::Process, number(7), "k: cat             [         7]", r#"{"comm":"cat","pid":7}"#),
            (Form::Log2, number(3), "k: ~ 2^3", r#"{"from":5,"to":8}"#),
            (Form::Buckets(10), number(20), "k: ~ 20-29", r#"{"from":20,"to":29}"#),
        ] {
            assert_eq!(shown(form, part), (text.to_owned(), json.to_owned()));
        }
    }
}
