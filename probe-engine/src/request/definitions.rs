//! From the text of definitions to requests.

mod injection;

use super::error::chain;
use super::programs::{FindProgram, Programs};
use super::target::{ProgramTarget, Target};
use super::{Counted, DefinitionError, PlaceError, ProbeRequest, Style};
use super::{programs, system_call, tracepoints};
use crate::capture::typed::{Expand, Signature};
use crate::capture::{Capture, Field};
use crate::lang;
use crate::lang::ast::{self, Definition, EventName, FilterExpr, Hist, Spanned, Statement};
use crate::lang::compile::{self, CompileContext};
use crate::linux::btf::Btf;
use crate::linux::debug_info::DebugInfo;
use crate::linux::dwarf::VariablesInScope;
use crate::linux::injectable::NotInjectable;
use crate::linux::kernel::Kernel;
use crate::linux::program_place::{KnownFile, ProgramPlace};
use crate::linux::symbols::is_changed;
use crate::linux::syscalls::{SystemCall, SystemCalls};
use crate::linux::tracepoints::{NoTracepoints, Tracepoints};
use crate::probe::place::Place;
use crate::probe::plan::{Action, Trigger};
use crate::probe::resolve::{Refused, resolve, resolve_in_source};
use crate::probe::spec::{Location, ProbeSpec};
use std::cell::OnceCell;

/// What definitions came to.
#[derive(Debug, Default)]
pub struct Found {
    /// The probes, in the order in which they were asked for.
    pub probes: Vec<ProbeRequest>,
    /// Patterns, and which of their matches are left out.
    pub refused: Vec<(String, Vec<Refused>)>,
    /// How many functions the compiler has changed, so that their parameters are not known and registers are shown.
    pub changed: usize,
    /// Patterns of functions whose calls are to fail, and why those of some matches do not.
    pub spared: Vec<(String, Vec<NotInjectable>)>,
}

/// What a definition's place means.
struct Targets {
    all: Vec<Target>,
    /// What was written.
    written: String,
    is_pattern: bool,
}

/// Reads definitions, one after the other, for one kernel.
pub struct Definitions<'a, 'd> {
    kernel: &'a Kernel,
    btf: Option<&'a Btf<'a>>,
    debug: &'a DebugInfo<'d>,
    expand: Expand,
    /// Which hits count where a definition does not say it.
    filter: Option<Spanned<FilterExpr>>,
    /// All histograms so far.
    histograms: Vec<Hist>,
    found: Found,
    system_calls: OnceCell<SystemCalls<'a>>,
    tracepoints: OnceCell<Result<Tracepoints, NoTracepoints>>,
    programs: Programs<'a>,
}

impl<'a, 'd> Definitions<'a, 'd> {
    /// Reads definitions for `kernel`, whose types are `btf` where it has some, and whose lines and variables are those of
    /// `debug`. Of what a parameter points to, `expand` is shown.
    #[must_use]
    pub fn of(
        kernel: &'a Kernel,
        btf: Option<&'a Btf<'a>>,
        debug: &'a DebugInfo<'d>,
        expand: Expand,
    ) -> Self {
        Self {
            kernel,
            btf,
            debug,
            expand,
            filter: None,
            histograms: Vec::new(),
            found: Found::default(),
            system_calls: OnceCell::new(),
            tracepoints: OnceCell::new(),
            programs: Programs::default(),
        }
    }

    /// Has programs' own names known by the files that `find` finds outside the guest.
    #[must_use]
    pub fn with_programs(self, find: Box<FindProgram<'a>>) -> Self {
        Self { programs: Programs::found_by(find), ..self }
    }

    /// Reads the filter of all definitions without one.
    ///
    /// # Errors
    /// What is wrong with it, in its own text.
    pub fn filter(&mut self, text: &str) -> Result<(), lang::Error> {
        self.filter = Some(lang::parse_filter(text)?);
        Ok(())
    }

    /// Reads one definition: a plain place, or a line of `kprobe_events`.
    ///
    /// # Errors
    /// [`DefinitionError`]: nothing has been added then.
    pub fn read(&mut self, text: &str) -> Result<(), DefinitionError> {
        let written = text.trim();
        if is_plain(written) && !lang::is_program(written) {
            return self.plain(written);
        }
        match lang::parse(text)? {
            Statement::Define(definition) => self.define(&definition, text),
            Statement::Remove(event) => {
                let before = self.found.probes.len();
                self.found.probes.retain(|probe| !is_named(probe, &event));
                match self.found.probes.len() == before {
                    true => Err(DefinitionError::Undefined(written.to_owned())),
                    false => Ok(()),
                }
            }
        }
    }

    /// What was found so far, of which nothing is left.
    #[must_use]
    pub fn take(&mut self) -> Found {
        std::mem::take(&mut self.found)
    }

    /// All that was found.
    #[must_use]
    pub fn finish(self) -> Found {
        self.found
    }

    fn plain(&mut self, written: &str) -> Result<(), DefinitionError> {
        let plain = |error| DefinitionError::Plain(Box::new(error));
        let spec: ProbeSpec = written.parse().map_err(|error| plain(PlaceError::Spec(error)))?;
        let returns = spec.returns();
        let mut probes = Vec::new();
        for place in self.places(&spec).map_err(plain)? {
            let target = self.target(place);
            let site = self.site(&target, self.btf, &|| Ok(None));
            let (fields, style) = typed(&site, self.expand, returns);
            self.found.changed += usize::from(is_changed_in(&site));
            let mut capture = Capture { fields, ..Capture::default() };
            let kind = if returns { ast::DefinitionKind::Return } else { ast::DefinitionKind::Instruction };
            self.add_filter(&mut capture, kind, &target)?;
            let written = self.filter.iter().map(|filter| format!("if {filter}")).collect();
            let mut probe = ProbeRequest::plain(target.place, trigger(returns, None)).found_by(&spec);
            probe.plan.capture = capture;
            let remark = self.system_call(&probe.place).map(|call| call.unseen());
            probes.push(ProbeRequest { style, written, remark, ..probe });
        }
        self.found.probes.extend(probes);
        Ok(())
    }

    fn define(&mut self, definition: &Definition, text: &str) -> Result<(), DefinitionError> {
        let returns = definition.kind == ast::DefinitionKind::Return;
        let targets = self.targets(definition).map_err(|error| misplaced(definition, text, error))?;
        let Targets { all, written: place, is_pattern } = targets;
        let number = definition.hist.as_ref().map(|hist| self.histogram(&hist.value)).transpose()?;
        let filter = || self.filter.clone();
        let filtered = Definition { filter: definition.filter.clone().or_else(filter), ..definition.clone() };
        let mut probes = Vec::new();
        for target in all {
            let (mut capture, call) = self.capture(definition, &target)?;
            self.add_filter(&mut capture, definition.kind, &target)?;
            let known = self.known_file(definition, &target, &capture);
            let histogram = compile::histogram(&filtered, &capture.fields)?;
            let counted = number.map(|number| Counted {
                number,
                name: histogram_name(definition).unwrap_or_else(|| place.clone()),
            });
            let name = match &target.tracepoint {
                Some(tracepoint) => tracepoint.written.clone(),
                None => target.place.name(),
            };
            let style = match (event(&definition.name), call) {
                (None, Some(call)) if target.tracepoint.is_none() => call,
                (named, _) => Style::Event(named.unwrap_or(name)),
            };
            if target.tracepoint.is_some()
                && let Some(tag) = self.tracepoints().ok().and_then(|all| all.calls.callee.tag())
            {
                tracepoints::count_own(&mut capture, tag);
            }
            if let Some(program) = &target.program {
                capture =
                    programs::capture(capture, histogram.as_ref(), &program.place, &definition.place.span)?;
            }
            let remark = target.program.as_ref().and_then(ProgramTarget::remark);
            let max_active = definition.max_active.as_ref().map(|calls| calls.value);
            // The kernel follows the calls of programs itself.
            let trigger = trigger(returns && target.program.is_none(), max_active);
            let filter = filtered.filter.iter().map(|filter| format!("if {filter}"));
            let written = filter.chain(definition.hist.iter().map(ToString::to_string)).collect();
            let mut probe = ProbeRequest::plain(target.place, trigger);
            probe.pattern = is_pattern.then(|| place.clone());
            (probe.plan.capture, probe.plan.tracepoint) = (capture, target.tracepoint);
            probe.plan.program = target.program.map(|program| {
                let known = known.or(program.place.known);
                ProgramPlace { known, ..program.place }
            });
            match (histogram, &probe.plan.program) {
                (Some(histogram), _) => probe.plan.action = Action::Histogram(histogram),
                (None, Some(program)) => probe.plan.capture = probe.plan.capture.keeping_state(program),
                (None, None) => {}
            }
            let remark = remark.or_else(|| self.system_call(&probe.place).map(|call| call.unseen()));
            probes.push(ProbeRequest { style, counted, written, remark, ..probe });
        }
        self.found.probes.extend(probes);
        Ok(())
    }

    /// What a definition reads at `place`, and how that is shown where it is the function's own parameters or value.
    fn capture(
        &mut self,
        definition: &Definition,
        target: &Target,
    ) -> Result<(Capture, Option<Style>), lang::Error> {
        let debug = self.debug;
        let variables = || match (&target.program, &target.place) {
            (Some(program), _) => programs::variables(program),
            (None, Place::Kernel { info, .. }) => debug.variables_at(info.at).map_err(|error| chain(&error)),
            (None, Place::Module { .. } | Place::Watch(_)) => Ok(None),
        };
        let types = target.program_types();
        let site = self.site(target, self.own_types(target, &types), &variables);
        let is_call = definition.args.is_empty() && target.function.is_some();
        let (own, style) = match is_call {
            true => {
                let (own, style) = typed(&site, self.expand, definition.kind == ast::DefinitionKind::Return);
                (own, Some(style))
            }
            false => (Vec::new(), None),
        };
        let capture = compile::capture(definition, &site, own)?;
        self.found.changed += usize::from(is_call && is_changed_in(&site));
        Ok((capture, style))
    }

    /// Gives what has no filter that of all.
    fn add_filter(
        &self,
        capture: &mut Capture,
        kind: ast::DefinitionKind,
        target: &Target,
    ) -> Result<(), DefinitionError> {
        if let (None, Some(filter)) = (&capture.filter, &self.filter) {
            let types = target.program_types();
            let site = self.site(target, self.own_types(target, &types), &|| Ok(None));
            compile::filter(&filter.value, kind, &site.parameters(kind), capture)
                .map_err(|error| DefinitionError::Filter { at: target.place.name(), error })?;
        }
        Ok(())
    }

    /// The number of a histogram: one of its own, or that of an earlier one of the same name.
    fn histogram(&mut self, hist: &Hist) -> Result<usize, DefinitionError> {
        let name = |hist: &Hist| hist.name.as_ref().map(|name| name.value.clone());
        let counts = |hist: &Hist| {
            let (keys, values) = (hist.keys.clone(), hist.values.clone());
            Hist { keys, values, ..Hist::default() }.to_string()
        };
        let earlier = self.histograms.iter().position(|own| name(own).is_some() && name(own) == name(hist));
        match earlier.and_then(|number| Some((number, self.histograms.get(number)?))) {
            Some((number, own)) if counts(own) == counts(hist) => Ok(number),
            Some((_, own)) => Err(DefinitionError::Histogram {
                name: name(hist).unwrap_or_default(),
                first: counts(own),
                second: counts(hist),
            }),
            None => {
                self.histograms.push(hist.clone());
                Ok(self.histograms.len() - 1)
            }
        }
    }

    /// What the place of a definition is in this kernel.
    fn targets(&mut self, definition: &Definition) -> Result<Targets, PlaceError> {
        if let ast::WrittenPlace::Tracepoint { system, name } = &definition.place.value {
            let written = definition.place.to_string();
            let all = self.tracepoints()?;
            let found = tracepoints::find(system.as_deref(), name, all, self.kernel, self.btf)?;
            if !found.refused.is_empty() {
                self.found.refused.push((written.clone(), found.refused));
            }
            return Ok(Targets { all: found.targets, written, is_pattern: found.is_pattern });
        }
        let returns = definition.kind == ast::DefinitionKind::Return;
        if let Some(program) = programs::place(&definition.place.value, returns) {
            let written = program.to_string();
            let are_named = programs::has_names(definition) || self.filter.is_some();
            let (all, is_pattern) = programs::targets(program, self.kernel, &self.programs, are_named)?;
            return Ok(Targets { all, written, is_pattern });
        }
        let spec: ProbeSpec = spec(&definition.place.value, returns).parse()?;
        let places = self.places(&spec)?;
        let is_pattern = matches!(spec.location(), Location::Glob(_));
        let all = places.into_iter().map(|place| self.target(place)).collect();
        Ok(Targets { all, written: spec.to_string(), is_pattern })
    }

    fn places(&mut self, spec: &ProbeSpec) -> Result<Vec<Place>, PlaceError> {
        let is_line = matches!(spec.location(), Location::Line { .. });
        let resolved = match if is_line { self.debug.lines()? } else { None } {
            Some(source) => resolve_in_source(spec, self.kernel, source)?,
            None => resolve(spec, self.kernel)?,
        };
        if !resolved.refused.is_empty() {
            self.found.refused.push((spec.to_string(), resolved.refused));
        }
        let other = resolved.places.iter().find(|place| spec.returns() && !place.is_entry());
        match other {
            Some(place) => Err(PlaceError::NotAnEntry(place.name())),
            None => Ok(resolved.places),
        }
    }

    /// The tracepoints of the kernel's own.
    fn tracepoints(&self) -> Result<&Tracepoints, NoTracepoints> {
        let all = self.tracepoints.get_or_init(|| Tracepoints::of(self.kernel, self.btf));
        all.as_ref().map_err(Clone::clone)
    }

    fn target(&self, place: Place) -> Target {
        Target { function: self.function(&place), place, tracepoint: None, program: None, event: None }
    }

    /// The function at whose entry or returns `place` is, with what a call of it has where its types do not say that.
    fn function(&self, place: &Place) -> Option<(String, Option<Signature>)> {
        if let Some(function) = place.function() {
            return Some((function.to_owned(), None));
        }
        let call = self.system_call(place)?;
        let signature = self.btf.and_then(|btf| system_call::signature(&call, btf));
        Some((call.handler.symbol, signature))
    }

    fn system_call(&self, place: &Place) -> Option<SystemCall> {
        let name = place.system_call()?;
        self.system_calls.get_or_init(|| SystemCalls::of(self.kernel)).find(name).ok()
    }

    /// The types of the function at `target`, of which `types` are a program's.
    fn own_types<'s>(&'s self, target: &Target, types: &'s Option<Btf<'s>>) -> Option<&'s Btf<'s>> {
        if target.program.is_some() { types.as_ref() } else { self.btf }
    }

    /// The file that a definition's place has to be in, where what it reads is known by that file outside the guest alone.
    fn known_file(
        &mut self,
        definition: &Definition,
        target: &Target,
        capture: &Capture,
    ) -> Option<KnownFile> {
        let program = target.program.as_ref()?;
        let said = program.said.as_ref().ok()?;
        let unsaid = programs::unsaid(target, program);
        let without = self.capture(definition, &unsaid).ok().and_then(|(mut without, _)| {
            self.add_filter(&mut without, definition.kind, &unsaid).ok()?;
            Some(without)
        });
        (without.as_ref() != Some(capture)).then(|| said.at.known.clone())
    }

    fn site<'s>(
        &'s self,
        target: &'s Target,
        own: Option<&'s Btf<'s>>,
        variables: &'s dyn Fn() -> Result<Option<VariablesInScope>, String>,
    ) -> CompileContext<'s> {
        let function = target.function.as_ref();
        CompileContext {
            // The first one of a tracepoint is no part of the event.
            skipped: target.tracepoint.is_some().into(),
            in_file: target.in_file(),
            event: target.event.as_deref(),
            function: function.map(|(name, _)| name.as_str()),
            signature: function.and_then(|(_, signature)| signature.as_ref()),
            kernel: self.kernel,
            btf: self.btf,
            own,
            variables,
        }
    }
}

/// What the hits are of the probe that a definition means, as far as its text tells.
///
/// # Errors
/// [`DefinitionError`] when the text is not understood, or takes an earlier definition back.
pub fn trigger_of(text: &str) -> Result<Trigger, DefinitionError> {
    let written = text.trim();
    if is_plain(written) && !lang::is_program(written) {
        let spec = written.parse::<ProbeSpec>();
        let spec = spec.map_err(|error| DefinitionError::Plain(Box::new(error.into())))?;
        return Ok(trigger(spec.returns(), None));
    }
    match lang::parse(text)? {
        Statement::Define(definition) => {
            let max_active = definition.max_active.as_ref().map(|calls| calls.value);
            let is_program = matches!(definition.place.value, ast::WrittenPlace::Program { .. });
            let returns = definition.kind == ast::DefinitionKind::Return && !is_program;
            Ok(trigger(returns, max_active))
        }
        Statement::Remove(_) => Err(DefinitionError::Undefined(written.to_owned())),
    }
}

/// Whether a text is a place alone.
fn is_plain(written: &str) -> bool {
    !written.contains(char::is_whitespace) && !written.starts_with("-:")
}

/// What a call's arguments or a return's value are by the kernel's own types, where it has them.
fn typed(site: &CompileContext<'_>, expand: Expand, returns: bool) -> (Vec<Field>, Style) {
    let plain = (Vec::new(), Style::Registers);
    let (Some(function), Some(btf)) = (site.function, site.own) else { return plain };
    let Ok(signature) = site.signature(btf, function) else { return plain };
    let fields = match returns {
        false => signature.arguments(btf, function, expand),
        true => signature.value(btf, function, expand).into_iter().collect(),
    };
    (fields, Style::Call)
}

/// Whether the compiler has changed the function's parameters, so that its types do not tell them.
fn is_changed_in(site: &CompileContext<'_>) -> bool {
    site.own.is_some() && site.function.is_some_and(is_changed)
}

/// A place at which there can be no probe, in its definition.
fn misplaced(definition: &Definition, text: &str, error: PlaceError) -> DefinitionError {
    let span = definition.place.span.clone();
    // `r1a111 vfs_read`: the first word is a place, unless it is a command.
    let is_first = text.get(..span.start).is_some_and(|before| before.trim().is_empty());
    let hint = (is_first && !definition.args.is_empty()).then(|| {
        "a definition begins with a place, or with `p`, `f`, or `r` and a number of calls if you like"
            .to_owned()
    });
    DefinitionError::Misplaced { span, hint, error: Box::new(error) }
}

/// What the hits are of a probe of returns, or of passes.
fn trigger(returns: bool, max_active: Option<u32>) -> Trigger {
    if returns { Trigger::Return { max_active } } else { Trigger::Pass }
}

/// The place as a plain one is written.
fn spec(place: &ast::WrittenPlace, returns: bool) -> String {
    let place = match place {
        ast::WrittenPlace::Symbol { module, symbol, offset } => {
            let module = module.as_ref().map(|module| format!("{module}:")).unwrap_or_default();
            let offset = if *offset == 0 { String::new() } else { format!("+{offset:#x}") };
            format!("{module}{symbol}{offset}")
        }
        ast::WrittenPlace::Address(at) => format!("{at:#x}"),
        place @ (ast::WrittenPlace::Line { .. }
        | ast::WrittenPlace::Tracepoint { .. }
        | ast::WrittenPlace::Program { .. }) => place.to_string(),
    };
    format!("{place}{}", if returns { "%return" } else { "" })
}

/// `GRP/EVENT`, as far as given.
fn event(name: &EventName) -> Option<String> {
    let event = name.event.as_ref()?;
    Some(match &name.group {
        Some(group) => format!("{}/{}", group.value, event.value),
        None => event.value.clone(),
    })
}

/// What a histogram is called: as it says, or as its event.
fn histogram_name(definition: &Definition) -> Option<String> {
    let hist = definition.hist.as_ref()?;
    hist.value.name.as_ref().map(|name| name.value.clone()).or_else(|| event(&definition.name))
}

/// Whether a probe has this name; a group alone names all of it.
fn is_named(probe: &ProbeRequest, name: &EventName) -> bool {
    let Style::Event(own) = &probe.style else { return false };
    match (&name.group, event(name)) {
        (_, Some(full)) => *own == full || (name.group.is_none() && own.ends_with(&format!("/{full}"))),
        (Some(group), None) => own.starts_with(&format!("{}/", group.value)),
        (None, None) => false,
    }
}
