//! Whether a write to sealed memory is the kernel's own patching of its text, or that of its modules.
//!
//! Who writes, where, and what must all be right. The kernel changes an instruction in three steps (`text_poke_bp_batch` in
//! arch/x86/kernel/alternative.c): a breakpoint over its first byte, the bytes behind that, the first byte. Each step must lead to what the
//! place may hold.

use super::module::SealedModule;
use super::sealed::{SealedKernel, Site, SiteKind, site_at};
use crate::addr::Gva;
use crate::insn::INT3;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The longest instruction that is written over code which nobody lists: the jump of an optimised kprobe.
pub(crate) const JUMP: usize = 5;
/// The longest site.
const LONGEST: usize = 8;
/// So many bytes are known that kprobes have overwritten.
const MOST_OVERWRITTEN: usize = 1 << 18;
/// `jmp rel32`.
pub(crate) const JUMP_NEAR: u8 = 0xe9;
/// A lock prefix, and what stands in its place while there is one CPU.
const LOCK: [u8; 1] = [0xf0];
const DS: [u8; 1] = [0x3e];

/// What the kernel has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Patch {
    /// A jump label.
    JumpLabel,
    /// A static call.
    StaticCall,
    /// A place of ftrace's.
    Ftrace,
    /// A kprobe of the guest's own, or a jump in place of one.
    Kprobe,
    /// The lock prefix of an instruction, when a second CPU comes or the last but one goes.
    LockPrefix,
}

/// Why a write is none of the kernel's own changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Objection {
    /// Other code writes.
    Writer,
    /// What is written is no code.
    Data,
    /// The kernel lists no such place.
    Place,
    /// The kernel never has that there.
    Bytes,
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Writer => "it is not the kernel's patching code that writes",
            Self::Data => "these are read-only data",
            Self::Place => "the kernel lists no such place for patching",
            Self::Bytes => "the kernel never has these bytes there",
        })
    }
}

/// Judges writes to the sealed memory of one kernel and its modules. All addresses are link-time addresses: a module counts as linked as
/// far before where it runs as the kernel is.
#[derive(Debug)]
pub struct Judge {
    kernel: Arc<SealedKernel>,
    /// What KASLR added to them.
    slide: u64,
    /// The modules, by where the text of each begins. No two of them have an address in common.
    modules: BTreeMap<Gva, ModuleText>,
    /// What kprobes have overwritten, byte by byte.
    overwritten: BTreeMap<Gva, Overwritten>,
}

/// The text of a module.
#[derive(Debug)]
struct ModuleText {
    end: Gva,
    /// Where it is changed, rising.
    sites: Vec<Site>,
}

/// A byte that a kprobe has overwritten.
#[derive(Debug, Clone, Copy)]
struct Overwritten {
    before: u8,
    part: Part,
}

/// Of what is written over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A breakpoint, or a jump's first byte.
    First,
    /// What follows in a jump.
    Behind,
}

impl Judge {
    /// One that has seen nothing yet, of a kernel that runs `slide` bytes behind where it was linked.
    #[must_use]
    pub fn new(kernel: Arc<SealedKernel>, slide: u64) -> Self {
        Self { kernel, slide, modules: BTreeMap::new(), overwritten: BTreeMap::new() }
    }

    /// `module` is sealed. No other one is where that is.
    pub fn enter(&mut self, module: &SealedModule) {
        let text = self.linked(&module.text);
        if text.is_empty() {
            return;
        }
        self.forget(&text);
        for kprobe in &module.kprobes {
            let parts = std::iter::once(Part::First).chain(std::iter::repeat(Part::Behind));
            let at = Gva(kprobe.at.0.wrapping_sub(self.slide));
            for ((at, before), part) in (at.0..).map(Gva).zip(&kprobe.before).zip(parts) {
                if self.overwritten.len() < MOST_OVERWRITTEN {
                    self.overwritten.insert(at, Overwritten { before: *before, part });
                }
            }
        }
        let link = |at: Gva| Gva(at.0.wrapping_sub(self.slide));
        let site = |site: &Site| Site {
            at: link(site.at),
            kind: match site.kind {
                SiteKind::JumpLabel(to) => SiteKind::JumpLabel(link(to)),
                other => other,
            },
            ..*site
        };
        let sites = module.sites.iter().map(site).collect();
        self.modules.insert(text.start, ModuleText { end: text.end, sites });
    }

    /// The module with this text (run-time GVA) goes, and what was known of its text.
    pub fn leave(&mut self, text: &Range<Gva>) {
        let text = self.linked(text);
        if text.is_empty() {
            return;
        }
        self.modules.remove(&text.start);
        self.forget(&text);
    }

    /// Forgets what kprobes have overwritten in `text`.
    fn forget(&mut self, text: &Range<Gva>) {
        let gone: Vec<Gva> = self.overwritten.range(text.clone()).map(|(at, _)| *at).collect();
        for at in gone {
            self.overwritten.remove(&at);
        }
    }

    /// Where a range of run-time addresses counts as linked.
    fn linked(&self, range: &Range<Gva>) -> Range<Gva> {
        let link = |at: Gva| Gva(at.0.wrapping_sub(self.slide));
        link(range.start)..link(range.end)
    }

    /// The module whose text `at` is in.
    fn module(&self, at: Gva) -> Option<&ModuleText> {
        let (_, module) = self.modules.range(..=at).next_back()?;
        (at < module.end).then_some(module)
    }

    /// The site that `at` is in.
    fn site(&self, at: Gva) -> Option<&Site> {
        match self.module(at) {
            Some(module) => site_at(&module.sites, at),
            None => self.kernel.site(at),
        }
    }

    /// Whether `bytes` may be written at `at` by the kernel's [patching code](SealedKernel::poke), if it `is_poking`. `read` fills a
    /// buffer with what is there now, and says whether it could. A write that may be is taken to be made.
    ///
    /// # Errors
    /// Why not.
    pub fn judge(
        &mut self,
        at: Gva,
        bytes: &[u8],
        is_poking: bool,
        read: impl Fn(Gva, &mut [u8]) -> bool,
    ) -> Result<Patch, Objection> {
        let is_module = self.module(at).is_some();
        if !is_module && !at.is_in(&self.kernel.text) {
            return Err(Objection::Data);
        }
        if !is_poking {
            return Err(Objection::Writer);
        }
        match self.site(at).copied() {
            Some(site) => self.at_site(&site, at, bytes, read),
            // No table of a module's own lists its lock prefixes. They are put back when a second CPU comes.
            None if is_module && bytes == LOCK && is_there(at, DS, &read) => Ok(Patch::LockPrefix),
            None => self.anywhere(at, bytes, read).map(|()| Patch::Kprobe),
        }
    }

    fn at_site(
        &self,
        site: &Site,
        at: Gva,
        bytes: &[u8],
        read: impl Fn(Gva, &mut [u8]) -> bool,
    ) -> Result<Patch, Objection> {
        let mut now = [0; LONGEST];
        let now = now.get_mut(..site.length.into()).ok_or(Objection::Place)?;
        let patch = match site.kind {
            SiteKind::JumpLabel(_) => Patch::JumpLabel,
            SiteKind::StaticCall => Patch::StaticCall,
            SiteKind::Ftrace => Patch::Ftrace,
            SiteKind::LockPrefix => Patch::LockPrefix,
        };
        if !read(site.at, now) {
            return Err(Objection::Place);
        }
        put(now, at.offset_from(site.at), bytes).ok_or(Objection::Place)?;
        if holds(site, now, |to| self.is_code(to)) { Ok(patch) } else { Err(Objection::Bytes) }
    }

    /// The guest's own kprobes: a breakpoint anywhere, a jump in its place, and what was there before.
    fn anywhere(
        &mut self,
        at: Gva,
        bytes: &[u8],
        read: impl Fn(Gva, &mut [u8]) -> bool,
    ) -> Result<(), Objection> {
        let mut now = [0; JUMP];
        let now = now.get_mut(..bytes.len()).ok_or(Objection::Place)?;
        let places = (at.0..at.0.saturating_add(bytes.len() as u64)).map(Gva);
        if places.clone().any(|at| self.site(at).is_some()) || !read(at, now) {
            return Err(Objection::Place);
        }
        let is_before = |(at, byte): (Gva, &u8)| {
            self.overwritten.get(&at).is_some_and(|overwritten| overwritten.before == *byte)
        };
        if places.clone().zip(bytes).all(is_before) {
            // The first byte comes last.
            let behind = at.add(1)..at.add(JUMP as u64);
            let mut behind = self.overwritten.range(behind);
            if bytes.len() == 1 && behind.any(|(_, overwritten)| overwritten.part == Part::Behind) {
                return Err(Objection::Bytes);
            }
            for at in places {
                self.overwritten.remove(&at);
            }
            return Ok(());
        }
        match bytes {
            // A processor without fast strings copies four bytes by two stores of all of them.
            [_, _, _, _] if now == bytes => Ok(()),
            // Over its own jump, or over what was there.
            [INT3] if self.is_breakpoint(at) => Ok(()),
            // Padding is no place for a probe.
            [INT3] if *now == [INT3] => Err(Objection::Place),
            [INT3] => self.note(at, now, Part::First),
            // The first byte of a jump whose others are there.
            [JUMP_NEAR] if self.is_breakpoint(at) => {
                let mut jump = [0; JUMP];
                let fits = read(at, &mut jump) && leads(&jump, at, &[JUMP_NEAR], |to| self.is_code(to));
                if fits { Ok(()) } else { Err(Objection::Bytes) }
            }
            [_, _, _, _] if self.is_breakpoint(Gva(at.0.wrapping_sub(1))) => {
                let start = Gva(at.0.wrapping_sub(1));
                let jump = [&[JUMP_NEAR], bytes].concat();
                match leads(&jump, start, &[JUMP_NEAR], |to| self.is_code(to)) {
                    true => self.note(at, now, Part::Behind),
                    false => Err(Objection::Bytes),
                }
            }
            [_] if self.is_breakpoint(at) => Err(Objection::Bytes),
            _ => Err(Objection::Place),
        }
    }

    /// Whether a breakpoint was put at `at`, and not taken away since.
    fn is_breakpoint(&self, at: Gva) -> bool {
        self.overwritten.get(&at).is_some_and(|overwritten| overwritten.part == Part::First)
    }

    /// Notes what is there `now`, and about to be overwritten.
    fn note(&mut self, at: Gva, now: &[u8], part: Part) -> Result<(), Objection> {
        if self.overwritten.len() + now.len() > MOST_OVERWRITTEN {
            return Err(Objection::Place);
        }
        for (at, before) in (at.0..).map(Gva).zip(now) {
            self.overwritten.entry(at).or_insert(Overwritten { before: *before, part });
        }
        Ok(())
    }

    /// Whether code is at the link-time address `at`: the kernel's, a module's or what was generated.
    fn is_code(&self, at: Gva) -> bool {
        at.is_in(&self.kernel.text) || at.add(self.slide).is_in(&self.kernel.generated)
    }
}

/// Whether a site may hold this, which the kernel has changed, or is about to: its first byte may still be a breakpoint. `is_code` says
/// whether code is at a link-time address.
pub(crate) fn holds(site: &Site, now: &[u8], is_code: impl Fn(Gva) -> bool) -> bool {
    match site.kind {
        SiteKind::JumpLabel(target) => is_nop(now) || leads(now, site.at, &[0xe9, 0xeb], |to| to == target),
        SiteKind::Ftrace => is_nop(now) || leads(now, site.at, &[0xe8, 0xe9], is_code),
        // lock, or ds: in its place
        SiteKind::LockPrefix => matches!(now, [0xf0 | 0x3e | INT3]),
        // Its middle may come in two steps that overlap. Nobody runs it meanwhile.
        SiteKind::StaticCall if matches!(now, [INT3, _, _, _, _, _]) => true,
        SiteKind::StaticCall => is_nop(now) || is_no_call(now) || leads(now, site.at, &[0xe8, 0xe9], is_code),
    }
}

/// Whether `code` at `at` is one of these branches, or will be when its first byte is written, to what is `wanted`.
pub(crate) fn leads(code: &[u8], at: Gva, opcodes: &[u8], wanted: impl Fn(Gva) -> bool) -> bool {
    let end = at.add(code.len() as u64);
    let (opcode, distance) = match code {
        [0x0f, condition @ 0x80..=0x8f, a, b, c, d] => {
            // A conditional tail call, since 6.2.
            (*condition, i32::from_le_bytes([*a, *b, *c, *d]).into())
        }
        [opcode, a, b, c, d] => (*opcode, i64::from(i32::from_le_bytes([*a, *b, *c, *d]))),
        [opcode, distance] => (*opcode, i64::from(*distance as i8)),
        _ => return false,
    };
    let is_one = opcode == INT3 || code.len() == 6 || opcodes.contains(&opcode);
    is_one && wanted(end.offset(distance))
}

/// Whether this byte is at `at` now.
fn is_there(at: Gva, byte: [u8; 1], read: impl Fn(Gva, &mut [u8]) -> bool) -> bool {
    let mut now = [0];
    read(at, &mut now) && now == byte
}

/// Writes `bytes` over what is `offset` bytes into `now`, if they are all inside.
fn put(now: &mut [u8], offset: Option<u64>, bytes: &[u8]) -> Option<()> {
    let from = usize::try_from(offset?).ok()?;
    now.get_mut(from..from.checked_add(bytes.len())?)?.copy_from_slice(bytes);
    Some(())
}

/// Whether `now` is `wanted`, or will be when its first byte is written.
fn becomes(now: &[u8], wanted: &[u8]) -> bool {
    match (now, wanted) {
        ([first, rest @ ..], [wanted_first, wanted_rest @ ..]) => {
            rest == wanted_rest && (first == wanted_first || *first == INT3)
        }
        _ => false,
    }
}

/// The kernel's nops of two, five and six bytes (`x86_nops` in arch/x86/kernel/alternative.c).
fn is_nop(now: &[u8]) -> bool {
    const NOPS: [&[u8]; 3] = [&[0x66, 0x90], &[0x0f, 0x1f, 0x44, 0, 0], &[0x66, 0x0f, 0x1f, 0x44, 0, 0]];
    NOPS.iter().any(|nop| becomes(now, nop))
}

/// What stands in place of a static call of a function that returns, returns zero, or warns (arch/x86/kernel/static_call.c).
fn is_no_call(now: &[u8]) -> bool {
    const RETURNS_ZERO: &[u8] = &[0x2e, 0x2e, 0x2e, 0x31, 0xc0];
    const RETURNS: &[u8] = &[0xc3, 0xcc, 0xcc, 0xcc, 0xcc];
    const WARNS: &[u8] = &[0x67, 0x48, 0x0f, 0xb9, 0x3a];
    [RETURNS_ZERO, RETURNS, WARNS].iter().any(|code| becomes(now, code))
}

#[cfg(test)]
mod tests;
