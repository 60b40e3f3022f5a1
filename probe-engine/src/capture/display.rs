//! What is read, as text in the language of [definitions](crate::lang): `s32 = %di`, `string = +0(%si)`.

use super::shape::Shape;
use super::{Base, Fetch, Field, Hop, Read, Register, What};

impl Field {
    /// Its type: as definitions have it, and as C has what they do not.
    #[must_use]
    pub fn type_name(&self) -> String {
        let (bytes, user) = match self.fetch.read {
            Read::Word(bytes) | Read::Address(_, bytes) | Read::Extended { bytes, .. } => {
                (u16::from(bytes), false)
            }
            Read::Memory(hop, What::Bytes(bytes)) => (bytes, hop.user),
            Read::Memory(hop, What::String(_) | What::Strings(_) | What::Path(_)) => (8, hop.user),
            Read::Pointee { what: What::Bytes(bytes), .. } => (bytes, false),
            Read::Pointee { what: What::String(_) | What::Strings(_) | What::Path(_), .. } => (8, false),
        };
        let name = type_name(&self.shape, bytes);
        if user && self.shape.is_text() { format!("u{name}") } else { name }
    }

    /// Where it comes from. `returns`: it is read when a function returns, where registers hold no arguments.
    #[must_use]
    pub fn source(&self, returns: bool) -> String {
        self.fetch.source(returns)
    }
}

impl Fetch {
    fn source(&self, returns: bool) -> String {
        let (last, address) = match self.read {
            Read::Word(_) => (None, None),
            Read::Extended { at, .. } => (at, None),
            Read::Memory(hop, _) => (Some(hop), None),
            Read::Pointee { user, .. } => (Some(Hop { user, ..Hop::at(0) }), None),
            Read::Address(hop, _) => (None, Some(hop)),
        };
        let read = self.hops.iter().copied().chain(last).map(|hop| (hop, true));
        let mut hops = read.chain(address.map(|hop| (hop, false)));
        let mut text = match &self.base {
            // `@ADDR` is what lies there, or for a per-CPU variable the address.
            Base::Kernel(at) => match hops.next() {
                Some((hop, read)) => {
                    let text = format!("@{}", at.offset(hop.offset));
                    if hop.per_cpu { Hop { offset: 0, ..hop }.source(text, read) } else { text }
                }
                None => at.to_string(),
            },
            base => base.source(returns),
        };
        for (hop, read) in hops {
            text = hop.source(text, read);
        }
        text
    }
}

impl Hop {
    /// What it makes of the value that comes from `from`: what is read, or the address.
    fn source(self, from: String, read: bool) -> String {
        let Self { offset, user, per_cpu } = self;
        let from = match (per_cpu, read) {
            (true, true) if offset == 0 && !user => return format!("this_cpu_read({from})"),
            (true, _) => format!("this_cpu_ptr({from})"),
            (false, _) => from,
        };
        let (sign, user) = (if offset < 0 { '-' } else { '+' }, if user { "u" } else { "" });
        match (read, offset) {
            (true, _) => format!("{sign}{user}{}({from})", offset.unsigned_abs()),
            (false, 0) => from,
            (false, _) => format!("{from}{sign}{}", offset.unsigned_abs()),
        }
    }
}

impl Base {
    fn source(&self, returns: bool) -> String {
        let argument = |n: u8| match Register::of_argument(usize::from(n)).filter(|_| !returns) {
            Some(register) => format!("%{}", register.name()),
            None => format!("$arg{}", u16::from(n) + 1),
        };
        match self {
            Self::Register(Register::Rax) if returns => "$retval".to_owned(),
            Self::Saved(_, Register::Rax) if returns => "$retval".to_owned(),
            Self::Register(register) | Self::Saved(_, register) => format!("%{}", register.name()),
            Self::Argument(n) => argument(*n),
            Self::Arguments(n) => format!("{} and {}", argument(*n), argument(n.saturating_add(1))),
            Self::Place => "%ip".to_owned(),
            Self::Usdt(n) => format!("$arg{}", u16::from(*n) + 1),
            Self::Stack(n) => format!("$stack{n}"),
            Self::Constant(number) => format!("\\{number:#x}"),
            Self::Kernel(at) => at.to_string(),
            Self::Comm => "$comm".to_owned(),
            Self::Current => "$current".to_owned(),
            Self::Text(text) => format!("\\\"{text}\""),
            Self::Cgroup(_) => "$cgroup".to_owned(),
            Self::CommandLine(_) => "$cmdline".to_owned(),
            Self::Unknown => "nowhere that can be read".to_owned(),
        }
    }
}

/// What a value of so many bytes is.
fn type_name(shape: &Shape, bytes: u16) -> String {
    let bits = u32::from(bytes) * 8;
    match shape {
        Shape::Unsigned => format!("u{bits}"),
        Shape::Signed | Shape::Result => format!("s{bits}"),
        Shape::Octal | Shape::Hex => format!("x{bits}"),
        Shape::Bool => "bool".to_owned(),
        Shape::Char => "char".to_owned(),
        Shape::Symbol => "symbol".to_owned(),
        Shape::SymbolText => "symstr".to_owned(),
        Shape::Enum(_) => "enum".to_owned(),
        Shape::Flags(_) => "flags".to_owned(),
        Shape::Pointer(None) => "pointer".to_owned(),
        Shape::Pointer(Some(to)) => format!("pointer to {}", type_name(to, bytes)),
        Shape::Text => "string".to_owned(),
        Shape::BitField { low, width, .. } => format!("b{width}@{low}/{bits}"),
        Shape::Array { count, of } => format!("{}[{count}]", type_name(of, bytes / (*count).max(1))),
        Shape::Struct { members, more } => {
            let mut names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
            names.extend(more.then_some("..."));
            format!("struct {{{}}}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::MemberShape;
    use super::*;
    use crate::addr::Gva;

    fn field(base: Base, hops: &[(i64, bool)], read: Read, shape: Shape) -> Field {
        let hops = hops.iter().map(|(offset, user)| Hop { user: *user, ..Hop::at(*offset) }).collect();
        Field { name: "f".to_owned(), fetch: Fetch { base, hops, read }, shape }
    }

    #[test]
    fn what_is_read_is_said_as_one_would_ask_for_it() {
        let memory = |offset, user, what| Read::Memory(Hop { user, ..Hop::at(offset) }, what);
        let own = |offset| Hop { per_cpu: true, ..Hop::at(offset) };
        let member = MemberShape { name: "flags".to_owned(), offset: 0, len: 8, shape: Shape::Hex };
        let structure = Shape::Struct { members: vec![member], more: true };
        let symbols = Shape::Array { count: 2, of: Box::new(Shape::Hex) };
        let bits = Shape::BitField { low: 4, width: 3, of: Box::new(Shape::Unsigned) };
        let kernel = Base::Kernel(Gva(0xffff_ffff_8200_0000));
        let per_cpu = Base::Kernel(Gva(0xffff_ffff_8310_0000));
        for (field, at_entry, at_return) in [
            (field(Base::Argument(0), &[], Read::Word(4), Shape::Signed), "s32 = %di", "s32 = $arg1"),
            (field(Base::Argument(6), &[], Read::Word(8), Shape::Hex), "x64 = $arg7", "x64 = $arg7"),
            (
                field(Base::Arguments(1), &[], Read::Word(16), symbols),
                "x64[2] = %si and %dx",
                "x64[2] = $arg2 and $arg3",
            ),
            (
                field(
                    Base::Argument(1),
                    &[],
                    Read::Pointee { what: What::String(9), user: false },
                    Shape::Text,
                ),
                "string = +0(%si)",
                "string = +0($arg2)",
            ),
            (
                field(
                    Base::Argument(1),
                    &[],
                    Read::Pointee { what: What::Bytes(8), user: false },
                    Shape::Pointer(Some(Box::new(structure))),
                ),
                "pointer to struct {flags, ...} = +0(%si)",
                "pointer to struct {flags, ...} = +0($arg2)",
            ),
            (
                field(Base::Register(Register::Rax), &[], Read::Word(8), Shape::Result),
                "s64 = %ax",
                "s64 = $retval",
            ),
            (
                field(
                    Base::Register(Register::R15),
                    &[(-8, false)],
                    memory(16, true, What::String(9)),
                    Shape::Text,
                ),
                "ustring = +u16(-8(%r15))",
                "ustring = +u16(-8(%r15))",
            ),
            (
                field(kernel.clone(), &[(8, false)], memory(-4, false, What::Bytes(2)), bits),
                "b3@4/16 = -4(@0xffffffff82000008)",
                "b3@4/16 = -4(@0xffffffff82000008)",
            ),
            (
                field(kernel.clone(), &[], memory(0, false, What::Bytes(1)), Shape::Char),
                "char = @0xffffffff82000000",
                "char = @0xffffffff82000000",
            ),
            (
                field(kernel, &[], Read::Word(8), Shape::Symbol),
                "symbol = 0xffffffff82000000",
                "symbol = 0xffffffff82000000",
            ),
            (field(Base::Constant(16), &[], Read::Word(1), Shape::Unsigned), "u8 = \\0x10", "u8 = \\0x10"),
            (
                field(Base::Text("a".to_owned()), &[], Read::Word(0), Shape::Text),
                "string = \\\"a\"",
                "string = \\\"a\"",
            ),
            (field(Base::Current, &[], Read::Word(8), Shape::Hex), "x64 = $current", "x64 = $current"),
            (
                field(Base::Current, &[], memory(8, false, What::Bytes(4)), Shape::Signed),
                "s32 = +8($current)",
                "s32 = +8($current)",
            ),
            (
                field(per_cpu.clone(), &[], Read::Memory(own(16), What::Bytes(4)), Shape::Unsigned),
                "u32 = this_cpu_read(@0xffffffff83100010)",
                "u32 = this_cpu_read(@0xffffffff83100010)",
            ),
            (
                field(per_cpu, &[], Read::Address(own(16), 8), Shape::Hex),
                "x64 = this_cpu_ptr(@0xffffffff83100010)",
                "x64 = this_cpu_ptr(@0xffffffff83100010)",
            ),
            (
                field(Base::Argument(0), &[(8, false)], Read::Memory(own(4), What::Bytes(4)), Shape::Hex),
                "x32 = +4(this_cpu_ptr(+8(%di)))",
                "x32 = +4(this_cpu_ptr(+8($arg1)))",
            ),
            (
                field(Base::Constant(64), &[], Read::Memory(own(0), What::Bytes(8)), Shape::Hex),
                "x64 = this_cpu_read(\\0x40)",
                "x64 = this_cpu_read(\\0x40)",
            ),
            (
                field(Base::Stack(3), &[], Read::Word(8), Shape::Pointer(None)),
                "pointer = $stack3",
                "pointer = $stack3",
            ),
        ] {
            assert_eq!(format!("{} = {}", field.type_name(), field.source(false)), at_entry);
            assert_eq!(format!("{} = {}", field.type_name(), field.source(true)), at_return);
        }
    }
}
