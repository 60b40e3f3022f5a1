//! Definitions as text that reads back as the same.

use super::ast::{
    Argument, Cast, Definition, DefinitionKind, Element, EventName, FetchExpr, FetchType, FilterExpr, Hist,
    KeyExpr, KeyModifier, Literal, Operator, Spanned, Statement, Step, Variable, WrittenPlace,
};
use crate::linux::program_place::InFile;
use std::fmt::{Display, Formatter, Result};

impl<T: Display> Display for Spanned<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.value.fmt(f)
    }
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Define(definition) => definition.fmt(f),
            Self::Remove(name) => write!(f, "-:{name}"),
        }
    }
}

impl Display for EventName {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if let Some(group) = &self.group {
            write!(f, "{group}/")?;
        }
        self.event.iter().try_for_each(|event| event.fmt(f))
    }
}

impl Display for Definition {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self.kind {
            DefinitionKind::Instruction if self.place.value.is_usdt() => "usdt",
            DefinitionKind::Instruction => "p",
            DefinitionKind::Return => "r",
            DefinitionKind::Entry => "f",
            DefinitionKind::Tracepoint => "t",
        })?;
        self.max_active.iter().try_for_each(|number| number.fmt(f))?;
        if self.name.group.is_some() || self.name.event.is_some() {
            write!(f, ":{}", self.name)?;
        }
        write!(f, " {}", self.place)?;
        self.args.iter().try_for_each(|argument| write!(f, " {argument}"))?;
        self.filter.iter().try_for_each(|filter| write!(f, " if {filter}"))?;
        self.hist.iter().try_for_each(|hist| write!(f, " {hist}"))
    }
}

impl WrittenPlace {
    fn is_usdt(&self) -> bool {
        matches!(self, Self::Program { at: InFile::Tracepoint { .. }, .. })
    }
}

impl Display for WrittenPlace {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Address(address) => write!(f, "{address:#x}"),
            Self::Line { of, line } => write!(f, "{of}:{line}"),
            Self::Program { path, at, counter } => {
                write!(f, "{path}:{at}")?;
                counter.iter().try_for_each(|counter| write!(f, "({counter:#x})"))
            }
            Self::Tracepoint { system: None, name } => f.write_str(name),
            Self::Tracepoint { system: Some(system), name } => write!(f, "{system}:{name}"),
            Self::Symbol { module, symbol, offset } => {
                module.iter().try_for_each(|module| write!(f, "{module}:"))?;
                f.write_str(symbol)?;
                if *offset == 0 { Ok(()) } else { write!(f, "+{offset:#x}") }
            }
        }
    }
}

impl Display for Argument {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.name.iter().try_for_each(|name| write!(f, "{name}="))?;
        self.fetch.fmt(f)?;
        self.ty.iter().try_for_each(|ty| write!(f, ":{ty}"))
    }
}

impl Display for FetchExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Register(name) => write!(f, "%{name}"),
            Self::StackSlot(number) => write!(f, "$stack{number}"),
            Self::StackPointer => f.write_str("$stack"),
            Self::Argument(number) => write!(f, "$arg{number}"),
            Self::AllArguments => f.write_str("$arg*"),
            Self::ReturnValue => f.write_str("$retval"),
            Self::Comm => f.write_str("$comm"),
            Self::Current => f.write_str("$current"),
            Self::Cgroup => f.write_str("$cgroup"),
            Self::CommandLine => f.write_str("$cmdline"),
            Self::Memory(address) => write!(f, "@{address:#x}"),
            Self::Symbol { symbol, offset: 0 } => write!(f, "@{symbol}"),
            Self::Symbol { symbol, offset } => write!(f, "@{symbol}{offset:+}"),
            Self::FileMemory(offset) => write!(f, "@+{offset:#x}"),
            Self::Number(number) => write!(f, "\\{number}"),
            Self::Text(text) => write!(f, "\\\"{text}\""),
            Self::Dereference { offset, user, of } => {
                let sign = if *offset < 0 { '-' } else { '+' };
                write!(f, "{sign}{}{}({of})", if *user { "u" } else { "" }, offset.unsigned_abs())
            }
            Self::PerCpu { read, of } => {
                write!(f, "this_cpu_{}({of})", if *read { "read" } else { "ptr" })
            }
            Self::Cast(cast) => cast.fmt(f),
            Self::Variable { of, path } => {
                of.fmt(f)?;
                path.iter().try_for_each(|step| step.fmt(f))
            }
        }
    }
}

impl Display for Variable {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::ReturnValue => f.write_str("$retval"),
            Self::Argument(number) => write!(f, "$arg{number}"),
            Self::Current => f.write_str("$current"),
        }
    }
}

impl Display for Cast {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "({}", self.structure)?;
        for (index, member) in self.container_of.iter().enumerate() {
            write!(f, "{}{member}", if index == 0 { ',' } else { '.' })?;
        }
        // Without parentheses, what is behind the first `-` would belong to the cast.
        let is_plain = match &self.of.value {
            FetchExpr::Variable { path, .. } => path.is_empty(),
            FetchExpr::Symbol { offset, .. } => *offset == 0,
            FetchExpr::Number(number) => *number >= 0,
            FetchExpr::Cast(_) => false,
            _ => true,
        };
        if is_plain {
            write!(f, "){}", self.of)?
        } else {
            write!(f, ")({})", self.of)?
        }
        self.path.iter().try_for_each(|step| step.fmt(f))
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}{}", if self.arrow { "->" } else { "." }, self.member)
    }
}

impl Display for FetchType {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.element.fmt(f)?;
        self.count.iter().try_for_each(|count| write!(f, "[{count}]"))
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Unsigned(bits) => write!(f, "u{bits}"),
            Self::Signed(bits) => write!(f, "s{bits}"),
            Self::Hex(bits) => write!(f, "x{bits}"),
            Self::Char => f.write_str("char"),
            Self::Symbol => f.write_str("symbol"),
            Self::SymbolString => f.write_str("symstr"),
            Self::String => f.write_str("string"),
            Self::UserString => f.write_str("ustring"),
            Self::BitField { width, offset, container } => write!(f, "b{width}@{offset}/{container}"),
            Self::Dentry => f.write_str("%pd"),
            Self::File => f.write_str("%pD"),
            Self::Path => f.write_str("path"),
        }
    }
}

impl Display for FilterExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Or(left, right) => {
                write!(f, "{left} || ")?;
                inside(right, matches!(**right, Self::Or(..)), f)
            }
            Self::And(left, right) => {
                inside(left, matches!(**left, Self::Or(..)), f)?;
                f.write_str(" && ")?;
                inside(right, matches!(**right, Self::Or(..) | Self::And(..)), f)
            }
            Self::Not(inner) => {
                f.write_str("!")?;
                inside(inner, true, f)
            }
            Self::Compare { field, user_string, op, value } => {
                write!(f, "{field}{} {op} {value}", if *user_string { ".ustring" } else { "" })
            }
        }
    }
}

fn inside(filter: &FilterExpr, parentheses: bool, f: &mut Formatter<'_>) -> Result {
    if parentheses { write!(f, "({filter})") } else { filter.fmt(f) }
}

impl Display for Operator {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::And => "&",
            Self::Glob => "~",
        })
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) if text.contains('"') => write!(f, "'{text}'"),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::Cpus(ranges) => {
                f.write_str("CPUS{")?;
                separated(f, ranges, |f, range| match range.end.saturating_sub(1) {
                    last if last == range.start => last.fmt(f),
                    last => write!(f, "{}-{last}", range.start),
                })?;
                f.write_str("}")
            }
        }
    }
}

impl Display for Hist {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("hist:keys=")?;
        separated(f, &self.keys, |f, key| key.fmt(f))?;
        if !self.values.is_empty() {
            f.write_str(":values=")?;
            separated(f, &self.values, |f, value| value.fmt(f))?;
        }
        if !self.sort.is_empty() {
            f.write_str(":sort=")?;
            separated(f, &self.sort, |f, sort| {
                write!(f, "{}{}", sort.field, if sort.descending { ".descending" } else { "" })
            })?;
        }
        self.size.iter().try_for_each(|size| write!(f, ":size={size}"))?;
        self.name.iter().try_for_each(|name| write!(f, ":name={name}"))
    }
}

impl Display for KeyExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.field.fmt(f)?;
        match self.modifier {
            KeyModifier::Plain => Ok(()),
            KeyModifier::Hex => f.write_str(".hex"),
            KeyModifier::Symbol => f.write_str(".sym"),
            KeyModifier::SymbolOffset => f.write_str(".sym-offset"),
            KeyModifier::SystemCall => f.write_str(".syscall"),
            KeyModifier::Execname => f.write_str(".execname"),
            KeyModifier::Log2 => f.write_str(".log2"),
            KeyModifier::Buckets(width) => write!(f, ".buckets={width}"),
        }
    }
}

/// `a,b,c`
fn separated<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    item: impl Fn(&mut Formatter<'_>, &T) -> Result,
) -> Result {
    for (index, one) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(",")?;
        }
        item(f, one)?;
    }
    Ok(())
}
