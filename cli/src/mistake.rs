//! How a mistake in a probe definition is shown: the definition, a mark below the mistake, and what to write instead.

use crate::advice;
use crate::say::{Picture, harmless};
use ariadne::{CharSet, Config, IndexType, Label, Report, ReportKind, Source};
use probe_engine::lang::Error;
use probe_engine::lang::ast::Span;
use std::io::{self, IsTerminal};

/// A text and where it was written.
pub(crate) struct Written<'a> {
    pub(crate) text: &'a str,
    /// A file, or an option.
    pub(crate) name: &'a str,
    /// Counted from 1.
    pub(crate) line: usize,
}

/// What is wrong with a definition.
struct Mistake {
    /// Where, in bytes of the definition.
    span: Span,
    /// What, in one sentence.
    message: String,
    /// What to write instead.
    hint: Option<String>,
}

impl From<&Error> for Mistake {
    fn from(error: &Error) -> Self {
        Self { span: error.span.clone(), message: error.to_string(), hint: advice::hint(error) }
    }
}

/// What is wrong with a text: a sentence, and below it the text with its mark.
pub(crate) fn in_text(written: &Written<'_>, error: &Error) -> anyhow::Error {
    of(written, &error.into())
}

/// What is wrong at `span` of a text, and what to write instead.
pub(crate) fn at(written: &Written<'_>, span: Span, message: String, hint: Option<String>) -> anyhow::Error {
    of(written, &Mistake { span, message, hint })
}

/// What is wrong at `span` of a file, of which the line is shown where it begins.
pub(crate) fn in_file(
    (name, text): (&str, &str),
    span: Span,
    message: String,
    hint: Option<String>,
) -> anyhow::Error {
    let begin = text.floor_char_boundary(span.start.min(text.len()));
    let (above, _) = text.split_at(begin);
    let start = above.rfind('\n').map_or(0, |at| at + 1);
    let line = text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    // What goes on in the next line is marked to the end of its first one.
    let from = (begin - start).min(line.len());
    let to = span.end.saturating_sub(start).min(line.len()).max(from);
    let number = above.matches('\n').count() + 1;
    at(&Written { text: line, name, line: number }, from..to, message, hint)
}

fn of(written: &Written<'_>, mistake: &Mistake) -> anyhow::Error {
    Picture(render(written, mistake, io::stderr().is_terminal())).into()
}

fn render(written: &Written<'_>, mistake: &Mistake, color: bool) -> String {
    let Written { text, name, line } = *written;
    // It may be a file of somebody else's. The mark stays where it is: what is replaced is as long.
    let (text, name) = (harmless(text), harmless(name));
    let name = name.as_str();
    let char_set = if color { CharSet::Unicode } else { CharSet::Ascii };
    let config = Config::default().with_index_type(IndexType::Byte).with_color(color).with_char_set(char_set);
    // Empty lines above give the definition its number in the margin, too.
    let above = line.saturating_sub(1);
    let at = (name, mistake.span.start + above..mistake.span.end + above);
    let mut report = Report::build(ReportKind::Error, at.clone())
        .with_config(config)
        .with_label(Label::new(at).with_message("here"));
    if let Some(hint) = &mistake.hint {
        report = report.with_help(harmless(hint));
    }
    let source = Source::from(format!("{}{text}", "\n".repeat(above)));
    let mut shown = Vec::new();
    let _ = report.finish().write((name, source), &mut shown);
    let shown = String::from_utf8_lossy(&shown);
    // Its first line is a title without a sentence.
    let picture = shown.split_once('\n').map_or("", |(_, picture)| picture).trim_end();
    format!("{name}: {}\n{picture}", harmless(&mistake.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: usize, text: &str) -> String {
        let error = probe_engine::lang::parse(text).unwrap_err();
        render(&Written { text, name: "probes", line }, &(&error).into(), false)
    }

    #[test]
    fn the_mistake_is_marked_and_the_hint_is_below() {
        let lines = |text: &str| -> Vec<String> {
            shown(12, text).lines().map(|l| l.trim_end().to_owned()).collect()
        };
        assert_eq!(
            lines("p vfs_read pos=%rdj:u64"),
            [
                "probes: there is no register `%rdj`",
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
        let hostile = shown(1, "p vfs_read \u{202e}pos=%rdj\u{1b}[2J");
        assert!(!hostile.contains(['\u{202e}', '\u{1b}']), "{hostile}");
        assert!(shown(1, "").contains("nothing is defined"));
        assert!(shown(3, "p f\tx=").contains("something that can be fetched is missing"));
    }
}
