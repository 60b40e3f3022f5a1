//! `vmm race`: `vmm run` in both orders of two places.

use super::orders::{HoldModeChoice, within};
use super::{Arming, Guest, Orders, Records, Run, SplatArgs, SplatChoice, heading};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// How often the command is run in each order, where nobody says it.
const REPEAT: u32 = 10;

/// Run a command in both orders of two places, and say which one the kernel cannot stand
///
/// One guest runs the command again and again (--repeat, 10 times where nothing is said) while a task that comes to B is held until
/// another one has come to A. Another guest does so the other way around. For each order is said how often it was reached, how the
/// command ended and what the kernel reported, and at the end which of the two orders it was.
///
/// What the command prints goes to standard error.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm race --between syscall:kill,syscall:chdir --within 2s --repeat 1 -- ./my_pair

Exit codes:
  0      no order made the kernel report a bug, and one was reached at least once
  CMD's  the command failed in an order: the code of its first run that has
  2      the run could not be started, and why was said
  122    neither order was ever reached
  123    the kernel reported a bug that is not allowed, or died
  124    a guest took longer than --timeout
  125    a guest did not come to run the command, or what it ran in died
  128+n  ended by signal n")]
#[command(mut_arg("cpus", |cpus| cpus.default_value("2")))]
pub(crate) struct Race {
    /// The two places, with a comma between them
    ///
    /// Each is a place, a pattern or a definition, as for `vmm run --hold`. A comma in brackets or in quotation marks is the
    /// definition's own.
    #[arg(long, value_name = "A,B", value_parser = between, help_heading = heading::PROBES)]
    pub(crate) between: Between,
    /// How long a task is held at most: 500us, 20ms, 2s; 5s is the longest
    #[arg(
        long,
        value_name = "TIME",
        default_value = "200ms",
        value_parser = within,
        help_heading = heading::PROBES,
    )]
    within: Duration,
    /// What the CPU of a task that is held does meanwhile
    #[arg(
        long,
        value_enum,
        value_name = "MODE",
        default_value = "auto",
        hide_short_help = true,
        help_heading = heading::PROBES,
    )]
    hold_mode: HoldModeChoice,
    /// Reports of the kernel that are allowed: a file of TOML, as for `vmm run`; may be repeated
    #[arg(long, value_name = "FILE", hide_short_help = true, help_heading = heading::OUTPUT)]
    allow_splats: Vec<PathBuf>,
    /// Keep the recordings of both orders in this folder, for `vmm report`: `ab` and `ba`
    #[arg(long, short = 'o', value_name = "DIR", help_heading = heading::OUTPUT)]
    pub(crate) output: Option<PathBuf>,
    /// The order that this process forces
    #[arg(long, value_enum, hide = true, requires = "output")]
    pub(crate) order: Option<RaceOrder>,
    #[command(flatten)]
    guest: Guest,
}

/// Two places of which one may come before the other one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Between {
    pub(crate) a: String,
    pub(crate) b: String,
}

/// Which of the two comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RaceOrder {
    /// A, then B
    Ab,
    /// B, then A
    Ba,
}

impl Race {
    /// Whether there is something to run.
    pub(crate) fn has_command(&self) -> bool {
        self.guest.has_command()
    }

    /// The run that forces `order`, and is recorded at `path`.
    pub(crate) fn forcing(self, order: RaceOrder, path: PathBuf) -> Run {
        let Self { between: Between { a, b }, within, hold_mode, allow_splats, mut guest, .. } = self;
        let (first, second) = match order {
            RaceOrder::Ab => (a, b),
            RaceOrder::Ba => (b, a),
        };
        guest.repeat.get_or_insert(REPEAT);
        let records = Records { output: Some(path), format: None };
        let (holds, untils) = (vec![second], vec![first]);
        let orders = Orders { holds, untils, within, hold_mode, ..Orders::default() };
        let splats = SplatArgs { splat: SplatChoice::Fail, allow_splats, vmcore: None, recent: None };
        Run { orders, splats, ..Run::of(guest, records, Arming::default()) }
    }
}

/// The two definitions of a text, which has one comma outside of brackets and quotation marks.
fn between(text: &str) -> Result<Between, BetweenError> {
    let (mut depth, mut quote, mut commas) = (0i32, None, Vec::new());
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            (None, ',') if depth == 0 => commas.push(at),
            (None, _) => {}
        }
    }
    let [comma] = commas[..] else { return Err(BetweenError::Commas) };
    let (a, b) = text.split_at(comma);
    let (a, b) = (a.trim().to_owned(), b.trim_start_matches(',').trim().to_owned());
    if a.is_empty() || b.is_empty() {
        return Err(BetweenError::Empty);
    }
    if a == b { Err(BetweenError::Same) } else { Ok(Between { a, b }) }
}

/// Why a text is no two places.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum BetweenError {
    #[error("write two places with a comma between them, as in do_exit,do_wait")]
    Commas,
    #[error("one of the two places is empty")]
    Empty,
    #[error("there is one order of a place with itself: name two")]
    Same,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_places_have_one_comma_between_them() {
        let places = |text: &str| between(text).map(|Between { a, b }| (a, b));
        let two = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(places("do_exit,do_wait"), two("do_exit", "do_wait"));
        assert_eq!(places(" do_exit , do_wait%return"), two("do_exit", "do_wait%return"));
        assert_eq!(
            places("'a if comm == \"x,y\"',vfs_{read,write}"),
            two("'a if comm == \"x,y\"'", "vfs_{read,write}")
        );
        assert_eq!(places("p f @foo(a,b) if comm == \",\",g"), two("p f @foo(a,b) if comm == \",\"", "g"));
        for text in ["", "a", "a,b,c", "(a,b)", "\"a,b"] {
            assert_eq!(places(text), Err(BetweenError::Commas), "{text}");
        }
        assert_eq!((places("a,"), places(",a")), (Err(BetweenError::Empty), Err(BetweenError::Empty)));
        assert_eq!(places("a, a"), Err(BetweenError::Same));
    }
}
