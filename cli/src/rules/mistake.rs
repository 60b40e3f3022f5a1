//! What is wrong in a file of rules, and where.

use probe_engine::lang::ast::Span;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Where, in bytes of the file.
    pub(super) span: Span,
    /// What, in one sentence.
    pub(super) message: String,
    /// What to write instead.
    pub(super) hint: Option<String>,
}

impl Mistake {
    pub(super) fn new(span: Span, message: String) -> Self {
        Self { span, message, hint: None }
    }

    /// The same, and what to write instead.
    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}
