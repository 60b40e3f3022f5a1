//! A recording's own lines, up to the last whole one.

use super::ReportError;
use crate::record::Reader;
use std::io::{BufRead, Write};

pub(super) fn write(recording: &mut Reader<impl BufRead>, out: &mut dyn Write) -> Result<(), ReportError> {
    loop {
        out.write_all(recording.text())?;
        out.write_all(b"\n")?;
        if recording.next()?.is_none() {
            return Ok(());
        }
    }
}
