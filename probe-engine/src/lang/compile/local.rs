//! Local variables by name, and the members that they lead to: in registers and on the stack, where debugging information
//! says that they are.

use super::super::ast::{FetchType, Span, Spanned, Step, Variable};
use super::super::error::{Error, Mistake, nearest};
use super::Compiler;
use super::variable::{Typed, step_to};
use super::way::{Way, WayEnd};
use crate::capture::shape::Shape;
use crate::capture::{Base, Fetch};
use crate::linux::btf::{Btf, Kind, TypeId};
use crate::linux::dwarf::{VariablePlace, VariablesInScope};

/// A variable at the place of the probe.
pub(super) struct Local {
    name: Spanned<String>,
    place: VariablePlace,
    ty: Option<TypeId>,
    /// Among these.
    types: Vec<u8>,
}

impl Compiler<'_> {
    /// The local variable that is meant; `None` for what is none. At a function's entry the name of one of its parameters is
    /// that, and where it returns there are no others.
    pub(super) fn local(&self, of: &Spanned<Variable>) -> Result<Option<Local>, Error> {
        let Variable::Named(name) = &of.value else { return Ok(None) };
        let is_parameter = || {
            let known = self.parameters(&of.span);
            known.is_ok_and(|known| known.iter().any(|parameter| parameter.name == *name))
        };
        if self.returns || is_parameter() {
            return Ok(None);
        }
        let wrong = |mistake| Error { span: of.span.clone(), mistake };
        let scope = (self.site.variables)().map_err(|reason| wrong(Mistake::NoVariables(reason)))?;
        let Some(VariablesInScope { types, variables }) = scope else { return Ok(None) };
        match variables.iter().find(|variable| variable.name == *name) {
            Some(found) => {
                let hidden = |why| wrong(Mistake::HiddenVariable { name: name.clone(), why });
                let place = found.place.map_err(hidden)?;
                let name = Spanned { value: name.clone(), span: of.span.clone() };
                Ok(Some(Local { name, place, ty: found.ty, types }))
            }
            // What is said of parameters fits.
            None if self.site.function.is_some() => Ok(None),
            None => {
                let known = || variables.iter().map(|variable| variable.name.as_str());
                let (nearest, variables) = (nearest(known(), name), known().collect());
                Err(wrong(Mistake::NotInScope { name: name.clone(), nearest, variables }))
            }
        }
    }

    /// A local variable or what it leads to, read as `ty` or as its own type says.
    pub(super) fn local_value(
        &self,
        local: &Local,
        path: &[Step],
        ty: Option<&Spanned<FetchType>>,
        span: &Span,
    ) -> Result<(Fetch, Shape), Error> {
        if let (None, [], Some(ty)) = (local.ty, path, ty) {
            return self.typed(local.way(), &ty.value, &ty.span);
        }
        let btf = local.btf()?;
        let found = local.follow(&btf, path)?;
        self.finish(&btf, found, ty, span).map_err(|error| match error.mistake {
            Mistake::NotANumber if path.is_empty() => local.wrong(Mistake::LargeVariable),
            _ => error,
        })
    }
}

impl Local {
    /// Where the value comes from, to be gone on from.
    pub(super) fn path_way(&self, path: &[Step]) -> Result<Way, Error> {
        match path {
            [] => Ok(self.way()),
            path => Ok(self.follow(&self.btf()?, path)?.way),
        }
    }

    fn way(&self) -> Way {
        match self.place {
            VariablePlace::Register(register) => Way::value(Base::Register(register)),
            VariablePlace::Memory(register, offset) => Way::value(Base::Register(register)).at(offset, false),
            VariablePlace::Constant(number) => Way::value(Base::Constant(number)),
        }
    }

    fn follow(&self, btf: &Btf<'_>, path: &[Step]) -> Result<Typed, Error> {
        let ty = self.ty.ok_or_else(|| self.wrong(Mistake::ForeignVariable))?;
        let found = Typed { way: self.way(), ty, bits: None };
        let is_structure = matches!(btf.plain(ty).map(|ty| ty.kind), Some(Kind::Structure(_)));
        if is_structure && !path.is_empty() && !matches!(found.way.end, WayEnd::Memory(_)) {
            return Err(self.wrong(Mistake::StructureInRegister));
        }
        path.iter().try_fold(found, |at, step| step_to(btf, at, step))
    }

    fn btf(&self) -> Result<Btf<'_>, Error> {
        Btf::parse(&self.types).map_err(|_| self.wrong(Mistake::ForeignVariable))
    }

    fn wrong(&self, mistake: impl FnOnce(String) -> Mistake) -> Error {
        Error { span: self.name.span.clone(), mistake: mistake(self.name.value.clone()) }
    }
}

#[cfg(test)]
mod tests;
