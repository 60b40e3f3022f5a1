//! Why a command of QEMU's protocol has no result.

/// Why a command has no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QmpError {
    /// Its client is told why.
    Told { class: &'static str, why: String },
    /// The guest has ended.
    Gone,
}

impl QmpError {
    pub(super) fn generic(why: impl ToString) -> Self {
        Self::Told { class: "GenericError", why: why.to_string() }
    }
}
