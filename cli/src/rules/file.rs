//! Files of rules, and the shipped ones.

use super::mistake::Mistake;
use super::parse::policies;
use super::policy::Policy;
use super::translate::{Translated, translated};
use crate::{file, mistake};
use anyhow::{Context, Error, Result, bail};
use std::path::Path;

/// How the shipped rules are named.
pub(super) const DEFAULT: &str = "default";

/// The shipped rules, a file for each kind.
const SHIPPED: [(&str, &str); 4] = [
    ("default/programs.yaml", include_str!("../../rules/programs.yaml")),
    ("default/kernel.yaml", include_str!("../../rules/kernel.yaml")),
    ("default/privileges.yaml", include_str!("../../rules/privileges.yaml")),
    ("default/network.yaml", include_str!("../../rules/network.yaml")),
];

/// A file, and the rules in it.
pub(crate) struct RuleFile {
    name: String,
    text: String,
    pub(super) rules: Vec<FileRule>,
}

/// A rule, and the probes of each of its hooks.
pub(super) struct FileRule {
    pub(super) policy: Policy,
    pub(super) probes: Vec<Vec<Translated>>,
}

impl RuleFile {
    /// Reads what `--rules` names: files, or the shipped rules. No two rules have one name.
    pub(crate) fn read_all(named: &[String]) -> Result<Vec<Self>> {
        let mut files: Vec<Self> = Vec::new();
        for name in named {
            if name == DEFAULT {
                for (name, text) in SHIPPED {
                    files.push(Self::of(name.to_owned(), text.to_owned())?);
                }
                continue;
            }
            let text = String::from_utf8(file::read(Path::new(name))?)
                .with_context(|| format!("{name} is not text"))?;
            files.push(Self::of(name.clone(), text)?);
        }
        for (number, file) in files.iter().enumerate() {
            for (at, rule) in file.rules.iter().enumerate() {
                let name = &rule.policy.name.value;
                let before =
                    files.iter().take(number).flat_map(|file| &file.rules).chain(file.rules.iter().take(at));
                if before.into_iter().any(|own| own.policy.name.value == *name) {
                    let mistake = Mistake::new(
                        rule.policy.name.span.clone(),
                        format!("there is a rule `{name}` already"),
                    );
                    return Err(file.said(mistake.hint("give it another name")));
                }
            }
        }
        Ok(files)
    }

    /// Files that `--rules` names, but for the shipped ones.
    pub(crate) fn paths(named: &[String]) -> impl Iterator<Item = &Path> {
        named.iter().filter(|name| *name != DEFAULT).map(Path::new)
    }

    pub(super) fn of(name: String, text: String) -> Result<Self> {
        let mut file = Self { name, text, rules: Vec::new() };
        file.rules = rules(&file.text).map_err(|mistake| file.said(mistake))?;
        Ok(file)
    }

    /// What is wrong in the file, where it stands.
    pub(super) fn said(&self, Mistake { span, message, hint }: Mistake) -> Error {
        mistake::in_file((&self.name, &self.text), span, message, hint)
    }
}

/// The rules of a file, each with its probes.
fn rules(text: &str) -> Result<Vec<FileRule>, Mistake> {
    let with_probes = |policy: Policy| {
        let probes = policy.hooks.iter().map(translated).collect::<Result<_, _>>()?;
        Ok(FileRule { policy, probes })
    };
    policies(text)?.into_iter().map(with_probes).collect()
}

/// The rule of this name.
pub(super) fn find<'a>(files: &'a [RuleFile], name: &str) -> Result<(&'a RuleFile, &'a FileRule)> {
    let all = || files.iter().flat_map(|file| file.rules.iter().map(move |rule| (file, rule)));
    match all().find(|(_, rule)| rule.policy.name.value == name) {
        Some(found) => Ok(found),
        None => {
            let near = probe_engine::linux::nearest::nearest(
                all().map(|(_, rule)| rule.policy.name.value.as_str()),
                name,
                2,
            );
            let near: Vec<_> = near.iter().map(|name| format!("`{name}`")).collect();
            match near.is_empty() {
                true => bail!("there is no rule `{name}`: `vmm guard --list` has them all"),
                false => bail!("there is no rule `{name}`: did you mean {}?", near.join(" or ")),
            }
        }
    }
}
