//! What is told of rules: which there are, and what one of them is.

use super::file::{DEFAULT, FileRule, RuleFile, find};
use super::policy::Hook;
use super::resolve::{called, resolved};
use super::translate::Translated;
use crate::args::Run;
use crate::attack;
use crate::file::read;
use crate::say::plain;
use crate::symbol_file::KernelSource;
use anyhow::Result;
use probe_engine::capture::typed::Expand;
use probe_engine::linux::debug_info::DebugInfo;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::place::Place;
use probe_engine::request::Definitions;
use std::fmt::Write as _;
use std::process::ExitCode;

/// The shipped rules and those of `named` files.
fn files(named: &[String]) -> Result<Vec<RuleFile>> {
    let shipped = DEFAULT.to_owned();
    let is_named = named.contains(&shipped);
    let all: Vec<String> = (!is_named).then_some(shipped).into_iter().chain(named.iter().cloned()).collect();
    RuleFile::read_all(&all)
}

/// Lists the rules, one a line: name, techniques, and what each is for.
pub(crate) fn list(named: &[String]) -> Result<ExitCode> {
    let files = files(named)?;
    let rows: Vec<[String; 3]> = files.iter().flat_map(|file| &file.rules).map(row).collect();
    let [names, techniques] =
        [0, 1].map(|n| rows.iter().filter_map(|row| row.get(n)).map(String::len).max().unwrap_or(0));
    crate::listing::list(|out| {
        for [name, technique, purpose] in &rows {
            let line = format!("{name:<names$}  {technique:<techniques$}  {purpose}");
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn row(rule: &FileRule) -> [String; 3] {
    let policy = &rule.policy;
    let first = |text: &String| text.lines().next().unwrap_or_default().to_owned();
    let places = || policy.hooks.iter().map(|hook| called(&hook.at.value)).collect::<Vec<_>>().join(", ");
    let message = || policy.hooks.iter().find_map(|hook| hook.message.clone());
    let purpose = policy.description.as_ref().map(first).or_else(message).unwrap_or_else(places);
    [policy.name.value.clone(), techniques(rule).join(", "), purpose].map(|text| plain(&text))
}

/// The techniques that the tags of a rule name, each once.
fn techniques(rule: &FileRule) -> Vec<&str> {
    let mut found = Vec::new();
    for number in
        rule.policy.hooks.iter().flat_map(|hook| &hook.tags).filter_map(|tag| attack::technique(tag))
    {
        if !found.contains(&number) {
            found.push(number);
        }
    }
    found
}

/// Says what the rule of this name is: what it is for, its probes, what it does not see, and what the probes are in the kernel.
pub(crate) fn explain(name: &str, run: &Run) -> Result<ExitCode> {
    let files = files(&run.guarded.rules)?;
    let (_, rule) = find(&files, name)?;
    let mut text = explained(rule);
    let which = run.guest.kernel.which.files()?;
    let source = KernelSource::of(&which, &run.guest.symbols);
    let kernel = source.kernel(&read(&which.image)?)?;
    text.push_str(&in_kernel(&files, rule, &kernel, &source.debug_info(&kernel))?);
    crate::listing::list(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

fn explained(rule: &FileRule) -> String {
    let mut text = format!("{}\n", rule.policy.name.value);
    let mut add = |line: String| {
        let _ = writeln!(text, "{}", plain(&line));
    };
    for number in techniques(rule) {
        add(format!("  ATT&CK {number} {}", attack::name(number).unwrap_or_default()).trim_end().to_owned());
    }
    if let Some(description) = &rule.policy.description {
        description.lines().for_each(|line| add(format!("  {line}")));
    }
    add("its probes:".to_owned());
    for (hook, probes) in rule.policy.hooks.iter().zip(&rule.probes) {
        for probe in probes {
            add(format!("  {}", probe.text));
            add(format!("      {}", done(hook, probe)));
        }
    }
    if let Some(unseen) = &rule.policy.unseen {
        add("what it does not see:".to_owned());
        unseen.lines().for_each(|line| add(format!("  {line}")));
    }
    text
}

/// What is made of hits, in words.
fn done(hook: &Hook, probe: &Translated) -> String {
    let actions = &probe.actions;
    let told = match (actions.is_silent, &hook.message) {
        (true, _) => "counted".to_owned(),
        (false, Some(message)) => format!("told: {message}"),
        (false, None) => "told".to_owned(),
    };
    let denied =
        actions.denied.as_ref().map(|error| format!("; the call is not made, and returns {}", error.value));
    let stops = actions.stops.as_ref().map(|_| "; the guest is ended".to_owned());
    let missing = hook.may_be_missing.then(|| "; a kernel may lack the function".to_owned());
    [Some(told), denied, stops, missing].into_iter().flatten().collect()
}

/// Where the probes of a rule are in a kernel, and what it lacks.
fn in_kernel(files: &[RuleFile], rule: &FileRule, kernel: &Kernel, debug: &DebugInfo<'_>) -> Result<String> {
    let name = &rule.policy.name.value;
    let btf = kernel.btf().ok();
    let mut definitions = Definitions::of(kernel, btf.as_ref(), debug, Expand::Small);
    let found = resolved(files, &mut definitions, 0)?;
    let mut text = format!(
        "in this kernel{}:\n",
        kernel.release().map(|release| format!(" ({release})")).unwrap_or_default()
    );
    for probe in found.probes.iter().filter(|probe| probe.rule.as_ref().is_some_and(|own| own.name == *name))
    {
        let fields: Vec<_> = probe
            .plan
            .capture
            .fields
            .iter()
            .map(|field| format!("{}: {}", field.name, field.type_name()))
            .collect();
        let at = match &probe.place {
            Place::Kernel { info, .. } => info.at.to_string(),
            _ => "-".to_owned(),
        };
        let _ = writeln!(text, "  {}  {at}  {}", probe.name(), fields.join(", "));
    }
    for (_, missing) in found.missing.iter().filter(|(own, _)| own == name) {
        let _ = writeln!(text, "  it lacks {}", missing.join(", "));
    }
    Ok(text)
}
