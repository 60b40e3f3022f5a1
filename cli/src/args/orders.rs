//! Orders that are forced on the guest's tasks.

use super::heading;
use super::time::time;
use clap::{Args, ValueEnum};
use probe_engine::probe::pace::Delay;
use probe_engine::probe::turns::ObservedTurns;
use std::collections::BTreeMap;
use std::time::Duration;
use vmm::session::LONGEST_WAIT;

/// An order that is forced on the guest's tasks
#[derive(Args, Default)]
#[command(next_help_heading = heading::PROBES)]
pub(crate) struct Orders {
    /// Hold a task that comes here until another one comes to --until
    ///
    /// May be repeated. A place, a pattern or a definition, as for --probe; a filter says which hits are held: 'do_exit if comm == "a"'. The task
    /// waits in front of the instruction, or behind a return (%return). Whether its CPU runs others meanwhile is for --hold-mode. It goes on when
    /// another task comes to the place of the --until that stands at the same position on the command line, or when its time is over (--within).
    /// One task is held at a time; others pass.
    ///
    /// Each time, a line says which of the two it was, and when nobody came, where each CPU stood: the other one may need what
    /// the one that is held has, a lock for instance. What all came to follows at the end. A run in which the order was never reached
    /// ends with exit code 122.
    #[arg(
        long = "hold",
        value_name = "DEF",
        requires = "untils",
        conflicts_with_all = ["target", "once"],
        hide_short_help = true
    )]
    pub(crate) holds: Vec<String>,
    /// Where another task has to come before the one at --hold goes on
    #[arg(
        long = "until",
        value_name = "DEF",
        requires = "holds",
        conflicts_with = "target",
        hide_short_help = true
    )]
    pub(crate) untils: Vec<String>,
    /// How long a task is held at most: 500us, 20ms, 2s; 5s is the longest
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = within, hide_short_help = true)]
    pub(crate) within: Duration,
    /// What the CPU of a task that is held does meanwhile
    #[arg(
        long,
        value_enum,
        value_name = "MODE",
        default_value_t,
        requires = "holds",
        hide_short_help = true
    )]
    pub(crate) hold_mode: HoldModeChoice,
    /// What `vmm shake` asks for.
    #[arg(skip)]
    pub(crate) shaken: Option<Shaken>,
    /// What `vmm replay` asks for.
    #[arg(skip)]
    pub(crate) imposed: Option<Imposed>,
}

/// What the CPU of a task that is held does meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum HoldModeChoice {
    /// It waits with the task, and takes interrupts as it did there, by which a kernel with preempt=full may run others. The guest cannot notice
    #[default]
    Cpu,
    /// It runs other tasks, where the kernel may be preempted, and waits with the task elsewhere. The task calls the guest's own scheduler
    Task,
    /// As `task` where the kernel preempts its own code at all and --assist allows it, otherwise as `cpu`
    Auto,
}

/// An order that was observed, and is imposed.
pub(crate) struct Imposed {
    pub(crate) order: ObservedTurns,
    /// What its probes were called, by their numbers.
    pub(crate) probes: BTreeMap<u32, String>,
    /// How long a task waits for its turn at most.
    pub(crate) within: Duration,
}

/// Places where CPUs are delayed.
pub(crate) struct Shaken {
    pub(crate) places: Vec<String>,
    pub(crate) delay: Delay,
    /// Whether the seed was not asked for.
    pub(crate) is_random: bool,
}

/// A time of at most [`LONGEST_WAIT`].
pub(super) fn within(text: &str) -> Result<Duration, TimeError> {
    let time = time(text).ok_or(TimeError::Form)?;
    if time.is_zero() {
        return Err(TimeError::Zero);
    }
    if time > LONGEST_WAIT { Err(TimeError::Long) } else { Ok(time) }
}

/// Why a time is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TimeError {
    #[error("write a number and us, ms or s, as in 20ms")]
    Form,
    #[error("no task is held for no time")]
    Zero,
    #[error(
        "a task is held for {} s at most: a kernel takes one for dead that does nothing for long",
        LONGEST_WAIT.as_secs()
    )]
    Long,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_and_a_unit() {
        assert_eq!(within("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(within("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(within("5s"), Ok(Duration::from_secs(5)));
        for text in ["18446744073709551615s", "", "5", "s", "-1s", "1 s", "1.5s", "5m", "٣s"] {
            assert_eq!(within(text), Err(TimeError::Form), "{text}");
        }
        assert_eq!(within("0ms"), Err(TimeError::Zero));
        for text in ["6s", "5001ms"] {
            assert_eq!(within(text), Err(TimeError::Long), "{text}");
        }
    }
}
