//! A file of cases, as it is written.

use super::expect::{CountRange, DurationRatio, HitMatch};
use super::pattern::Pattern;
use crate::splats::AllowEntry;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de::value::MapAccessDeserializer};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use toml::Spanned;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestSuite {
    /// Each case runs on each of them. `--kernel` on the command line has others.
    #[serde(default)]
    pub(crate) kernels: Vec<Spanned<String>>,
    // What holds for cases that say nothing else.
    pub(crate) cpus: Option<Spanned<u8>>,
    pub(crate) memory: Option<Spanned<String>>,
    pub(crate) append: Option<String>,
    pub(crate) initrd: Option<Spanned<String>>,
    pub(crate) timeout: Option<u64>,
    #[serde(default)]
    pub(crate) splats: SplatRules,
    #[serde(default, rename = "test")]
    pub(crate) cases: Vec<TestCase>,
}

/// One case.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestCase {
    pub(crate) name: Spanned<String>,
    /// What runs in the guest; without it the initramfs does what it does.
    pub(crate) run: Option<GuestProgram>,
    /// Calls of which one fails in each run, as behind `--fail-nth`.
    pub(crate) fail_nth: Option<Spanned<String>>,
    /// The exit code that is expected, of a run without failures.
    #[serde(default)]
    pub(crate) exit: u8,
    pub(crate) cpus: Option<Spanned<u8>>,
    pub(crate) memory: Option<Spanned<String>>,
    /// Words for the kernel's command line.
    pub(crate) append: Option<String>,
    /// An initramfs, for a guest without a command.
    pub(crate) initrd: Option<Spanned<String>>,
    /// In seconds, where guests run natively.
    pub(crate) timeout: Option<u64>,
    /// What a kernel must have, or the case is skipped.
    #[serde(default)]
    pub(crate) requires: Vec<Spanned<String>>,
    /// In what form the output names subtests.
    pub(crate) format: Option<SubtestFormat>,
    #[serde(default)]
    pub(crate) console: TextRules,
    #[serde(default)]
    pub(crate) stdout: TextRules,
    #[serde(default, rename = "probe")]
    pub(crate) probes: Vec<ProbeExpectation>,
    #[serde(default)]
    pub(crate) order: OrderRules,
}

/// What runs in a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GuestProgram {
    /// Words for a shell.
    Shell(String),
    Words {
        program: String,
        args: Vec<String>,
    },
}

/// In what form the output of a case names subtests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SubtestFormat {
    /// That of the kernel's own tests, and TAP.
    Ktap,
}

/// What is expected of a text.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextRules {
    /// Each of these is in a line of it.
    #[serde(default)]
    pub(crate) must: Vec<Pattern>,
    /// None of these is in any line of it.
    #[serde(default)]
    pub(crate) never: Vec<Pattern>,
}

/// What is expected of the order of hits.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct OrderRules {
    /// There are hits of these probes in this order, with others between them or not.
    #[serde(default)]
    pub(crate) sequence: Vec<Spanned<String>>,
    /// No hit of the first is there before one of the second.
    #[serde(default)]
    pub(crate) never_before: BTreeMap<Spanned<String>, Spanned<String>>,
}

/// What is known of reports of the kernel, each of which fails a case otherwise.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SplatRules {
    #[serde(default)]
    pub(crate) allow: Vec<AllowEntry>,
}

/// A probe, and what is expected of its hits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProbeExpectation {
    /// What others call it by.
    pub(crate) id: Spanned<String>,
    /// A place or a definition.
    pub(crate) at: Spanned<String>,
    /// How often it is hit.
    pub(crate) hits: Option<CountRange>,
    /// What the first hits have read, in their order.
    #[serde(default)]
    pub(crate) args: Vec<HitMatch>,
    /// What each hit has read.
    pub(crate) values: Option<HitMatch>,
    // How long its calls take, beside those of another probe.
    pub(crate) p99: Option<Spanned<DurationRatio>>,
    pub(crate) max: Option<Spanned<DurationRatio>>,
    pub(crate) mean: Option<Spanned<DurationRatio>>,
}

impl GuestProgram {
    /// The program and its arguments.
    pub(crate) fn words(&self) -> Vec<OsString> {
        match self {
            Self::Shell(text) => ["sh", "-c", text].map(OsString::from).to_vec(),
            Self::Words { program, args } => {
                std::iter::once(program).chain(args).map(OsString::from).collect()
            }
        }
    }
}

impl TestCase {
    /// The initramfs of its guest, where it or `suite` says one.
    pub(crate) fn initrd<'a>(&'a self, suite: &'a TestSuite) -> Option<&'a Spanned<String>> {
        self.initrd.as_ref().or(suite.initrd.as_ref()).filter(|_| self.run.is_none())
    }

    /// Whether something is judged by this probe that another one or the order of hits expects.
    pub(crate) fn compares(&self, id: &str) -> bool {
        let pairs = self.order.never_before.iter().flat_map(|(later, first)| [later, first]);
        self.order.sequence.iter().chain(pairs).any(|other| other.get_ref() == id)
            || self.probes.iter().flat_map(ProbeExpectation::ratios).any(|ratio| ratio.get_ref().of == id)
    }
}

impl ProbeExpectation {
    /// What is expected of its durations.
    pub(crate) fn ratios(&self) -> impl Iterator<Item = &Spanned<DurationRatio>> {
        [&self.p99, &self.max, &self.mean].into_iter().flatten()
    }

    /// Whether what its hits have read is looked at.
    pub(crate) fn has_values(&self) -> bool {
        !self.args.is_empty() || self.values.is_some()
    }

    /// Whether nothing is expected of it, but that another one is compared with it.
    pub(crate) fn is_without_expectation(&self) -> bool {
        self.hits.is_none() && !self.has_values() && self.ratios().next().is_none()
    }
}

impl<'de> Deserialize<'de> for GuestProgram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ProgramVisitor)
    }
}

struct ProgramVisitor;

impl<'de> Visitor<'de> for ProgramVisitor {
    type Value = GuestProgram;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("words for a shell, or { program = \"./t\", args = [] }")
    }

    fn visit_str<E: de::Error>(self, words: &str) -> Result<GuestProgram, E> {
        Ok(GuestProgram::Shell(words.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<GuestProgram, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Words {
            program: String,
            #[serde(default)]
            args: Vec<String>,
        }
        let Words { program, args } = Words::deserialize(MapAccessDeserializer::new(map))?;
        Ok(GuestProgram::Words { program, args })
    }
}
