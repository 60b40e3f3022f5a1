use super::*;
use crate::memory::testing::Ram;

const CODE: u64 = 0x5000;
const SEALED: u64 = 0x9000;

/// Pages from 0 to 0x1_0000, one to one, the sealed one read-only.
fn guest(code: &[u8]) -> (Ram, AddressSpace) {
    let ram = Ram::new(0x1_0000);
    ram.set(0x1000, 0, 0x2000 | 0x23);
    ram.set(0x2000, 0, 0x3000 | 0x23);
    ram.set(0x3000, 0, 0x4000 | 0x23);
    for page in 0..16 {
        let at = page * 0x1000;
        ram.set(0x4000, page, at | if at == SEALED { 0x61 } else { 0x63 });
    }
    ram.write(Gpa(CODE), code).unwrap();
    (ram, AddressSpace::new(0x1000, 0))
}

fn attempt_of(code: &[u8], regs: Regs) -> Result<Attempt, NoAttempt> {
    let (ram, space) = guest(code);
    let regs = Regs { rip: CODE, rflags: regs.rflags | 2, ..regs };
    let before = ram.clone();
    let tried = attempt(&regs, &ram, space, &Segments::default(), |at, length| {
        at.0 < SEALED + 0x1000 && at.0 + length as u64 > SEALED
    });
    assert!(ram == before, "nothing is written");
    tried
}

/// `mov [rdi], rax`
const MOV: &[u8] = &[0x48, 0x89, 0x07];
const REP_MOVSB: &[u8] = &[0xf3, 0xa4];
const REP_STOSQ: &[u8] = &[0xf3, 0x48, 0xab];

#[test]
fn a_store_is_told_before_it_is_made() {
    let regs = Regs { rax: 0x0807_0605_0403_0201, rdi: SEALED + 8, ..Regs::default() };
    let Attempt { writes, regs: after } = attempt_of(MOV, regs).unwrap();
    assert_eq!(writes, [Write { at: Gpa(SEALED + 8), bytes: vec![1, 2, 3, 4, 5, 6, 7, 8] }]);
    assert_eq!(after.rip, CODE + 3);
}

#[test]
fn one_that_crosses_into_the_page_is_two_writes() {
    let regs = Regs { rax: u64::MAX, rdi: SEALED - 3, ..Regs::default() };
    let writes = attempt_of(MOV, regs).unwrap().writes;
    let lengths: Vec<_> = writes.iter().map(|write| (write.at.0, write.bytes.len())).collect();
    assert_eq!(lengths, [(SEALED - 3, 3), (SEALED, 5)]);
}

#[test]
fn a_string_is_stored_as_far_as_the_page_goes() {
    let regs = Regs { rdi: SEALED + 0xffe, rsi: CODE, rcx: 20, ..Regs::default() };
    let Attempt { writes, regs: after } = attempt_of(REP_MOVSB, regs).unwrap();
    assert_eq!(writes, [Write { at: Gpa(SEALED + 0xffe), bytes: REP_MOVSB.to_vec() }]);
    assert_eq!((after.rip, after.rcx, after.rdi, after.rsi), (CODE, 18, SEALED + 0x1000, CODE + 2));
    let regs = Regs { rdi: SEALED + 1, rsi: CODE + 1, rcx: 20, rflags: DF, ..Regs::default() };
    let after = attempt_of(REP_MOVSB, regs).unwrap().regs;
    assert_eq!((after.rip, after.rcx, after.rdi, after.rsi), (CODE, 18, SEALED - 1, CODE - 1));
    let regs = Regs { rdi: SEALED, rax: 7, rcx: 3, ..Regs::default() };
    let Attempt { writes, regs: after } = attempt_of(REP_STOSQ, regs).unwrap();
    assert_eq!((writes[0].bytes.len(), after.rip, after.rcx), (24, CODE + 3, 0));
}

/// The kernel writes what is behind a breakpoint at once, also where a page ends in the middle of it.
#[test]
fn a_short_string_is_stored_across_the_end_of_a_page() {
    let regs = Regs { rdi: SEALED + 0xffe, rsi: CODE, rcx: 4, ..Regs::default() };
    let Attempt { writes, regs: after } = attempt_of(REP_MOVSB, regs).unwrap();
    let stored = [(SEALED + 0xffe, vec![0xf3, 0xa4]), (SEALED + 0x1000, vec![0, 0])];
    assert_eq!(writes, stored.map(|(at, bytes)| Write { at: Gpa(at), bytes }));
    assert_eq!((after.rip, after.rcx, after.rdi, after.rsi), (CODE + 2, 0, SEALED + 0x1002, CODE + 4));
    let regs = Regs { rdi: SEALED + 1, rsi: CODE + 3, rcx: 4, rflags: DF, ..Regs::default() };
    let Attempt { writes, regs: after } = attempt_of(REP_MOVSB, regs).unwrap();
    assert_eq!((writes.len(), after.rip, after.rcx), (4, CODE + 2, 0));
    // There is no memory behind that: as much as there is.
    let regs = Regs { rdi: 0xfffe, rsi: CODE, rcx: 4, ..Regs::default() };
    let (ram, space) = guest(REP_MOVSB);
    let regs = Regs { rip: CODE, rflags: 2, ..regs };
    let Attempt { writes, regs: after } =
        attempt(&regs, &ram, space, &Segments::default(), |at, _| at.0 >= 0xf000).unwrap();
    assert_eq!((writes.len(), after.rip, after.rcx), (1, CODE, 2));
}

#[test]
fn what_stores_nothing_there_is_told() {
    const UD2: &[u8] = &[0x0f, 0x0b];
    for code in [UD2, &[0x90], MOV] {
        let regs = Regs { rdi: SEALED - 8, ..Regs::default() };
        assert!(matches!(attempt_of(code, regs), Err(NoAttempt::StoresElsewhere(_))), "{code:x?}");
    }
    // A load is none.
    let load = attempt_of(&[0x48, 0x8b, 0x07], Regs { rdi: SEALED, ..Regs::default() });
    assert!(matches!(load, Err(NoAttempt::StoresElsewhere(_))));
    assert_eq!(attempt_of(&[0x06], Regs::default()), Err(NoAttempt::NoInstruction));
}

#[test]
fn what_the_host_cannot_carry_out_is_told() {
    const FXSAVE: &[u8] = &[0x0f, 0xae, 0x07];
    const MOVDQU: &[u8] = &[0xf3, 0x0f, 0x7f, 0x07];
    for code in [FXSAVE, MOVDQU] {
        let tried = attempt_of(code, Regs { rdi: SEALED, ..Regs::default() });
        assert!(matches!(tried, Err(NoAttempt::NotCarriedOut(_))), "{tried:?}");
    }
    // Where it only begins before the page, too.
    let tried = attempt_of(FXSAVE, Regs { rdi: SEALED - 0x100, ..Regs::default() });
    assert!(matches!(tried, Err(NoAttempt::NotCarriedOut(_))), "{tried:?}");
}
