//! `FETCH`: where an argument's value comes from.

use super::ast::{Cast, FetchExpr, Spanned, Step, Variable};
use super::cast::{self, Parts};
use super::error::{Error, KnownNames, Mistake, Wanted, nearest};
use super::part::{PER_CPU, Part, is_of_name, is_per_cpu, signed, unsigned};
use super::place::{PlaceKind, check_ordinal, is_of_symbol};

/// How often memory can be read for one argument, one address coming from the other: what the kernel's 16 steps
/// (FETCH_INSN_MAX) leave beside the first value and the end.
const DEEPEST: usize = 14;

/// The kernel's PARAM_MAX_STACK on x86-64.
const MOST_SLOTS: u32 = 2048;

/// As the kernel calls them, and then as the processor does.
const REGISTERS: [&str; 31] = [
    "ax", "bx", "cx", "dx", "si", "di", "bp", "sp", "ip", "flags", "cs", "ss", "orig_ax", "r8", "r9", "r10",
    "r11", "r12", "r13", "r14", "r15", "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "rip",
    "rflags",
];

const VARIABLES: [&str; 8] = ["$retval", "$comm", "$COMM", "$current", "$stack", "$stack0", "$arg1", "$arg*"];

/// A whole `FETCH`, in `depth` others.
pub(super) fn parse(part: Part<'_>, site: PlaceKind, depth: usize) -> Result<Spanned<FetchExpr>, Error> {
    if depth > DEEPEST {
        return Err(part.wrong(Mistake::TooDeep(DEEPEST)));
    }
    let mut rest = part;
    let fetch = match rest.first() {
        None => return Err(part.is_not(Wanted::Fetch)),
        Some('%') => register(part)?,
        Some('$') => variable(part, site, depth)?,
        Some('@') => memory(part, depth)?,
        Some('\\') => immediate(part)?,
        Some('+' | '-') => dereference(part, site, depth)?,
        Some('(') => cast(part, site, depth)?,
        Some('t') if is_per_cpu(part) => per_cpu(part, site, depth)?,
        Some(c) if c.is_ascii_alphabetic() || c == '_' => {
            let name = rest.take_while(is_of_name);
            let path = match site.knows_parameters {
                true => path(rest, depth)?,
                // A local variable may be a structure.
                false => members(rest, depth)?,
            };
            FetchExpr::Variable { of: name.says(Variable::Named(name.text().to_owned())), path }
        }
        Some(_) => return Err(part.is_not(Wanted::Fetch)),
    };
    Ok(part.says(fetch))
}

/// `%REG`
fn register(part: Part<'_>) -> Result<FetchExpr, Error> {
    let mut rest = part;
    rest.take_char();
    let name = rest.take_while(is_of_name);
    if !rest.is_empty() {
        return Err(rest.unexpected());
    }
    let name = name.text();
    if REGISTERS.contains(&name) {
        return Ok(FetchExpr::Register(name.to_owned()));
    }
    let lower = name.to_ascii_lowercase();
    let nearest = nearest(REGISTERS, &lower).into_iter().map(|near| format!("%{near}")).collect();
    Err(part.wrong(Mistake::UnknownRegister { name: name.to_owned(), nearest }))
}

/// `$...`
fn variable(part: Part<'_>, site: PlaceKind, depth: usize) -> Result<FetchExpr, Error> {
    let mut rest = part;
    rest.take_char();
    let name = rest.take_while(is_of_name);
    let (name, written) = (name.text(), part.split_at(1 + name.text().len()).0);
    if let Some(number) = name.strip_prefix("arg") {
        if !site.knows_parameters {
            return Err(part.wrong(Mistake::NotAnEntry));
        }
        if number.is_empty() && rest.eat("*") {
            return match rest.is_empty() && depth == 0 {
                true => Ok(FetchExpr::AllArguments),
                false => Err(part.wrong(Mistake::DressedAllArguments)),
            };
        }
        if is_decimal(number) {
            let number = number.parse().ok().filter(|number| (1..=MOST_SLOTS).contains(number));
            let number = number.ok_or_else(|| written.wrong(Mistake::BadArgumentNumber(MOST_SLOTS)))?;
            return Ok(match path(rest, depth)? {
                path if path.is_empty() => FetchExpr::Argument(number),
                path => FetchExpr::Variable { of: written.says(Variable::Argument(number)), path },
            });
        }
    }
    if name == "retval" {
        if !site.returns {
            return Err(written.wrong(Mistake::NotAReturn));
        }
        return Ok(match path(rest, depth)? {
            path if path.is_empty() => FetchExpr::ReturnValue,
            path => FetchExpr::Variable { of: written.says(Variable::ReturnValue), path },
        });
    }
    if name == "current" {
        return Ok(match path(rest, depth)? {
            path if path.is_empty() => FetchExpr::Current,
            path => FetchExpr::Variable { of: written.says(Variable::Current), path },
        });
    }
    let fetch = match name.strip_prefix("stack") {
        Some("") => FetchExpr::StackPointer,
        Some(number) if is_decimal(number) => {
            let number = number.parse().ok().filter(|number| *number <= MOST_SLOTS);
            FetchExpr::StackSlot(number.ok_or_else(|| written.wrong(Mistake::BadStackSlot(MOST_SLOTS)))?)
        }
        None if name == "comm" || name == "COMM" => FetchExpr::Comm,
        None if name == "cgroup" => FetchExpr::Cgroup,
        None if name == "cmdline" => FetchExpr::CommandLine,
        _ => {
            let name = written.text();
            let nearest = nearest(VARIABLES, name);
            // The names of parameters have no `$`.
            let parameters = KnownNames::default();
            let name = name.to_owned();
            return Err(written.wrong(Mistake::UnknownVariable { name, nearest, parameters }));
        }
    };
    if !rest.is_empty() {
        return Err(rest.unexpected());
    }
    Ok(fetch)
}

fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}

/// `->FIELD.FIELD`, all that is left, or nothing.
fn path(rest: Part<'_>, depth: usize) -> Result<Vec<Step>, Error> {
    match rest.first() {
        Some('.') => Err(rest.split_at(1).0.wrong(Mistake::DotOnParameter)),
        _ => members(rest, depth),
    }
}

/// `->FIELD.FIELD` or `.FIELD->FIELD`, all that is left, or nothing.
fn members(mut rest: Part<'_>, depth: usize) -> Result<Vec<Step>, Error> {
    let mut path = Vec::new();
    let mut reads = depth;
    while !rest.is_empty() {
        let before = rest;
        let arrow = rest.eat("->");
        if !arrow && !rest.eat(".") {
            return Err(match before.first() {
                Some('-') => before.split_at(1).0.wrong(Mistake::BadHyphen),
                _ => before.unexpected(),
            });
        }
        let member = rest.take_while(is_of_name);
        if !member.is_name() {
            return Err(member.is_not(Wanted::Member));
        }
        reads += usize::from(arrow);
        if reads > DEEPEST {
            return Err(before.wrong(Mistake::TooDeep(DEEPEST)));
        }
        path.push(Step { arrow, member: member.spanned() });
    }
    Ok(path)
}

/// `@ADDR`, `@SYM[#N][+|-offs]`, `@+OFFS`
fn memory(part: Part<'_>, depth: usize) -> Result<FetchExpr, Error> {
    let mut rest = part;
    rest.take_char();
    if rest.eat("+") {
        let offset = unsigned(rest.text()).and_then(|offset| i64::try_from(offset).ok());
        return offset.map(FetchExpr::FileMemory).ok_or_else(|| rest.is_not(Wanted::FileOffset));
    }
    if depth >= DEEPEST {
        return Err(part.wrong(Mistake::TooDeep(DEEPEST)));
    }
    if rest.first().is_some_and(|c| c.is_ascii_digit()) {
        let address = unsigned(rest.text());
        return address.map(FetchExpr::Memory).ok_or_else(|| rest.is_not(Wanted::Address));
    }
    let symbol = rest.take_while(|c| is_of_symbol(c) || c == '#');
    if symbol.is_empty() {
        return Err(rest.is_not(Wanted::Symbol));
    }
    check_ordinal(symbol)?;
    let offset = match rest.first() {
        None => Some(0),
        Some('+') => rest.text().get(1..).and_then(unsigned).and_then(|offset| offset.try_into().ok()),
        Some('-') => signed(rest.text()),
        Some(other) => return Err(rest.wrong(Mistake::BadSymbol(other))),
    };
    let offset = offset.ok_or_else(|| rest.is_not(Wanted::Offset))?;
    Ok(FetchExpr::Symbol { symbol: symbol.text().to_owned(), offset })
}

/// `\IMM`, `\"text"`
fn immediate(part: Part<'_>) -> Result<FetchExpr, Error> {
    let mut rest = part;
    rest.take_char();
    if rest.eat("\"") {
        let text = rest.take_while(|c| c != '"');
        if !rest.eat("\"") {
            return Err(part.wrong(Mistake::OpenText));
        }
        return match rest.is_empty() {
            true => Ok(FetchExpr::Text(text.text().to_owned())),
            false => Err(rest.unexpected()),
        };
    }
    let written = rest;
    let value = match rest.first() {
        Some('-') => signed(rest.text()),
        Some('+') => rest.text().get(1..).and_then(unsigned).and_then(|value| value.try_into().ok()),
        // Numbers of 64 bits without a sign, too: the bits count.
        _ => unsigned(rest.text()).map(u64::cast_signed),
    };
    value.map(FetchExpr::Number).ok_or_else(|| written.is_not(Wanted::Number))
}

/// `+|-[u]OFFS(FETCH)`
fn dereference(part: Part<'_>, site: PlaceKind, depth: usize) -> Result<FetchExpr, Error> {
    let mut rest = part;
    let negative = rest.take_char() == Some('-');
    let user = rest.eat("u");
    let written = rest.take_while(|c| c != '(');
    if !rest.eat("(") {
        return Err(part.wrong(Mistake::NoParenthesis));
    }
    // `+-8(%sp)` is what programs write that put a `+` before every offset.
    let offset = match negative {
        true => signed(&format!("-{}", written.text())),
        false => signed(written.text()),
    };
    let offset = offset.ok_or_else(|| written.is_not(Wanted::Offset))?;
    let of = address(inside(rest)?, site, depth + 1)?;
    Ok(FetchExpr::Dereference { offset, user, of: Box::new(of) })
}

/// `(STRUCT[,FIELD])FETCH->FIELD`
fn cast(part: Part<'_>, site: PlaceKind, depth: usize) -> Result<FetchExpr, Error> {
    let Parts { structure, container_of, value, path: members } = cast::parse(part)?;
    let path = path(members, depth)?;
    let reads = path.iter().filter(|step| step.arrow).count();
    let of = address(value, site, depth + reads)?;
    Ok(FetchExpr::Cast(Box::new(Cast { structure, container_of, of, path })))
}

/// `this_cpu_ptr(FETCH)`, `this_cpu_read(FETCH)`
fn per_cpu(part: Part<'_>, site: PlaceKind, depth: usize) -> Result<FetchExpr, Error> {
    let mut rest = part;
    let read = PER_CPU.iter().find(|(prefix, _)| rest.eat(prefix)).is_some_and(|(_, read)| *read);
    let inner = inside(rest)?;
    let of = address(inner, site, depth + 1)?;
    // It would be added twice.
    if matches!(of.value, FetchExpr::PerCpu { read: false, .. }) {
        return Err(inner.wrong(Mistake::PerCpuTwice));
    }
    Ok(FetchExpr::PerCpu { read, of: Box::new(of) })
}

/// What comes before the `)` at the end.
fn inside(rest: Part<'_>) -> Result<Part<'_>, Error> {
    rest.without_last(')').ok_or_else(|| match rest.text().rfind(')') {
        None => rest.end().wrong(Mistake::OpenParenthesis),
        Some(close) => rest.split_at(close + 1).1.unexpected(),
    })
}

/// A whole `FETCH` that can be an address.
fn address(part: Part<'_>, site: PlaceKind, depth: usize) -> Result<Spanned<FetchExpr>, Error> {
    let of = parse(part, site, depth)?;
    match of.value {
        FetchExpr::Comm | FetchExpr::Cgroup | FetchExpr::CommandLine | FetchExpr::Text(_) => {
            Err(part.wrong(Mistake::DereferencedText))
        }
        _ => Ok(of),
    }
}
