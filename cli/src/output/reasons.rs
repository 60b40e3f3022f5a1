//! Reasons that many probes have, told once each: how many have it, and which, as far as that fits.

use std::fmt::Write as _;

/// So many probes have each its reason beside its name. More are told by reason.
pub(crate) const FEW: usize = 3;

/// Reasons of one kind: they differ in numbers and in what is quoted at most.
struct ReasonGroup<'a> {
    kind: String,
    reason: &'a str,
    is_one: bool,
    names: Vec<&'a str>,
}

/// A line for each kind of reason, the most frequent first. `reasons` are those of names.
pub(crate) fn by_kind<'a>(reasons: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut groups = indexmap::IndexMap::<String, ReasonGroup<'a>>::new();
    for (reason, name) in reasons {
        let kind = kind_of(reason);
        let group = groups.entry(kind.clone()).or_insert(ReasonGroup {
            kind,
            reason,
            is_one: true,
            names: Vec::new(),
        });
        group.is_one &= group.reason == reason;
        group.names.push(name);
    }
    let mut groups: Vec<ReasonGroup<'a>> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.names.len()));
    groups.iter().map(ReasonGroup::line).collect()
}

impl ReasonGroup<'_> {
    fn line(&self) -> String {
        let (shown, others) = self.names.split_at(self.names.len().min(FEW));
        let reason = if self.is_one { self.reason } else { &self.kind };
        let mut line = format!("{:>7}  {reason}: {}", self.names.len(), shown.join(", "));
        if !others.is_empty() {
            let _ = write!(line, " and {} more", others.len());
        }
        line
    }
}

/// A reason without what differs from place to place: quotations and numbers.
fn kind_of(reason: &str) -> String {
    let mut kind = String::new();
    for (n, part) in reason.split('`').enumerate() {
        if n % 2 == 1 {
            kind.push_str("`..`");
            continue;
        }
        for word in part.split_inclusive(' ') {
            let number = word.trim_start_matches(|c: char| c.is_ascii_punctuation());
            let rest = number.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
            let before = word.strip_suffix(number).unwrap_or_default();
            match number.starts_with(|c: char| c.is_ascii_digit()) {
                true => kind.extend([before, "..", rest]),
                false => kind.push_str(word),
            }
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_one_kind_are_one_line() {
        let reasons = [
            ("the jump at 0x10, which leads anywhere", "a"),
            ("a task is inside", "b"),
            ("the jump at 0x20, which leads anywhere", "c"),
            ("`x` is read", "d"),
            ("the jump at 0x30, which leads anywhere", "e"),
            ("the jump at 0x40, which leads anywhere", "f"),
            ("`x` is read", "g"),
        ];
        assert_eq!(
            by_kind(reasons),
            [
                "      4  the jump at .., which leads anywhere: a, c, e and 1 more",
                "      2  `x` is read: d, g",
                "      1  a task is inside: b",
            ]
        );
        assert_eq!(by_kind([]), [""; 0]);
    }

    #[test]
    fn a_kind_has_no_numbers_and_no_names() {
        for (reason, kind) in [
            ("`jmp rax` is a branch", "`..` is a branch"),
            ("only 3 bytes are left, and a jump has 5", "only .. bytes are left, and a jump has .."),
            ("(0x10) and x86 code", "(..) and x86 code"),
            ("an open ` quotation", "an open `..`"),
            ("", ""),
        ] {
            assert_eq!(kind_of(reason), kind);
        }
    }
}
