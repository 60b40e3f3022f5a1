//! Where the fields of a tracepoint's own event come from: what the guest's code that records the event stores into its members.
//!
//! For each class of events the kernel has a function `trace_event_raw_event_CLASS(data, arguments..)`
//! (include/trace/stages/stage6_event_callback.h). It asks `trace_event_buffer_reserve` for a `struct trace_event_raw_CLASS`, stores into
//! that, and gives it to `trace_event_buffer_commit`. All ways through that function are followed here with names in place of
//! values. A field is computable if every way stores the same into it: an argument, a number, or what memory holds that an argument
//! leads to.

mod code;
mod values;

use super::btf::{Btf, TypeId};
use super::kernel::Kernel;
use crate::addr::Gva;
use code::ways;
use values::Stores;

/// A field of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventField {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TypeId,
    /// Where its value comes from, or why that is not known.
    pub source: Result<Source, NoSource>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where the way begins.
    pub origin: Origin,
    /// What is added to each address on the way, before what lies there is read. None for a value that is in no memory.
    pub hops: Vec<i64>,
    /// How many of the last value's bytes count, where these are fewer than the field has, and whether they have a sign.
    pub widened: Option<(u8, bool)>,
}

/// Where a way begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The argument of this number of the function that is called at an event, from 0 on; the first one is no part of the event.
    Argument(u8),
    /// This address in the kernel, as linked.
    Kernel(Gva),
    /// The task that runs.
    Current,
    /// A number.
    Number(u64),
}

/// Why it is not known where a field comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSource {
    /// It is in a string or an array behind the event.
    #[error("the guest copies it behind the event")]
    Dynamic,
    /// There is no such function, or one that is not understood.
    #[error("the code that records the event is not understood")]
    Code,
    /// Nothing simple is stored.
    #[error("the guest computes it")]
    Computed,
    /// What is stored depends on a condition.
    #[error("what it is depends on a condition")]
    Conditional,
}

/// The fields of the events of `class` in `kernel`, by the types `btf`: all but what every event has. None where there is no such class.
#[must_use]
pub fn event_fields(kernel: &Kernel, btf: &Btf<'_>, class: &str) -> Vec<EventField> {
    let Some(structure) = btf.structure(&format!("trace_event_raw_{class}")) else { return Vec::new() };
    let ways = ways(kernel, btf, class);
    let own = structure.members().filter(|member| !matches!(member.name, "ent" | "__data"));
    let field = |member: super::btf::Member<'_>| {
        let place = member.offset().zip(btf.size(member.ty));
        let source = match (&ways, place) {
            _ if member.name.starts_with("__data_loc_") || member.name.starts_with("__rel_loc_") => {
                Err(NoSource::Dynamic)
            }
            (Ok(ways), Some((offset, size))) => source(ways, offset as i64, size),
            _ => Err(NoSource::Code),
        };
        EventField { name: member.name.to_owned(), ty: member.ty, source }
    };
    own.map(field).collect()
}

/// What is stored at so many bytes from `offset` on, if that is the same on all ways.
fn source(ways: &[Stores], offset: i64, size: u64) -> Result<Source, NoSource> {
    let mut found: Option<Source> = None;
    for way in ways {
        let here = way.source(offset, size)?;
        match &found {
            Some(before) if *before != here => return Err(NoSource::Conditional),
            Some(_) => {}
            None => found = Some(here),
        }
    }
    found.ok_or(NoSource::Code)
}
