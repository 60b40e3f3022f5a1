//! The debugging information of a kernel, which is looked at no sooner than a question needs it.

use super::dwarf::{DebugFile, DwarfError, SourceMap, VariablesInScope};
use super::kernel::Kernel;
use crate::addr::Gva;
use std::cell::OnceCell;
use std::error::Error;
use std::fmt;

/// What finds the file; `None` where there is none.
type Find<'a> = Box<dyn Fn() -> Result<Option<DebugFile<'a>>, DebugInfoError> + 'a>;

/// The source lines and the local variables of a kernel.
pub struct DebugInfo<'a> {
    /// Where the kernel's text begins.
    text: Gva,
    find: Find<'a>,
    file: OnceCell<Option<DebugFile<'a>>>,
    lines: OnceCell<Option<SourceMap>>,
}

/// Debugging information that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DebugInfoError {
    /// Its file cannot be read.
    #[error(transparent)]
    File(#[from] Box<dyn Error + Send + Sync>),
    /// Which line each instruction is from cannot be told.
    #[error("the kernel's source lines cannot be read")]
    Lines(#[source] DwarfError),
    /// Where variables are cannot be told.
    #[error("the kernel's local variables cannot be read")]
    Variables(#[source] DwarfError),
}

impl fmt::Debug for DebugInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebugInfo").field("file", &self.file).finish_non_exhaustive()
    }
}

impl<'a> DebugInfo<'a> {
    /// What the file of `kernel` has itself.
    #[must_use]
    pub fn of(kernel: &'a Kernel) -> Self {
        Self::found_by(kernel, || match DebugFile::read(kernel.image().file()) {
            Ok(file) => Ok(Some(file)),
            Err(DwarfError::Missing) => Ok(None),
            Err(error) => Err(DebugInfoError::File(error.into())),
        })
    }

    /// That of `kernel` in the file that `find` finds. It is called once, if at all.
    pub fn found_by(
        kernel: &Kernel,
        find: impl Fn() -> Result<Option<DebugFile<'a>>, DebugInfoError> + 'a,
    ) -> Self {
        let text = kernel.image().text_start();
        Self { text, find: Box::new(find), file: OnceCell::new(), lines: OnceCell::new() }
    }

    /// Which source the kernel's instructions are from; `None` where no debugging information says it.
    ///
    /// # Errors
    /// [`DebugInfoError`], a sentence for the user.
    pub fn lines(&self) -> Result<Option<&SourceMap>, DebugInfoError> {
        if let Some(lines) = self.lines.get() {
            return Ok(lines.as_ref());
        }
        let lines = self.file()?.map(|file| SourceMap::read(file, self.text)).transpose();
        let lines = lines.map_err(DebugInfoError::Lines)?;
        Ok(self.lines.get_or_init(|| lines).as_ref())
    }

    /// Which variables have names at the instruction at `at`; `None` where no debugging information says it.
    ///
    /// # Errors
    /// [`DebugInfoError`], a sentence for the user.
    pub fn variables_at(&self, at: Gva) -> Result<Option<VariablesInScope>, DebugInfoError> {
        let variables = self.file()?.map(|file| file.variables_at(at)).transpose();
        variables.map_err(DebugInfoError::Variables)
    }

    fn file(&self) -> Result<Option<&DebugFile<'a>>, DebugInfoError> {
        if let Some(file) = self.file.get() {
            return Ok(file.as_ref());
        }
        let file = (self.find)()?;
        Ok(self.file.get_or_init(|| file).as_ref())
    }
}
