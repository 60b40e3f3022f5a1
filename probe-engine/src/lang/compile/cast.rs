//! Values as addresses of structures (kernel/trace/trace_probe.c, `parse_btf_casttype`, `parse_btf_field`).

use super::super::ast::{Cast, FetchType, Span, Spanned, Step};
use super::super::error::{Error, Mistake, nearest};
use super::Compiler;
use super::variable::{Typed, find_member, member_of, step_to};
use super::way::Way;
use crate::capture::shape::Shape;
use crate::capture::{Base, Fetch};
use crate::linux::btf::{Btf, Kind, TypeId};

/// A task, for `$current`.
const TASK: &str = "task_struct";

impl Compiler<'_> {
    /// What a cast leads to, read as `ty` or as its own type says.
    pub(super) fn cast_value(
        &self,
        cast: &Cast,
        ty: Option<&Spanned<FetchType>>,
        span: &Span,
    ) -> Result<(Fetch, Shape), Error> {
        let (btf, found) = self.cast(cast)?;
        self.finish(btf, found, ty, span)
    }

    /// Where what a cast leads to comes from, to be gone on from.
    pub(super) fn cast_way(&self, cast: &Cast) -> Result<Way, Error> {
        Ok(self.cast(cast)?.1.way)
    }

    /// What a cast leads to, and the types among which the structure is: those of the function first, then the kernel's.
    fn cast(&self, cast: &Cast) -> Result<(&Btf<'_>, Typed), Error> {
        let value = self.any_way(&cast.of)?;
        let own = self.site.own.filter(|own| structure(own, &cast.structure).is_ok());
        let btf = own.map_or_else(|| self.types(&cast.structure.span), Ok)?;
        let ty = structure(btf, &cast.structure)?;
        let way = value.at(container_of(btf, ty, &cast.container_of)?.wrapping_neg(), false);
        Ok((btf, path_from(btf, Typed { way, ty, bits: None }, &cast.path)?))
    }

    /// A member of the task that runs.
    pub(super) fn of_task(&self, span: &Span, path: &[Step]) -> Result<Typed, Error> {
        let btf = self.types(span)?;
        let ty = structure(btf, &Spanned { value: TASK.to_owned(), span: span.clone() })?;
        let way = Way::value(Base::Current).at(0, false);
        path_from(btf, Typed { way, ty, bits: None }, path)
    }
}

/// The structure of that name, and no union.
fn structure(btf: &Btf<'_>, name: &Spanned<String>) -> Result<TypeId, Error> {
    let mut structures = btf.named(&name.value).filter_map(|ty| ty.structure());
    let found = structures.find(|structure| !structure.is_union);
    found.map(|structure| structure.id).ok_or_else(|| {
        let structures = btf.types().filter(|ty| ty.structure().is_some_and(|found| !found.is_union));
        let nearest = nearest(structures.map(|ty| ty.name()), &name.value);
        Error {
            span: name.span.clone(),
            mistake: Mistake::UnknownStructure { name: name.value.clone(), nearest },
        }
    })
}

/// How far the member on this path lies in a structure, in bytes.
fn container_of(btf: &Btf<'_>, structure: TypeId, path: &[Spanned<String>]) -> Result<i64, Error> {
    let (mut ty, mut bit) = (structure, 0_u64);
    for name in path {
        let wrong = |mistake| Error { span: name.span.clone(), mistake };
        if matches!(btf.plain(ty).map(|plain| plain.kind), Some(Kind::Pointer(_))) {
            return Err(wrong(Mistake::DotOnPointer));
        }
        let member = find_member(btf, ty, name)?;
        (ty, bit) = (member.ty, bit.wrapping_add(member.bit));
        if !bit.is_multiple_of(8) {
            return Err(wrong(Mistake::InsideByte(name.value.clone())));
        }
    }
    Ok((bit / 8).cast_signed())
}

/// Over the members of a path: the first one is of the structure itself.
fn path_from(btf: &Btf<'_>, structure: Typed, path: &[Step]) -> Result<Typed, Error> {
    let Some((first, others)) = path.split_first() else { return Ok(structure) };
    let first = member_of(btf, structure, &first.member)?;
    others.iter().try_fold(first, |at, step| step_to(btf, at, step))
}
