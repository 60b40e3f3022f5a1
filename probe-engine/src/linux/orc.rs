//! How the stack lies at each instruction of a kernel: its ORC table, by which the kernel walks its own stacks.
//!
//! objtool writes two sections of equal order. `.orc_unwind_ip` has an i32 for each row, the distance from that i32 to
//! the first instruction the row is for; a row holds until the next one. `.orc_unwind` has 6 bytes for each row
//! (`struct orc_entry`, arch/x86/include/asm/orc_types.h): i16 `sp_offset`, i16 `bp_offset` and u16 flags, of which
//! bits 3:0 say what `sp_offset` is added to and bits 7:4 what `bp_offset` is added to. The numbers of these, and the
//! other bits, have changed: see [`OrcLayout`].
//!
//! A kernel has 400,000 rows, and some 400 different ones: a table keeps each of those once.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::read::{array, u16_at};
use super::vmlinux::Vmlinux;
use crate::addr::Gva;

mod blocks;
mod module;

use blocks::Blocks;

/// Most rows; Debian's kernels have 424,000.
const MOST_ROWS: usize = 4 << 20;
/// Bytes of a row, and of its entry in the table of addresses.
pub(crate) const ROW_LEN: usize = 6;
pub(crate) const IP_LEN: usize = 4;

/// What the upper half of a row's flags means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OrcLayout {
    /// Until 6.2: bits 9:8 the type, bit 10 the end of the stack. A row without a base is undefined or such an end,
    /// and all saved registers are a signal frame.
    UntilSixTwo,
    /// Since 6.4, where the image says that it has another layout (`.orc_header`): bits 10:8 the type, bit 11 a signal
    /// frame.
    SinceSixFour,
    /// As the latter, with other numbers for what offsets are added to, and RAX among that: 7.2 has it, 6.12 does not.
    Renumbered,
}

/// What is known at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OrcRow {
    /// Nothing: no code, or code that objtool did not understand.
    Undefined,
    /// Nobody has called this code.
    EndOfStack,
    /// Where the previous frame is.
    Frame(OrcFrame),
}

/// Where the previous frame is, seen from an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OrcFrame {
    /// What `sp` leads to.
    pub holds: Holds,
    /// What the previous stack pointer, or the saved registers, are found from.
    pub sp: SpBase,
    /// Bytes added to that.
    pub sp_offset: i16,
    /// What the place of the previous RBP is found from.
    pub bp: BpBase,
    /// Bytes added to that.
    pub bp_offset: i16,
    /// Whether the previous frame was stopped at its address, and has not called from before it.
    pub signal: bool,
}

/// What a row's `sp` leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Holds {
    /// The stack pointer before the call: the return address lies 8 bytes below (ORC_TYPE_CALL).
    Return,
    /// A `struct pt_regs` (ORC_TYPE_REGS).
    Regs,
    /// What the CPU pushes at an interrupt, of which IRET takes the rest (ORC_TYPE_REGS_PARTIAL).
    IretFrame,
}

/// What `sp_offset` is added to (ORC_REG_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SpBase {
    /// RSP.
    Sp,
    /// RBP.
    Bp,
    /// The word at RSP.
    SpIndirect,
    /// Nothing: it is the word at RBP + `sp_offset`.
    BpIndirect,
    /// Nothing: it is R10, as for the four that follow.
    R10,
    /// R13.
    R13,
    /// RDI.
    Di,
    /// RDX.
    Dx,
    /// RAX.
    Ax,
}

/// Where the previous RBP is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BpBase {
    /// Still in RBP, or among the saved registers.
    Unchanged,
    /// At what `sp` leads to, + `bp_offset`.
    PrevSp,
    /// At RBP + `bp_offset`.
    Bp,
}

/// An ORC table that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OrcError {
    /// The kernel was built with another unwinder.
    #[error("the kernel has no ORC table (CONFIG_UNWINDER_ORC)")]
    Missing,
    /// The two sections do not belong together, lead out of the address space, or are far too large.
    #[error("the ORC table is damaged")]
    Damaged,
    /// A layout nobody has seen before, or that of 6.3.
    #[error("the row for {0} of the ORC table has a layout that is not known")]
    Unknown(Gva),
}

/// The ORC table of a kernel, at link-time addresses, or of a module, at run-time addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Steps", try_from = "Steps")]
pub struct OrcTable {
    layout: OrcLayout,
    start: Gva,
    /// Bytes from `start` to each row, in order.
    offsets: Vec<u32>,
    /// Which of `kinds` each of those is.
    rows: Vec<u16>,
    /// All different rows.
    kinds: Vec<OrcRow>,
    blocks: Blocks,
}

impl OrcTable {
    /// Reads that of a kernel's image.
    ///
    /// # Errors
    /// [`OrcError`] when there is none, or none that is understood. That of 6.3 is not.
    pub fn parse(image: &Vmlinux) -> Result<Self, OrcError> {
        let ips = image.section(".orc_unwind_ip").ok_or(OrcError::Missing)?;
        let rows = image.section(".orc_unwind").ok_or(OrcError::Missing)?;
        let parse = |layout| Self::from_parts(layout, ips.bytes, ips.range.start, rows.bytes);
        match image.section(".orc_header") {
            None => parse(OrcLayout::UntilSixTwo),
            // The header is a hash of a source file. What one layout has for the usual place of RBP the other has not.
            Some(_) => parse(OrcLayout::SinceSixFour)
                .or_else(|error| parse(OrcLayout::Renumbered).map_err(|_| error)),
        }
    }

    /// The table of which `ips` is the part with the addresses, which lies at `ips_at`, and `rows` the other, both as
    /// in memory and in any order.
    ///
    /// # Errors
    /// [`OrcError`] when they are no such table.
    pub fn from_parts(layout: OrcLayout, ips: &[u8], ips_at: Gva, rows: &[u8]) -> Result<Self, OrcError> {
        let (ips, more_ips) = ips.as_chunks::<IP_LEN>();
        let (rows, more_rows) = rows.as_chunks::<ROW_LEN>();
        if !more_ips.is_empty() || !more_rows.is_empty() || ips.len() != rows.len() || ips.len() > MOST_ROWS {
            return Err(OrcError::Damaged);
        }
        let places = (0..).map(|index| ips_at.add(index * IP_LEN as u64));
        let mut found = Vec::with_capacity(ips.len());
        for ((place, ip), row) in places.zip(ips).zip(rows) {
            let at = place.offset(i32::from_le_bytes(*ip).into());
            found.push((at, layout.row(row).ok_or(OrcError::Unknown(at))?));
        }
        // Of two rows for one address the later holds. One that only marks the end of the code before is the weaker.
        found.sort_by_key(|(at, row)| (*at, *row != OrcRow::Undefined));
        let start = found.first().map_or(Gva(0), |(at, _)| *at);
        let (mut offsets, mut rows, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        let mut known = HashMap::new();
        for (at, row) in found {
            let offset = at.offset_from(start).and_then(|offset| offset.try_into().ok());
            let kind = *known.entry(row).or_insert_with(|| {
                kinds.push(row);
                kinds.len() - 1
            });
            offsets.push(offset.ok_or(OrcError::Damaged)?);
            rows.push(kind.try_into().map_err(|_| OrcError::Damaged)?);
        }
        let blocks = Blocks::over(&offsets);
        Ok(Self { layout, start, offsets, rows, kinds, blocks })
    }

    /// What is known at the instruction at `at`; `None` before the first row.
    ///
    /// The last row holds for whatever lies behind it: whether there is code of this kernel or module at `at` is known
    /// to others.
    #[must_use]
    #[inline]
    pub fn find(&self, at: Gva) -> Option<OrcRow> {
        let offset = at.offset_from(self.start)?;
        let around = self.blocks.rows_around(offset, self.offsets.len());
        // They are few: one after the other is quicker than by halves.
        let inside =
            self.offsets.get(around.clone())?.iter().take_while(|row| u64::from(**row) <= offset).count();
        self.row((around.start + inside).checked_sub(1)?)
    }

    /// All rows by address: where each begins to hold, and what it says.
    pub fn rows(&self) -> impl Iterator<Item = (Gva, OrcRow)> {
        let at = self.offsets.iter().map(|offset| self.start.add((*offset).into()));
        at.enumerate().filter_map(|(index, at)| Some((at, self.row(index)?)))
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// The layout in which it was written, which is also that of this kernel's modules.
    #[must_use]
    pub fn layout(&self) -> OrcLayout {
        self.layout
    }

    fn row(&self, index: usize) -> Option<OrcRow> {
        self.kinds.get(usize::from(*self.rows.get(index)?)).copied()
    }
}

impl OrcLayout {
    /// What the bytes of a row mean; `None` for what this layout does not have.
    fn row(self, bytes: &[u8; ROW_LEN]) -> Option<OrcRow> {
        let (sp_offset, bp_offset) = (array(bytes, 0)?, array(bytes, 2)?);
        let flags = u16_at(bytes, 4)?;
        let (holds, signal) = match (self, flags >> 8) {
            (Self::UntilSixTwo, 0) if flags & 0xf == 0 => return Some(OrcRow::Undefined),
            (Self::UntilSixTwo, 4) if flags & 0xf == 0 => return Some(OrcRow::EndOfStack),
            (Self::UntilSixTwo, 0) => (Holds::Return, false),
            (Self::UntilSixTwo, 1) => (Holds::Regs, true),
            (Self::UntilSixTwo, 2) => (Holds::IretFrame, true),
            (Self::UntilSixTwo, _) => return None,
            (Self::SinceSixFour | Self::Renumbered, 0) => return Some(OrcRow::Undefined),
            (Self::SinceSixFour | Self::Renumbered, 1) => return Some(OrcRow::EndOfStack),
            (Self::SinceSixFour | Self::Renumbered, high @ ..=0xf) => {
                let holds = match high & 7 {
                    2 => Holds::Return,
                    3 => Holds::Regs,
                    4 => Holds::IretFrame,
                    _ => return None,
                };
                (holds, high & 8 != 0)
            }
            _ => return None,
        };
        let (sp, bp) = match self {
            Self::UntilSixTwo | Self::SinceSixFour => (sp_base(flags & 0xf)?, bp_base(flags >> 4 & 0xf)?),
            Self::Renumbered => (renumbered_sp_base(flags & 0xf)?, renumbered_bp_base(flags >> 4 & 0xf)?),
        };
        Some(OrcRow::Frame(OrcFrame {
            holds,
            sp,
            sp_offset: i16::from_le_bytes(sp_offset),
            bp,
            bp_offset: i16::from_le_bytes(bp_offset),
            signal,
        }))
    }
}

/// ORC_REG_* as they were at first.
fn sp_base(number: u16) -> Option<SpBase> {
    Some(match number {
        2 => SpBase::Dx,
        3 => SpBase::Di,
        4 => SpBase::Bp,
        5 => SpBase::Sp,
        6 => SpBase::R10,
        7 => SpBase::R13,
        8 => SpBase::BpIndirect,
        9 => SpBase::SpIndirect,
        _ => return None,
    })
}

fn bp_base(number: u16) -> Option<BpBase> {
    Some(match number {
        0 => BpBase::Unchanged,
        1 => BpBase::PrevSp,
        4 => BpBase::Bp,
        _ => return None,
    })
}

/// ORC_REG_* of [`OrcLayout::Renumbered`].
fn renumbered_sp_base(number: u16) -> Option<SpBase> {
    Some(match number {
        1 => SpBase::Ax,
        2 => SpBase::Dx,
        3 => SpBase::Sp,
        4 => SpBase::Bp,
        5 => SpBase::Di,
        6 => SpBase::R10,
        7 => SpBase::R13,
        9 => SpBase::SpIndirect,
        10 => SpBase::BpIndirect,
        _ => return None,
    })
}

fn renumbered_bp_base(number: u16) -> Option<BpBase> {
    Some(match number {
        0 => BpBase::Unchanged,
        8 => BpBase::PrevSp,
        4 => BpBase::Bp,
        _ => return None,
    })
}

/// How a table is sent: by the distance of each row from the one before, which is small.
#[derive(Serialize, Deserialize)]
struct Steps {
    layout: OrcLayout,
    start: Gva,
    steps: Vec<u32>,
    rows: Vec<u16>,
    kinds: Vec<OrcRow>,
}

impl From<OrcTable> for Steps {
    fn from(table: OrcTable) -> Self {
        let OrcTable { layout, start, offsets, rows, kinds, blocks: _ } = table;
        let mut last = 0;
        let steps = offsets.iter().map(|offset| offset.wrapping_sub(std::mem::replace(&mut last, *offset)));
        Self { layout, start, steps: steps.collect(), rows, kinds }
    }
}

impl TryFrom<Steps> for OrcTable {
    type Error = OrcError;

    fn try_from(sent: Steps) -> Result<Self, OrcError> {
        let Steps { layout, start, steps, rows, kinds } = sent;
        let is_whole = steps.len() == rows.len() && steps.len() <= MOST_ROWS;
        if !is_whole || rows.iter().any(|row| usize::from(*row) >= kinds.len()) {
            return Err(OrcError::Damaged);
        }
        let mut offsets = steps;
        let mut last = 0u32;
        for offset in &mut offsets {
            last = last.checked_add(*offset).ok_or(OrcError::Damaged)?;
            *offset = last;
        }
        let blocks = Blocks::over(&offsets);
        Ok(Self { layout, start, offsets, rows, kinds, blocks })
    }
}

#[cfg(test)]
mod tests;
