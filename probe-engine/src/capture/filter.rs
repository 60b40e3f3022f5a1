//! Which hits count: a condition on what was read.

use super::Capture;
use super::field::Field;
use super::shape::{Shape, up_to_nul};
use super::value::{Value, Values};
use crate::linux::glob::Glob;
use crate::linux::task::Task;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Filter {
    /// All of them.
    All(Vec<Filter>),
    /// One of them at least.
    Any(Vec<Filter>),
    /// Not this one.
    Not(Box<Filter>),
    /// A comparison. One with what could not be read does not hold, whichever it is.
    Test(Operand, Test),
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operand {
    /// Field `n` of the capture, where those that are [hidden](super::Capture::hidden) come behind the others.
    Field(u16),
    /// The pid of the thread that runs, as the kernel's events have it.
    Pid,
    /// The name of the task that runs.
    Comm,
    /// The vCPU.
    Cpu,
    /// The address of the probe.
    Ip,
}

/// How.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Test {
    /// With a number.
    Number(Order, i128),
    /// Any of these bits is set.
    Bits(u64),
    /// With a string: whether it is equal.
    Text(bool, String),
    /// With a pattern.
    Glob(Glob),
    /// Is in one of these ranges.
    Among(Vec<Range<u32>>),
}

/// How numbers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they say it")]
pub enum Order {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// What a condition can ask about besides fields.
#[derive(Clone, Copy)]
pub struct Circumstances<'a> {
    /// The vCPU.
    pub cpu: usize,
    /// The task that runs.
    pub task: Option<&'a Task>,
    /// RIP.
    pub ip: u64,
}

/// Deepest nesting that is looked at; [compiling](crate::lang) stays below it.
const DEEPEST: usize = 128;

impl Filter {
    /// Whether a hit counts at which `capture` has read these values, hidden ones as well.
    #[must_use]
    pub fn passes(&self, capture: &Capture, values: Values<'_>, at: &Circumstances<'_>) -> bool {
        self.holds(capture, values, at, DEEPEST)
    }

    /// Whether it compares `operand`. One that is nested too deep may.
    pub(super) fn asks(&self, operand: Operand) -> bool {
        self.asks_within(operand, DEEPEST)
    }

    fn asks_within(&self, operand: Operand, depth: usize) -> bool {
        match self {
            _ if depth == 0 => true,
            Self::All(filters) | Self::Any(filters) => {
                filters.iter().any(|filter| filter.asks_within(operand, depth - 1))
            }
            Self::Not(filter) => filter.asks_within(operand, depth - 1),
            Self::Test(own, _) => *own == operand,
        }
    }

    fn holds(&self, capture: &Capture, values: Values<'_>, at: &Circumstances<'_>, depth: usize) -> bool {
        if depth == 0 {
            return false;
        }
        let inner = |filter: &Self| filter.holds(capture, values, at, depth - 1);
        match self {
            Self::All(filters) => filters.iter().all(inner),
            Self::Any(filters) => filters.iter().any(inner),
            Self::Not(filter) => !inner(filter),
            Self::Test(operand, test) => {
                operand.at(|n| capture.field(n), values, at).and_then(|is| test.meets(is)).unwrap_or(false)
            }
        }
    }
}

/// What an operand is at a hit.
#[derive(Clone, Copy)]
pub(super) enum Is<'a> {
    Number(i128),
    Text(&'a [u8]),
}

impl Operand {
    /// What it is at this hit; `None` for what could not be read.
    pub(super) fn at<'a>(
        self,
        field: impl Fn(u16) -> Option<&'a Field>,
        mut values: Values<'a>,
        at: &Circumstances<'a>,
    ) -> Option<Is<'a>> {
        Some(match self {
            Self::Field(n) => {
                let (field, value) = (field(n)?, values.nth(usize::from(n))?);
                match (&field.shape, value) {
                    (Shape::Text, Value::Bytes(bytes)) => Is::Text(up_to_nul(bytes)),
                    (Shape::Text, value) => Is::Text(value.text()?),
                    (shape, value) => Is::Number(number(shape, &value)?),
                }
            }
            Self::Pid => Is::Number(at.task?.pid.into()),
            Self::Cpu => Is::Number(at.cpu as i128),
            Self::Ip => Is::Number(at.ip.into()),
            Self::Comm => Is::Text(at.task?.comm()),
        })
    }
}

/// A value as a number, with or without sign as its shape says.
fn number(shape: &Shape, value: &Value<'_>) -> Option<i128> {
    match shape {
        Shape::Signed | Shape::Result | Shape::Enum(_) => value.signed().map(i128::from),
        Shape::BitField { low, width, of } => {
            let unused = 64 - u32::from(*width).clamp(1, 64);
            let top = value.number()?.checked_shr(u32::from(*low))? << unused;
            Some(match **of {
                Shape::Signed | Shape::Enum(_) | Shape::Result => (top.cast_signed() >> unused).into(),
                _ => (top >> unused).into(),
            })
        }
        _ => value.number().map(i128::from),
    }
}

impl Test {
    fn meets(&self, is: Is<'_>) -> Option<bool> {
        match is {
            Is::Number(number) => self.number(number),
            Is::Text(text) => self.text(text),
        }
    }

    fn number(&self, is: i128) -> Option<bool> {
        Some(match self {
            Self::Number(order, than) => match order {
                Order::Equal => is == *than,
                Order::NotEqual => is != *than,
                Order::Less => is < *than,
                Order::LessOrEqual => is <= *than,
                Order::Greater => is > *than,
                Order::GreaterOrEqual => is >= *than,
            },
            Self::Bits(bits) => is as u64 & bits != 0,
            Self::Among(ranges) => {
                let is = u32::try_from(is).ok()?;
                ranges.iter().any(|range| range.contains(&is))
            }
            Self::Text(..) | Self::Glob(_) => return None,
        })
    }

    fn text(&self, is: &[u8]) -> Option<bool> {
        match self {
            Self::Text(equal, text) => Some((is == text.as_bytes()) == *equal),
            Self::Glob(glob) => Some(glob.matches_bytes(is)),
            _ => None,
        }
    }
}
