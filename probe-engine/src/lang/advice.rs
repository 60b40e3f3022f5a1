//! What to write instead of what is wrong with a definition.

use super::error::{Mistake, Named, Wanted};
use crate::linux::dwarf::Hidden;
use crate::probe::spec::NOT_YET_ADVICE;

impl Mistake {
    /// What to write instead, where the sentence does not say it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let near = match self {
            Self::UnknownRegister { nearest, .. }
            | Self::UnknownVariable { nearest, .. }
            | Self::NotInScope { nearest, .. }
            | Self::UnknownType { nearest, .. }
            | Self::UnknownSymbol { nearest, .. }
            | Self::UnknownStructure { nearest, .. }
            | Self::UnknownMember { nearest, .. }
            | Self::UnknownField { nearest, .. }
            | Self::UnknownPart { nearest, .. }
            | Self::UnknownModifier { nearest, .. } => did_you_mean(nearest),
            _ => None,
        };
        match (near, self.instead()) {
            (Some(near), Some(instead)) => Some(format!("{near} {instead}")),
            (near, instead) => near.or(instead).or_else(|| self.advice().map(str::to_owned)),
        }
    }

    /// What there is instead, with its names.
    fn instead(&self) -> Option<String> {
        match self {
            Self::KindOfProbe { here, .. } => Some(format!("write `{here}`")),
            Self::Unexpected(written) if written.starts_with(['<', '>', '=', '!', '~', '&', '|']) => {
                Some("a condition comes behind `if`".to_owned())
            }
            Self::UnknownVariable { parameters, .. } => {
                parameters.say("the parameter is", "the parameters are")
            }
            Self::NotInScope { variables, .. } => variables.say("in scope here is", "in scope here are"),
            Self::UnknownMember { members, .. } => members.say("the member is", "the members are"),
            Self::UnknownField { fields, .. } => {
                let own = fields.say("the field here is", "the fields here are");
                let own = own.unwrap_or_else(|| "no field is read here".to_owned());
                Some(format!("{own}; every event has `comm`, `cpu` and `common_pid`"))
            }
            _ => None,
        }
    }

    fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::Missing(wanted) | Self::Not { wanted, .. } => return wanted.advice(),
            Self::Empty => "write a place: `vfs_read`, `p vfs_read+0x10`, `r vfs_read $retval`",
            Self::NoName(Named::Event) => "name the event, or leave out the `:`",
            Self::NoName(Named::Group) => "name the group, or leave out the `/`",
            Self::NoName(Named::Argument) => "write a name before the `=`, or leave it out",
            Self::BadName { .. } => "names have letters, digits and `_`, and begin with no digit",
            Self::MaxActiveNotForEntry => "leave out the number, or write `r` instead of `p`",
            Self::BadSymbol(_) => {
                "symbols have letters, digits, `_`, `.` and `$`; patterns have `*`, `?` and `[a-z]`"
            }
            Self::BadTracepoint(_) => {
                "tracepoints are written as `sched:sched_switch`, and have letters, digits and `_`; patterns have `*`, `?` and `[a-z]`"
            }
            Self::NotYet(_) => NOT_YET_ADVICE,
            Self::NoModule => "write the module's name, or leave out the `:`",
            Self::BadModule(_) => "a module's name has `_` where the name of its file has `-`",
            Self::NegativeOffset => "name the function that holds the address, and count from there",
            Self::AddressOffset => "add it to the address",
            Self::UsdtAlone => USDT_HERE,
            Self::RelativeProgram => "write `/usr/bin/ls:main`",
            Self::ProgramEntry => "write `p` instead of `f`",
            Self::NeedsFunction => "write the function's name",
            Self::ReturnOfFragment => "name the function without `.cold`",
            Self::BadSuffix(_) => "`%return` is all that may follow",
            Self::PatternModule | Self::PatternOffset => "name one function",
            Self::ReservedName(_) | Self::UsedName(_) => "write another name, and a `=`, before it",
            Self::NotAReturn => "make it a return probe: `r`, or `%return` behind the function",
            Self::NotAnEntry => {
                "put the probe on the function's name, give the kernel's debugging information so that variables have \
                 names elsewhere, or fetch registers: the first parameters came in `%di`, `%si`, `%dx`, `%cx`, `%r8` and `%r9`"
            }
            Self::NotInScope { .. } => {
                "variables and parameters have names in their own block, and in functions that are inlined in it"
            }
            Self::HiddenVariable { why: Hidden::Fixed, .. } => "fetch it by its symbol: `@SYM`",
            Self::HiddenVariable { .. } => {
                "probe a line at which it has a value in a register or on the stack, or fetch what it comes from"
            }
            Self::ForeignVariable(_) => "give it a type, as `NAME:u64`",
            Self::LargeVariable(_) => "fetch a member: `NAME.MEMBER`",
            Self::StructureInRegister(_) => "give it a type, as `NAME:x64`",
            Self::DressedAllArguments => "leave out name, type and whatever is around it",
            Self::FileOffset => "write `@SYM+OFFS`",
            Self::UnknownFileOffset => "write the place as one, `PATH:0xOFFSET`",
            Self::UnknownRegister { .. } => "registers are called `%ax`, `%di`, `%sp`, `%r8`, `%flags`...",
            Self::UnknownVariable { .. } => {
                "variables are `$retval`, `$argN`, `$arg*`, `$stack`, `$stackN`, `$comm` and `$current`"
            }
            Self::UnknownType { .. } => {
                "types are `u8` to `u64`, `s8` to `s64`, `x8` to `x64`, `char`, `symbol`, `symstr`, `string`, \
                 `ustring`, `%pd`, `%pD` and bit fields"
            }
            Self::UnknownModifier { .. } => {
                "keys have `.hex`, `.sym`, `.sym-offset`, `.syscall`, `.execname`, `.log2` and `.buckets=N`, fields to \
                 sort by `.ascending` and `.descending`"
            }
            Self::UnknownPart { .. } => "histograms have `keys`, `values`, `sort`, `size` and `name`",
            Self::OpenText => "end it with a `\"`",
            Self::NoParenthesis => "write `+8(%sp)`",
            Self::OpenParenthesis => "write a `)` here",
            Self::DotOnParameter => "write `->`",
            Self::CastWithoutMember => "write `(STRUCT)VALUE->MEMBER`",
            Self::CastOfOffset => "write `(STRUCT)(@SYM+OFFS)->MEMBER`",
            Self::ArrowInCast => "write `.`",
            Self::PerCpuTwice => "leave out one of both, or write `this_cpu_read`",
            Self::NoEventField { .. } => "read an argument: `vmm list --kind tracepoints -v` has them all",
            Self::NoParameters(_) => {
                "fetch registers: the first parameters come in `%di`, `%si`, `%dx`, `%cx`, `%r8`, `%r9`"
            }
            Self::PathOfOther => "fetch a member that is one: a `struct file` has `f_path`",
            Self::StringOfOther => "fetch a member that is one, or leave out the type",
            Self::ProgramLine => {
                "take a function, PATH:FUNCTION+OFFSET, or an offset into the file, PATH:0x1234"
            }
            Self::QualifiedName => {
                "names of C++ and Rust are mangled: `vmm list --kind user PATH` has them, and a pattern may find \
                 one, as PATH:_ZN*name*"
            }
            Self::StructureInRegisters => {
                "fetch bits of a register: `%di:b32@0/64` are the lower half of one"
            }
            Self::NotAWord | Self::NotANumber => "fetch a member, or give it a type",
            Self::DotOnPointer => "write `->`",
            Self::ArrowOnStructure => "write `.`",
            Self::TextForNumber(_) => "fetch it as a `string`, or write `.ustring` behind it",
            Self::NumberForText(_) => "put it in quotation marks",
            Self::NeverNegative(_) => {
                "fetch it with a type that has a sign, as in `n=count:s64`, or compare it with what it can be"
            }
            Self::NeedsString => "leave out the type",
            Self::StringOfValue | Self::ArrayOfValue => {
                "write `+0(...)` around the value to read what it points to"
            }
            Self::OpenArray => "write a `]` at the end",
            Self::BadContainer | Self::BitFieldTooWide { .. } => {
                "write `b<bits>@<bits below them>/<8, 16, 32 or 64>`"
            }
            Self::FilterTwice => "join both with `&&`",
            Self::BehindFilter => "join comparisons with `&&` or `||`; arguments come before the `if`",
            Self::BehindHist => "arguments come before the histogram, and a filter begins with `if`",
            Self::BadFieldSuffix(_) => "`.ustring` is all that may follow",
            Self::NoOperator => "write one of `==`, `!=`, `<`, `<=`, `>`, `>=`, `&` and `~`",
            Self::SingleEqual => "write `==` to compare",
            Self::TextOperator => "write `==`, `!=` or `~`",
            Self::NumberPattern(_) | Self::UserStringOfNumber(_) => "put it in quotation marks",
            Self::NoKeys => "write `hist:keys=` and a field",
            Self::NotAProcess => "write `common_pid.execname`",
            Self::ModifierOfText(_) => "leave out the modifier",
            Self::SumOfText(_) => "make it a key",
            Self::NotSortable(_) => "add it to the values first",
            _ => return None,
        })
    }
}

fn did_you_mean(nearest: &[String]) -> Option<String> {
    let quoted: Vec<String> = nearest.iter().map(|name| format!("`{name}`")).collect();
    (!quoted.is_empty()).then(|| format!("did you mean {}?", quoted.join(" or ")))
}

const USDT_HERE: &str = "write `usdt /usr/bin/python3.11:python:gc__start`";

impl Wanted {
    fn advice(self) -> Option<&'static str> {
        Some(match self {
            Self::Calls => "write a decimal number, or leave it out",
            Self::Ordinal => "write `#2` for the second of that name",
            Self::Line => "lines are counted from 1 on, in the whole file",
            Self::PlaceOffset | Self::FileOffset | Self::Offset | Self::Number => {
                "write it in decimal, in hexadecimal after `0x`, or in octal after `0`"
            }
            Self::Address => "write `0x` and up to 16 hexadecimal digits",
            Self::Fetch => {
                "fetch `%REG`, `$argN`, `$retval`, `$stackN`, `$comm`, `$current`, `@SYM`, `+OFFS(FETCH)`, \
                 `(STRUCT)FETCH->MEMBER`, `this_cpu_read(FETCH)`, `\\NUMBER` or a parameter"
            }
            Self::Structure => "write the structure's name alone: `(file)$arg1->f_mode`",
            Self::BitField => "write `b<bits>@<bits below them>/<8, 16, 32 or 64>`",
            Self::Cpus => "write `CPUS{0-3,7}`",
            Self::Buckets => "write `.buckets=` and a number above 0",
            Self::HistPart => "histograms have `keys`, `values`, `sort`, `size` and `name`",
            Self::Value => "write a number, or text in quotation marks",
            Self::Usdt => USDT_HERE,
            Self::Tracepoint => "write `sched:sched_switch`, or a pattern: `sched:*`",
            Self::Symbol | Self::Type | Self::Member | Self::Field | Self::Returned => return None,
        })
    }
}
