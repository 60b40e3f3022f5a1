//! Kprobes, and where they have overwritten code.

use super::super::code::{Code, Owner};
use super::super::subject::{Subject, around};
use super::super::walk::{Unreadable, chained};
use crate::addr::Gva;
use crate::guard::judge::{JUMP, JUMP_NEAR, leads};
use crate::insn::INT3;
use crate::memory::PhysMemory;
use std::collections::BTreeMap;
use std::ops::Range;

/// KPROBE_TABLE_SIZE, kernel/kprobes.c
const BUCKETS: u64 = 64;
/// KPROBE_FLAG_OPTIMIZED, include/linux/kprobes.h
const OPTIMIZED: u32 = 4;
/// So many are read.
const MOST: usize = 1 << 16;

/// Where kprobes stand, and the jumps of those that are optimised.
#[derive(Debug, Default)]
pub(in super::super) struct Overwritten(BTreeMap<Gva, Option<Gva>>);

impl Overwritten {
    /// The bytes that a kprobe has overwritten around `at`.
    pub(in super::super) fn around(&self, at: Gva) -> Option<Range<Gva>> {
        let (start, jump) = self.0.range(..=at).next_back()?;
        let range = *start..start.add(if jump.is_some() { JUMP as u64 } else { 1 });
        at.is_in(&range).then_some(range)
    }

    /// Whether the kprobe at `at` may have this there.
    pub(in super::super) fn fits(&self, at: Gva, now: &[u8]) -> bool {
        match (self.0.get(&at), now) {
            (Some(_), [INT3]) => true,
            (Some(Some(slot)), jump) => leads(jump, at, &[JUMP_NEAR], |to| to == *slot),
            _ => false,
        }
    }
}

/// Where the members of `struct kprobe` and of what has one are, in bytes.
struct Layout {
    table: Gva,
    node: u64,
    place: u64,
    siblings: u64,
    handlers: [u64; 2],
    flags: u64,
    /// `struct optimized_kprobe`: where the jump leads.
    slot: Option<u64>,
    /// `struct kretprobe`: the kprobe in it, and whom it calls.
    returns: Option<(u64, [u64; 2])>,
    /// What the kernel has called where there are several, and where it is a kretprobe's.
    own: [Option<Gva>; 3],
}

impl Layout {
    fn find<M: PhysMemory + ?Sized>(subject: &Subject<'_, M>) -> Option<Self> {
        let probe = |member| subject.offset("kprobe", member);
        let returns = |member| subject.offset("kretprobe", member);
        Some(Self {
            table: subject.symbol("kprobe_table")?,
            node: probe("hlist")?,
            place: probe("addr")?,
            siblings: probe("list")?,
            handlers: [probe("pre_handler")?, probe("post_handler")?],
            flags: probe("flags")?,
            slot: subject.offset("optimized_kprobe", "optinsn.insn"),
            returns: match [returns("kp"), returns("handler"), returns("entry_handler")] {
                [Some(inside), Some(behind), Some(before)] => Some((inside, [before, behind])),
                _ => None,
            },
            own: ["aggr_pre_handler", "aggr_post_handler", "pre_handler_kretprobe"]
                .map(|name| subject.symbol(name)),
        })
    }
}

/// Calls `called` with where each stands and whom it calls. Says where they have overwritten code.
pub(super) fn read<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    code: &Code,
    called: &mut dyn FnMut(Gva, Gva),
) -> Result<Overwritten, Unreadable> {
    let mut overwritten = Overwritten::default();
    if subject.symbol("register_kprobe").is_none() {
        return Ok(overwritten);
    }
    let layout = Layout::find(subject).ok_or(Unreadable::Unknown("kprobes"))?;
    let Layout { siblings, handlers, own, .. } = layout;
    let [several, _, of_returns] = own;
    let mut looked_at = 0;
    for bucket in 0..BUCKETS {
        for found in chained(&subject.memory, layout.table.add(8 * bucket))? {
            let probe = around(found, layout.node);
            let place = subject.pointer(probe.add(layout.place))?;
            let is_optimized = subject.memory.read_u32(probe.add(layout.flags))? & OPTIMIZED != 0;
            let jump = layout.slot.filter(|_| is_optimized);
            let jump = jump.map(|slot| subject.pointer(probe.add(slot))).transpose()?;
            // A slot of anybody else's is no reason for a jump.
            let slot = jump.filter(|slot| code.owner(*slot) == Some(&Owner::Kprobes));
            overwritten.0.insert(place, slot);
            let mut probes = vec![probe];
            if several.is_some() && several == Some(subject.pointer(probe.add(handlers[0]))?) {
                probes.extend(subject.listed(probe.add(siblings), siblings)?);
            }
            looked_at += probes.len();
            if looked_at > MOST {
                return Err(Unreadable::Endless);
            }
            for probe in probes {
                for handler in handlers {
                    let handler = subject.pointer(probe.add(handler))?;
                    if of_returns == Some(handler)
                        && let Some((inside, handlers)) = layout.returns
                    {
                        for handler in handlers {
                            called(place, subject.pointer(around(probe, inside).add(handler))?);
                        }
                    } else if !own.contains(&Some(handler)) {
                        called(place, handler);
                    }
                }
            }
        }
    }
    Ok(overwritten)
}
