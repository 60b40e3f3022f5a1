//! A recording: what a run has seen, as lines of JSON. `docs/recording.md` describes the format.
//!
//! The types here are the lines, for whoever writes them and for whoever reads them.

mod address;
mod bounded;
mod dropped;
mod filter;
mod finding;
mod header;
mod hit;
mod hold;
mod injection;
mod moment;
mod nth;
mod outcome;
mod probe;
mod reader;
mod sample;
mod scanned;
mod splat;
mod stack;
mod stand;
mod task;
mod turns;
mod user_frame;
mod value;

pub(crate) use address::Address;
pub(crate) use bounded::{MOST_OF_A_HIT, write_bounded};
pub(crate) use dropped::{DroppedEnd, DroppedLine, LeftBehind};
pub(crate) use filter::Filter;
pub(crate) use finding::{FindingLine, FoundWrite, GuardLine};
pub(crate) use header::{Clocks, FORMAT, Header, HostKind, KernelIdentity};
pub(crate) use hit::{Hit, HitLine};
pub(crate) use hold::{GateEnd, HeldCpu, HoldLine};
pub(crate) use injection::InjectionEnd;
pub(crate) use moment::Moment;
pub(crate) use moment::Time;
pub(crate) use nth::NthLine;
pub(crate) use outcome::{
    ARMED, End, Entry, Function, FunctionCount, HistogramEnd, PlaceEnd, Prefix, ProbeEnd, RunsLine,
};
pub(crate) use probe::{Field, Histogram, Kind, Probe, Style};
pub(crate) use reader::{Line, ReadError, Reader};
pub(crate) use sample::{SampleLine, SampledLine, percent};
pub(crate) use scanned::{FoundThing, ScanCheckLine, ScanFindingLine};
pub(crate) use splat::{NamedFrame, SplatLine};
pub(crate) use stack::{BOTTOM, Frame, Inlined, Stack, USER, UserStack};
pub(crate) use stand::{LockLine, SleeperLine, StoodLine, StoodStack};
pub(crate) use turns::OrderLine;
pub(crate) use user_frame::{UserFrame, UserPlace};
pub(crate) use value::Recorded;

/// What `docs/recording.md` has as its example in a block of this kind.
#[cfg(test)]
pub(crate) fn example(kind: &str) -> &'static str {
    const DOCS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/recording.md"));
    let (_, block) = DOCS.split_once(&format!("```{kind}\n")).unwrap();
    block.split_once("```").unwrap().0
}
