use super::*;
use crate::insn::decode::decode;
use crate::insn::plan::Refusal;
use crate::linux::left_alone::Why;
use crate::linux::patched::PatchedText;
use crate::linux::targets::tests::{TEXT, targets};
use crate::linux::thunks::tests::thunks;
use proptest::prelude::*;

const SLIDE: u64 = 0x1e00_0000;
/// Above the text, as far as the kernel's own pages go.
const STUB: Gva = Gva(0xffff_ffff_d000_0010);
/// Where code of ours returns.
const RET: Gva = Gva(0xffff_ffff_d020_0030);

/// A function of `code` at [`TEXT`], of which `offset` is probed, in a kernel that says `found` and `fixups` of it
/// and has `stored` its places.
fn judge(
    code: &[u8],
    offset: u64,
    found: &[(Range<u64>, Why)],
    fixups: &[u64],
    stored: &[u64],
) -> Result<RelocatedCode, NotMovable> {
    let found = found.iter().map(|(range, why)| (TEXT.add(range.start)..TEXT.add(range.end), *why)).collect();
    let fixups = fixups.iter().map(|at| TEXT.add(*at)).collect();
    let patched = PatchedText::new(found, fixups, Vec::new());
    // Branches of the function itself are to be found in it, not among the kernel's.
    let (constraints, thunks) =
        (&JumpConstraints::at(TEXT.add(offset), &patched, &targets(&[], stored)), &thunks());
    let judge =
        |slide| verdict(&FunctionText { start: TEXT.add(slide), bytes: code, slide, constraints, thunks });
    let (linked, live) = (judge(0), judge(SLIDE));
    match (&linked, &live) {
        (Ok(linked), Ok(live)) => assert_eq!(linked.end().add(SLIDE), live.end()),
        (linked, live) => assert_eq!(linked.is_ok(), live.is_ok(), "{linked:?}, {live:?}"),
    }
    linked
}

fn plain(code: &[u8]) -> Result<RelocatedCode, NotMovable> {
    judge(code, 0, &[], &[], &[])
}

/// The length of the region at the start of `code`, and of how many instructions it is.
fn lengths(code: &[u8]) -> (u64, usize) {
    let region = plain(code).unwrap_or_else(|reason| panic!("{code:02x?}: {reason}"));
    (region.end().0 - region.at().0, region.instructions().count())
}

/// push rbp; mov rbp, rsp; push rbx; mov rbx, rdi; pop rbx; pop rbp; ret
const PROLOGUE: [u8; 11] = [0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x89, 0xfb, 0x5b, 0x5d, 0xc3];

#[test]
fn a_region_is_the_least_run_that_covers_a_jump() {
    assert_eq!(lengths(&[0x0f, 0x1f, 0x44, 0, 0, 0xc3]), (5, 1)); // ftrace's nop
    assert_eq!(lengths(&PROLOGUE), (5, 3));
    assert_eq!(lengths(&[0x53, 0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xc3]), (11, 2)); // push; movabs
    assert_eq!(lengths(&[0x31, 0xc0, 0x5b, 0x5d, 0xc3]), (5, 4)); // to the function's end
    assert_eq!(lengths(&[0x31, 0xc0, 0xc3, 0xcc, 0xcc, 0xcc]), (5, 2)); // into the padding behind it
    assert_eq!(lengths(&[0xe8, 0, 1, 0, 0, 0xc3]), (5, 1)); // call
    assert_eq!(lengths(&[0x53, 0xe8, 0, 1, 0, 0, 0xc3]), (6, 2)); // push; call
    assert_eq!(lengths(&[0x85, 0xc0, 0x74, 0x20, 0x90, 0xc3]), (5, 3)); // test; je; nop
    assert_eq!(judge(&PROLOGUE, 5, &[], &[], &[]).unwrap().range(), TEXT.add(5)..TEXT.add(10));
}

#[test]
fn each_reason_is_a_sentence() {
    let cases: [(&[u8], u64, &str); 19] = [
        (
            &PROLOGUE,
            2,
            "0xffffffff81000002 lies inside the 3-byte instruction at 0xffffffff81000001: mov rbp, rsp",
        ),
        (
            &PROLOGUE,
            11,
            "0xffffffff8100000b lies outside the function, which is 11 bytes from 0xffffffff81000000",
        ),
        (&PROLOGUE, 8, "only 3 bytes are left to the function's end, and a jump has 5"),
        (
            &[0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0, 0, 0xc3],
            0,
            "there is an endbr at 0xffffffff81000000, which stays where it is",
        ),
        (
            &[0x66, 0x0f, 0x1f, 0x00, 0x0f, 0x1f, 0x44, 0, 0, 0xc3],
            0,
            "there is an endbr at 0xffffffff81000000, which stays where it is",
        ),
        (
            &[0x90, 0xf3, 0x0f, 0x1e, 0xfa, 0xc3],
            0,
            "there is an endbr at 0xffffffff81000001, which stays where it is",
        ),
        (&[0x5b, 0xc3, 0x90, 0x90, 0x90], 0, "`ret` leaves, and what is behind it may be reached otherwise"),
        (
            &[0xeb, 0x20, 0x31, 0xc0, 0xc3],
            0,
            "`jmp short 0xffffffff81000022` leaves, and what is behind it may be reached otherwise",
        ),
        (
            &[0xff, 0xd0, 0x31, 0xc0, 0xc3],
            0,
            "`call rax` is a branch of a form that is not emulated, and a copy would go elsewhere",
        ),
        (
            &[0xff, 0xe0, 0x31, 0xc0, 0xc3],
            0,
            "`jmp rax` is a branch of a form that is not emulated, and a copy would go elsewhere",
        ),
        (
            &[0xfb, 0x31, 0xc0, 0x31, 0xc0, 0xc3],
            0,
            "`sti` holds off interrupts until after the next instruction, which must not be a jump",
        ),
        (&[0xfb, 0xf4, 0x31, 0xc0, 0x31, 0xc0, 0xc3], 1, "`hlt` must follow `sti` with nothing between them"),
        (
            &[0x90, 0x8e, 0xd0, 0x31, 0xc0, 0xc3],
            0,
            "`mov ss, ax` loads the stack segment and holds off traps until after the next instruction",
        ),
        (
            &[0x31, 0xc0, 0xcc, 0x31, 0xc0, 0xc3],
            0,
            "there is an int3 at 0xffffffff81000002 already, which is padding or the guest's own breakpoint",
        ),
        (&[0x31, 0xc0, 0x0f, 0x0b, 0x90], 0, "`ud2` is meant to fault: it marks a BUG or WARN"),
        (
            &[0x31, 0xc0, 0x0f, 0x22, 0xd8, 0xc3],
            0,
            "`mov cr3, rax` changes paging, and the copy that it runs from may not be mapped afterwards",
        ),
        (
            &[0x90, 0x67, 0x8b, 0x05, 0, 0, 0, 0, 0xc3],
            0,
            "`mov eax, [0x81000008]` has an operand that a copy elsewhere cannot address",
        ),
        // What comes behind the region counts as well.
        (
            &[0x31, 0xc0, 0x31, 0xdb, 0x90, 0xff, 0xe0],
            0,
            "the function has an indirect jump at 0xffffffff81000005, which may lead anywhere in it",
        ),
        (
            &[0x31, 0xc0, 0x31, 0xdb, 0x90, 0x06, 0xc3],
            0,
            "the bytes of the function at 0xffffffff81000005 are no instruction, so that its jumps are not known",
        ),
    ];
    for (code, offset, expected) in cases {
        let reason = judge(code, offset, &[], &[], &[]).unwrap_err().to_string();
        assert_eq!(reason, expected, "{code:02x?}");
    }
}

#[test]
fn an_indirect_jump_has_many_forms() {
    let at = TEXT.add(5);
    let forms: [&[u8]; 6] = [
        &[0xff, 0x24, 0xc5, 0, 0, 0, 0x81],    // jmp [rax*8-0x7f000000]
        &[0xe9, 0xf6, 0x0f, 0, 0],             // jmp to the thunk
        &[0x0f, 0x1f, 0x44, 0, 0, 0xff, 0xe1], // nop; jmp rcx
        &[0xe9, 0, 0, 0, 0x20],                // jmp out of the kernel's text
        &[0x48, 0xcf],                         // iretq
        &[0xcb],                               // retf
    ];
    for form in forms {
        let code = [&PROLOGUE[..5], form].concat();
        assert!(matches!(plain(&code), Err(NotMovable::IndirectJump(found)) if found >= at), "{form:02x?}");
        // Nothing leads into a single instruction.
        let code = [&[0x0f, 0x1f, 0x44, 0, 0][..], form].concat();
        assert!(plain(&code).is_ok(), "{form:02x?}");
    }
    // A return, and a call of a thunk, come back.
    for form in [&[0xc3][..], &[0xe8, 0xf6, 0x0f, 0, 0]] {
        assert!(plain(&[&PROLOGUE[..5], form].concat()).is_ok(), "{form:02x?}");
    }
}

#[test]
fn no_call_is_followed_by_what_it_returns_to() {
    // Those of fewer than 5 bytes.
    for call in [
        &[0x66, 0xe8, 0, 1][..],
        &[0xff, 0xd0],
        &[0x41, 0xff, 0xd3],
        &[0xff, 0x50, 0x10],
        &[0x0f, 0x01, 0xc1],
    ] {
        for behind in [0x90, 0xcc] {
            let found = plain(&[call, &[behind; 5]].concat());
            assert!(matches!(found, Err(NotMovable::Instruction(_))), "{call:02x?}: {found:?}");
        }
    }
}

#[test]
fn nothing_may_lead_into_the_jump() {
    let target = |offset| Err(NotMovable::Target(TEXT.add(offset)));
    // By what is known of the kernel.
    for stored in 1..5 {
        assert_eq!(judge(&PROLOGUE, 0, &[], &[], &[stored]), target(stored));
    }
    for stored in [0, 5, 6] {
        assert!(judge(&PROLOGUE, 0, &[], &[], &[stored]).is_ok(), "{stored}");
    }
    // By the function's own branches, which may be others than in the file.
    for (offset, branch) in [(4, [0x75, 0xfd]), (1, [0x75, 0xfa]), (4, [0xeb, 0xfd]), (4, [0xe3, 0xfd])] {
        assert_eq!(plain(&[&PROLOGUE[..5], &branch].concat()), target(offset), "{branch:02x?}");
    }
    assert!(plain(&[&PROLOGUE[..5], &[0x75, 0xf9]].concat()).is_ok(), "back to the start: one more hit");
}

#[test]
fn what_the_guest_rewrites_or_looks_up_stays() {
    let left_alone = |offset, why| Err(NotMovable::LeftAlone { at: TEXT.add(offset), why });
    for why in [Why::JumpLabel, Why::LockPrefix, Why::StaticCall, Why::Alternative, Why::Bug, Why::Noinstr] {
        assert_eq!(judge(&PROLOGUE, 0, &[(1..2, why)], &[], &[]), left_alone(1, why));
        assert_eq!(judge(&PROLOGUE, 0, &[(4..9, why)], &[], &[]), left_alone(4, why));
        assert!(judge(&PROLOGUE, 0, &[(5..9, why)], &[], &[]).is_ok());
    }
    for why in [Why::Return, Why::Call, Why::IndirectBranch, Why::Endbr] {
        assert!(judge(&PROLOGUE, 0, &[(1..4, why)], &[], &[]).is_ok(), "{why:?} is final in the live text");
    }
    // One that is final does not hide one that is not.
    let both = [(0..1, Why::Return), (1..4, Why::Alternative)];
    assert_eq!(judge(&PROLOGUE, 0, &both, &[], &[]), left_alone(1, Why::Alternative));
    assert_eq!(judge(&PROLOGUE, 0, &[], &[1], &[]), Err(NotMovable::Fixup(TEXT.add(1))));
    assert!(judge(&PROLOGUE, 0, &[], &[5], &[]).is_ok());
}

#[test]
fn a_moved_call_returns_behind_the_original() {
    let region = plain(&[0x53, 0xe8, 0x00, 0x01, 0, 0, 0xc3]).unwrap();
    let code = region.assemble(STUB, RET).unwrap();
    let pushed = TEXT.add(6).0 as u32;
    assert_eq!(code[..6], [&[0x53, 0x68][..], &pushed.to_le_bytes()].concat());
    let push = decode(&code[1..], STUB.add(1)).unwrap();
    assert_eq!(push.immediate32to64() as u64, TEXT.add(6).0, "extended by its sign");
    let jump = decode(&code[6..], STUB.add(6)).unwrap();
    assert!(jump.is_jmp_near() && jump.near_branch_target() == TEXT.add(0x106).0 && code.len() == 11);
    assert!(!region.goes_on());

    // A return address that push does not extend to.
    let start = Gva(0xffff_8000_0000_0000);
    let patched = PatchedText::new(Vec::new(), Vec::new(), Vec::new());
    let (constraints, thunks) = (&JumpConstraints::at(start, &patched, &targets(&[], &[])), &thunks());
    let function = FunctionText { start, bytes: &[0xe8, 0, 1, 0, 0], slide: 0, constraints, thunks };
    assert!(matches!(verdict(&function), Err(NotMovable::Instruction(Refusal::Branch(_)))));
}

#[test]
fn what_is_behind_the_moved_instructions_is_told() {
    let cases: [(&[u8], bool); 6] = [
        (&[0x0f, 0x1f, 0x44, 0, 0, 0xc3], true),
        (&[0x85, 0xc0, 0x90, 0x74, 0x20, 0xc3], true),
        (&[0x90, 0xe2, 0x20, 0x90, 0x90, 0xc3], true),
        (&[0xe9, 0, 1, 0, 0], false),
        (&[0xe8, 0, 1, 0, 0], false),
        (&[0x31, 0xc0, 0xc3, 0xcc, 0xcc], false),
    ];
    for (code, expected) in cases {
        assert_eq!(plain(code).unwrap().goes_on(), expected, "{code:02x?}");
    }
}

#[test]
fn a_loop_jumps_over_a_jump() {
    // jrcxz +0x10; nop; nop; nop
    let region = plain(&[0xe3, 0x10, 0x90, 0x90, 0x90, 0xc3]).unwrap();
    let code = region.assemble(STUB, RET).unwrap();
    assert_eq!(code[..4], [0xe3, 2, 0xeb, 5]);
    let jump = decode(&code[4..], STUB.add(4)).unwrap();
    assert_eq!((jump.len(), jump.near_branch_target()), (5, TEXT.add(0x12).0));
    assert_eq!(code[9..], [0x90; 3]);
    let places = region.places().map(|(offset, at)| (offset, at.0 - TEXT.0));
    assert!(places.eq([(0, 0), (9, 2), (10, 3), (11, 4)]));
}

#[test]
fn a_stub_that_does_not_reach_is_refused() {
    let far = Gva(0xffff_c900_0000_0000);
    assert!(plain(&PROLOGUE).unwrap().assemble(far, RET).is_ok());
    for code in [&[0x74, 0x10, 0x90, 0x90, 0x90][..], &[0x8b, 0x05, 0, 0, 0, 0], &[0xe8, 0, 1, 0, 0]] {
        assert!(plain(code).unwrap().assemble(far, RET).is_err(), "{code:02x?}");
    }
}

/// Instructions that can be moved; those with a place for one end in a distance of as many bytes.
const MOVABLE: [(&[u8], usize); 20] = [
    (&[0x55], 0),                                        // push rbp
    (&[0x48, 0x89, 0xe5], 0),                            // mov rbp, rsp
    (&[0x41, 0x57], 0),                                  // push r15
    (&[0x65, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], 0), // mov rax, gs:[0x28]
    (&[0x65, 0x48, 0x8b, 0x05], 4),                      // mov rax, gs:[rip+..]
    (&[0x48, 0x8d, 0x3d], 4),                            // lea rdi, [rip+..]
    (&[0x8b, 0x05], 4),                                  // mov eax, [rip+..]
    (&[0xf0, 0x48, 0x01, 0x05], 4),                      // lock add [rip+..], rax
    (&[0x31, 0xc0], 0),                                  // xor eax, eax
    (&[0xf3, 0x90], 0),                                  // pause
    (&[0x9c], 0),                                        // pushf
    (&[0x48, 0xc7, 0xc7, 0x10, 0x20, 0x30, 0x81], 0),    // mov rdi, -0x7ecfdff0
    (&[0x0f, 0x84], 4),                                  // je
    (&[0x0f, 0x8f], 4),                                  // jg
    (&[0xe8], 4),                                        // call
    (&[0xe9], 4),                                        // jmp
    (&[0x75], 1),                                        // jne short
    (&[0xe3], 1),                                        // jrcxz
    (&[0xe1], 1),                                        // loope
    (&[0xc3], 0),                                        // ret
];

/// What an instruction refers to: its branch target, or its operand's address where that is relative to RIP.
fn refers_to(instruction: &Instruction) -> Option<u64> {
    branch_target(instruction)
        .map(|target| target.0)
        .or_else(|| instruction.is_ip_rel_memory_operand().then(|| instruction.ip_rel_memory_address()))
}

/// How far an instruction refers: within the text, where a jump is a jump, or to data.
fn distance() -> impl Strategy<Value = i32> {
    prop_oneof![0x20..0xf80, -0x80_0000..0x2000_0000]
}

proptest! {
    /// Decoded again at its new place, each instruction refers to what it did, and does the same.
    #[test]
    fn moved_instructions_mean_the_same(
        chosen in proptest::collection::vec((0..MOVABLE.len(), distance()), 5..8),
        stub in 0xffff_ffff_a200_0000u64..0xffff_ffff_f800_0000,
    ) {
        let mut code = Vec::new();
        for (index, distance) in &chosen {
            let (bytes, size) = MOVABLE[*index];
            code.extend(bytes);
            code.extend(distance.to_le_bytes().iter().take(size));
        }
        code.extend([0x90; 5]);
        let Ok(region) = plain(&code) else { return Ok(()) };
        let moved = region.assemble(Gva(stub), RET).unwrap();
        let mut now = instructions(&moved, Gva(stub));
        for (offset, at) in region.places() {
            let was = decode(&code[(at.0 - TEXT.0) as usize..], at).unwrap();
            let mut is = now.next().unwrap();
            prop_assert_eq!(is.ip() - stub, offset);
            if was.is_call_near() {
                prop_assert_eq!(is.immediate32to64() as u64, was.next_ip());
                is = now.next().unwrap();
                prop_assert!(is.is_jmp_near());
            } else if was.is_loop() || was.is_loopcc() || was.is_jcx_short() {
                prop_assert_eq!(is.code(), was.code());
                let around = now.next().unwrap();
                prop_assert!(around.is_jmp_short());
                let jump = now.next().unwrap();
                prop_assert_eq!((is.near_branch_target(), around.near_branch_target()), (jump.ip(), jump.next_ip()));
                is = jump;
            } else if was.mnemonic() == Mnemonic::Ret {
                prop_assert!(is.is_jmp_near());
                prop_assert_eq!(is.near_branch_target(), RET.0);
                continue;
            } else if was.is_jcc_short_or_near() {
                prop_assert_eq!(is.condition_code(), was.condition_code());
            } else {
                prop_assert_eq!((is.code(), is.memory_segment()), (was.code(), was.memory_segment()));
            }
            prop_assert_eq!(refers_to(&is), refers_to(&was));
        }
        prop_assert!(now.next().is_none());
    }

    /// A hostile guest's text.
    #[test]
    fn no_bytes_panic(code in proptest::collection::vec(any::<u8>(), 0..64), offset in 0u64..70, stub: u64) {
        if let Ok(region) = judge(&code, offset, &[], &[], &[]) {
            let _ = region.assemble(Gva(stub), RET);
        }
    }
}
