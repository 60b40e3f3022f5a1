use super::*;
use crate::guard::kprobes::StandingKprobe;
use std::cell::RefCell;

const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
const LABEL: Gva = Gva(TEXT.0 + 0x100);
const SHORT: Gva = Gva(TEXT.0 + 0x110);
const CALL: Gva = Gva(TEXT.0 + 0x200);
const TRACED: Gva = Gva(TEXT.0 + 0x300);
const PLAIN: Gva = Gva(TEXT.0 + 0x400);
const GENERATED: Gva = Gva(0xffff_ffff_c000_0000);
const LOCKED: Gva = Gva(TEXT.0 + 0x500);
const SLIDE: u64 = 0x20_0000;
/// Where a module counts as linked, whose memory begins as the kernel's does.
const MODULE: Gva = Gva(TEXT.0 + 0x1_0000);
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
            generated: GENERATED..GENERATED.add(0x3000_0000),
            sites,
            kprobes: None,
        };
        let text = Self(RefCell::new(vec![0x90; 0x1_2000]), Judge::new(Arc::new(kernel), SLIDE));
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
    let generated = (GENERATED.0 + 0x1000_0000 - SLIDE - TRACED.0 - 5) as u32;
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
        assert_eq!(text.poke(PLAIN, &BEFORE[..1]), Err(Objection::Bytes), "the jump's rest is still there");
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

/// A module as it is when it is loaded: its sites are where the kernel's are.
fn module(text: &Text) -> SealedModule {
    let at = |of_kernel: Gva| MODULE.add(SLIDE + of_kernel.0 - TEXT.0);
    let site = |of_kernel, kind| Site { at: at(of_kernel), length: 5, kind };
    text.write(MODULE.add(LABEL.0 - TEXT.0), &NOP5);
    text.write(MODULE.add(TRACED.0 - TEXT.0), &NOP5);
    text.write(MODULE.add(PLAIN.0 - TEXT.0), &[INT3]);
    text.write(MODULE.add(0x410), &[JUMP_NEAR, 0, 0, 0, 0]);
    SealedModule {
        text: MODULE.add(SLIDE)..MODULE.add(SLIDE + 0x1000),
        init_text: Gva(0)..Gva(0),
        pages: Vec::new(),
        after_init: Vec::new(),
        sites: vec![
            site(LABEL, SiteKind::JumpLabel(at(LABEL).add(5 + 0x40))),
            site(TRACED, SiteKind::Ftrace),
        ],
        kprobes: vec![
            StandingKprobe { at: at(PLAIN), before: vec![BEFORE[0]] },
            StandingKprobe { at: MODULE.add(SLIDE + 0x410), before: BEFORE.to_vec() },
        ],
    }
}

#[test]
fn a_module_is_code_as_long_as_it_is_there() {
    let mut text = Text::new();
    let module = module(&text);
    let [label, traced] = [LABEL, TRACED].map(|at| MODULE.add(at.0 - TEXT.0));
    assert_eq!(text.poke(label, &[INT3]), Err(Objection::Data));
    for _ in 0..2 {
        text.1.enter(&module);
        assert_eq!(text.by(false, label, &[INT3]), Err(Objection::Writer));
        assert_eq!(text.step_by_step(label, &[0xe9, 0x40, 0, 0, 0]), Ok(Patch::JumpLabel));
        assert_eq!(text.step_by_step(label, &NOP5), Ok(Patch::JumpLabel));
        assert_eq!(text.poke(label, &[0xe9]), Err(Objection::Bytes), "it would lead elsewhere");
        assert_eq!(text.step_by_step(traced, &[0xe8, 0, 0, 0, 0]), Err(Objection::Bytes));
        text.write(traced, &NOP5);
        let to_kernel = (TEXT.0.wrapping_sub(traced.0 + 5) as u32).to_le_bytes();
        let call = [&[0xe8], &to_kernel[..]].concat();
        assert_eq!(text.step_by_step(traced, &call), Ok(Patch::Ftrace));
        assert_eq!(text.step_by_step(traced, &NOP5), Ok(Patch::Ftrace));
        assert_eq!(text.poke(MODULE.add(0x1000), &[INT3]), Err(Objection::Data), "its data");
        // The kernel's own are what they were.
        assert_eq!(text.step_by_step(LABEL, &NOP5), Ok(Patch::JumpLabel));
        text.1.leave(&module.text);
        assert_eq!(text.poke(label, &[INT3]), Err(Objection::Data));
    }
}

/// One that is there before is the kernel's to take away, and what is known of a place goes with the module.
#[test]
fn kprobes_come_and_go_with_a_module() {
    let mut text = Text::new();
    let module = module(&text);
    let [plain, jump] = [0x400, 0x410].map(|at| MODULE.add(at));
    text.1.enter(&module);
    assert_eq!(text.poke(plain, &[0xc3]), Err(Objection::Bytes));
    assert_eq!(text.poke(plain, &BEFORE[..1]), Ok(Patch::Kprobe));
    assert_eq!(text.poke(jump, &[INT3]), Ok(Patch::Kprobe));
    assert_eq!(text.poke(jump.add(1), &BEFORE[1..]), Ok(Patch::Kprobe));
    assert_eq!(text.poke(jump, &BEFORE[..1]), Ok(Patch::Kprobe));
    assert_eq!(text.poke(plain, &[INT3]), Ok(Patch::Kprobe));
    text.1.leave(&module.text);
    // Another module comes, with other code.
    text.write(plain, &[0x41]);
    text.1.enter(&SealedModule { kprobes: Vec::new(), ..module });
    assert_eq!(text.poke(plain, &BEFORE[..1]), Err(Objection::Place));
    assert_eq!(text.poke(plain, &[INT3]), Ok(Patch::Kprobe));
    assert_eq!(text.poke(plain, &BEFORE[..1]), Err(Objection::Bytes));
    assert_eq!(text.poke(plain, &[0x41]), Ok(Patch::Kprobe));
}

#[test]
fn a_module_without_text_takes_no_place() {
    let mut text = Text::new();
    let module = module(&text);
    text.1.enter(&module);
    let start = module.text.start;
    let without = SealedModule { text: start..start, sites: Vec::new(), ..module.clone() };
    text.1.enter(&without);
    let label = MODULE.add(LABEL.0 - TEXT.0);
    assert_eq!(text.step_by_step(label, &NOP5), Ok(Patch::JumpLabel));
    text.1.leave(&without.text);
    assert_eq!(text.step_by_step(label, &NOP5), Ok(Patch::JumpLabel));
}

#[test]
fn a_modules_locks_are_put_back_where_ds_stands() {
    let mut text = Text::new();
    let module = module(&text);
    text.1.enter(&module);
    let at = MODULE.add(0x500);
    assert_eq!(text.poke(at, &[0xf0]), Err(Objection::Place));
    text.write(at, &[0x3e]);
    assert_eq!(text.poke(at, &[0xf0]), Ok(Patch::LockPrefix));
    assert_eq!(text.poke(at, &[0x3e]), Err(Objection::Place));
    text.write(PLAIN, &[0x3e]);
    assert_eq!(text.poke(PLAIN, &[0xf0]), Err(Objection::Place), "the kernel lists its own");
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
