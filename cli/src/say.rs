//! What the product itself says, on standard error: one line each, after its name.

use std::fmt::Display;
use std::io::{self, Write};

/// Says `line`. Nobody may be there to read it, which changes nothing.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "vmm: {line}");
}
