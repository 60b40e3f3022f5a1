//! What to read of a call, by the function's own parameters and types: what a jprobe gave.
//!

use super::argument_place::{ArgumentPlace, Places, is_returned_elsewhere};
use super::flags;
use super::shape::{MemberShape, Shape};
use super::{Base, Fetch, Field, Hop, Read, Register, What};
use crate::linux::btf::{Btf, Kind, Member, Modifier, Structure, TypeId};
use crate::linux::dwarf::FunctionTypes;
use crate::linux::symbols::is_changed;
use crate::virt_memory::LONGEST_STRING;

/// Largest structure that is shown with its members though nobody asked for that, in bytes.
const SMALL: u32 = 64;
/// Most members of one that are shown.
const MOST_MEMBERS: usize = 32;
/// Most elements of an array that are shown.
const MOST_ELEMENTS: u32 = 16;
/// Most bytes that are read of a structure.
const MOST_BYTES: u64 = 4096;
/// Longest string that is read of an argument.
const STRING: u16 = 512;
/// Most structures inside each other that are shown.
const MOST_NESTED: usize = 4;
/// Typedefs of typedefs.
const DEEPEST: usize = 16;

/// How much of what a pointer leads to is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expand {
    /// Strings, and structures of some 64 bytes.
    #[default]
    Small,
    /// All structures, one level deep.
    All,
}

/// A function whose arguments cannot be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoArguments {
    /// The compiler made another function of it.
    #[error("the compiler has changed the parameters of `{0}` (its name says so)")]
    Changed(String),
    /// The kernel's type information does not have it.
    #[error("the kernel's type information does not have `{0}`")]
    Unknown(String),
}

/// What a call has by its types: its parameters with their places, and what it returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The parameters, in their order.
    pub parameters: Vec<Parameter>,
    /// What it returns; `void` is [`TypeId::VOID`]. `None` where that is not known.
    pub returns: Option<TypeId>,
    /// Whether it is the kernel's: numbers that it returns may mean errors, and its flags have names.
    pub is_kernels: bool,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name; empty where it has none.
    pub name: String,
    /// Its type.
    pub ty: TypeId,
    /// Where it is.
    pub place: ArgumentPlace,
}

impl Signature {
    /// That of `function`.
    ///
    /// # Errors
    /// [`NoArguments`], the reason.
    pub fn of(btf: &Btf<'_>, function: &str) -> Result<Self, NoArguments> {
        if is_changed(function) {
            return Err(NoArguments::Changed(function.to_owned()));
        }
        let found = btf.function(function).ok_or_else(|| NoArguments::Unknown(function.to_owned()))?;
        let mut places = Places::returning(btf, found.prototype.returns);
        let parameter = |(name, ty): (&str, TypeId)| Parameter {
            name: name.to_owned(),
            ty,
            place: places.next(btf, Some(ty)),
        };
        let parameters = found.prototype.parameters().map(parameter).collect();
        Ok(Self { parameters, returns: Some(found.prototype.returns), is_kernels: true })
    }

    /// That of a function of a program, whose types are `btf`, as its debugging information has them. A type that is not known is `void`.
    #[must_use]
    pub fn of_program(btf: &Btf<'_>, function: FunctionTypes) -> Self {
        let mut places = match function.returns {
            _ if function.is_returned_in_memory => Places::behind_address(),
            Some(returns) => Places::returning(btf, returns),
            None => Places::unknown(),
        };
        let parameter = |(name, ty): (String, Option<TypeId>)| {
            let place = places.next(btf, ty);
            Parameter { name, ty: ty.unwrap_or(TypeId::VOID), place }
        };
        let parameters = function.parameters.into_iter().map(parameter).collect();
        Self { parameters, returns: function.returns, is_kernels: false }
    }

    /// What to read at the entry of `function`, which has this signature, to show its arguments.
    #[must_use]
    pub fn arguments(&self, btf: &Btf<'_>, function: &str, expand: Expand) -> Vec<Field> {
        let types = Types { btf, owner: self.is_kernels.then_some(function), expand, depth: MOST_NESTED };
        let field = |(n, Parameter { name, ty, place }): (usize, &Parameter)| {
            let name = if name.is_empty() { format!("arg{}", n + 1) } else { name.clone() };
            let (fetch, shape) = types.argument(&name, *ty, *place);
            Field { name, fetch, shape }
        };
        self.parameters.iter().enumerate().map(field).collect()
    }

    /// What to read when `function`, which has this signature, has returned to show its value; `None` for `void`.
    #[must_use]
    pub fn value(&self, btf: &Btf<'_>, function: &str, expand: Expand) -> Option<Field> {
        let types = Types { btf, owner: self.is_kernels.then_some(function), expand, depth: MOST_NESTED };
        let ty = self.returns?;
        let size = btf.size(ty)?;
        // The kernel's functions are shown as its own events show them: by the first register alone.
        let is_whole = self.is_kernels || size <= 8;
        let base = match is_whole && !is_returned_elsewhere(btf, ty) {
            true => Base::Register(Register::Rax),
            false => Base::Unknown,
        };
        let (read, shape) = match types.shape("", ty) {
            Shape::Signed if size >= 4 && self.is_kernels => (Read::Word(size as u8), Shape::Result),
            // Addresses and errors alike.
            Shape::Unsigned if size == 8 && self.is_kernels => (Read::Word(8), Shape::Pointer(None)),
            Shape::Pointer(_) | Shape::Text => types.pointer("", ty),
            Shape::Struct { .. } | Shape::Array { .. } if self.is_kernels => (Read::Word(8), Shape::Hex),
            shape => (Read::Word(size.min(8) as u8), shape),
        };
        let fetch = Fetch { base, hops: Vec::new(), read };
        Some(Field { name: "return".to_owned(), fetch, shape })
    }
}

/// How values are read and shown by their types. `owner` is the function or structure of the kernel that they belong to.
struct Types<'a> {
    btf: &'a Btf<'a>,
    owner: Option<&'a str>,
    expand: Expand,
    /// How many structures may still be inside each other: a damaged description may have one inside itself.
    depth: usize,
}

impl Types<'_> {
    fn argument(&self, name: &str, ty: TypeId, place: ArgumentPlace) -> (Fetch, Shape) {
        let size = self.btf.size(ty).unwrap_or(8);
        let shape = self.shape(name, ty);
        let bytes = |base, read| Fetch { base, hops: Vec::new(), read };
        match place {
            ArgumentPlace::Slot(n) => {
                let base = Base::Argument(n);
                match shape {
                    Shape::Pointer(_) | Shape::Text => {
                        let (read, shape) = self.pointer(name, ty);
                        (bytes(base, read), shape)
                    }
                    shape => (Fetch::word(base, size.min(8) as u8), shape),
                }
            }
            ArgumentPlace::Pair(n) => (Fetch::word(Base::Arguments(n), size.min(16) as u8), shape),
            ArgumentPlace::Stack(n) => {
                let hop = Hop::at(8 * (i64::from(n) - 5));
                (
                    bytes(
                        Base::Register(Register::Rsp),
                        Read::Memory(hop, What::Bytes(size.min(MOST_BYTES) as u16)),
                    ),
                    shape,
                )
            }
            ArgumentPlace::Saved(offset) => {
                let hop = Hop::at(offset.into());
                let (read, shape) = match shape {
                    Shape::Pointer(_) | Shape::Text => self.pointer(name, ty),
                    shape => (Read::Word(size.min(8) as u8), shape),
                };
                let (hops, read) = match read {
                    Read::Word(bytes) => (Vec::new(), Read::Memory(hop, What::Bytes(bytes.into()))),
                    read => (vec![hop], read),
                };
                (Fetch { base: Base::Argument(0), hops, read }, shape)
            }
            ArgumentPlace::Nowhere => (Fetch::word(Base::Unknown, 8), Shape::Hex),
        }
    }

    /// How a pointer is read, and shown.
    fn pointer(&self, name: &str, ty: TypeId) -> (Read, Shape) {
        match self.shape(name, ty) {
            Shape::Text => {
                (Read::Pointee { what: What::String(STRING.min(LONGEST_STRING)), user: false }, Shape::Text)
            }
            Shape::Pointer(Some(to)) => {
                let bytes = shown_bytes(&to).min(MOST_BYTES) as u16;
                (Read::Pointee { what: What::Bytes(bytes), user: false }, Shape::Pointer(Some(to)))
            }
            shape => (Read::Word(8), shape),
        }
    }

    /// How a value of this type is shown that is called `name`.
    fn shape(&self, name: &str, ty: TypeId) -> Shape {
        let mut id = ty;
        let mut typedef = "";
        for _ in 0..DEEPEST {
            let Some(found) = self.btf.get(id) else { return Shape::Hex };
            match found.kind {
                Kind::Typedef(to) => {
                    if typedef.is_empty() {
                        typedef = found.name();
                    }
                    if let Some(shape) = flags::of_typedef(self.btf, found.name()) {
                        return shape;
                    }
                    id = to;
                }
                Kind::Modifier { ty, .. } => id = ty,
                Kind::Int(int) => {
                    return match self.owner.and_then(|owner| flags::of_member(owner, name)) {
                        Some(flags) => Shape::Flags(flags),
                        None if int.is_bool => Shape::Bool,
                        None if found.name() == "char" && typedef.is_empty() => Shape::Char,
                        None if int.is_signed => Shape::Signed,
                        None if flags::is_bit_pattern(name, typedef) => Shape::Hex,
                        None => Shape::Unsigned,
                    };
                }
                Kind::Enumeration(values) => {
                    return Shape::Enum(
                        values.values().map(|(name, value)| (value, name.to_owned())).collect(),
                    );
                }
                Kind::Pointer(to) => return self.pointer_shape(name, to),
                Kind::Structure(structure) => return self.structure(structure, self.expand == Expand::All),
                Kind::Array { element, count } => return self.array(element, count),
                _ => return Shape::Hex,
            }
        }
        Shape::Hex
    }

    fn pointer_shape(&self, name: &str, to: TypeId) -> Shape {
        let Some(pointee) = self.btf.plain(to) else { return Shape::Pointer(None) };
        match pointee.kind {
            Kind::Prototype(_) => Shape::Symbol,
            Kind::Int(int) if int.bytes == 1 && pointee.name() == "char" && is_string(self.btf, name, to) => {
                Shape::Text
            }
            Kind::Structure(structure)
                if !structure.is_union && (self.expand == Expand::All || is_small(structure)) =>
            {
                let inner = Self {
                    btf: self.btf,
                    owner: self.owner.map(|_| pointee.name()),
                    expand: Expand::Small,
                    depth: self.depth,
                };
                Shape::Pointer(Some(Box::new(inner.structure(structure, false))))
            }
            _ => Shape::Pointer(None),
        }
    }

    /// The members of a structure; those of anonymous ones in it are its own, of a union the first.
    fn structure(&self, structure: Structure<'_>, nested: bool) -> Shape {
        let mut members = Vec::new();
        let mut more = self.depth == 0;
        let mut open = if more { Vec::new() } else { vec![(structure, 0u64)] };
        // Innermost first, so that members come in their order.
        let mut steps = 0;
        let mut queue: Vec<Member<'_>> = Vec::new();
        while let Some((next, base)) = open.pop() {
            let shown = if next.is_union { 1 } else { usize::MAX };
            let inner: Vec<_> = next
                .members()
                .take(shown)
                .map(|member| Member { bit: base + member.bit, ..member })
                .collect();
            more |= next.is_union && next.members().count() > 1;
            queue.extend(inner.into_iter().rev());
            while let Some(member) = queue.pop() {
                steps += 1;
                if steps > 4 * MOST_MEMBERS || members.len() == MOST_MEMBERS {
                    more = true;
                    queue.clear();
                    break;
                }
                let structure = self.btf.plain(member.ty).and_then(|ty| ty.structure());
                if let Some(anonymous) = structure.filter(|_| member.name.is_empty()) {
                    open.push((anonymous, member.bit));
                    break;
                }
                match self.member(member, nested) {
                    Some(member) => members.push(member),
                    None => more = true,
                }
            }
        }
        Shape::Struct { members, more }
    }

    /// A member; `None` for one that is not shown.
    fn member(&self, member: Member<'_>, nested: bool) -> Option<MemberShape> {
        let Member { name, ty, bit, bits } = member;
        let size = self.btf.size(ty)?;
        let plain = self.btf.plain(ty)?;
        let depth = self.depth.saturating_sub(1);
        let inner = Self { btf: self.btf, owner: self.owner, expand: Expand::Small, depth };
        let (shape, len) = match (plain.kind, bits) {
            (_, Some(width)) => {
                let low = (bit % 8) as u8;
                let of = Box::new(inner.shape(name, ty));
                let len = (u64::from(low) + u64::from(width)).div_ceil(8);
                (Shape::BitField { low, width, of }, len)
            }
            (Kind::Structure(structure), None) if structure.size <= 8 || nested => {
                (inner.structure(structure, false), size)
            }
            (Kind::Structure(_), None) => return None,
            (Kind::Array { element, count }, None) => {
                let shape = inner.array(element, count);
                let shown = match shape {
                    Shape::Array { count: shown, .. } => size / u64::from(count.max(1)) * u64::from(shown),
                    _ => size,
                };
                (shape, shown)
            }
            // What they lead to is another level, and may lead back here.
            (Kind::Pointer(to), None) => match self.btf.plain(to).map(|to| to.kind) {
                Some(Kind::Prototype(_)) => (Shape::Symbol, size),
                _ => (Shape::Pointer(None), size),
            },
            (_, None) => (inner.shape(name, ty), size),
        };
        let offset = u16::try_from(bit / 8).ok().filter(|_| bits.is_some() || bit.is_multiple_of(8))?;
        let len = u16::try_from(len).ok().filter(|len| *len > 0)?;
        (u64::from(offset) + u64::from(len) <= MOST_BYTES).then(|| MemberShape {
            name: name.to_owned(),
            offset,
            len,
            shape,
        })
    }

    fn array(&self, element: TypeId, count: u32) -> Shape {
        match self.btf.plain(element) {
            Some(ty) if ty.name() == "char" => Shape::Text,
            Some(ty) => {
                let of = match ty.kind {
                    Kind::Int(_) | Kind::Enumeration(_) => self.shape("", element),
                    _ => Shape::Hex,
                };
                Shape::Array { count: count.min(MOST_ELEMENTS) as u16, of: Box::new(of) }
            }
            None => Shape::Hex,
        }
    }
}

fn is_small(structure: Structure<'_>) -> bool {
    structure.size <= SMALL && structure.members().count() <= 8
}

/// How many bytes of a structure its shown members need.
fn shown_bytes(shape: &Shape) -> u64 {
    match shape {
        Shape::Struct { members, .. } => {
            members.iter().map(|m| u64::from(m.offset) + u64::from(m.len)).max().unwrap_or(0)
        }
        _ => 8,
    }
}

/// Whether a `char *` leads to a string: a constant one does, unless it is called as buffers are; another only when it
/// is called as names are.
fn is_string(btf: &Btf<'_>, name: &str, pointee: TypeId) -> bool {
    const BUFFERS: &[&str] = &["buf", "buffer", "data", "ubuf", "p", "ptr", "page", "src", "from", "value"];
    const STRINGS: &[&str] =
        &["name", "filename", "pathname", "path", "str", "s", "string", "comm", "type", "key"];
    let mut id = pointee;
    for _ in 0..DEEPEST {
        match btf.get(id).map(|ty| ty.kind) {
            Some(Kind::Modifier { modifier: Modifier::Const, .. }) => return !BUFFERS.contains(&name),
            Some(Kind::Modifier { ty, .. } | Kind::Typedef(ty)) => id = ty,
            _ => break,
        }
    }
    STRINGS.contains(&name)
}

#[cfg(test)]
mod tests;
