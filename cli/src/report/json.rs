//! A recording's own lines, up to the last whole one.

use super::ReportError;
use crate::json::escape;
use crate::record::Reader;
use std::io::{BufRead, Write};

pub(super) fn write(
    recording: &mut Reader<impl BufRead>,
    mut out: &mut dyn Write,
) -> Result<(), ReportError> {
    loop {
        // Between the members these are blanks, and in a string they are escapes already.
        escape(&mut out, &recording.text().replace(['\t', '\r'], " "))?;
        out.write_all(b"\n")?;
        if recording.next()?.is_none() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;
    use serde_json::Value;

    #[test]
    fn lines_are_the_recordings_own_and_none_acts_on_a_terminal() {
        let report = |recording: &str| {
            let mut out = Vec::new();
            write(&mut Reader::open(recording.as_bytes()).unwrap(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(report(example("json")), example("json"));
        let more = "{\"type\":\"new\",\t\"x\":\"ü\"}\n{\"type\":\"end\",\r ";
        let hostile = example("json")
            .replace("/etc/passwd", "\u{9b}2J\u{202e}evil\u{7f}")
            .replace("{\"type\":\"end\",", more);
        let shown = report(&hostile);
        assert!(
            shown.contains("\\u009b2J\\u202eevil\\u007f") && shown.contains("\"type\":\"new\", \"x\":\"ü\"")
        );
        assert!(!shown.chars().any(|c| c.is_control() && c != '\n'));
        let values = |text: &str| -> Vec<Value> {
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        assert_eq!(values(&shown), values(&hostile));
    }
}
