//! Functions and tasks, as reports name them.

/// A function of a stack, as the kernel has written it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplatFrame {
    /// Its name, with what the compiler has added to it.
    pub function: String,
    /// How far behind its start, and how long it is, in bytes.
    pub place: Option<(u64, u64)>,
    /// Whether that is where a call returns to, and not what ran.
    pub is_return: bool,
    /// The module that it is in.
    pub module: Option<String>,
}

impl SplatFrame {
    /// Its name in the source: without `.isra.0`, `.constprop.0`, `.cold` and the like.
    #[must_use]
    pub fn source_name(&self) -> &str {
        self.function.split('.').next().filter(|name| !name.is_empty()).unwrap_or(&self.function)
    }
}

/// A task, as a report names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplatTask {
    /// Its name.
    pub comm: String,
    /// Its number.
    pub pid: u32,
}
