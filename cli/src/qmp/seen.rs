//! Memory that a client has read just now.
//!
//! Debuggers read a kernel in small pieces one behind the other: four levels of page tables for each page, and all of a table of symbols by
//! kilobytes. Each piece is a question to the guest, which in the emulated host takes longer than copying. So more is read at once, and for
//! a moment nobody asks again. A guest that runs changes its memory between two reads in any case.

use crate::control::Connection;
use crate::vmcore;
use anyhow::{Context, Result};
use probe_engine::addr::Gpa;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// So many bytes are read at once, at multiples of that.
const BLOCK: u64 = 16 << 10;
/// So long what was read is taken for what is there, at least. No person sees a difference.
const MOMENT: Duration = Duration::from_millis(100);
/// So many times as long as reading it took: where that takes long, so does what it is read for.
const TIMES: u32 = 30;
/// So many blocks are kept.
const MOST: usize = 256;

/// What was read.
#[derive(Default)]
pub(super) struct SeenMemory {
    /// Each block by its address, with until when it holds.
    blocks: BTreeMap<Gpa, (Instant, Vec<u8>)>,
}

impl SeenMemory {
    /// What is in memory at `at`, read from `guest` where it was not just now.
    pub(super) fn read(&mut self, at: Gpa, length: usize, guest: &mut Connection) -> Result<Vec<u8>> {
        let now = Instant::now();
        self.blocks.retain(|_, (until, _)| now < *until);
        let end = at.0.checked_add(length as u64).context("there is no such memory")?;
        let mut bytes = Vec::with_capacity(length);
        let mut next = at;
        while next.0 < end {
            let block = Gpa(next.0 / BLOCK * BLOCK);
            let wanted = end.min(block.0.saturating_add(BLOCK)) - next.0;
            match self.block(block, guest) {
                Some(all) => {
                    let from = (next.0 - block.0) as usize;
                    bytes
                        .extend_from_slice(all.get(from..from + wanted as usize).context("it is too short")?);
                }
                // Memory may end inside.
                None => bytes.extend(vmcore::read(guest, next, wanted as usize)?),
            }
            next = next.add(wanted);
        }
        Ok(bytes)
    }

    /// A whole block, if there is memory in all of it.
    fn block(&mut self, block: Gpa, guest: &mut Connection) -> Option<&[u8]> {
        if !self.blocks.contains_key(&block) {
            if self.blocks.len() >= MOST {
                self.blocks.clear();
            }
            let begun = Instant::now();
            let bytes = vmcore::read(guest, block, BLOCK as usize).ok()?;
            let now = Instant::now();
            self.blocks.insert(block, (now + MOMENT.max(TIMES * (now - begun)), bytes));
        }
        self.blocks.get(&block).map(|(_, bytes)| bytes.as_slice())
    }
}
