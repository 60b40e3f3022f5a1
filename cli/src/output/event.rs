//! One event: a line of text, or a JSON object.

use super::stack::NamedStack;
use probe_engine::capture::names::Names;
use probe_engine::capture::shape::Shown;
use probe_engine::linux::task::{Context, Task};
use probe_engine::request::{ProbeRequest, Style};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::fmt;
use vmm::events::{Event, Nanos, What};

/// An event as a line of text.
pub(super) struct EventText<'a> {
    pub(super) event: &'a Event,
    pub(super) probe: &'a ProbeRequest,
    pub(super) names: Names<'a>,
}

impl EventText<'_> {
    /// The values that were read, each as `name=value`.
    fn values(&self, f: &mut fmt::Formatter<'_>, between: &str) -> fmt::Result {
        let mut comma = "";
        for (name, shown) in values(self.event, self.probe, self.names) {
            write!(f, "{comma}{name}={shown}")?;
            comma = between;
        }
        Ok(())
    }
}

fn values<'a>(
    event: &'a Event,
    probe: &'a ProbeRequest,
    names: Names<'a>,
) -> impl Iterator<Item = (&'a str, Shown<'a>)> {
    let values = probe.plan.capture.values(&event.captured);
    values.map(move |(field, value)| (field.name.as_str(), Shown { shape: &field.shape, value, names }))
}

impl fmt::Display for EventText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { rip, what, task, .. } = self.event;
        write!(f, "{} ", Moment(self.event))?;
        if let Some(task) = task {
            write!(f, "{}-{} ", task.shown(), task.pid)?;
            if let Some(context) = task.context.name() {
                write!(f, "[{context}] ")?;
            }
        }
        match (&self.probe.style, what) {
            (Style::Call, What::Hit { .. }) => {
                write!(f, "{}(", self.probe.place.name())?;
                self.values(f, ", ")?;
                f.write_str(")")
            }
            (Style::Call, What::Return { duration, .. }) => {
                f.write_str(&self.probe.place.name())?;
                for (_, shown) in values(self.event, self.probe, self.names) {
                    write!(f, " = {shown}")?;
                }
                took(f, *duration)
            }
            (Style::Event(name), What::Hit { .. }) => {
                write!(f, "{name}: ({}) ", self.probe.place.name())?;
                self.values(f, " ")
            }
            (Style::Event(name), What::Return { duration, .. }) => {
                write!(f, "{name}: ({rip} <- {}) ", self.probe.place.name())?;
                self.values(f, " ")?;
                took(f, *duration)
            }
            (_, What::Hit { args: [a, b, c, d, e, g] }) => {
                write!(f, "{} rip={rip} ", self.probe.name())?;
                write!(f, "rdi={a:#x} rsi={b:#x} rdx={c:#x} rcx={d:#x} r8={e:#x} r9={g:#x}")
            }
            (_, What::Return { value, duration }) => {
                write!(f, "{} rip={rip} value={value:#x}", self.probe.name())?;
                took(f, *duration)
            }
            (_, What::Access { old, new }) => {
                write!(f, "{} rip={rip} old={old:#x} new={new:#x}", self.probe.name())
            }
        }
    }
}

fn took(f: &mut fmt::Formatter<'_>, nanos: Nanos) -> fmt::Result {
    write!(f, " took={}us", Micros(nanos))
}

/// When an event was, in seconds, and on which CPU: by the guest's own clock, as its messages have it, or else since the
/// guest was started, which is said.
pub(crate) struct Moment<'a>(pub(crate) &'a Event);

impl fmt::Display for Moment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { nanos, guest_nanos, vcpu, .. } = self.0;
        let host = if guest_nanos.is_none() { " host" } else { "" };
        let nanos = guest_nanos.unwrap_or(*nanos);
        let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        write!(f, "[{seconds:5}.{nanos:09}{host}] cpu{vcpu}")
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

/// An event as JSON.
pub(super) struct EventJson<'a> {
    pub(super) event: &'a Event,
    pub(super) probe: &'a ProbeRequest,
    pub(super) names: Names<'a>,
    pub(super) stack: Option<NamedStack<'a>>,
}

/// A task as JSON.
#[derive(Serialize)]
struct TaskJson {
    comm: String,
    pid: u32,
    tgid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ns_pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<&'static str>,
}

impl TaskJson {
    fn of(task: &Task) -> Self {
        let Task { pid, tgid, ns_pid, uid, context, .. } = *task;
        Self {
            comm: String::from_utf8_lossy(task.comm()).into_owned(),
            pid,
            tgid,
            ns_pid,
            uid,
            context: Context::name(context),
        }
    }
}

/// What was read, as JSON.
struct FieldsJson<'a>(&'a EventJson<'a>);

impl Serialize for FieldsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(values(self.0.event, self.0.probe, self.0.names))
    }
}

impl Serialize for EventJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let hex = |value: &u64| format!("{value:#x}");
        let event = self.event;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(
            "type",
            match event.what {
                What::Hit { .. } => "hit",
                What::Return { .. } => "return",
                What::Access { .. } => "access",
            },
        )?;
        map.serialize_entry("time_ns", &event.nanos)?;
        map.serialize_entry("guest_ns", &event.guest_nanos)?;
        map.serialize_entry("vcpu", &event.vcpu)?;
        map.serialize_entry("probe", &self.probe.name())?;
        if let Style::Event(name) = &self.probe.style {
            map.serialize_entry("event", name)?;
        }
        map.serialize_entry("rip", &event.rip.to_string())?;
        if let Some(task) = &event.task {
            map.serialize_entry("task", &TaskJson::of(task))?;
        }
        match &event.what {
            What::Hit { args } => map.serialize_entry("args", &args.each_ref().map(hex))?,
            What::Return { value, duration: Nanos(duration) } => {
                map.serialize_entry("value", &hex(value))?;
                map.serialize_entry("duration_ns", duration)?;
            }
            What::Access { old, new } => {
                map.serialize_entry("old", &hex(old))?;
                map.serialize_entry("new", &hex(new))?;
            }
        }
        if !self.probe.plan.capture.fields.is_empty() {
            map.serialize_entry("fields", &FieldsJson(self))?;
        }
        if let Some(stack) = &self.stack {
            stack.serialize(&mut map)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GuestNames, Writer};
    use super::*;
    use crate::args::Format;
    use probe_engine::addr::Gva;
    use probe_engine::probe::place::Place;
    use probe_engine::probe::plan::Trigger;
    use probe_engine::probe::table::ProbeId;
    use vmm::session::Sink;

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
        captured: Vec::new(),
        stack: None,
    };
    const RETURN: What<Nanos> = What::Return { value: u64::MAX - 1, duration: Nanos(12_345) };

    fn written(format: Format, event: Event) -> String {
        let mut bytes = Vec::new();
        let place = Place::Module { module: "m".to_owned(), symbol: "vfs_read".to_owned(), offset: 0 };
        let trigger = match event.what {
            What::Return { .. } => Trigger::Return { max_active: None },
            What::Hit { .. } | What::Access { .. } => Trigger::Pass,
        };
        let probes = vec![ProbeRequest::plain(place, trigger)];
        let mut writer = Writer::new(
            super::super::Out { to: Box::new(&mut bytes), printer: None },
            format,
            probes,
            GuestNames::default(),
        );
        writer.events(&[event]).unwrap();
        drop(writer);
        String::from_utf8(bytes).unwrap()
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
            "comm": "cat", "pid": 7, "tgid": 6, "ns_pid": 1, "uid": 1000, "context": "irq"
        });
        assert_eq!(value["task"], task);
    }
}
