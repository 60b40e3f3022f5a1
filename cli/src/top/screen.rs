//! How a look at a guest is drawn.

use super::rates::{Order, Rates, Row};
use crate::output::LiveHistogram;
use crate::say::harmless;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Borders, Paragraph, Table, TableState};

const COLUMNS: [&str; 9] = ["#", "PROBE", "STATE", "HITS", "HITS/S", "MISSED", "MISSED/S", "MEAN", "P99"];
/// So wide is each, but for the probe's name.
const WIDTHS: [u16; 9] = [6, 0, 10, 12, 10, 10, 10, 9, 9];

/// What is drawn.
pub(super) struct Screen<'a> {
    pub(super) rates: &'a Rates,
    pub(super) order: Order,
    /// The histogram that is shown, the most frequent key first, and how many there are.
    pub(super) histogram: Option<(&'a LiveHistogram, usize)>,
    /// What has come of the last command.
    pub(super) said: &'a str,
}

impl Screen<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>, chosen: &mut TableState) {
        let below = if self.histogram.is_some() { Constraint::Percentage(40) } else { Constraint::Length(0) };
        let areas = [Constraint::Length(1), Constraint::Min(3), below, Constraint::Length(1)];
        let [head, table, histogram, foot] = frame.area().layout(&Layout::vertical(areas));
        frame.render_widget(Line::from(headline(self.rates)), head);
        let widths =
            WIDTHS.map(|width| if width == 0 { Constraint::Fill(1) } else { Constraint::Length(width) });
        let header =
            COLUMNS.map(|name| if name == self.order.name() { format!("{name}*") } else { name.to_owned() });
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let rows = self.rates.rows.iter().map(|row| ratatui::widgets::Row::new(cells(row)));
        let all = Table::new(rows, widths)
            .header(ratatui::widgets::Row::new(header).style(bold))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(all, table, chosen);
        self.draw_histogram(frame, histogram);
        let keys = "q end  p pause  s sort  arrows choose  Space disable or enable  Tab histogram";
        let foot_line = if self.said.is_empty() { keys } else { self.said };
        frame.render_widget(Line::from(foot_line), foot);
    }

    fn draw_histogram(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some((LiveHistogram { whole, lines }, count)) = self.histogram else { return };
        let more = if count > 1 { format!(", one of {count}") } else { String::new() };
        let title =
            format!("{}: {} hits, {} keys{more}", harmless(&whole.histogram), whole.hits, whole.entries);
        let shown = lines.iter().take(area.height.into()).map(|line| Line::from(harmless(&line.text)));
        let text = Text::from_iter(shown);
        frame
            .render_widget(Paragraph::new(text).block(Block::new().borders(Borders::TOP).title(title)), area);
    }
}

/// What is said of the guest as a whole.
pub(super) fn headline(rates: &Rates) -> String {
    let Rates { ran, vcpus, is_paused, exits, waits, log_lost, rows } = rates;
    let hits: f64 = rows.iter().map(|row| row.hit_rate).sum();
    let counted = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let (cpus, probes) = (counted(*vcpus, "CPU"), counted(rows.len(), "probe"));
    let mut line = format!("up {ran:.1} s, {cpus}, {probes}, {hits:.0} hits/s");
    if let Some(exits) = exits {
        line += &format!(", {exits:.0} exits/s");
    }
    if *waits > 0 {
        line += &format!(", CPUs have waited for us {waits} times");
    }
    if *log_lost > 0 {
        line += &format!(", {log_lost} records of the kernel's log lost");
    }
    if *is_paused {
        line += ", PAUSED";
    }
    line
}

/// A probe's cells, as [`COLUMNS`] name them.
fn cells(row: &Row) -> [String; 9] {
    [
        row.id.to_string(),
        row.name.clone(),
        row.state.clone(),
        row.hits.to_string(),
        format!("{:.0}", row.hit_rate),
        row.missed.to_string(),
        format!("{:.0}", row.miss_rate),
        row.mean.map(duration).unwrap_or_default(),
        row.p99.map(|nanos| format!("<{}", duration(nanos as f64))).unwrap_or_default(),
    ]
}

/// A table as text.
pub(super) fn text(rates: &Rates) -> String {
    let mut text = headline(rates) + "\n";
    let header = COLUMNS.map(str::to_owned);
    for cells in std::iter::once(header).chain(rates.rows.iter().map(cells)) {
        let padded = cells.iter().zip(WIDTHS).map(|(cell, width)| match width {
            0 => format!("{cell:<40}"),
            width => format!("{cell:>width$}", width = usize::from(width)),
        });
        let line = padded.collect::<Vec<_>>().join(" ");
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Nanoseconds as a person reads them.
fn duration(nanos: f64) -> String {
    match nanos {
        nanos if nanos < 1e3 => format!("{nanos:.0}ns"),
        nanos if nanos < 1e6 => format!("{:.1}us", nanos / 1e3),
        nanos if nanos < 1e9 => format!("{:.1}ms", nanos / 1e6),
        nanos => format!("{:.1}s", nanos / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    fn rates() -> Rates {
        let row = Row {
            id: 3,
            name: "vfs_read%return".to_owned(),
            state: "armed".to_owned(),
            is_enabled: true,
            hits: 1200,
            hit_rate: 600.4,
            missed: 1,
            miss_rate: 0.0,
            mean: Some(1500.0),
            p99: Some(4096),
        };
        Rates { ran: 12.5, vcpus: 2, exits: Some(10.0), is_paused: true, rows: vec![row], ..Rates::default() }
    }

    #[test]
    fn a_probe_is_a_row_and_a_histogram_is_below() {
        let histogram: LiveHistogram = serde_json::from_value(json!({
            "histogram": "sizes", "definition": "hist:keys=count", "hits": 7, "entries": 1, "dropped": 0,
            "lines": [{ "keys": { "count": 4 }, "hitcount": 7, "values": {}, "text": "{ count: 4 } hitcount: 7\u{1b}[2J" }]
        }))
        .unwrap();
        let (rates, mut terminal) = (rates(), Terminal::new(TestBackend::new(100, 12)).unwrap());
        let screen = Screen { rates: &rates, order: Order::Hits, histogram: Some((&histogram, 2)), said: "" };
        terminal.draw(|frame| screen.draw(frame, &mut TableState::new())).unwrap();
        let shown = terminal.backend().to_string();
        for part in [
            "up 12.5 s, 2 CPUs, 1 probe, 600 hits/s, 10 exits/s, PAUSED",
            "HITS*",
            "vfs_read%return",
            "1.5us",
            "<4.1us",
            "sizes: 7 hits, 1 keys, one of 2",
            "{ count: 4 } hitcount: 7?[2J",
            "q end",
        ] {
            assert!(shown.contains(part), "no `{part}` in\n{shown}");
        }
    }

    /// A terminal may have any size.
    #[test]
    fn what_has_no_room_is_left_out() {
        let rates = rates();
        for (width, height) in [(1, 1), (10, 2), (300, 3)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let screen = Screen { rates: &rates, order: Order::Mean, histogram: None, said: "done" };
            terminal.draw(|frame| screen.draw(frame, &mut TableState::new())).unwrap();
        }
    }

    #[test]
    fn a_table_is_text_as_well() {
        let text = text(&rates());
        let row = text.lines().nth(2).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["3", "vfs_read%return", "armed", "1200", "600", "1", "0", "1.5us", "<4.1us"]);
    }
}
