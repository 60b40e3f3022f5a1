//! Whether a write to sealed memory is the kernel's own patching of its text.
//!
//! Who writes, where, and what must all be right. The kernel changes an instruction in three steps (`text_poke_bp_batch` in
//! arch/x86/kernel/alternative.c): a breakpoint over its first byte, the bytes behind that, the first byte. Each step must lead to what the
//! place may hold.

use super::sealed::{SealedKernel, Site, SiteKind};
use crate::addr::Gva;
use crate::insn::INT3;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The longest instruction that is written over code which nobody lists: the jump of an optimised kprobe.
pub(crate) const JUMP: usize = 5;
/// The longest site.
const LONGEST: usize = 8;
/// So many bytes are known that kprobes have overwritten.
const MOST_OVERWRITTEN: usize = 1 << 18;
/// `jmp rel32`.
pub(crate) const JUMP_NEAR: u8 = 0xe9;
/// Where there are no modules any more, and nothing that the kernel generates (Documentation/arch/x86/x86_64/mm.rst).
const GENERATED_END: Gva = Gva(0xffff_ffff_ff00_0000);

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

/// Judges writes to the sealed memory of one kernel. All addresses are link-time addresses.
#[derive(Debug)]
pub struct Judge {
    kernel: Arc<SealedKernel>,
    /// What KASLR added to them.
    slide: u64,
    /// What kprobes have overwritten, byte by byte.
    overwritten: BTreeMap<Gva, Overwritten>,
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
        Self { kernel, slide, overwritten: BTreeMap::new() }
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
        if !at.is_in(&self.kernel.text) {
            return Err(Objection::Data);
        }
        if !is_poking {
            return Err(Objection::Writer);
        }
        match self.kernel.site(at).copied() {
            Some(site) => self.at_site(&site, at, bytes, read),
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
        if places.clone().any(|at| self.kernel.site(at).is_some()) || !read(at, now) {
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
        at.is_in(&self.kernel.text) || at.add(self.slide).is_in(&(self.kernel.generated..GENERATED_END))
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
mod tests {
    use super::*;
    use std::cell::RefCell;

    const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
    const LABEL: Gva = Gva(TEXT.0 + 0x100);
    const SHORT: Gva = Gva(TEXT.0 + 0x110);
    const CALL: Gva = Gva(TEXT.0 + 0x200);
    const TRACED: Gva = Gva(TEXT.0 + 0x300);
    const PLAIN: Gva = Gva(TEXT.0 + 0x400);
    const GENERATED: Gva = Gva(0xffff_ffff_c000_0000);
    const LOCKED: Gva = Gva(TEXT.0 + 0x500);
    const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
    const BEFORE: [u8; 5] = [0x55, 0x48, 0x89, 0xe5, 0x90];

    struct Text(RefCell<Vec<u8>>, Judge);

    impl Text {
        fn new() -> Self {
            let site = |at, length, kind| Site { at, length, kind };
            let sites = vec![
                site(LABEL, 5, SiteKind::JumpLabel(Gva(LABEL.0 + 5 + 0x40))),
                site(SHORT, 2, SiteKind::JumpLabel(Gva(SHORT.0 + 2 + 0x40))),
                site(CALL, 5, SiteKind::StaticCall),
                site(TRACED, 5, SiteKind::Ftrace),
                site(LOCKED, 1, SiteKind::LockPrefix),
            ];
            let kernel = SealedKernel {
                pages: vec![TEXT..TEXT.add(0x2000)],
                text: TEXT..TEXT.add(0x1000),
                sealed_at: TEXT,
                poke: TEXT..TEXT.add(0x10),
                poking_space: TEXT.add(0x1000),
                page_table: 0x48,
                generated: GENERATED,
                sites,
            };
            let text = Self(RefCell::new(vec![0x90; 0x2000]), Judge::new(Arc::new(kernel), 0x20_0000));
            for at in [LABEL, TRACED] {
                text.write(at, &NOP5);
            }
            text.write(SHORT, &[0x66, 0x90]);
            text.write(CALL, &[0xe8, 0x10, 0, 0, 0]);
            text.write(PLAIN, &BEFORE);
            text
        }

        fn write(&self, at: Gva, bytes: &[u8]) {
            put(&mut self.0.borrow_mut(), at.offset_from(TEXT), bytes).unwrap();
        }

        fn by(&mut self, is_poking: bool, at: Gva, bytes: &[u8]) -> Result<Patch, Objection> {
            let Self(text, judge) = self;
            let verdict = judge.judge(at, bytes, is_poking, |at, buf| {
                let from = (at.0 - TEXT.0) as usize;
                buf.copy_from_slice(&text.borrow()[from..from + buf.len()]);
                true
            });
            if verdict.is_ok() {
                self.write(at, bytes);
            }
            verdict
        }

        fn poke(&mut self, at: Gva, bytes: &[u8]) -> Result<Patch, Objection> {
            self.by(true, at, bytes)
        }

        /// As the kernel does it.
        fn step_by_step(&mut self, at: Gva, bytes: &[u8]) -> Result<Patch, Objection> {
            self.poke(at, &[INT3])?;
            self.poke(at.add(1), &bytes[1..])?;
            self.poke(at, &bytes[..1])
        }
    }

    #[test]
    fn a_jump_label_leads_where_it_may() {
        let mut text = Text::new();
        for _ in 0..2 {
            assert_eq!(text.step_by_step(LABEL, &[0xe9, 0x40, 0, 0, 0]), Ok(Patch::JumpLabel));
            assert_eq!(text.step_by_step(LABEL, &NOP5), Ok(Patch::JumpLabel));
            assert_eq!(text.step_by_step(SHORT, &[0xeb, 0x40]), Ok(Patch::JumpLabel));
            assert_eq!(text.step_by_step(SHORT, &[0x66, 0x90]), Ok(Patch::JumpLabel));
        }
        assert_eq!(text.step_by_step(LABEL, &[0xe9, 0x41, 0, 0, 0]), Err(Objection::Bytes));
        assert_eq!(text.poke(LABEL, &[0xe8]), Err(Objection::Bytes));
        assert_eq!(text.poke(LABEL.add(4), &[0, 0]), Err(Objection::Place), "it goes on behind the site");
    }

    #[test]
    fn static_calls_and_ftraces_places_call_code() {
        let mut text = Text::new();
        let generated = (GENERATED.0 + 0x1000_0000 - 0x20_0000 - TRACED.0 - 5) as u32;
        let far = |opcode: u8, distance: u32| [&[opcode][..], &distance.to_le_bytes()].concat();
        for (at, patch) in [(CALL, Patch::StaticCall), (TRACED, Patch::Ftrace)] {
            assert_eq!(text.step_by_step(at, &far(0xe8, 0x20)), Ok(patch));
            assert_eq!(text.step_by_step(at, &far(0xe9, generated)), Ok(patch));
            assert_eq!(text.step_by_step(at, &NOP5), Ok(patch));
            assert_eq!(text.step_by_step(at, &far(0xe8, 0x10_0000)), Err(Objection::Bytes), "that is data");
            text.write(at, &NOP5);
            assert_eq!(text.poke(at, &[0xc3]), Err(Objection::Bytes));
        }
        for no_call in
            [[0x2e, 0x2e, 0x2e, 0x31, 0xc0], [0xc3, 0xcc, 0xcc, 0xcc, 0xcc], [0x67, 0x48, 0x0f, 0xb9, 0x3a]]
        {
            assert_eq!(text.step_by_step(CALL, &no_call), Ok(Patch::StaticCall));
            assert_eq!(text.step_by_step(TRACED, &no_call), Err(Objection::Bytes));
            text.write(TRACED, &NOP5);
        }
    }

    #[test]
    fn a_kprobe_takes_away_what_it_has_put_there() {
        let mut text = Text::new();
        for _ in 0..2 {
            assert_eq!(text.poke(PLAIN, &[INT3]), Ok(Patch::Kprobe));
            // It is optimised, and is so no more.
            assert_eq!(text.step_by_step(PLAIN, &[0xe9, 0x10, 0, 0, 0]), Ok(Patch::Kprobe));
            assert_eq!(text.poke(PLAIN, &[INT3]), Ok(Patch::Kprobe));
            assert_eq!(
                text.poke(PLAIN, &BEFORE[..1]),
                Err(Objection::Bytes),
                "the jump's rest is still there"
            );
            for _ in 0..2 {
                assert_eq!(text.poke(PLAIN.add(1), &BEFORE[1..]), Ok(Patch::Kprobe), "as memcpy() may do it");
            }
            assert_eq!(text.poke(PLAIN, &BEFORE[..1]), Ok(Patch::Kprobe));
        }
        assert_eq!(text.poke(PLAIN, &[0x90]), Err(Objection::Place), "there is no breakpoint");
        assert_eq!(text.poke(PLAIN, &[INT3]), Ok(Patch::Kprobe));
        assert_eq!(text.poke(PLAIN, &[0xc3]), Err(Objection::Bytes));
        assert_eq!(text.poke(PLAIN.add(1), &[1, 2, 3, 0x7f]), Err(Objection::Bytes), "no code is there");
        assert_eq!(text.poke(PLAIN.add(1), &[1, 2]), Err(Objection::Place));
    }

    #[test]
    fn kprobes_may_be_next_to_each_other() {
        let mut text = Text::new();
        for [first, second] in [[0, 2], [2, 0], [1, 3]] {
            for at in [first, second] {
                assert_eq!(text.poke(PLAIN.add(at), &[INT3]), Ok(Patch::Kprobe));
            }
            for at in [first, second] {
                let before = BEFORE[at as usize];
                assert_eq!(text.poke(PLAIN.add(at), &[before]), Ok(Patch::Kprobe));
            }
            assert_eq!(text.0.borrow()[0x400..0x405], BEFORE);
        }
    }

    #[test]
    fn a_kprobe_is_put_neither_in_padding_nor_into_what_is_listed() {
        let mut text = Text::new();
        text.write(PLAIN, &[INT3]);
        assert_eq!(text.poke(PLAIN, &[INT3]), Err(Objection::Place));
        let before = Gva(LABEL.0 - 1);
        assert_eq!(text.poke(before, &[INT3]), Ok(Patch::Kprobe));
        assert_eq!(text.poke(before, &[0x90]), Ok(Patch::Kprobe));
        assert_eq!(text.poke(before, &[INT3, INT3]), Err(Objection::Place), "it runs into a jump label");
        assert_eq!(text.poke(Gva(TEXT.0 + 0x1000 - 1), &[INT3]), Ok(Patch::Kprobe));
    }

    #[test]
    fn locks_come_and_go_with_cpus() {
        let mut text = Text::new();
        for byte in [0xf0, 0x3e, 0xf0] {
            assert_eq!(text.poke(LOCKED, &[byte]), Ok(Patch::LockPrefix));
        }
        assert_eq!(text.poke(LOCKED, &[0x90]), Err(Objection::Bytes));
    }

    #[test]
    fn nobody_else_writes_and_nothing_else_is_written() {
        let mut text = Text::new();
        assert_eq!(text.by(false, LABEL, &[INT3]), Err(Objection::Writer));
        assert_eq!(text.poke(TEXT.add(0x1000), &[INT3]), Err(Objection::Data));
        assert_eq!(text.by(false, TEXT.add(0x1800), &[0]), Err(Objection::Data));
        assert_eq!(text.poke(Gva(TEXT.0 - 1), &[INT3]), Err(Objection::Data));
        assert_eq!(text.poke(PLAIN, &[INT3, INT3]), Err(Objection::Place));
    }
}
