//! How a mistake in a probe definition is shown: the definition, a mark below the mistake, and what to write instead.

use ariadne::{CharSet, Config, IndexType, Label, Report, ReportKind, Source};
use probe_engine::lang::Error;
use std::io::{self, IsTerminal, Write};

/// Shows what is wrong with `text`, which is in `source_name` (a file, or `--probe`) in this `line`, counted from 1, on
/// standard error. Nobody may be there to read it, which changes nothing.
#[allow(dead_code, reason = "definitions are not read from the command line yet")]
pub(crate) fn print(source_name: &str, line: usize, text: &str, error: &Error) {
    let stderr = io::stderr();
    let shown = render(source_name, line, text, error, stderr.is_terminal());
    let _ = stderr.lock().write_all(&shown);
}

fn render(source_name: &str, line: usize, text: &str, error: &Error, color: bool) -> Vec<u8> {
    let char_set = if color { CharSet::Unicode } else { CharSet::Ascii };
    let config = Config::default().with_index_type(IndexType::Byte).with_color(color).with_char_set(char_set);
    let at = (source_name, error.span.clone());
    let mut report = Report::build(ReportKind::Error, at.clone())
        .with_config(config)
        .with_message(error)
        .with_label(Label::new(at).with_message("here"));
    if let Some(hint) = error.hint() {
        report = report.with_help(hint);
    }
    let source = Source::from(text).with_display_line_offset(line.saturating_sub(1));
    let mut shown = Vec::new();
    let _ = report.finish().write((source_name, source), &mut shown);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: usize, text: &str) -> String {
        let error = probe_engine::lang::parse(text).unwrap_err();
        String::from_utf8(render("probes", line, text, &error, false)).unwrap()
    }

    #[test]
    fn generate() {
        for text in [
            "p vfs_read pos=%rdj:u64",
            "p vfs_read +0(%di",
            "",
            "p vfs_read if a == 1 \u{e4}\u{e4} b == 2",
            "p vfs_raed +x(\u{e4}",
        ] {
            println!("{}", shown(12, text));
        }
    }
}
