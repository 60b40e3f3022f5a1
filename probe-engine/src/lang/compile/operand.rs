//! What the names in filters and histograms mean.

use crate::capture::Field;
use crate::capture::filter::Operand;
use crate::capture::shape::Shape;

/// What an operand is.
pub(super) enum Class {
    /// A number, and how it is shown.
    Number(Shape),
    Text,
}

/// What `name` means where these fields are read; `None` for what is neither number nor text, and for what is not
/// known at a hit.
pub(super) fn operand(name: &str, fields: &[Field]) -> Option<(Operand, Class)> {
    if let Some((index, field)) = fields.iter().enumerate().find(|(_, field)| field.name == name) {
        return Some((Operand::Field(u16::try_from(index).ok()?), class(&field.shape)?));
    }
    Some(match name {
        "common_pid" => (Operand::Pid, Class::Number(Shape::Unsigned)),
        "common_cpu" | "cpu" | "CPU" => (Operand::Cpu, Class::Number(Shape::Unsigned)),
        "comm" | "COMM" => (Operand::Comm, Class::Text),
        "__probe_ip" | "__probe_ret_ip" => (Operand::Ip, Class::Number(Shape::Hex)),
        _ => return None,
    })
}

pub(super) fn class(shape: &Shape) -> Option<Class> {
    match shape {
        Shape::Text => Some(Class::Text),
        Shape::Struct { .. } | Shape::Array { .. } => None,
        // What a pointer leads to is no part of the number.
        Shape::Pointer(_) => Some(Class::Number(Shape::Pointer(None))),
        Shape::BitField { of, .. } => class(of),
        shape => Some(Class::Number(shape.clone())),
    }
}
