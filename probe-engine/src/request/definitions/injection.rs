//! From the text of an injection to its probes.

use super::super::{Injected, PlaceError};
use super::{DefinitionError, Definitions, ProbeRequest};
use crate::capture::argument_place::ArgumentPlace;
use crate::capture::filter::{Filter, Test};
use crate::capture::shape::Shape;
use crate::capture::{Base, Capture, Fetch, Field};
use crate::lang;
use crate::lang::ast::{Definition, Injection, Span, Statement};
use crate::linux::btf::{Btf, Kind};
use crate::linux::injectable::{Function, InjectableFunctions, NotInjectable};
use crate::probe::inject::{Inject, InjectionId, Turns};
use crate::probe::place::Place;
use crate::probe::plan::{ProbePlan, Trigger};

/// How many calls are followed at a time below which others fail.
const CALLS_ABOVE: u32 = 64;
/// `__GFP_NOFAIL` of kernels that do not number its bit (before 6.10, include/linux/gfp_types.h).
const OLD_NOFAIL: u64 = 0x8000;

/// How calls fail.
struct Failing<'t> {
    injection: InjectionId,
    /// What callers get.
    value: i128,
    /// The same as it was written.
    written: &'t str,
    turns: Turns,
    /// Whether only those calls count that are made below a call of another probe's function.
    is_under: bool,
    /// Whether functions fail as well whose callers may not be prepared.
    force: bool,
}

impl Definitions<'_, '_> {
    /// Reads calls that are to fail: `SYM=VALUE`, and which of them. With `force`, also those whose callers may not be prepared.
    ///
    /// # Errors
    /// [`DefinitionError`]: nothing has been added then.
    pub fn inject(&mut self, text: &str, injection: InjectionId, force: bool) -> Result<(), DefinitionError> {
        let read = lang::parse_injection(text)?;
        let before = self.found.probes.len();
        let value = Failing {
            injection,
            value: read.value.value,
            written: text.get(read.value.span.clone()).unwrap_or_default(),
            turns: read.turns,
            is_under: read.under.is_some(),
            force,
        };
        let added =
            self.calls_above(&read, text, injection).and_then(|()| self.calls(&read.calls(), text, &value));
        if added.is_err() {
            self.found.probes.truncate(before);
        }
        added
    }

    /// Reads a definition of which all hits are calls that are not made: their callers get `error`, a negative number. Only functions
    /// whose callers are prepared for that may be defined so.
    ///
    /// # Errors
    /// [`DefinitionError`]: nothing has been added then.
    pub fn deny(&mut self, text: &str, error: i32, injection: InjectionId) -> Result<(), DefinitionError> {
        let Statement::Define(definition) = lang::parse(text)? else {
            return Err(DefinitionError::Undefined(text.trim().to_owned()));
        };
        let before = self.found.probes.len();
        let value = Failing {
            injection,
            value: error.into(),
            written: &error.to_string(),
            turns: Turns::default(),
            is_under: false,
            force: false,
        };
        let added = self.calls(&definition, text, &value);
        if added.is_err() {
            self.found.probes.truncate(before);
        }
        added
    }

    /// The probe of the calls below which others fail, if only such do.
    fn calls_above(
        &mut self,
        read: &Injection,
        text: &str,
        injection: InjectionId,
    ) -> Result<(), DefinitionError> {
        let (Some(above), Some(written)) = (read.calls_above(), &read.under) else { return Ok(()) };
        let first = self.found.probes.len();
        self.define(&above, text)?;
        let found = self.found.probes.split_off(first);
        let [probe] = &found[..] else {
            return Err(misplaced(&written.span, PlaceError::SeveralAbove(found.len())));
        };
        let trigger = Trigger::Return { max_active: Some(CALLS_ABOVE) };
        let plan = ProbePlan::new(trigger).injecting(Inject::Under { injection });
        self.found.probes.push(ProbeRequest { plan, ..ProbeRequest::plain(probe.place.clone(), trigger) });
        Ok(())
    }

    fn calls(
        &mut self,
        definition: &Definition,
        text: &str,
        failing: &Failing<'_>,
    ) -> Result<(), DefinitionError> {
        let Failing { injection, value, written, turns, is_under: under, force } = *failing;
        let first = self.found.probes.len();
        self.define(definition, text)?;
        let known = InjectableFunctions::of(self.kernel);
        let nofail = self.btf.map(nofail);
        let injected = Injected { text: text.trim().to_owned(), value: written.to_owned() };
        let mut refused = Vec::new();
        let mut pattern = None;
        for mut probe in self.found.probes.split_off(first) {
            pattern = probe.pattern.clone();
            match self.register_value(&probe.place, value, (&known, force)) {
                Ok(value) => {
                    if let Some(bit) = nofail {
                        self.spare(&probe.place, bit, &mut probe.plan.capture);
                    }
                    probe.plan.inject = Some(Inject::Fail { injection, value, turns, under });
                    probe.written.push(format!("calls fail with {}", injected.value));
                    probe.injected = Some(injected.clone());
                    self.found.probes.push(probe);
                }
                Err(reason) => refused.push(reason),
            }
        }
        match (pattern, refused.first().cloned(), self.found.probes.len() > first) {
            (_, None, _) => Ok(()),
            (Some(pattern), Some(_), true) => {
                self.found.spared.push((pattern, refused));
                Ok(())
            }
            (pattern, Some(reason), _) => {
                let reason = match pattern {
                    Some(pattern) => NotInjectable::NoMatch(pattern, Box::new(reason)),
                    None => reason,
                };
                Err(misplaced(&definition.place.span, reason.into()))
            }
        }
    }

    /// What RAX is behind a call that fails.
    fn register_value(
        &self,
        place: &Place,
        value: i128,
        (known, force): (&InjectableFunctions, bool),
    ) -> Result<u64, NotInjectable> {
        let name = place.name();
        let target = self.target(place.clone());
        let site = self.site(&target, self.btf, &|| Ok(None));
        let signature =
            self.btf.zip(site.function).and_then(|(btf, function)| site.signature(btf, function).ok());
        let call = Function {
            name: &name,
            symbol: place.system_call().or(site.function),
            at: match place {
                Place::Kernel { info, .. } => Some(info.at),
                Place::Module { .. } | Place::Watch(_) => None,
            },
            is_system_call: place.system_call().is_some(),
            returns: signature.and_then(|signature| signature.returns),
        };
        known.value(&call, value, self.btf, force)
    }

    /// Has calls that must not fail, by the flags that they are made with, be none that count.
    fn spare(&self, place: &Place, bit: u64, capture: &mut Capture) {
        let target = self.target(place.clone());
        let site = self.site(&target, self.btf, &|| Ok(None));
        let Some((btf, name)) = self.btf.zip(site.function) else { return };
        let Ok(signature) = site.signature(btf, name) else { return };
        let is_flags =
            |ty| btf.get(ty).is_some_and(|ty| matches!(ty.kind, Kind::Typedef(_)) && ty.name() == "gfp_t");
        let Some(flags) = signature.parameters.iter().find(|parameter| is_flags(parameter.ty)) else {
            return;
        };
        let ArgumentPlace::Slot(argument) = flags.place else { return };
        let fetch = Fetch::word(Base::Argument(argument), 4);
        let field = Field { name: flags.name.clone(), fetch, shape: Shape::Hex };
        capture.count_only(field, |flags| Filter::Not(Box::new(Filter::Test(flags, Test::Bits(bit)))));
    }
}

/// The bit of `__GFP_NOFAIL` by the kernel's types.
fn nofail(btf: &Btf<'_>) -> u64 {
    let number = btf.types().find_map(|ty| match ty.kind {
        Kind::Enumeration(enumeration) => {
            enumeration.values().find(|(name, _)| *name == "___GFP_NOFAIL_BIT").map(|(_, number)| number)
        }
        _ => None,
    });
    let bit =
        number.and_then(|number| u32::try_from(number).ok()).and_then(|number| 1_u64.checked_shl(number));
    bit.unwrap_or(OLD_NOFAIL)
}

fn misplaced(span: &Span, error: PlaceError) -> DefinitionError {
    DefinitionError::Misplaced { span: span.clone(), hint: None, error: Box::new(error) }
}
