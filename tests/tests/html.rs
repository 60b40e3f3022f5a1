//! What `vmm report` makes for browsers, opened in a headless Chromium.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use guest_kernels::Cache;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tests::browser::Browser;
use tests::product::binary;
use tests::recording::{self, FIRST, HOSTILE_COMM, LEAVES, SHARES, STEP, Size};

/// The page of speedscope in the cache, where `cargo xtask setup` puts it.
const SPEEDSCOPE: &str = "speedscope-1.25.0/index.html";
/// What a page says of itself when it is there.
const READY: &str = "document.documentElement?.dataset.state === 'ready'";

/// A recording, and a report of it.
struct Report {
    folder: TempDir,
    path: PathBuf,
}

impl Report {
    fn of(binary: &Path, size: Size, format: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let recording = folder.path().join("recording.json");
        recording::write(&mut BufWriter::new(File::create(&recording).unwrap()), size);
        let path = folder.path().join("report.html");
        report(binary, &recording, format, &path);
        Self { folder, path }
    }
}

fn report(binary: &Path, recording: &Path, format: &str, to: &Path) {
    let mut command = Command::new(binary);
    command.arg("report").arg(recording).args(["--format", format, "--output"]).arg(to);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A browser that shows the page of so many hits.
fn shown(binary: &Path, hits: u64) -> (Browser, Report) {
    let report = Report::of(binary, Size { hits, has_stacks: true }, "html");
    let mut browser = Browser::start();
    browser.open(&report.path, "", READY);
    (browser, report)
}

/// The text of all elements that a selector finds.
fn texts(browser: &mut Browser, selector: &str) -> Vec<String> {
    let find = format!("[...document.querySelectorAll({selector:?})].map((element) => element.innerText)");
    serde_json::from_value(browser.evaluate(&find)).unwrap()
}

fn text(browser: &mut Browser, selector: &str) -> String {
    texts(browser, selector).swap_remove(0)
}

/// How many of so many hits a probe has.
fn hits_of(probe: usize, hits: u64) -> u64 {
    (0..hits).filter(|hit| recording::probe(*hit) == probe).count() as u64
}

fn with_commas(n: u64) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap());
    groups.collect::<Vec<_>>().join(",")
}

/// Waits until so many hits are shown.
fn wait_for_hits(browser: &mut Browser, shown: u64, of: u64) {
    let words = format!("{} of {} hits", with_commas(shown), with_commas(of));
    browser.wait(&format!("document.getElementById('shown').textContent === {words:?}"));
}

/// Waits until the table has the rows of so many hits.
fn wait_for_rows(browser: &mut Browser, hits: u64) {
    let words = format!(" of {}", with_commas(hits));
    browser.wait(&format!("document.getElementById('hits-hint').textContent.endsWith({words:?})"));
}

#[test]
fn the_numbers_are_those_of_the_recording() {
    const HITS: u64 = 2_000;
    let Some(binary) = binary() else { return };
    let (mut browser, _report) = shown(&binary, HITS);
    assert_eq!(text(&mut browser, "h1"), "head -n 1 /etc/passwd");
    let names = texts(&mut browser, "#facts dt");
    let facts: Vec<_> = names.into_iter().zip(texts(&mut browser, "#facts dd")).collect();
    for (name, value) in [
        ("Kernel", "6.12.48-test"),
        ("Host", "emulated"),
        ("CPUs", "2"),
        ("Hits", "2,000"),
        ("Missed", "7 ⚠"),
        ("Started", "2025-11-25 14:43:21 UTC"),
        ("Time span", "2.00 ms"),
        ("End", "powered off"),
    ] {
        assert!(facts.contains(&(name.to_owned(), value.to_owned())), "{name}: {value} in {facts:?}");
    }
    // The table of probes, with the percentiles of returns.
    let rows = texts(&mut browser, "#probe-table tr");
    assert_eq!(rows.len(), 1 + SHARES.len());
    let mut took: Vec<u64> =
        (0..HITS).filter(|hit| recording::probe(*hit) == 1).map(recording::took).collect();
    took.sort_unstable();
    let median = took[took.len() / 2 - 1];
    for (probe, (name, _)) in SHARES.iter().enumerate() {
        let cells: Vec<&str> = rows[1 + probe].split('\t').map(str::trim).collect();
        let hits = with_commas(hits_of(probe, HITS));
        let missed = if probe == 1 { "7" } else { "0" };
        assert_eq!(cells[..3], [name, hits.as_str(), missed], "{rows:?}");
        let percentile = if probe == 1 { format!("{median} ns") } else { String::new() };
        assert_eq!(cells[3], percentile, "{rows:?}");
    }
    // The histogram of durations: each bucket of a power of two.
    let buckets = texts(&mut browser, "#duration-cards .bucket > :last-child");
    let mut expected = [0_u64; 64];
    took.iter().for_each(|ns| expected[ns.ilog2() as usize] += 1);
    let first = expected.iter().position(|n| *n > 0).unwrap();
    let last = expected.iter().rposition(|n| *n > 0).unwrap();
    let expected: Vec<_> = expected[first..=last].iter().map(|n| with_commas(*n)).collect();
    assert_eq!(buckets, expected);
    // The run's own histogram.
    let rows = texts(&mut browser, "#histogram-cards tr");
    assert!(rows[1].starts_with("init\t30"), "{rows:?}");
    assert!(text(&mut browser, "#histogram-cards").contains("hist:keys=comm · 42 hits"));
    // The flame graph: every function's share, calls from two places of one function together.
    let boxes =
        browser.evaluate("[...document.querySelectorAll('#flame-graph button')].map((box) => box.ariaLabel)");
    let boxes: Vec<String> = serde_json::from_value(boxes).unwrap();
    for (leaf, _) in LEAVES {
        let hits = (0..HITS).filter(|hit| recording::leaf(*hit) == leaf).count();
        assert!(boxes.iter().any(|label| label.starts_with(&format!("{leaf}, {hits} hits"))), "{boxes:?}");
    }
    assert!(boxes.iter().any(|label| label.starts_with("do_syscall_64, 2,000 hits, 100.0 %")), "{boxes:?}");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_filter_and_the_selection_choose_hits() {
    const HITS: u64 = 2_000;
    let Some(binary) = binary() else { return };
    let (mut browser, _report) = shown(&binary, HITS);
    // A probe, by its name in the table.
    browser.evaluate("document.querySelectorAll('#probe-table button')[1].click()");
    wait_for_hits(&mut browser, hits_of(1, HITS), HITS);
    wait_for_rows(&mut browser, hits_of(1, HITS));
    assert!(texts(&mut browser, "#table-body .probe").iter().all(|name| name == "vfs_read%return"));
    browser.evaluate("document.getElementById('filter').reset()");
    browser.wait("document.getElementById('shown').textContent === '2,000 hits'");
    // A text.
    for (words, shown) in [("FILE-2\"", HITS / 50), ("nothing has this", 0)] {
        browser.evaluate(&format!(
            "(() => {{ const field = document.getElementById('filter-text'); field.value = {words:?}; \
             field.dispatchEvent(new Event('input')) }})()",
        ));
        wait_for_hits(&mut browser, shown, HITS);
    }
    browser.wait("document.getElementById('hits-hint').textContent === 'None passes the filter.'");
    browser.evaluate("document.getElementById('filter').reset()");
    browser.wait("document.getElementById('shown').textContent === '2,000 hits'");
    // A part of the timeline, with the mouse: what is between is shown, and nothing else.
    browser.evaluate("document.getElementById('timeline').scrollIntoView()");
    let place = browser.evaluate(
        "(() => { const box = document.getElementById('lanes').getBoundingClientRect(); \
         return [box.left, box.top, box.width] })()",
    );
    let [left, top, width] = [0, 1, 2].map(|at| place[at].as_f64().unwrap());
    let across = width - 148.0;
    let at = |share: f64| (left + 148.0 + share * across, top + 40.0);
    browser.drag(at(0.25), at(0.75));
    browser.wait("document.getElementById('shown').textContent.includes(' of 2,000 hits')");
    let said = text(&mut browser, "#shown");
    let shown: u64 = said.split(' ').next().unwrap().replace(',', "").parse().unwrap();
    assert!((990..=1_010).contains(&shown), "half of them, to a pixel: {said}");
    wait_for_rows(&mut browser, shown);
    let first = &texts(&mut browser, "#table-body .time")[0];
    let first: f64 = first.parse().unwrap();
    let expected = (FIRST - 1_000_000_000 + STEP * HITS / 4) as f64 / 1e9;
    assert!((first - expected).abs() < 0.000_010, "{first}");
    // And cleared by the keyboard.
    browser.evaluate("document.getElementById('lanes').focus()");
    browser.press("Escape");
    browser.wait("document.getElementById('shown').textContent === '2,000 hits'");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn what_a_guest_has_named_is_text() {
    const HITS: u64 = 200;
    let Some(binary) = binary() else { return };
    let (mut browser, report) = shown(&binary, HITS);
    // The second hit has the file's name.
    browser.evaluate("document.getElementById('table').focus()");
    browser.press("ArrowDown");
    browser.press("ArrowDown");
    browser.wait("!document.getElementById('detail').hidden");
    let detail = text(&mut browser, "#detail");
    assert!(detail.contains("</script><script>alert(1)</script><img src=x onerror=alert(2)>"), "{detail}");
    assert!(
        detail.contains("&amp;") && !detail.contains('\u{1b}') && !detail.contains('\u{202e}'),
        "{detail}"
    );
    let shown = HOSTILE_COMM.replace('\u{1b}', "\\x1b");
    // The table is drawn anew when a row is chosen.
    browser.wait("document.querySelectorAll('#table-body .task').length > 0");
    let names = texts(&mut browser, "#table-body .task");
    assert!(names.contains(&format!("{shown}-102")), "{names:?}");
    let keys = texts(&mut browser, "#histogram-cards td");
    assert!(keys.contains(&shown), "{keys:?}");
    // Nothing came to be an element, and nothing ran or was fetched: a dialog would stop the page.
    let made = browser
        .evaluate("document.querySelectorAll('#detail img, #detail script, td b, .row b, header b').length");
    assert_eq!(made, 0);
    assert_eq!(
        browser.requests().iter().filter(|url| !url.starts_with("data:")).count(),
        1,
        "{:?}",
        browser.requests()
    );
    assert_eq!(browser.complaints(), [""; 0]);
    // The file has the words nowhere outside of its data.
    let page = fs::read_to_string(&report.path).unwrap();
    assert!(!page.contains("alert(1)") && page.contains("default-src 'none'"));
    // And a script that came in nevertheless would not be run.
    browser.evaluate(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.ran = true'; \
         document.body.append(script) })()",
    );
    assert_eq!(browser.evaluate("window.ran === undefined"), true);
}

#[test]
fn findings_and_dropped_files_are_among_the_hits_and_marked() {
    const HITS: u64 = 200;
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = Vec::new();
    recording::write(&mut bytes, Size { hits: HITS, has_stacks: false });
    let whole = String::from_utf8(bytes).unwrap();
    let (hits, end) = whole.split_at(whole.rfind("{\"").unwrap());
    let at = |hit: u64| FIRST + STEP * hit + 1;
    let scan = |time: Option<u64>, what: &str| {
        json!({
            "type": "scan_finding", "time_ns": time, "guest_ns": time.map(|time| time - 1_000_000_000),
            "check": "modules", "at": "0xffffffffc0227040", "symbol": null, "what": what,
        })
    };
    let dropped = |path: &str, target: Option<&str>| {
        json!({
            "type": "dropped", "time_ns": at(300), "path": path, "kind": target.map_or("file", |_| "link"), "mode": "0644",
            "size": 8, "modified_ns": 1, "sha256": null, "target": target, "kept": false, "why": null,
        })
    };
    let splat = json!({
        "type": "splat", "number": 1, "time_ns": at(1), "guest_ns": at(1), "kind": "warning", "title": "WARNING in evil",
        "fingerprint": "warning:evil", "task": null, "cpu": 1, "taint": null, "at": null, "frames": [], "allowed": null,
        "expired": false, "until": null, "repeats": 0, "impossible": null, "text": [],
    });
    // Not in order of time: a recording is written by several threads.
    let lines = [
        scan(Some(at(60)), "module evil is hidden"),
        json!({
            "type": "finding", "time_ns": at(50), "guest_ns": at(50) - 1_000_000_000, "vcpu": 1,
            "task": { "comm": HOSTILE_COMM, "pid": 7, "tgid": 7, "ns_pid": null, "uid": 0, "context": null, "at": "0x8" },
            "at": "0xffffffff814ff6a0", "symbol": "proc_pid_limits+0x0/0x190", "register": null, "length": 1,
            "bytes": "f4", "rip": "0xffffffffc020702e", "writer": "evil_init+0x1e/0xe6 [evil]", "why": "nobody may",
            "done": "denied", "stack": [{ "address": "0xffffffffc020702e", "name": "evil_init+0x1e/0xe6 [evil]" }],
            "stack_end": "bottom",
        }),
        scan(None, "evil is there at the end"),
        dropped("tmp/evil", None),
        dropped("tmp/evil-link", Some("</script><img src=x onerror=alert(2)>")),
        json!({ "type": "dropped_end", "files": 2, "kept": 0, "has_more": true, "failure": "the guest died" }),
        json!({
            "type": "guard", "pages": 1, "unsealed_modules": 2, "jump_labels": 0, "static_calls": 0, "ftrace": 0, "kprobes": 0,
            "findings": 10_007, "untold": 7, "guards_entries": false,
        }),
    ];
    let lines: String =
        std::iter::repeat_n(&splat, 101).chain(&lines).map(|line| format!("{line}\n")).collect();
    let (path, page) = (folder.path().join("recording.json"), folder.path().join("report.html"));
    fs::write(&path, format!("{hits}{lines}{end}")).unwrap();
    report(&binary, &path, "html", &page);
    let mut browser = Browser::start();
    browser.open(&page, "", READY);
    let names = texts(&mut browser, "#facts dt");
    let facts: Vec<_> = names.into_iter().zip(texts(&mut browser, "#facts dd")).collect();
    for (name, value) in [("Hits", "200"), ("Findings", "3 ⚠"), ("Dropped files", "2")] {
        assert!(facts.contains(&(name.to_owned(), value.to_owned())), "{name}: {value} in {facts:?}");
    }
    // However many reports of the kernel there are, what is not on the page is said.
    let notes = text(&mut browser, "#notes");
    for note in [
        "; there are more than are told; NOT TO THE END: the guest died",
        "guard: 2 modules could not be sealed",
        "guard: 7 findings came too fast to be told",
        "guard: nobody asks where system calls lead",
        "… and 96 more; the recording has them.",
    ] {
        assert!(notes.contains(note), "no {note} in {notes}");
    }
    browser.evaluate(
        "(() => { const field = document.getElementById('filter-text'); field.value = 'evil'; \
         field.dispatchEvent(new Event('input')) })()",
    );
    browser.wait("document.getElementById('shown').textContent === '5 of 205 events'");
    wait_for_rows(&mut browser, 5);
    let kinds = texts(&mut browser, "#table-body .row .probe");
    let finding = "FINDING";
    let scanned = "FINDING of a scan";
    assert_eq!(kinds, [finding, scanned, scanned, "DROPPED file", "DROPPED file"], "in order of time");
    let marked = |mark: &str| format!("document.querySelectorAll('#table-body .row.{mark}').length");
    assert_eq!(
        (browser.evaluate(&marked("found")), browser.evaluate(&marked("dropped"))),
        (json!(3), json!(2))
    );
    let values = texts(&mut browser, "#table-body .row .values");
    assert!(
        values[0].starts_with("1 byte (f4) to 0xffffffff814ff6a0 proc_pid_limits+0x0/0x190 by"),
        "{values:?}"
    );
    assert!(values[4].contains("a link to </script><img src=x onerror=alert(2)>"), "{values:?}");
    // What the scan at the end has found is where the hits end.
    let times = texts(&mut browser, "#table-body .row .time");
    assert!(times[2].starts_with(&format!("{:.9}", (FIRST + STEP * (HITS - 1)) as f64 / 1e9)), "{times:?}");
    browser.evaluate("document.querySelector('#table-body .row').click()");
    browser.wait("!document.getElementById('detail').hidden");
    let detail = text(&mut browser, "#detail");
    assert!(detail.contains("evil_init+0x1e/0xe6 [evil]") && detail.contains("on cpu1"), "{detail}");
    browser.evaluate("[...document.querySelectorAll('#table-body .row')].at(-1).click()");
    browser.wait("document.getElementById('detail').innerText.includes('no CPU')");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn it_is_light_or_dark_and_fits_a_phone() {
    let Some(binary) = binary() else { return };
    let (mut browser, _report) = shown(&binary, 500);
    let colours = |browser: &mut Browser| -> Value {
        browser.evaluate("(() => { const style = getComputedStyle(document.body); return [style.backgroundColor, style.color] })()")
    };
    let light = colours(&mut browser);
    browser.set_dark(true);
    let dark = colours(&mut browser);
    assert_eq!(light[0], "rgb(255, 255, 255)");
    assert!(light[0] != dark[0] && light[1] != dark[1], "{light} {dark}");
    browser.set_size(390, 844);
    browser.wait("innerWidth === 390");
    assert_eq!(
        browser.evaluate("document.documentElement.scrollWidth"),
        json!(390),
        "nothing is beside the screen"
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

/// A cut recording says so; a million hits are tried by hand.
#[test]
fn a_recording_without_an_end_is_shown_as_far_as_it_goes() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = Vec::new();
    recording::write(&mut bytes, Size { hits: 70_000, has_stacks: false });
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    // The header, three probes, the hits, and half of one.
    let whole: usize = lines[..4 + 66_000].iter().map(|line| line.len()).sum();
    let (cut, page) = (folder.path().join("cut.json"), folder.path().join("cut.html"));
    fs::write(&cut, &bytes[..whole + 40]).unwrap();
    report(&binary, &cut, "html", &page);
    let mut browser = Browser::start();
    browser.open(&page, "", READY);
    assert_eq!(text(&mut browser, "#shown"), "66,000 hits");
    assert!(text(&mut browser, "#notes").contains("The recording has no end"));
    assert!(texts(&mut browser, "#facts dd").iter().any(|value| value == "cut off ⚠"));
    assert_eq!(browser.evaluate("document.getElementById('flame').hidden"), true);
    // The last row is the last hit.
    browser.evaluate("document.getElementById('table').focus()");
    browser.press("End");
    browser.wait("!document.getElementById('detail').hidden");
    let time = (FIRST - 1_000_000_000 + STEP * 65_999) as f64 / 1e9;
    assert!(text(&mut browser, "#detail").contains(&format!("{time:.9} s")));
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Stacks of 900 hits: the functions and how many hits each has are in speedscope's table.
#[test]
fn folded_stacks_open_in_speedscope() {
    const HITS: u64 = 900;
    let Some(binary) = binary() else { return };
    let speedscope = Cache::open().unwrap().root().join(SPEEDSCOPE);
    assert!(speedscope.is_file(), "no {}: `cargo xtask setup` fetches it", speedscope.display());
    let report = Report::of(&binary, Size { hits: HITS, has_stacks: true }, "folded");
    // The page reads a profile that a script brings, as speedscope's own command gives it one.
    let script = report.folder.path().join("profile.js");
    let folded = fs::read_to_string(&report.path).unwrap();
    fs::write(&script, format!("speedscope.loadFileFromBase64('hits.folded', btoa({}))", json!(folded)))
        .unwrap();
    let rest = format!("#view=sandwich&localProfilePath={}", script.display());
    let mut browser = Browser::start();
    browser.open(&speedscope, &rest, "document.body?.innerText.includes('do_syscall_64') ?? false");
    let rows = texts(&mut browser, "tr");
    for (leaf, share) in LEAVES {
        let hits = HITS / 9 * share;
        let row =
            rows.iter().find(|row| row.contains(leaf)).unwrap_or_else(|| panic!("no {leaf} in {rows:?}"));
        assert!(row.contains(&hits.to_string()), "{hits} hits in {row}");
    }
}
