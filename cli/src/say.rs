//! What the product itself says, on standard error: one line each, after its name.
//!
//! Nothing in this process waits for whoever reads standard error, but the end of the process.

use crate::record::write_bounded;
use crate::shared_terminal::{Marked, is_shared};
use probe_engine::guest_text::is_special;
use std::fmt::Display;
use std::io::{self, Write};
use std::iter;
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
    say_shown(plain(&line));
}

/// Says what was made [plain] already, or is a [`Picture`].
pub(crate) fn say_shown(text: impl Display) {
    let _ = writeln!(standard_error(), "vmm: {text}");
}

/// Several lines of which each part was made [harmless]. They are said as they are.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Picture(pub(crate) String);

/// `line` as a person may see it: it may repeat what is in a file, or what the guest has said. It is one line, which is not
/// longer than anybody reads.
pub(crate) fn plain(line: &dyn Display) -> String {
    const MOST: usize = 8 << 10;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_bounded(&mut text, MOST, line);
    harmless(&text)
}

/// `text` on one line, in which what would act on a terminal or cannot be seen is a question mark, byte by byte.
pub(crate) fn harmless(text: &str) -> String {
    let shown = |c: char| {
        if is_special(c) && c != '\t' { iter::repeat_n('?', c.len_utf8()) } else { iter::repeat_n(c, 1) }
    };
    text.chars().flat_map(shown).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_one_line_that_acts_on_no_terminal() {
        let error = serde_json::from_str::<crate::record::Kind>("\"\\u001b[2J\\n vmm: all is well\u{202e}\"")
            .unwrap_err();
        let error = anyhow::Error::from(error).context("cannot read \u{9b}2J");
        assert!(error.chain().any(|cause| cause.to_string().contains('\n')), "{error:?}");
        let said = plain(&format_args!("{error:#}"));
        assert!(said.starts_with("cannot read ??2J: ") && said.contains("all is well"), "{said}");
        assert!(!said.chars().any(is_special), "{said}");
        assert_eq!(plain(&"x".repeat(1 << 20)).len(), (8 << 10) + "...".len());
    }
}
