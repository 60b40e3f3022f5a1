//! One event as a line of text.

use crate::record::{Function, MOST_OF_A_HIT, Moment, Probe, Style, write_bounded};
use probe_engine::guest_text::Escaped;
use std::fmt::{self, Display};
use vmm::events::{Event, Nanos, What};

/// An event as a line of text. `fields` are what its probe has read, each with its name.
pub(super) struct EventText<'a, F> {
    pub(super) event: &'a Event,
    pub(super) probe: &'a Probe,
    pub(super) fields: F,
}

impl<'f, F: Iterator<Item = (&'f str, V)> + Clone, V: Display> EventText<'_, F> {
    /// The values that were read, each as `name=value`.
    fn values(&self, f: &mut fmt::Formatter<'_>, between: &str) -> fmt::Result {
        let values = fmt::from_fn(|f| {
            let mut comma = "";
            for (name, shown) in self.fields.clone() {
                write!(f, "{comma}{name}={shown}")?;
                comma = between;
            }
            Ok(())
        });
        write_bounded(f, MOST_OF_A_HIT, &values).map(drop)
    }
}

impl<'f, F: Iterator<Item = (&'f str, V)> + Clone, V: Display> Display for EventText<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { rip, what, task, .. } = self.event;
        let Probe { probe, place, event, style, .. } = self.probe;
        write!(f, "{} ", Moment::of(self.event))?;
        if let Some(task) = task {
            write!(f, "{}-{} ", task.shown(), task.pid)?;
            if let Some(context) = task.context.name() {
                write!(f, "[{context}] ")?;
            }
        }
        let name = event.as_ref().unwrap_or(probe);
        match (style, what) {
            (Style::Call, What::Hit { .. }) => {
                write!(f, "{place}(")?;
                self.values(f, ", ")?;
                f.write_str(")")
            }
            (Style::Call, What::Return { duration, .. }) => {
                f.write_str(place)?;
                let value =
                    fmt::from_fn(|f| self.fields.clone().try_for_each(|(_, shown)| write!(f, " = {shown}")));
                write_bounded(f, MOST_OF_A_HIT, &value)?;
                took(f, *duration)
            }
            (Style::Event, What::Hit { .. }) => {
                write!(f, "{name}: ({place}) ")?;
                self.values(f, " ")
            }
            (Style::Event, What::Return { duration, .. }) => {
                write!(f, "{name}: ({rip} <- {place}) ")?;
                self.values(f, " ")?;
                took(f, *duration)
            }
            (_, What::Hit { args: [a, b, c, d, e, g] }) => {
                write!(f, "{probe} rip={rip} ")?;
                write!(f, "rdi={a:#x} rsi={b:#x} rdx={c:#x} rcx={d:#x} r8={e:#x} r9={g:#x}")
            }
            (_, What::Return { value, duration }) => {
                write!(f, "{probe} rip={rip} value={value:#x}")?;
                took(f, *duration)
            }
            (_, What::Access { old, new }) => write!(f, "{probe} rip={rip} old={old:#x} new={new:#x}"),
        }?;
        if let (Some(value), What::Hit { .. }) = (&self.probe.injected, what) {
            write!(f, " injected {value}")?;
        }
        match &self.probe.message {
            Some(message) => write!(f, "; {}", Escaped(message.as_bytes())),
            None => Ok(()),
        }
    }
}

fn took(f: &mut fmt::Formatter<'_>, nanos: Nanos) -> fmt::Result {
    write!(f, " took={}us", Micros(nanos))
}

/// A function that ran for the first time as a line of text.
pub(crate) struct FunctionText<'a>(pub(crate) &'a Function);

impl Display for FunctionText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Function { time_ns, guest_ns, vcpu, function, .. } = self.0;
        let moment = Moment { nanos: *time_ns, guest_nanos: *guest_ns, vcpu: *vcpu as usize };
        write!(f, "{moment} {function}")
    }
}

/// A duration in microseconds.
pub(super) struct Micros(pub(super) Nanos);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Nanos(nanos) = self.0;
        write!(f, "{}.{:03}", nanos / 1000, nanos % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::testing::written_as;
    use probe_engine::addr::Gva;
    use probe_engine::linux::task::{Context, Task};
    use probe_engine::probe::place::Place;
    use probe_engine::probe::plan::Trigger;
    use probe_engine::probe::table::ProbeId;
    use probe_engine::request::ProbeRequest;
    use vmm::events::Captured;

    const TASK: Task = Task {
        at: Gva(0),
        pid: 7,
        tgid: 6,
        ns_pid: Some(1),
        uid: Some(1000),
        context: Context::HardIrq,
        comm: *b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0",
    };
    const HIT: Event = Event {
        nanos: 99,
        guest_nanos: Some(1_234_567_890),
        vcpu: 1,
        probe: ProbeId(0),
        rip: Gva(0xffff_ffff_8123_4560),
        what: What::Hit { args: [1, 2, 3, 4, 5, u64::MAX] },
        task: None,
        captured: Captured::NONE,
        stack: None,
    };
    const RETURN: What<Nanos> = What::Return { value: u64::MAX - 1, duration: Nanos(12_345) };

    fn written(format: Format, event: Event) -> String {
        let place = Place::Module { module: "m".to_owned(), symbol: "vfs_read".to_owned(), offset: 0 };
        let trigger = match event.what {
            What::Return { .. } => Trigger::Return { max_active: None },
            What::Hit { .. } | What::Access { .. } => Trigger::Pass,
        };
        written_as(format, vec![ProbeRequest::plain(place, trigger)], &[event])
    }

    #[test]
    fn a_hit_is_one_line_of_text() {
        assert_eq!(
            written(Format::Text, HIT),
            "[    1.234567890] cpu1 m:vfs_read rip=0xffffffff81234560 rdi=0x1 rsi=0x2 rdx=0x3 rcx=0x4 r8=0x5 r9=0xffffffffffffffff\n"
        );
    }

    #[test]
    fn a_time_that_is_not_the_guests_says_so() {
        let event = Event { guest_nanos: None, ..HIT };
        assert!(written(Format::Text, event.clone()).starts_with("[    0.000000099 host] cpu1 "));
        let value: serde_json::Value = serde_json::from_str(&written(Format::Json, event)).unwrap();
        assert_eq!(value.get("guest_ns"), Some(&serde_json::Value::Null));
    }

    #[test]
    fn a_hit_is_one_json_object() {
        let line = written(Format::Json, HIT);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["type"], "hit");
        assert_eq!((value["time_ns"].as_u64(), value["guest_ns"].as_u64()), (Some(99), Some(1_234_567_890)));
        assert_eq!(value["vcpu"], 1);
        assert_eq!(value["probe"], "m:vfs_read");
        assert_eq!(value["rip"], "0xffffffff81234560");
        assert_eq!(value["args"][5], "0xffffffffffffffff");
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn a_return_has_its_value_and_duration() {
        assert_eq!(
            written(Format::Text, Event { what: RETURN, ..HIT }),
            "[    1.234567890] cpu1 m:vfs_read%return rip=0xffffffff81234560 value=0xfffffffffffffffe took=12.345us\n"
        );
        let value: serde_json::Value =
            serde_json::from_str(&written(Format::Json, Event { what: RETURN, ..HIT })).unwrap();
        assert_eq!(value["type"], "return");
        assert_eq!(
            (value["value"].as_str(), value["duration_ns"].as_u64()),
            (Some("0xfffffffffffffffe"), Some(12_345))
        );
    }

    #[test]
    fn an_access_has_what_was_there_and_what_is() {
        let event = Event { what: What::Access { old: 1, new: 0xff }, ..HIT };
        let text = "[    1.234567890] cpu1 m:vfs_read rip=0xffffffff81234560 old=0x1 new=0xff\n";
        assert_eq!(written(Format::Text, event.clone()), text);
        let value: serde_json::Value = serde_json::from_str(&written(Format::Json, event)).unwrap();
        let fields = ["type", "old", "new"].map(|field| value[field].as_str().unwrap());
        assert_eq!(fields, ["access", "0x1", "0xff"]);
        assert!(value.get("args").is_none(), "{value}");
    }

    #[test]
    fn the_task_is_named_and_what_interrupted_it() {
        let event = Event { task: Some(TASK), ..HIT };
        assert!(written(Format::Text, event.clone()).contains("] cpu1 cat-7 [irq] m:vfs_read "));
        let value: serde_json::Value = serde_json::from_str(&written(Format::Json, event)).unwrap();
        let task = serde_json::json!({
            "comm": "cat", "pid": 7, "tgid": 6, "ns_pid": 1, "uid": 1000, "context": "irq",
            "at": "0x0"
        });
        assert_eq!(value["task"], task);
    }
}
