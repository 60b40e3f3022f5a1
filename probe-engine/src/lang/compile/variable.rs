//! Parameters and return values by name, and the members that they lead to (kernel/trace/trace_probe.c,
//! `parse_btf_arg`).

use super::super::ast::{Element, FetchType, Span, Spanned, Step, Variable};
use super::super::error::{Error, Mistake, nearest};
use super::Compiler;
use super::way::{Way, WayEnd};
use crate::capture::argument_place::ArgumentPlace;
use crate::capture::shape::Shape;
use crate::capture::typed::Parameter;
use crate::capture::{Base, Fetch, Read, Register, What};
use crate::linux::btf::{Btf, Int, Kind, Member, TypeId};

/// A value with its type: in a word, or where [`Way::memory`] says.
pub(super) struct Typed {
    pub(super) way: Way,
    pub(super) ty: TypeId,
    /// Bits below it and bits of it, of a bit-field.
    pub(super) bits: Option<(u8, u8)>,
}

impl Compiler<'_> {
    /// The parameters of the function.
    pub(super) fn parameters(&self, span: &Span) -> Result<Vec<Parameter>, Error> {
        let (btf, function) = self.function(span)?;
        let signature = self.site.signature(btf, function).map_err(|reason| Error {
            span: span.clone(),
            mistake: Mistake::NoParameters(reason.to_string()),
        })?;
        Ok(signature.into_owned().parameters)
    }

    fn function(&self, span: &Span) -> Result<(&Btf<'_>, &str), Error> {
        let wrong = |mistake| Error { span: span.clone(), mistake };
        let Some(function) = self.site.function else {
            return Err(wrong(match (self.site.variables)() {
                Err(reason) => Mistake::NoVariables(reason),
                Ok(_) => Mistake::NotAnEntry,
            }));
        };
        let own = self.site.own.ok_or_else(|| wrong(Mistake::NoTypes))?;
        Ok((own, function))
    }

    /// The kernel's types.
    pub(super) fn types(&self, span: &Span) -> Result<&Btf<'_>, Error> {
        self.site.btf.ok_or_else(|| Error { span: span.clone(), mistake: Mistake::NoTypes })
    }

    /// `$retval` without members. Where the function's type is known, a value of that; where there is none, as the
    /// older kernels have it.
    pub(super) fn return_value(
        &self,
        ty: Option<&Spanned<FetchType>>,
        span: &Span,
    ) -> Result<(Fetch, Shape), Error> {
        let way = Way::value(Base::Register(Register::Rax));
        let wrong = |mistake| Err(Error { span: span.clone(), mistake });
        match self.site.own.zip(self.returned()) {
            Some((_, TypeId::VOID)) => wrong(Mistake::ReturnsNothing),
            Some((btf, id)) => self.finish(btf, Typed { way, ty: id, bits: None }, ty, span),
            None => match ty {
                Some(ty) => self.typed(way, &ty.value, &ty.span),
                None => self.typed(way, &super::HEX, span),
            },
        }
    }

    /// The type of what the function returns, where that is known.
    pub(super) fn returned(&self) -> Option<TypeId> {
        let (btf, function) = self.site.own.zip(self.site.function)?;
        self.site.signature(btf, function).ok().and_then(|signature| signature.returns)
    }

    /// A variable, read as `ty` or as its own type says.
    pub(super) fn variable(
        &self,
        of: &Spanned<Variable>,
        path: &[Step],
        ty: Option<&Spanned<FetchType>>,
        span: &Span,
    ) -> Result<(Fetch, Shape), Error> {
        if let Some(local) = self.local(of)? {
            return self.local_value(&local, path, ty, span);
        }
        if let Some(found) = self.event_field(of, path, ty, span) {
            return found;
        }
        let found = self.follow(of, path)?;
        let btf = match of.value {
            Variable::Current => self.types(&of.span)?,
            _ => self.function(&of.span)?.0,
        };
        self.finish(btf, found, ty, span)
    }

    /// Where a variable's value comes from, to be dereferenced.
    pub(super) fn variable_way(&self, of: &Spanned<Variable>, path: &[Step]) -> Result<Way, Error> {
        match self.local(of)? {
            Some(local) => local.path_way(path),
            None => Ok(self.follow(of, path)?.way),
        }
    }

    fn follow(&self, of: &Spanned<Variable>, path: &[Step]) -> Result<Typed, Error> {
        let wrong = |mistake| Error { span: of.span.clone(), mistake };
        if of.value == Variable::Current {
            return self.of_task(&of.span, path);
        }
        let (btf, function) = self.function(&of.span)?;
        let (way, ty) = match &of.value {
            Variable::ReturnValue => {
                let signature = self
                    .site
                    .signature(btf, function)
                    .map_err(|reason| wrong(Mistake::NoParameters(reason.to_string())))?;
                let unknown =
                    || wrong(Mistake::NoParameters("the type that it returns is not known".to_owned()));
                (Way::value(Base::Register(Register::Rax)), signature.returns.ok_or_else(unknown)?)
            }
            Variable::Named(_) | Variable::Argument(_) | Variable::Current => {
                let parameters = self.parameters(&of.span)?;
                let found = match &of.value {
                    Variable::Named(name) => parameters.iter().find(|own| own.name == *name),
                    Variable::Argument(n) => parameters.get((*n as usize).wrapping_sub(1)),
                    Variable::ReturnValue | Variable::Current => None,
                };
                let Parameter { ty, place, .. } = found.ok_or_else(|| {
                    let name = of.value.to_string();
                    let own: Vec<&str> = parameters.iter().map(|own| own.name.as_str()).collect();
                    let fields = self.site.event_fields(&own);
                    let readable = fields.iter().filter(|field| field.source.is_ok());
                    let known =
                        || own.iter().copied().chain(readable.clone().map(|field| field.name.as_str()));
                    let (nearest, parameters) = (nearest(known(), &name), known().collect());
                    wrong(Mistake::UnknownVariable { name, nearest, parameters })
                })?;
                match place {
                    ArgumentPlace::Slot(n)
                        if self.returns && Register::of_argument(usize::from(*n)).is_none() =>
                    {
                        return Err(wrong(Mistake::StackArgumentOfReturn));
                    }
                    ArgumentPlace::Saved(offset) => {
                        (Way::value(Base::Argument(0)).at((*offset).into(), false), *ty)
                    }
                    place => {
                        let base = place.base().ok_or_else(|| wrong(Mistake::NotAWord))?;
                        (Way::value(base), *ty)
                    }
                }
            }
        };
        let mut at = Typed { way, ty, bits: None };
        for step in path {
            at = step_to(btf, at, step)?;
        }
        Ok(at)
    }

    /// Reads a value as `ty`, or as its own type says.
    pub(super) fn finish(
        &self,
        btf: &Btf<'_>,
        found: Typed,
        ty: Option<&Spanned<FetchType>>,
        span: &Span,
    ) -> Result<(Fetch, Shape), Error> {
        let wrong = |mistake| Err(Error { span: span.clone(), mistake });
        if let Some(ty) = ty.filter(|ty| is_string(&ty.value)) {
            return match text_of(btf, found.ty) {
                // The string that a pointer leads to.
                Some(StringStorage::Pointer) => self.typed(found.way.at(0, false), &ty.value, &ty.span),
                Some(StringStorage::Array) => self.typed(found.way, &ty.value, &ty.span),
                None => Err(Error { span: ty.span.clone(), mistake: Mistake::StringOfOther }),
            };
        }
        if let Some(ty) = ty.filter(|ty| ty.value.element == Element::Path) {
            let way =
                path_way(btf, found).ok_or(Error { span: ty.span.clone(), mistake: Mistake::PathOfOther })?;
            return self.typed(way, &ty.value, &ty.span);
        }
        if let Some(ty) = ty {
            return self.typed(found.way, &ty.value, &ty.span);
        }
        let Some((bytes, shape)) = own_shape(btf, found.ty) else { return wrong(Mistake::NotANumber) };
        let Some((low, width)) = found.bits else {
            let read = match found.way.end {
                WayEnd::Memory(hop) => Read::Memory(hop, What::Bytes(bytes.into())),
                WayEnd::Address(hop) => Read::Address(hop, bytes),
                WayEnd::Value => Read::Word(bytes),
            };
            return Ok((found.way.read(read), shape));
        };
        let bytes = (u16::from(low) + u16::from(width)).div_ceil(8);
        match found.way.end {
            WayEnd::Memory(hop) => {
                let shape = Shape::BitField { low, width, of: Box::new(Shape::Unsigned) };
                Ok((found.way.read(Read::Memory(hop, What::Bytes(bytes))), shape))
            }
            WayEnd::Value | WayEnd::Address(_) => wrong(Mistake::NotANumber),
        }
    }
}

/// The way to the `struct path` that a value is, or leads to.
fn path_way(btf: &Btf<'_>, found: Typed) -> Option<Way> {
    let is_path =
        |ty| btf.plain(ty).filter(|ty| ty.structure().is_some()).is_some_and(|ty| ty.name() == "path");
    match btf.plain(found.ty)?.kind {
        Kind::Pointer(to) if is_path(to) => Some(found.way.at(0, false)),
        _ => is_path(found.ty).then_some(found.way),
    }
}

/// Where the characters are of what can be read as a string.
enum StringStorage {
    Pointer,
    Array,
}

/// Pointers to, and arrays of, numbers of one byte (`check_prepare_btf_string_fetch`). The kernel refuses those with a sign,
/// and is compiled so that `char` has none; before 6.2, `char` had one.
fn text_of(btf: &Btf<'_>, ty: TypeId) -> Option<StringStorage> {
    let (of, text) = match btf.plain(ty)?.kind {
        Kind::Pointer(to) => (to, StringStorage::Pointer),
        Kind::Array { element, .. } => (element, StringStorage::Array),
        _ => return None,
    };
    let is_character = matches!(btf.plain(of)?.kind, Kind::Int(_));
    (is_character && btf.size(of) == Some(1)).then_some(text)
}

/// Whether it is an array of characters.
pub(super) fn is_text(btf: &Btf<'_>, ty: TypeId) -> bool {
    matches!(text_of(btf, ty), Some(StringStorage::Array))
}

fn is_string(ty: &FetchType) -> bool {
    matches!(ty.element, Element::String | Element::UserString)
}

/// From a structure, or a pointer to one, to a member.
pub(super) fn step_to(btf: &Btf<'_>, at: Typed, step: &Step) -> Result<Typed, Error> {
    let wrong = |mistake| Error { span: step.member.span.clone(), mistake };
    let no_structure = || wrong(Mistake::NoStructure(step.member.value.clone()));
    let plain = btf.plain(at.ty).ok_or_else(no_structure)?;
    match (plain.kind, step.arrow) {
        (Kind::Pointer(to), true) => {
            let structure = Typed { way: at.way.at(0, false), ty: to, bits: None };
            member_of(btf, structure, &step.member)
        }
        (Kind::Pointer(_), false) => Err(wrong(Mistake::DotOnPointer)),
        (Kind::Structure(_), true) if matches!(at.way.end, WayEnd::Value) => {
            Err(wrong(Mistake::StructureInRegisters))
        }
        (Kind::Structure(_), true) => Err(wrong(Mistake::ArrowOnStructure)),
        _ => member_of(btf, at, &step.member),
    }
}

/// From a structure to a member.
pub(super) fn member_of(btf: &Btf<'_>, at: Typed, name: &Spanned<String>) -> Result<Typed, Error> {
    let member = find_member(btf, at.ty, name)?;
    let mut way = at.way;
    match &mut way.end {
        WayEnd::Memory(hop) => hop.offset = hop.offset.wrapping_add_unsigned(member.bit / 8),
        WayEnd::Value | WayEnd::Address(_) => {
            return Err(Error { span: name.span.clone(), mistake: Mistake::StructureInRegisters });
        }
    }
    let bits = member.bits.map(|width| ((member.bit % 8) as u8, width));
    Ok(Typed { way, ty: member.ty, bits })
}

/// The member of that name.
pub(super) fn find_member<'a>(
    btf: &Btf<'a>,
    structure: TypeId,
    name: &Spanned<String>,
) -> Result<Member<'a>, Error> {
    let wrong = |mistake| Error { span: name.span.clone(), mistake };
    if btf.plain(structure).and_then(|ty| ty.structure()).is_none() {
        return Err(wrong(Mistake::NoStructure(name.value.clone())));
    }
    btf.member_of(structure, &name.value).ok_or_else(|| {
        let nearest = nearest(btf.member_names(structure), &name.value);
        let members = btf.member_names(structure).into_iter().collect();
        wrong(Mistake::UnknownMember { name: name.value.clone(), nearest, members })
    })
}

/// How the kernel's probes show a value of this type: numbers by size and sign, pointers in hexadecimal
/// (`btf_type_to_fetch_type`).
fn own_shape(btf: &Btf<'_>, ty: TypeId) -> Option<(u8, Shape)> {
    let plain = btf.plain(ty)?;
    let size = u8::try_from(btf.size(ty)?).ok().filter(|size| *size <= 8)?;
    match plain.kind {
        Kind::Pointer(_) => Some((8, Shape::Hex)),
        Kind::Enumeration(_) => Some((size, Shape::Signed)),
        Kind::Int(Int { is_signed, .. }) => {
            Some((size, if is_signed { Shape::Signed } else { Shape::Unsigned }))
        }
        _ => None,
    }
}
