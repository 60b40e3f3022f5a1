//! How a mistake in a probe definition is shown: the definition, a mark below the mistake, and what to write instead.

use crate::say::standard_error;
use ariadne::{CharSet, Config, IndexType, Label, Report, ReportKind, Source};
use probe_engine::lang::Error;
use probe_engine::lang::ast::Span;
use std::io::{self, IsTerminal, Write};

/// What is wrong with a definition.
pub(crate) struct Mistake {
    /// Where, in bytes of the definition.
    pub(crate) span: Span,
    /// What, in one sentence.
    pub(crate) message: String,
    /// What to write instead.
    pub(crate) hint: Option<String>,
}

impl From<&Error> for Mistake {
    fn from(error: &Error) -> Self {
        Self { span: error.span.clone(), message: error.to_string(), hint: error.hint() }
    }
}

/// Shows what is wrong with `text`, which is in `source_name` (a file, or `--probe`) in this `line`, counted from 1, on
/// standard error. Nobody may be there to read it, which changes nothing.
pub(crate) fn print(source_name: &str, line: usize, text: &str, mistake: &Mistake) {
    let shown = render(source_name, line, text, mistake, io::stderr().is_terminal());
    let _ = standard_error().write_all(&shown);
}

fn render(source_name: &str, line: usize, text: &str, mistake: &Mistake, color: bool) -> Vec<u8> {
    let char_set = if color { CharSet::Unicode } else { CharSet::Ascii };
    let config = Config::default().with_index_type(IndexType::Byte).with_color(color).with_char_set(char_set);
    // Empty lines above give the definition its number in the margin, too.
    let above = line.saturating_sub(1);
    let at = (source_name, mistake.span.start + above..mistake.span.end + above);
    let mut report = Report::build(ReportKind::Error, at.clone())
        .with_config(config)
        .with_message(&mistake.message)
        .with_label(Label::new(at).with_message("here"));
    if let Some(hint) = &mistake.hint {
        report = report.with_help(hint);
    }
    let source = Source::from(format!("{}{text}", "\n".repeat(above)));
    let mut shown = Vec::new();
    let _ = report.finish().write((source_name, source), &mut shown);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: usize, text: &str) -> String {
        let error = probe_engine::lang::parse(text).unwrap_err();
        String::from_utf8(render("probes", line, text, &(&error).into(), false)).unwrap()
    }

    #[test]
    fn the_mistake_is_marked_and_the_hint_is_below() {
        let lines = |text: &str| -> Vec<String> {
            shown(12, text).lines().map(|l| l.trim_end().to_owned()).collect()
        };
        assert_eq!(
            lines("p vfs_read pos=%rdj:u64"),
            [
                "Error: there is no register `%rdj`",
                "    ,-[ probes:12:16 ]",
                "    |",
                " 12 | p vfs_read pos=%rdj:u64",
                "    |                ^^|^",
                "    |                  `--- here",
                "    |",
                "    | Help: did you mean `%rdi` or `%rdx`?",
                "----'",
            ]
        );
        let lines = lines("p f if a == 1 \u{e4}\u{e4} b");
        assert_eq!(lines[4].find('^'), lines[3].chars().position(|c| c == '\u{e4}'), "{lines:?}");
        let end = shown(1, "p vfs_read +0(%di");
        assert!(end.contains("probes:1:18"), "{end}");
        assert!(shown(1, "").contains("nothing is defined"));
        assert!(shown(3, "p f\tx=").contains("something that can be fetched is missing"));
    }
}
