//! `vmm top`: the probes of a guest that runs, look by look.

mod rates;
mod screen;

use crate::args::Top;
use crate::control::{Connection, LiveCounters, NONSENSE};
use crate::output::{LiveHistogram, LiveLine};
use crate::say::note;
use anyhow::{Context, Result, bail};
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;
use rates::{Order, Rates};
use screen::Screen;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn main(args: &Top) -> Result<ExitCode> {
    let mut connection = Connection::open(&args.socket)?;
    match args.batch {
        Some(tables) => batch(&mut connection, tables, args.every)?,
        None if !io::stdout().is_terminal() || !io::stdin().is_terminal() => {
            bail!("this is no terminal: --batch N prints tables as text")
        }
        None => {
            let mut terminal = ratatui::try_init().context("the terminal cannot be drawn on")?;
            let watched = Watch::new(connection).run(&mut terminal, args.every);
            ratatui::restore();
            if let Err(error) = watched {
                note(format_args!("{error:#}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints tables one after the other, each of the time since the one before.
fn batch(connection: &mut Connection, tables: u32, every: Duration) -> Result<()> {
    let mut before = None;
    for number in 0..tables {
        if number > 0 {
            thread::sleep(every);
        }
        let now = counters(connection)?;
        let text = screen::text(&Rates::between(before.as_ref(), &now, Order::default()));
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        writeln!(out)?;
        out.flush()?;
        before = Some(now);
    }
    Ok(())
}

fn counters(connection: &mut Connection) -> Result<LiveCounters> {
    let counters = connection.call("counters", Value::Null)?;
    serde_json::from_value(counters).context(NONSENSE)
}

#[derive(Deserialize)]
struct Histograms {
    histograms: Vec<LiveHistogram>,
}

/// A person who watches a guest.
struct Watch {
    connection: Connection,
    before: Option<LiveCounters>,
    rates: Rates,
    order: Order,
    histograms: Vec<LiveHistogram>,
    /// Which one is shown.
    shown: usize,
    chosen: TableState,
    /// What has come of the last command.
    said: String,
}

impl Watch {
    fn new(connection: Connection) -> Self {
        Self {
            connection,
            before: None,
            rates: Rates::default(),
            order: Order::default(),
            histograms: Vec::new(),
            shown: 0,
            chosen: TableState::new(),
            said: String::new(),
        }
    }

    /// Until the guest has ended, which is an error, or the person has.
    fn run(&mut self, terminal: &mut ratatui::DefaultTerminal, every: Duration) -> Result<()> {
        loop {
            self.look()?;
            let next = Instant::now() + every;
            loop {
                terminal.draw(|frame| {
                    let count = self.histograms.len();
                    let histogram = self.histograms.get(self.shown).map(|shown| (shown, count));
                    let screen =
                        Screen { rates: &self.rates, order: self.order, histogram, said: &self.said };
                    screen.draw(frame, &mut self.chosen);
                })?;
                let left = next.saturating_duration_since(Instant::now());
                if !event::poll(left)? {
                    break;
                }
                // What is no key may be another size of the terminal: all is drawn again.
                let key = event::read()?.as_key_press_event();
                if key.is_some_and(|key| !self.key(key)) {
                    return Ok(());
                }
            }
        }
    }

    fn look(&mut self) -> Result<()> {
        let now = counters(&mut self.connection)?;
        self.rates = Rates::between(self.before.as_ref(), &now, self.order);
        self.before = Some(now);
        let histograms = self.connection.call("histograms", Value::Null)?;
        let Histograms { mut histograms } = serde_json::from_value(histograms).context(NONSENSE)?;
        let hits = |line: &LiveLine| line.line.get("hitcount").and_then(Value::as_u64);
        for histogram in &mut histograms {
            histogram.lines.sort_by_key(|line| std::cmp::Reverse(hits(line)));
        }
        self.histograms = histograms;
        self.shown = self.shown.min(self.histograms.len().saturating_sub(1));
        Ok(())
    }

    /// Does what a key says. Whether the person goes on.
    fn key(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('p') => {
                let method = if self.rates.is_paused { "resume" } else { "pause" };
                if self.command(method, Value::Null) {
                    self.rates.is_paused = !self.rates.is_paused;
                }
            }
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.rates.sort(self.order);
            }
            KeyCode::Down | KeyCode::Char('j') => self.chosen.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.chosen.select_previous(),
            KeyCode::Tab => self.shown = (self.shown + 1) % self.histograms.len().max(1),
            KeyCode::Char(' ') => {
                let row = self.chosen.selected().and_then(|chosen| self.rates.rows.get(chosen));
                if let Some((id, is_enabled)) = row.map(|row| (row.id, row.is_enabled)) {
                    let method = if is_enabled { "disable" } else { "enable" };
                    self.command(method, json!({ "probes": [id] }));
                }
            }
            _ => {}
        }
        true
    }

    /// Whether it was done. What is refused is said. The next look shows what has come of it.
    fn command(&mut self, method: &str, params: Value) -> bool {
        let result = self.connection.call(method, params);
        self.said = result.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
        result.is_ok()
    }
}
