//! What the product itself says, on standard error: one line each, after its name.
//!
//! Nothing in this process waits for whoever reads standard error, but the end of the process.

use crate::shared_terminal::{Marked, is_shared};
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use vmm::printer::{GRACE, Printer};

static STANDARD_ERROR: OnceLock<Option<Printer>> = OnceLock::new();
static IS_HURRIED: AtomicBool = AtomicBool::new(false);
static IS_QUIET: AtomicBool = AtomicBool::new(false);
static IS_STDOUT_RESERVED: AtomicBool = AtomicBool::new(false);

/// Standard error, for lines of this process. Without a thread for it, whoever writes waits.
pub(crate) fn standard_error() -> Box<dyn Write + Send> {
    through(printer().cloned())
}

/// The same, for lines of which a guest makes as many as it likes: what nobody reads is lost.
pub(crate) fn standard_error_for_what_fits() -> Box<dyn Write + Send> {
    through(printer().map(Printer::for_what_fits))
}

fn through(printer: Option<Printer>) -> Box<dyn Write + Send> {
    let out: Box<dyn Write + Send> = match printer {
        Some(printer) => Box::new(printer),
        None => Box::new(io::stderr()),
    };
    if is_shared() { Box::new(Marked::new(out)) } else { out }
}

/// Its printer, if there is one, for what another process has said as well.
pub(crate) fn printer() -> Option<&'static Printer> {
    STANDARD_ERROR.get_or_init(|| Printer::of_all(io::stderr()).ok()).as_ref()
}

/// Standard output is for records alone: what else would go there goes to standard error.
pub(crate) fn reserve_standard_output() {
    IS_STDOUT_RESERVED.store(true, Ordering::Relaxed);
}

/// Whether it is.
pub(crate) fn is_standard_output_reserved() -> bool {
    IS_STDOUT_RESERVED.load(Ordering::Relaxed)
}

/// Says `line`. Nobody may be there to read it, which changes nothing.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(standard_error(), "vmm: {line}");
}

/// Says `line`, which is no error, unless the user wants errors alone.
pub(crate) fn note(line: impl Display) {
    if !is_quiet() {
        say(line);
    }
}

/// From now on errors alone are said.
pub(crate) fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Whether errors alone are said.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// The user wants this process to end, whether or not somebody reads what it has said.
pub(crate) fn hurry() {
    IS_HURRIED.store(true, Ordering::Relaxed);
}

/// Waits until `printer` has written everything, unless the user is in a [hurry].
pub(crate) fn finish(printer: &Printer) -> bool {
    printer.finish(IS_HURRIED.load(Ordering::Relaxed).then_some(GRACE))
}

/// The same for all that was said.
pub(crate) fn finish_all() {
    if let Some(Some(printer)) = STANDARD_ERROR.get() {
        finish(printer);
    }
}
