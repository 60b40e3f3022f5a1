//! A recording as a trace for Perfetto: each task and each CPU is a track, calls whose returns were seen are slices, and other
//! hits are instants, with what was read as their annotations.

mod schema;

use super::ReportError;
use crate::record::{
    Frame, Header, Hit, Line, MOST_OF_A_HIT, Probe, Reader, Recorded, SampleLine, SplatLine, write_bounded,
};
use probe_engine::guest_text::is_special;
use probe_engine::linux::task::Task;
use prost::Message;
use schema::{
    Clock, ClockSnapshot, Data, DebugAnnotation, InternedData, InternedName, ProcessDescriptor,
    ThreadDescriptor, Trace, TracePacket, TrackDescriptor, TrackEvent, Value, clock, event_type,
    sequence_flags,
};
use serde_json::Value as Json;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, Write};
use vmm::events::{Nanos, What};

/// So many tracks are remembered as told. When there are more, they are told again.
const MOST_TRACKS: usize = 1 << 16;

pub(super) fn write(recording: &mut Reader<impl BufRead>, out: &mut dyn Write) -> Result<(), ReportError> {
    let mut trace = Writer {
        out,
        tracks: HashMap::new(),
        events: HashSet::new(),
        names: HashMap::new(),
        sampled: HashMap::new(),
        sampled_names: 0,
    };
    trace.begin(recording.header())?;
    while let Some(line) = recording.next()? {
        match line {
            Line::Hit(hit) => {
                if let Some(probe) = recording.probe(hit.event.probe.0) {
                    trace.hit(&hit, probe)?;
                }
            }
            Line::Sample(sample) => trace.sample(&sample)?,
            Line::Splat(splat) => trace.splat(&splat)?,
            _ => {}
        }
    }
    Ok(())
}

/// So many functions that were sampled are remembered as told.
const MOST_NAMES: usize = 1 << 16;

/// Writes a trace, one packet behind the other.
struct Writer<'a> {
    out: &'a mut dyn Write,
    /// Tracks that were told, with their names.
    tracks: HashMap<u64, String>,
    /// Probes whose names were told.
    events: HashSet<u32>,
    /// Names of annotations that were told, with their numbers.
    names: HashMap<String, u64>,
    /// Names of functions that were sampled, with their numbers, and how many were told.
    sampled: HashMap<String, u64>,
    sampled_names: u64,
}

/// Numbers of tracks: one kind of them never meets another.
mod track {
    pub(super) fn thread(pid: u32) -> u64 {
        1 << 32 | u64::from(pid)
    }

    pub(super) fn process(tgid: u32) -> u64 {
        2 << 32 | u64::from(tgid)
    }

    pub(super) fn cpu(vcpu: usize) -> u64 {
        3 << 32 | vcpu as u64
    }

    /// That of a CPU's idle task.
    pub(super) fn idle(vcpu: usize) -> u64 {
        4 << 32 | vcpu as u64
    }

    /// Under which those of the CPUs are.
    pub(super) const CPUS: u64 = 5 << 32;
}

impl Writer<'_> {
    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let flags = packet.sequence_flags.unwrap_or(sequence_flags::NEEDS_INCREMENTAL_STATE);
        let packet =
            TracePacket { trusted_packet_sequence_id: Some(1), sequence_flags: Some(flags), ..packet };
        self.out.write_all(&Trace { packet: vec![packet] }.encode_to_vec())
    }

    /// Times are those since the guest's start, as if a machine had been booted then.
    fn begin(&mut self, header: &Header) -> io::Result<()> {
        let clock = |id, time| Clock { clock_id: Some(id), timestamp: Some(time) };
        let clocks = vec![clock(clock::BOOTTIME, 0), clock(clock::REALTIME, header.wall_ns)];
        self.packet(TracePacket {
            timestamp: Some(0),
            sequence_flags: Some(sequence_flags::INCREMENTAL_STATE_CLEARED),
            data: Some(Data::ClockSnapshot(ClockSnapshot {
                clocks,
                primary_trace_clock: Some(clock::BOOTTIME),
            })),
            ..TracePacket::default()
        })?;
        let name = Some("CPUs".to_owned());
        self.track(TrackDescriptor { uuid: Some(track::CPUS), name, ..TrackDescriptor::default() })
    }

    fn track(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.packet(TracePacket { data: Some(Data::TrackDescriptor(track)), ..TracePacket::default() })
    }

    /// Tells of a track, unless that was done under the same name.
    fn need(&mut self, uuid: u64, name: &str, track: TrackDescriptor) -> io::Result<()> {
        if self.tracks.get(&uuid).is_some_and(|told| told == name) {
            return Ok(());
        }
        if self.tracks.len() >= MOST_TRACKS {
            self.tracks.clear();
        }
        self.tracks.insert(uuid, name.to_owned());
        self.track(TrackDescriptor { uuid: Some(uuid), ..track })
    }

    fn cpu_track(&mut self, vcpu: usize) -> io::Result<u64> {
        let (uuid, name) = (track::cpu(vcpu), format!("CPU {vcpu}"));
        let track = TrackDescriptor {
            name: Some(name.clone()),
            parent_uuid: Some(track::CPUS),
            ..TrackDescriptor::default()
        };
        self.need(uuid, &name, track)?;
        Ok(uuid)
    }

    /// The track of the task that ran; that of its CPU where that is not known.
    fn task_track(&mut self, task: Option<&Task>, vcpu: usize) -> io::Result<u64> {
        let Some(task) = task else { return self.cpu_track(vcpu) };
        let name = harmless(&String::from_utf8_lossy(task.comm()));
        let (pid, tgid) = (task.pid.cast_signed(), task.tgid.cast_signed());
        // All idle tasks have one number.
        if pid == 0 {
            let uuid = track::idle(vcpu);
            self.need(
                uuid,
                &name,
                TrackDescriptor { name: Some(name.clone()), ..TrackDescriptor::default() },
            )?;
            return Ok(uuid);
        }
        if pid == tgid || !self.tracks.contains_key(&track::process(task.tgid)) {
            let process = ProcessDescriptor { pid: Some(tgid), process_name: Some(name.clone()) };
            let track = TrackDescriptor { process: Some(process), ..TrackDescriptor::default() };
            self.need(track::process(task.tgid), &name, track)?;
        }
        let thread =
            ThreadDescriptor { pid: Some(tgid), tid: Some(pid.into()), thread_name: Some(name.clone()) };
        let uuid = track::thread(task.pid);
        self.need(uuid, &name, TrackDescriptor { thread: Some(thread), ..TrackDescriptor::default() })?;
        Ok(uuid)
    }

    fn hit(&mut self, hit: &Hit, probe: &Probe) -> io::Result<()> {
        let vcpu = hit.event.vcpu;
        let (task, cpu) = (self.task_track(hit.event.task.as_ref(), vcpu)?, self.cpu_track(vcpu)?);
        let mut new = InternedData::default();
        let name_iid = Some(u64::from(probe.id) + 1);
        if self.events.insert(probe.id) {
            let name = match hit.event.what {
                // It is a slice: the call itself.
                What::Return { .. } => probe.event.as_ref().unwrap_or(&probe.place),
                What::Hit { .. } | What::Access { .. } => probe.event.as_ref().unwrap_or(&probe.probe),
            };
            new.event_names.push(InternedName { iid: name_iid, name: Some(harmless(name)) });
        }
        let annotations = annotations(hit, probe);
        let debug_annotations = annotations
            .into_iter()
            .map(|(name, value)| DebugAnnotation {
                name_iid: Some(self.annotation_name(&name, &mut new)),
                value: Some(value),
            })
            .collect();
        let interned_data = (new != InternedData::default()).then_some(new);
        let end = hit.event.nanos;
        let event = |r#type, track, debug_annotations| {
            let event =
                TrackEvent { r#type: Some(r#type), name_iid, track_uuid: Some(track), debug_annotations };
            Some(Data::TrackEvent(event))
        };
        let at = |nanos, data| TracePacket { timestamp: Some(nanos), data, ..TracePacket::default() };
        match hit.event.what {
            What::Return { duration: Nanos(duration), .. } => {
                let begin =
                    at(end.saturating_sub(duration), event(event_type::SLICE_BEGIN, task, debug_annotations));
                self.packet(TracePacket { interned_data, ..begin })?;
                self.packet(at(end, event(event_type::SLICE_END, task, Vec::new())))?;
            }
            What::Hit { .. } | What::Access { .. } => {
                let instant = at(end, event(event_type::INSTANT, task, debug_annotations));
                self.packet(TracePacket { interned_data, ..instant })?;
            }
        }
        match cpu == task {
            true => Ok(()),
            false => self.packet(at(end, event(event_type::INSTANT, cpu, Vec::new()))),
        }
    }

    /// A sample is an instant of its task and of its CPU, by the name of what ran, with its stack.
    fn sample(&mut self, sample: &SampleLine) -> io::Result<()> {
        let vcpu = sample.vcpu as usize;
        let task = self.task_track(sample.task.as_ref(), vcpu)?;
        let cpu = self.cpu_track(vcpu)?;
        let name = sample.function();
        let stack: Vec<String> = sample.stack.iter().map(Frame::function).collect();
        let mut new = InternedData::default();
        let name_iid = Some(self.sampled_name(&name, &mut new));
        let mut annotation = |name: &str, value| DebugAnnotation {
            name_iid: Some(self.annotation_name(name, &mut new)),
            value: Some(value),
        };
        let debug_annotations = vec![
            annotation("periods", Value::Uint(sample.periods.into())),
            annotation("stack", Value::String(harmless(&stack.join(" < ")))),
        ];
        let event = |track, debug_annotations| TrackEvent {
            r#type: Some(event_type::INSTANT),
            name_iid,
            track_uuid: Some(track),
            debug_annotations,
        };
        let at = |event| TracePacket {
            timestamp: Some(sample.time_ns),
            data: Some(Data::TrackEvent(event)),
            ..TracePacket::default()
        };
        self.packet(TracePacket { interned_data: Some(new), ..at(event(task, debug_annotations)) })?;
        match cpu == task {
            true => Ok(()),
            false => self.packet(at(event(cpu, Vec::new()))),
        }
    }

    /// The number of the name of a function that was sampled, which is told with `new` where it was not told yet.
    fn sampled_name(&mut self, name: &str, new: &mut InternedData) -> u64 {
        /// The numbers below are those of probes and reports.
        const FIRST: u64 = 1 << 34;
        if self.sampled.len() >= MOST_NAMES {
            self.sampled.clear();
        }
        let iid = match self.sampled.get(name) {
            Some(iid) => return *iid,
            None => FIRST + self.sampled_names,
        };
        self.sampled_names += 1;
        self.sampled.insert(name.to_owned(), iid);
        new.event_names.push(InternedName { iid: Some(iid), name: Some(harmless(name)) });
        iid
    }

    /// A report of the kernel is an instant of its CPU.
    fn splat(&mut self, splat: &SplatLine) -> io::Result<()> {
        let track = match splat.cpu {
            Some(cpu) => self.cpu_track(cpu as usize)?,
            None => track::CPUS,
        };
        // The numbers below are those of probes.
        let name_iid = Some(splat.number.saturating_add(1 << 33));
        let event_names = vec![InternedName { iid: name_iid, name: Some(harmless(&splat.title)) }];
        let mut new = InternedData { event_names, ..InternedData::default() };
        let debug_annotations = vec![DebugAnnotation {
            name_iid: Some(self.annotation_name("splat", &mut new)),
            value: Some(Value::String(harmless(&splat.to_string()))),
        }];
        let event = TrackEvent {
            r#type: Some(event_type::INSTANT),
            name_iid,
            track_uuid: Some(track),
            debug_annotations,
        };
        self.packet(TracePacket {
            timestamp: Some(splat.time_ns),
            data: Some(Data::TrackEvent(event)),
            interned_data: Some(new),
            ..TracePacket::default()
        })
    }

    /// The number of an annotation's name, which is told with `new` where it was not told yet.
    fn annotation_name(&mut self, name: &str, new: &mut InternedData) -> u64 {
        if let Some(iid) = self.names.get(name) {
            return *iid;
        }
        // There are no more of them than names of fields that probes were registered with.
        let iid = self.names.len() as u64 + 1;
        self.names.insert(name.to_owned(), iid);
        new.debug_annotation_names.push(InternedName { iid: Some(iid), name: Some(harmless(name)) });
        iid
    }
}

/// What is said of a hit, by name.
fn annotations(hit: &Hit, probe: &Probe) -> Vec<(String, Value)> {
    const REGISTERS: [&str; 6] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];
    let pointer = |(name, value): (&str, u64)| (name.to_owned(), Value::Pointer(value));
    let mut all: Vec<(String, Value)> = match &hit.event.what {
        _ if !probe.fields.is_empty() => Vec::new(),
        What::Hit { args } => REGISTERS.into_iter().zip(*args).map(pointer).collect(),
        What::Return { value, .. } => vec![pointer(("value", *value))],
        What::Access { .. } => Vec::new(),
    };
    if let What::Access { old, new } = hit.event.what {
        all.extend([("old", old), ("new", new)].map(pointer));
    }
    let mut left = MOST_OF_A_HIT;
    for field in &probe.fields {
        let value = hit.fields.get(&field.name);
        let shown = match value {
            Some(Json::Bool(value)) => Value::Bool(*value),
            Some(Json::Number(number)) if number.is_u64() => Value::Uint(number.as_u64().unwrap_or_default()),
            Some(Json::Number(number)) if number.is_i64() => Value::Int(number.as_i64().unwrap_or_default()),
            _ => {
                let mut text = String::new();
                // Writing to a string cannot fail.
                left = write_bounded(&mut text, left, &Recorded { shape: &field.shape, value }).unwrap_or(0);
                Value::String(harmless(&text))
            }
        };
        all.push((field.name.clone(), shown));
    }
    if let Some(stack) = &hit.stack {
        let lines: Vec<String> = stack.to_string().lines().map(|line| harmless(line.trim_start())).collect();
        all.push(("stack".to_owned(), Value::String(lines.join("\n"))));
    }
    if let Some(nanos) = hit.event.guest_nanos {
        all.push(("guest_ns".to_owned(), Value::Uint(nanos)));
    }
    if let Some(context) = hit.event.task.and_then(|task| task.context.name()) {
        all.push(("context".to_owned(), Value::String(context.to_owned())));
    }
    all
}

/// Text in which nothing acts on whoever shows it.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_special(c) { '?' } else { c }).collect()
}
