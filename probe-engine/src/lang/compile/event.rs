//! Fields of a tracepoint's own event by name, where it is known from what the guest computes them.

use super::super::ast::{Element, FetchType, Span, Spanned, Step, Variable};
use super::super::error::{Error, Mistake};
use super::variable::{Typed, is_text, step_to};
use super::way::Way;
use super::{CompileContext, Compiler};
use crate::capture::shape::Shape;
use crate::capture::{Base, Fetch, Field};
use crate::linux::btf::Btf;
use crate::linux::event_fields::{EventField, Origin, Source, event_fields};

impl CompileContext<'_> {
    /// The fields of the event of the tracepoint at which the probe is, but for those that are called as one of the `others`.
    pub(super) fn event_fields(&self, others: &[&str]) -> Vec<EventField> {
        let Some((btf, class)) = self.btf.zip(self.event) else { return Vec::new() };
        let mut fields = event_fields(self.kernel, btf, class);
        fields.retain(|field| !others.contains(&field.name.as_str()));
        fields
    }

    /// What a filter may name of the event besides the parameters, which are these.
    pub(super) fn event_values(&self, parameters: &[&str]) -> Vec<Field> {
        let compiler = Compiler { site: self, returns: false };
        let Some(btf) = self.btf else { return Vec::new() };
        let value = |field: EventField| {
            let (fetch, shape) = compiler.event_value(btf, &field, &[], None, &(0..0)).ok()?;
            Some(Field { name: field.name, fetch, shape })
        };
        self.event_fields(parameters).into_iter().filter_map(value).collect()
    }
}

impl Compiler<'_> {
    /// A field of the event that is no parameter's name, read as `ty` or as its own type says.
    pub(super) fn event_field(
        &self,
        of: &Spanned<Variable>,
        path: &[Step],
        ty: Option<&Spanned<FetchType>>,
        span: &Span,
    ) -> Option<Result<(Fetch, Shape), Error>> {
        let (Variable::Named(name), btf) = (&of.value, self.site.btf?) else { return None };
        let parameters = self.parameters(&of.span).unwrap_or_default();
        if parameters.iter().any(|parameter| parameter.name == *name) {
            return None;
        }
        let field = self.site.event_fields(&[]).into_iter().find(|field| field.name == *name)?;
        Some(self.event_value(btf, &field, path, ty, span))
    }

    fn event_value(
        &self,
        btf: &Btf<'_>,
        field: &EventField,
        path: &[Step],
        ty: Option<&Spanned<FetchType>>,
        span: &Span,
    ) -> Result<(Fetch, Shape), Error> {
        let Source { origin, hops, widened } = field.source.as_ref().map_err(|why| Error {
            span: span.clone(),
            mistake: Mistake::NoEventField { name: field.name.clone(), why: *why },
        })?;
        let base = match *origin {
            Origin::Argument(number) => Base::Argument(number),
            Origin::Kernel(at) => Base::Kernel(at),
            Origin::Current => Base::Current,
            Origin::Number(number) => Base::Constant(number),
        };
        let way = hops.iter().fold(Way::value(base), |way, offset| way.at(*offset, false));
        let own = match widened {
            // It is kept in more bytes than it has.
            Some((bytes, true)) => Some(Element::Signed(8 * bytes)),
            Some((bytes, false)) => Some(Element::Unsigned(8 * bytes)),
            None if path.is_empty() && is_text(btf, field.ty) => Some(Element::String),
            None => None,
        };
        let own =
            own.map(|element| Spanned { value: FetchType { element, count: None }, span: span.clone() });
        let mut found = Typed { way, ty: field.ty, bits: None };
        for step in path {
            found = step_to(btf, found, step)?;
        }
        self.finish(btf, found, ty.or(own.as_ref()), span)
    }
}
