//! From rules to probes of a kernel: their definitions are read as those of `--probe` are.

use super::file::{FileRule, RuleFile};
use super::mistake::Mistake;
use super::policy::{Hook, HookPlace, Policy};
use super::translate::Translated;
use crate::advice;
use anyhow::{Context, Result};
use probe_engine::lang;
use probe_engine::probe::inject::InjectionId;
use probe_engine::probe::plan::{Action, GuardAction};
use probe_engine::probe::resolve::ResolveError;
use probe_engine::request::{DefinitionError, Definitions, PlaceError, ProbeRequest, Rule, Style};

/// More pointers than there are on the way to any member.
const MOST_ARROWS: usize = 32;

/// What rules came to in a kernel.
pub(crate) struct ResolvedRules {
    pub(crate) probes: Vec<ProbeRequest>,
    /// Functions that the kernel lacks, of which rules say that it may: with the name of the rule.
    pub(crate) missing: Vec<(String, Vec<String>)>,
    /// Rules that have no function in this kernel.
    pub(crate) empty: Vec<String>,
}

/// Reads all rules of `files`. Calls that they deny are numbered from `first` on.
pub(crate) fn resolved(
    files: &[RuleFile],
    definitions: &mut Definitions<'_, '_>,
    first: u32,
) -> Result<ResolvedRules> {
    let mut all = ResolvedRules { probes: Vec::new(), missing: Vec::new(), empty: Vec::new() };
    let mut number = first;
    for file in files {
        for rule in &file.rules {
            let before = all.probes.len();
            let missing = of_rule((file, rule), definitions, &mut number, &mut all.probes)?;
            let name = &rule.policy.name.value;
            if all.probes.len() == before {
                all.empty.push(name.clone());
            }
            if !missing.is_empty() {
                all.missing.push((name.clone(), missing));
            }
        }
    }
    Ok(all)
}

/// Adds the probes of a rule, and gives the names of functions that the kernel lacks.
fn of_rule(
    (file, rule): (&RuleFile, &FileRule),
    definitions: &mut Definitions<'_, '_>,
    number: &mut u32,
    probes: &mut Vec<ProbeRequest>,
) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    for (hook, translated) in rule.policy.hooks.iter().zip(&rule.probes) {
        for own in translated {
            let injection = InjectionId(*number);
            *number = number.checked_add(1).context("too many rules")?;
            let mut own = own.clone();
            match read(definitions, &mut own, injection) {
                Ok(found) => {
                    let name = called(&hook.at.value);
                    let ruled = |probe| ruled(probe, (&rule.policy, hook, &own), &name);
                    probes.extend(found.into_iter().map(ruled));
                }
                Err(error) if hook.may_be_missing && is_missing(&error) => {
                    missing.push(called(&hook.at.value));
                    // The others of its selectors are at the same place.
                    break;
                }
                Err(error) => return Err(file.said(mistake(error, &own))),
            }
        }
    }
    Ok(missing)
}

/// What a hook is at, as a user knows it.
pub(super) fn called(place: &HookPlace) -> String {
    match place {
        HookPlace::Function(name) => name.clone(),
        HookPlace::SystemCall(name) => format!("syscall:{name}"),
        HookPlace::Tracepoint { system, event } => format!("{system}:{event}"),
        HookPlace::Program { path, symbol } => format!("{path}:{symbol}"),
    }
}

/// The probes of a definition. Dots of `resolve` that stand for arrows become arrows in it.
fn read(
    definitions: &mut Definitions<'_, '_>,
    own: &mut Translated,
    injection: InjectionId,
) -> Result<Vec<ProbeRequest>, DefinitionError> {
    let mut arrows = 0;
    loop {
        let read = match &own.actions.denied {
            Some(error) => definitions.deny(&own.text, error.value, injection),
            None => definitions.read(&own.text),
        };
        match read {
            Ok(()) => return Ok(definitions.take().probes),
            Err(DefinitionError::Text(error))
                if error.mistake == lang::Mistake::DotOnPointer && arrows < MOST_ARROWS =>
            {
                arrows += 1;
                let dot = error.span.start.saturating_sub(1)..error.span.start;
                match own.replaced(&dot, "->") {
                    Some(new) => *own = new,
                    None => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The probe with what the rule says of its hits.
fn ruled(
    probe: ProbeRequest,
    (policy, hook, translated): (&Policy, &Hook, &Translated),
    called: &str,
) -> ProbeRequest {
    let actions = &translated.actions;
    let stop = if actions.stops.is_some() { GuardAction::Stop } else { GuardAction::GoOn };
    let mut probe = ProbeRequest { plan: probe.plan.guarding(stop), ..probe };
    if actions.is_silent {
        probe.plan.action = Action::Count;
    }
    let name = policy.name.value.clone();
    if let Some(injected) = &mut probe.injected {
        injected.text = format!("rule {name}: {called}={}", injected.value);
    }
    probe.style = Style::Event(name.clone());
    let (message, tags) = (hook.message.clone(), hook.tags.clone());
    probe.rule = Some(Rule { name, message, tags, repeats: actions.repeats });
    probe
}

/// Whether a kernel lacks the function.
fn is_missing(error: &DefinitionError) -> bool {
    let DefinitionError::Misplaced { error, .. } = error else { return false };
    matches!(
        **error,
        PlaceError::Resolve(ResolveError::Unknown { .. } | ResolveError::SystemCall(_))
            | PlaceError::UnknownTracepoint { .. }
    )
}

/// What to do about a mistake that is one in rules alone.
fn hint_of_rule(error: &PlaceError) -> Option<String> {
    match error {
        PlaceError::Injection(refused) if refused.can_be_forced() => Some(
            "leave out the action: rules have only such calls fail whose callers are prepared for that"
                .to_owned(),
        ),
        PlaceError::Resolve(ResolveError::Unknown { name, .. }) if name.starts_with("sys_") => {
            Some(format!("if `{name}` is a system call, write `syscall: true` below it"))
        }
        _ => None,
    }
}

/// What is wrong with a definition, in the file from which it was made.
fn mistake(error: DefinitionError, own: &Translated) -> Mistake {
    match error {
        DefinitionError::Text(error) => {
            let mistake = Mistake::new(own.origin(&error.span), error.to_string());
            Mistake { hint: advice::hint(&error), ..mistake }
        }
        DefinitionError::Misplaced { span, hint, error } => {
            let of_rule = hint_of_rule(&error);
            let error = anyhow::Error::from(*error);
            let hint = of_rule.or(hint).or_else(|| advice::of(&error));
            Mistake { hint, ..Mistake::new(own.origin(&span), format!("{error:#}")) }
        }
        error => Mistake::new(own.origin(&(0..0)), format!("{:#}", anyhow::Error::from(error))),
    }
}
