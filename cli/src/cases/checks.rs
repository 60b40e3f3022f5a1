//! What can be wrong with a file of cases, whatever the kernels are.

use super::source::SuiteSource;
use super::suite::{ProbeExpectation, TestCase, TestSuite};
use crate::args::{Memory, parse_memory};
use anyhow::{Result, anyhow, bail};
use probe_engine::linux::nearest::nearest;
use std::collections::BTreeSet;
use std::path::Path;
use toml::Spanned;

/// The longest name of a case, in bytes: it is a line of many lists.
const LONGEST_NAME: usize = 200;
/// The most CPUs that a guest has.
const MOST_CPUS: u8 = 16;

/// Refuses the first mistake. Paths are those from `folder` on.
pub(crate) fn check(file: &SuiteSource, folder: &Path, suite: &TestSuite) -> Result<()> {
    machine(file, suite.cpus.as_ref(), suite.memory.as_ref())?;
    let initrds = suite.cases.iter().map(|case| &case.initrd).chain([&suite.initrd]).flatten();
    for initrd in initrds {
        if !folder.join(initrd.get_ref()).exists() {
            let message = format!("there is no {} from this file's folder on", initrd.get_ref());
            return Err(file.mistake_in(initrd, message));
        }
    }
    let wrong = |span, message, hint| file.mistake(span, message, hint);
    suite.splats.allow.iter().try_for_each(|entry| entry.check(&wrong))?;
    if suite.cases.is_empty() {
        bail!("{}: there are no cases: each begins with [[test]]", file.name());
    }
    let mut names = BTreeSet::new();
    for case in &suite.cases {
        let name = &case.name;
        if name.get_ref().trim().is_empty() || name.get_ref().len() > LONGEST_NAME {
            let message = format!("a name has 1 to {LONGEST_NAME} bytes");
            return Err(file.mistake_in(name, message));
        }
        if !names.insert(name.get_ref()) {
            return Err(file.mistake_in(name, "there is a case of this name before"));
        }
        self::case(file, case)?;
    }
    Ok(())
}

fn case(file: &SuiteSource, case: &TestCase) -> Result<()> {
    machine(file, case.cpus.as_ref(), case.memory.as_ref())?;
    if case.run.is_some() && case.initrd.is_some() {
        let message = "a case with `run` has an initramfs of its own: leave `initrd` out";
        return Err(file.mistake_in(&case.name, message));
    }
    if let (Some(definition), None) = (&case.fail_nth, &case.run) {
        return Err(
            file.mistake_in(definition, "`fail_nth` is for calls that a command makes: say which with `run`")
        );
    }
    let mut ids = BTreeSet::new();
    for probe in &case.probes {
        if probe.id.get_ref().is_empty() || probe.id.get_ref().contains(char::is_whitespace) {
            return Err(file.mistake_in(&probe.id, "an id is one word"));
        }
        if !ids.insert(probe.id.get_ref()) {
            return Err(file.mistake_in(&probe.id, "there is a probe of this id before"));
        }
        if probe.is_without_expectation() && !case.compares(probe.id.get_ref()) {
            let message =
                "nothing is expected of this probe: say it with `hits`, `args`, `values` or a ratio";
            return Err(file.mistake_in(&probe.id, message));
        }
    }
    let known = |id: &Spanned<String>, name: &str| match ids.iter().any(|known| *known == name) {
        true => Ok(()),
        false => Err(unknown_id(file, id, name, &ids)),
    };
    for ratio in case.probes.iter().flat_map(ProbeExpectation::ratios) {
        let of = &ratio.get_ref().of;
        if !ids.contains(of) {
            let message = format!("there is no probe `{of}` in this case");
            return Err(file.mistake(ratio.span(), message, hint(of, &ids)));
        }
    }
    case.order.sequence.iter().try_for_each(|id| known(id, id.get_ref()))?;
    case.order
        .never_before
        .iter()
        .flat_map(|(later, first)| [later, first])
        .try_for_each(|id| known(id, id.get_ref()))
}

fn unknown_id(
    file: &SuiteSource,
    id: &Spanned<String>,
    name: &str,
    ids: &BTreeSet<&String>,
) -> anyhow::Error {
    file.mistake(id.span(), format!("there is no probe `{name}` in this case"), hint(name, ids))
}

/// The ids that may have been meant.
fn hint(id: &str, ids: &BTreeSet<&String>) -> Option<String> {
    let near = nearest(ids.iter().map(|known| known.as_str()), id, 1);
    near.first().map(|near| format!("there is `{near}`"))
}

fn machine(file: &SuiteSource, cpus: Option<&Spanned<u8>>, memory: Option<&Spanned<String>>) -> Result<()> {
    if let Some(cpus) = cpus.filter(|cpus| !(1..=MOST_CPUS).contains(cpus.get_ref())) {
        return Err(file.mistake_in(cpus, format!("a guest has 1 to {MOST_CPUS} CPUs")));
    }
    match memory {
        Some(memory) => amount(memory.get_ref()).map(drop).map_err(|error| file.mistake_in(memory, error)),
        None => Ok(()),
    }
}

/// An amount of memory, as the command line has it.
pub(crate) fn amount(text: &str) -> Result<Memory> {
    parse_memory(text).map_err(|error| anyhow!(error))
}
