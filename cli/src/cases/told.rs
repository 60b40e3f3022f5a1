//! Results as other programs want them told: KTAP, annotations of GitHub, Markdown.

use super::judgement::{Judgement, JudgementCounts};
use super::ktap::Subtest;
use super::results::CaseResult;
use probe_engine::guest_text::Escaped;
use std::io::{self, Write};

/// All results as KTAP: a test for each kernel, of which its cases are parts.
pub(crate) fn write_ktap(out: &mut dyn Write, results: &[CaseResult]) -> io::Result<()> {
    let mut kernels: Vec<(&str, Vec<&CaseResult>)> = Vec::new();
    for result in results {
        match kernels.iter_mut().find(|(kernel, _)| *kernel == result.kernel) {
            Some((_, all)) => all.push(result),
            None => kernels.push((&result.kernel, vec![result])),
        }
    }
    writeln!(out, "KTAP version 1\n1..{}", kernels.len())?;
    for (number, (kernel, results)) in (1..).zip(kernels) {
        writeln!(out, "  KTAP version 1\n  1..{}", results.len())?;
        for (number, result) in (1..).zip(&results) {
            write_parts(out, &result.subtests, 4)?;
            write_line(out, 2, number, &result.name, &result.judgement)?;
        }
        let counts = JudgementCounts::of(results.iter().map(|result| &result.judgement));
        let is_ok = matches!(counts.exit_code(), 0 | crate::exit_codes::SKIPPED);
        writeln!(out, "{}ok {number} {}", if is_ok { "" } else { "not " }, name(kernel))?;
    }
    Ok(())
}

fn write_parts(out: &mut dyn Write, parts: &[Subtest], indent: usize) -> io::Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    writeln!(out, "{:indent$}KTAP version 1\n{:indent$}1..{}", "", "", parts.len())?;
    for (number, part) in (1..).zip(parts) {
        write_parts(out, &part.parts, indent + 2)?;
        write_line(out, indent, number, &part.name, &part.judgement)?;
    }
    Ok(())
}

fn write_line(
    out: &mut dyn Write,
    indent: usize,
    number: usize,
    of: &str,
    judgement: &Judgement,
) -> io::Result<()> {
    let reasons = judgement.reasons().iter().map(|reason| name(reason)).collect::<Vec<_>>().join("; ");
    let (is_ok, more) = match judgement {
        Judgement::Passed => (true, String::new()),
        Judgement::Skipped(_) => (true, format!(" # SKIP {reasons}")),
        Judgement::Failed(_) => (false, format!(" # {reasons}")),
        Judgement::Inconclusive(_) | Judgement::Infrastructure(_) => {
            (false, format!(" # {}: {reasons}", judgement.word()))
        }
    };
    writeln!(out, "{:indent$}{}ok {number} {}{more}", "", if is_ok { "" } else { "not " }, name(of))
}

/// A text behind which a `#` begins something else.
fn name(text: &str) -> String {
    Escaped(text.as_bytes()).to_string().replace('#', "\\x23")
}

/// An annotation of GitHub for each case that has not passed, at its place in `file`.
pub(crate) fn write_github(out: &mut dyn Write, file: &str, results: &[CaseResult]) -> io::Result<()> {
    let value = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |text: &str| value(text).replace(':', "%3A").replace(',', "%2C");
    for result in results {
        let level = match result.judgement {
            Judgement::Passed | Judgement::Skipped(_) => continue,
            Judgement::Failed(_) => "error",
            Judgement::Inconclusive(_) | Judgement::Infrastructure(_) => "warning",
        };
        let title = format!("{} [{}] {}", result.name, result.kernel, result.judgement.word());
        let reasons = result.judgement.reasons().iter().map(|reason| Escaped(reason.as_bytes()).to_string());
        writeln!(
            out,
            "::{level} file={},line={},title={}::{}",
            property(file),
            result.line,
            property(&Escaped(title.as_bytes()).to_string()),
            value(&reasons.collect::<Vec<_>>().join("\n"))
        )?;
    }
    Ok(())
}

/// A page of Markdown: what all cases came to, and a row for each that has not passed.
pub(crate) fn markdown(file: &str, results: &[CaseResult]) -> String {
    let counts = JudgementCounts::of(results.iter().map(|result| &result.judgement));
    let mut page = format!("### {}\n\n{counts}\n", cell(file));
    let others: Vec<&CaseResult> =
        results.iter().filter(|result| result.judgement != Judgement::Passed).collect();
    if !others.is_empty() {
        page.push_str("\n| case | kernel | verdict | why |\n|---|---|---|---|\n");
    }
    for result in others {
        let reasons: Vec<String> = result.judgement.reasons().iter().map(|reason| cell(reason)).collect();
        let (name, kernel, word) = (cell(&result.name), cell(&result.kernel), result.judgement.word());
        page.push_str(&format!("| {name} | {kernel} | {word} | {} |\n", reasons.join("<br>")));
    }
    page
}

/// A text of which nothing is markup.
fn cell(text: &str) -> String {
    let mut cell = String::new();
    for c in Escaped(text.as_bytes()).to_string().chars() {
        match c {
            '&' => cell.push_str("&amp;"),
            '<' => cell.push_str("&lt;"),
            '>' => cell.push_str("&gt;"),
            c if "\\`*_{}[]()#+!|~@:".contains(c) => cell.push_str(&format!("&#{};", u32::from(c))),
            c => cell.push(c),
        }
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::super::judgement::Findings;
    use super::super::ktap::subtests;
    use super::super::results::testing::results;
    use super::*;

    fn written(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_written_as_ktap_is_read_again() {
        let text = written(|out| write_ktap(out, &results()));
        let mut found = Findings::default();
        let read = subtests(&text, &mut found);
        assert_eq!((read.len(), read[0].parts.len()), (1, 5), "{text}");
        assert_eq!(found.failures, [""; 0], "{text}");
        let words: Vec<&str> = read[0].parts.iter().map(|part| part.judgement.word()).collect();
        assert_eq!(words, ["passed", "failed", "failed", "skipped", "failed"]);
        assert_eq!(read[0].parts[1].parts.len(), 2, "{text}");
    }

    #[test]
    fn a_guest_writes_no_command_of_github_and_no_markup() {
        let text = written(|out| write_github(out, "a,b.toml", &results()));
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.starts_with("::error file=a%2Cb.toml,line=7,title="), "{text}");
        let page = markdown("cases.toml", &results());
        assert!(page.contains("1 passed, 1 failed, 1 inconclusive, 1 skipped, 1 not run"), "{page}");
        assert!(
            !page.contains("<b>") && page.lines().all(|line| line.matches('|').count() % 5 == 0),
            "{page}"
        );
    }
}
