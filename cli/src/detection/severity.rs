//! How bad a detection is.

/// How bad it is, as OCSF numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    Informational = 1,
    Low,
    Medium,
    High,
    Critical,
}

impl Severity {
    const ALL: [(&'static str, Self); 5] = [
        ("informational", Self::Informational),
        ("low", Self::Low),
        ("medium", Self::Medium),
        ("high", Self::High),
        ("critical", Self::Critical),
    ];
    /// What a tag of a rule begins with that says it.
    const TAG: &'static str = "severity.";

    /// Whether this tag is to say how bad it is, and says nothing that is known.
    pub(crate) fn is_misspelled(tag: &str) -> bool {
        let said = tag.strip_prefix(Self::TAG);
        said.is_some_and(|said| Self::ALL.iter().all(|(name, _)| *name != said))
    }

    /// What came to nothing is less bad.
    pub(super) fn of_change(is_blocked: bool) -> Self {
        if is_blocked { Self::High } else { Self::Critical }
    }

    /// What the tags of a rule say, if they do.
    pub(super) fn of_tags(tags: &[String]) -> Option<Self> {
        let said = tags.iter().find_map(|tag| tag.strip_prefix(Self::TAG))?;
        Self::ALL.iter().find(|(name, _)| *name == said).map(|(_, own)| *own)
    }
}
