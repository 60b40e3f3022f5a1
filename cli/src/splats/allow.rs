//! The list of reports that are allowed: a file of TOML, `allow = [{ match = "..", reason = "..", until = "2027-06" }]`.

use crate::file;
use crate::mistake::{self, Written};
use crate::wall_clock;
use anyhow::{Context, Result};
use probe_engine::linux::nearest::nearest;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// A kind of report that is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AllowedSplat {
    /// A regular expression for the title or the fingerprint.
    pub(super) pattern: String,
    pub(super) reason: String,
    /// The last day, or month, on which it is.
    pub(super) until: Option<String>,
    /// Whether that is over.
    pub(super) is_expired: bool,
}

/// What a file may say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowFile {
    #[serde(default)]
    allow: Vec<AllowEntry>,
}

/// A kind of report that is to be allowed, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AllowEntry {
    r#match: Spanned<String>,
    reason: Spanned<String>,
    until: Option<Spanned<String>>,
}

/// Makes an error of what is wrong at a place of a file, and of what to write instead.
type Wrong<'a> = &'a dyn Fn(Range<usize>, String, Option<String>) -> anyhow::Error;

impl AllowEntry {
    /// What it allows `now`, in nanoseconds since 1970.
    fn checked(&self, now: u64, wrong: Wrong<'_>) -> Result<AllowedSplat> {
        let Self { r#match, reason, until } = self;
        if r#match.get_ref().is_empty() || regex(r#match.get_ref()).is_err() {
            let message = "this is no regular expression that could be used".to_owned();
            let hint =
                "it is looked for in a report's title and in its fingerprint; write \\( for a parenthesis";
            return Err(wrong(r#match.span(), message, Some(hint.to_owned())));
        }
        if reason.get_ref().trim().is_empty() {
            return Err(wrong(reason.span(), "say why it is allowed".to_owned(), None));
        }
        let is_expired = match until {
            None => false,
            Some(until) => {
                let end = end_of(until.get_ref()).ok_or_else(|| {
                    let hint = "write a day as 2027-06-30, or a month as 2027-06".to_owned();
                    wrong(until.span(), "this is no date".to_owned(), Some(hint))
                })?;
                now / NANOS_OF_A_DAY >= end
            }
        };
        Ok(AllowedSplat {
            pattern: r#match.get_ref().clone(),
            reason: reason.get_ref().clone(),
            until: until.as_ref().map(|until| until.get_ref().clone()),
            is_expired,
        })
    }

    /// Refuses it where it could not be used.
    pub(crate) fn check(&self, wrong: Wrong<'_>) -> Result<()> {
        self.checked(0, wrong).map(drop)
    }

    /// Itself as a file has it. What JSON has between quotation marks, TOML has as well.
    pub(crate) fn to_toml(&self) -> Result<String> {
        let text = |text: &Spanned<String>| serde_json::to_string(text.get_ref());
        let mut lines =
            format!("[[allow]]\nmatch = {}\nreason = {}\n", text(&self.r#match)?, text(&self.reason)?);
        if let Some(until) = &self.until {
            lines.push_str(&format!("until = {}\n", text(until)?));
        }
        Ok(lines)
    }
}

const KEYS: [&str; 4] = ["allow", "match", "reason", "until"];

/// The pattern of an entry, which every text that a guest can write is tried against in bounded time.
pub(super) fn regex(pattern: &str) -> Result<Regex, regex::Error> {
    const MOST: usize = 1 << 20;
    RegexBuilder::new(pattern).size_limit(MOST).build()
}

/// Reads the file.
pub(super) fn read(path: &Path) -> Result<Vec<AllowedSplat>> {
    let bytes = file::read(path)?;
    let text = String::from_utf8(bytes).with_context(|| format!("{} is no text in UTF-8", path.display()))?;
    parse(&text, &path.display().to_string(), wall_clock::now_outside())
}

/// What `text` allows `now`, in nanoseconds since 1970.
fn parse(text: &str, name: &str, now: u64) -> Result<Vec<AllowedSplat>> {
    let wrong =
        |span: Range<usize>, message: String, hint: Option<String>| in_file(text, name, span, message, hint);
    let file: AllowFile = toml::from_str(text).map_err(|error| {
        let message = error.message().to_owned();
        let unknown = message.strip_prefix("unknown field `").and_then(|rest| Some(rest.split_once('`')?.0));
        let likely = unknown.and_then(|unknown| nearest(KEYS.into_iter(), unknown, 1).first().copied());
        wrong(
            error.span().unwrap_or_default(),
            message.clone(),
            likely.map(|key| format!("did you mean `{key}`?")),
        )
    })?;
    file.allow.iter().map(|entry| entry.checked(now, &wrong)).collect()
}

const NANOS_OF_A_DAY: u64 = 86_400 * 1_000_000_000;

/// The day behind `2027-06-30` or `2027-06`, counted from 1970 on.
fn end_of(date: &str) -> Option<u64> {
    let mut parts = date.split('-');
    let mut number = |digits| parts.next().filter(|part| part.len() == digits)?.parse::<u64>().ok();
    let (year, month) = (number(4)?, number(2).filter(|month| (1..=12).contains(month))?);
    let day = number(2);
    let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    let end_of_month = days(next.0, next.1, 1)?;
    match (day, date.len()) {
        (None, 7) => Some(end_of_month),
        (Some(day @ 1..), 10) => Some(days(year, month, day)? + 1).filter(|end| *end <= end_of_month),
        _ => None,
    }
}

/// Days from 1970-01-01 to a day of the Gregorian calendar; `None` for one before.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    // A year begins in March here: the day that may be missing is its last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    (year * 365 + year / 4 - year / 100 + year / 400 + day_of_year).checked_sub(719_468)
}

/// What is wrong at `span` of a file of several lines.
fn in_file(
    text: &str,
    name: &str,
    span: Range<usize>,
    message: String,
    hint: Option<String>,
) -> anyhow::Error {
    let before = text.get(..span.start).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    let line = text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    let written = Written { text: line, name, line: before.matches('\n').count() + 1 };
    let at = |place: usize| place.saturating_sub(start).min(line.len());
    mistake::at(&written, at(span.start)..at(span.end), message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-26.
    const NOW: u64 = 20_783 * NANOS_OF_A_DAY;

    #[test]
    fn an_entry_is_a_pattern_a_reason_and_perhaps_an_end() {
        let text = "allow = [\n{ match = \"a.b\", reason = \"c\", until = \"2026-11\" },\n\
                    { match = \"d\", reason = \"e\", until = \"2026-11-25\" },\n]\n\
                    [[unused]]";
        assert!(parse(text, "list", NOW).is_err());
        let all = parse(text.strip_suffix("[[unused]]").unwrap(), "list", NOW).unwrap();
        let shown: Vec<_> = all.iter().map(|one| (one.pattern.as_str(), one.is_expired)).collect();
        assert_eq!(shown, [("a.b", false), ("d", true)]);
        let one = parse("[[allow]]\nmatch = 'x'\nreason = 'y'\n", "list", NOW).unwrap();
        assert_eq!((one[0].until.as_deref(), one[0].is_expired), (None, false));
    }

    #[test]
    fn an_entry_is_written_as_it_is_read() {
        let text = "[[allow]]\nmatch = 'a\\.\"b'\nreason = \"\u{e4}\\u001b\\n\"\nuntil = '2027-06'\n";
        let file: AllowFile = toml::from_str(text).unwrap();
        let written = file.allow[0].to_toml().unwrap();
        assert_eq!(parse(&written, "list", NOW).unwrap(), parse(text, "list", NOW).unwrap());
    }

    #[test]
    fn a_date_is_a_day_or_a_month() {
        let ends = |date: &str| end_of(date);
        assert_eq!(ends("1970-01-01"), Some(1));
        assert_eq!((ends("2026-11-26"), ends("2026-11")), (Some(20_784), Some(20_788)));
        assert_eq!((ends("2024-02-29"), ends("2023-02-29")), (ends("2024-02"), None));
        for wrong in [
            "",
            "2026",
            "2026-13",
            "2026-00",
            "2026-11-00",
            "2026-11-31",
            "2026-11-26-",
            "26-11-26",
            "2026-1",
        ] {
            assert_eq!(ends(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_mistake_is_shown_in_its_line() {
        let said = |text: &str| parse(text, "list", NOW).unwrap_err().to_string();
        let misspelt = said("allow = [\n  { match = \"a\", raeson = \"b\" },\n]\n");
        assert!(misspelt.contains("list:2:") && misspelt.contains("did you mean `reason`?"), "{misspelt}");
        let date = said("[[allow]]\nmatch = 'a'\nreason = 'b'\nuntil = 'soon'\n");
        assert!(date.contains("list:4:9") && date.contains("2027-06-30"), "{date}");
        let pattern = said("[[allow]]\nmatch = 'a('\nreason = 'b'\n");
        assert!(pattern.contains("list:2:9") && pattern.contains("no regular expression"), "{pattern}");
        assert!(said("[[allow]]\nmatch = 'a'\nreason = ' '\n").contains("say why"));
        assert!(said("[[allow]\n").contains("list:1:"));
    }
}
