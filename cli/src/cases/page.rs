//! The results of all parts as one page, which needs no script and asks nobody for anything.
//!
//! All texts are escaped twice: what would not be seen as it is, and what would be markup.

use super::evidence::Evidence;
use super::judgement::{Judgement, JudgementCounts};
use super::kept::MergedResult;
use super::ktap::Subtest;
use super::results::CaseResult;
use crate::record::SplatLine;
use crate::report::{STYLE, hash};
use indexmap::IndexSet;
use probe_engine::guest_text::Escaped;
use quick_xml::escape::escape;
use std::collections::BTreeSet;
use std::io::{self, Write};

const PAGE: &str = include_str!("page/page.html");
const OWN_STYLE: &str = include_str!("page/page.css");
/// So many reasons and subtests of a case are shown.
const MOST_LINES: usize = 50;
/// So much is shown of a reason in the table, in characters.
const LONGEST_IN_TABLE: usize = 160;

/// Writes the page of all results of the file that is called `file`.
pub(crate) fn write(out: &mut dyn Write, file: &str, results: &[MergedResult]) -> io::Result<()> {
    let style = format!("{STYLE}{OWN_STYLE}");
    let (head, tail) = PAGE.split_once("@data").unwrap_or((PAGE, ""));
    let head = head.replace("@style-hash", &hash(&style)).replace("@style", &style);
    out.write_all(head.as_bytes())?;
    write_facts(out, file, results)?;
    write_table(out, results)?;
    writeln!(out, "<section aria-labelledby=\"details\"><h2 id=\"details\">Details</h2>")?;
    results.iter().try_for_each(|merged| write_details(out, merged))?;
    writeln!(out, "</section></main>")?;
    out.write_all(tail.as_bytes())
}

/// A text of which nothing is markup, and all can be seen.
fn plain(text: &str) -> String {
    escape(Escaped(text.as_bytes()).to_string()).into_owned()
}

fn write_facts(out: &mut dyn Write, file: &str, results: &[MergedResult]) -> io::Result<()> {
    let results_alone = || results.iter().map(|merged| &merged.result);
    let counts = JudgementCounts::of(results_alone().map(|result| &result.judgement));
    let parts: BTreeSet<_> = results.iter().flat_map(|merged| &merged.parts).collect();
    let again: u32 = results_alone().map(|result| result.attempts.saturating_sub(1)).sum();
    let seconds: f64 = results_alone().map(|result| result.seconds).sum();
    writeln!(out, "<header><p class=\"brand\">vmm test</p><h1>{}</h1><dl class=\"facts\">", plain(file))?;
    for (name, value) in [
        ("Cases on kernels", results.len().to_string()),
        ("Verdicts", counts.to_string()),
        ("Parts", parts.len().to_string()),
        ("Run once more", again.to_string()),
        ("Seconds, of all together", format!("{seconds:.1}")),
        ("Exit code", counts.exit_code().to_string()),
    ] {
        writeln!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>")?;
    }
    writeln!(out, "</dl></header>")
}

/// A row for each case, a column for each kernel.
fn write_table(out: &mut dyn Write, results: &[MergedResult]) -> io::Result<()> {
    let kernels: IndexSet<&str> = results.iter().map(|merged| merged.result.kernel.as_str()).collect();
    let names: IndexSet<&str> = results.iter().map(|merged| merged.result.name.as_str()).collect();
    writeln!(out, "<main><section aria-labelledby=\"cases\"><h2 id=\"cases\">Cases</h2>")?;
    writeln!(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"cases\"><table>")?;
    write!(out, "<thead><tr><th scope=\"col\">Case</th>")?;
    for kernel in &kernels {
        write!(out, "<th scope=\"col\">{}</th>", plain(kernel))?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    for name in names {
        write!(out, "<tr><td class=\"case\">{}</td>", plain(name))?;
        for kernel in &kernels {
            let is_it = |merged: &&MergedResult| {
                (merged.result.name.as_str(), merged.result.kernel.as_str()) == (name, *kernel)
            };
            match results.iter().find(is_it) {
                Some(merged) => write_cell(out, merged)?,
                None => write!(out, "<td></td>")?,
            }
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody></table></div></section>")
}

fn write_cell(out: &mut dyn Write, MergedResult { result, parts }: &MergedResult) -> io::Result<()> {
    let (word, number) = (result.judgement.word(), result.number);
    write!(out, "<td class=\"result {word}\"><a class=\"word\" href=\"#case-{number}\">{word}</a>")?;
    if let Some(reason) = result.judgement.reasons().first() {
        let shown: String = reason.chars().take(LONGEST_IN_TABLE).collect();
        let dots = if shown.len() < reason.len() { " …" } else { "" };
        let more = result.judgement.reasons().len() - 1;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        write!(out, "<p>{}{dots}{more}</p>", plain(&shown))?;
    }
    write!(out, "<p>{}{}", times(result), if parts.is_empty() { "" } else { " · " })?;
    let parts: Vec<String> = parts.iter().map(|part| plain(&part.to_string_lossy())).collect();
    write!(out, "{}</p></td>", parts.join(", "))
}

/// How long it took, and how often it was run.
fn times(result: &CaseResult) -> String {
    match result.attempts {
        0 => "not run".to_owned(),
        1 => format!("{:.1} s", result.seconds),
        attempts => format!("{:.1} s, run {attempts} times", result.seconds),
    }
}

fn write_details(out: &mut dyn Write, merged: &MergedResult) -> io::Result<()> {
    let MergedResult { result, parts } = merged;
    let (word, has_passed) = (result.judgement.word(), result.judgement == Judgement::Passed);
    let open = if has_passed { "" } else { " open=\"open\"" };
    writeln!(
        out,
        "<details id=\"case-{}\" class=\"{word}\"{open}><summary><b>{word}</b> {} [{}] · {}</summary>",
        result.number,
        plain(&result.name),
        plain(&result.kernel),
        times(result)
    )?;
    if let [_, others @ ..] = parts.as_slice()
        && !others.is_empty()
    {
        let parts: Vec<String> = parts.iter().map(|part| plain(&part.to_string_lossy())).collect();
        writeln!(out, "<p>Run by {}: the worst verdict is shown.</p>", parts.join(", "))?;
    }
    write_list(out, "Reasons", result.judgement.reasons().iter().map(|reason| plain(reason)))?;
    let mut failed = Vec::new();
    result.subtests.iter().for_each(|subtest| not_passed(subtest, "", &mut failed));
    write_list(out, "Subtests that have not passed", failed.into_iter())?;
    if !result.command.is_empty() {
        let words = ["vmm", "run"].into_iter().chain(result.command.iter().map(String::as_str));
        // A word of the command line has no zero byte, with which alone that fails.
        let command = shlex::try_join(words).unwrap_or_default();
        write_text(out, "To run it by hand", command.lines())?;
    }
    if !has_passed {
        let Evidence { splats, console } = Evidence::of(merged);
        splats.iter().try_for_each(|splat| write_splat(out, splat))?;
        write_text(out, "The end of the console", console.iter().map(String::as_str))?;
    }
    writeln!(out, "</details>")
}

fn write_splat(out: &mut dyn Write, splat: &SplatLine) -> io::Result<()> {
    write_list(out, "Report of the kernel", std::iter::once(plain(&splat.to_string())))?;
    write_text(out, "Its lines", splat.text.iter().map(String::as_str))
}

/// The names of a subtest and of its parts, as paths, of those that have not passed.
fn not_passed(subtest: &Subtest, of: &str, found: &mut Vec<String>) {
    let name = format!("{of}{}", subtest.name);
    if subtest.judgement != Judgement::Passed {
        found.push(plain(&format!("{name}: {}", subtest.judgement.word())));
    }
    subtest.parts.iter().for_each(|part| not_passed(part, &format!("{name}: "), found));
}

fn write_list(
    out: &mut dyn Write,
    title: &str,
    lines: impl ExactSizeIterator<Item = String>,
) -> io::Result<()> {
    if lines.len() == 0 {
        return Ok(());
    }
    let left_out = lines.len().saturating_sub(MOST_LINES);
    writeln!(out, "<h3>{title}</h3><ul>")?;
    lines.take(MOST_LINES).try_for_each(|line| writeln!(out, "<li>{line}</li>"))?;
    if left_out > 0 {
        writeln!(out, "<li>and {left_out} others</li>")?;
    }
    writeln!(out, "</ul>")
}

fn write_text<'a>(out: &mut dyn Write, title: &str, lines: impl Iterator<Item = &'a str>) -> io::Result<()> {
    let lines: Vec<String> = lines.map(plain).collect();
    match lines.is_empty() {
        true => Ok(()),
        false => writeln!(out, "<h3>{title}</h3><pre>{}</pre>", lines.join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::known::folder;
    use super::super::results::testing::results;
    use super::*;
    use crate::record::example;
    use quick_xml::events::Event;
    use quick_xml::reader::Reader;
    use std::fs;
    use std::path::Path;

    fn page(file: &str, results: &[MergedResult]) -> String {
        let mut out = Vec::new();
        write(&mut out, file, results).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// One result of each kind on each of two kernels, of which the first part has run all.
    fn merged(part: &Path) -> Vec<MergedResult> {
        let on = |kernel: &str| {
            results().into_iter().map(|result| CaseResult { kernel: kernel.to_owned(), ..result }).collect()
        };
        let all: [Vec<CaseResult>; 2] = [on("debian:6.1"), on("<b>:6.12")];
        let all = all.into_iter().flatten().enumerate();
        let parts =
            |number| if number == 1 { vec![part.to_owned(), "second".into()] } else { vec![part.to_owned()] };
        all.map(|(number, result)| MergedResult {
            result: CaseResult { number, ..result },
            parts: parts(number),
        })
        .collect()
    }

    #[test]
    fn it_is_whole_and_each_link_has_its_place() {
        let page = page("<a> & \u{202e}.toml", &merged(Path::new("first")));
        let mut reader = Reader::from_str(&page);
        reader.config_mut().check_end_names = true;
        let (mut ids, mut links, mut cells) = (BTreeSet::new(), Vec::new(), 0);
        loop {
            match reader.read_event().unwrap() {
                Event::Eof => break,
                Event::Start(element) => {
                    assert_ne!(element.name().as_ref(), b"script");
                    cells += usize::from(element.name().as_ref() == b"td");
                    for attribute in element.attributes() {
                        let attribute = attribute.unwrap();
                        let value = String::from_utf8(attribute.value.to_vec()).unwrap();
                        match attribute.key.as_ref() {
                            b"id" => assert!(ids.insert(value.clone()), "{value} is there twice"),
                            b"href" => links.push(value.strip_prefix('#').unwrap().to_owned()),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        assert_eq!((cells, links.len()), (5 * 3, 10));
        assert!(links.iter().all(|link| ids.contains(link)), "{links:?} {ids:?}");
        for text in [
            "2 passed, 2 failed, 2 inconclusive, 2 skipped, 2 not run",
            "&lt;b&gt;why&lt;/b&gt;",
            "Run by first, second",
            "x1b[2J",
            "y: failed",
            "if comm ==",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(!page.contains("<b>why") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
        assert!(page.contains("default-src 'none'") && !page.contains("@style"));
    }

    #[test]
    fn what_a_part_has_kept_is_shown_of_cases_that_have_not_passed() {
        let part = tempfile::tempdir().unwrap();
        let merged = merged(part.path());
        for MergedResult { result, .. } in merged.iter().take(2) {
            let folder = part.path().join(folder(result.number, &result.kernel, &result.name));
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("recording.json"), example("json")).unwrap();
            fs::write(folder.join("console"), format!("last of {}: <script>", result.name)).unwrap();
        }
        let page = page("cases.toml", &merged);
        assert!(
            page.contains("last of case 1: &lt;script&gt;") && !page.contains("last of case 0"),
            "{page}"
        );
        assert_eq!(page.matches("Report of the kernel").count(), 1, "{page}");
    }
}
