use super::*;
use probe_engine::addr::Gpa;
use probe_engine::memory::PhysMemory;
use probe_engine::paging::AddressSpace;

const PLACE: Place = Place { code: Code(Gva(0x4000)), slots: Gva(0x5000), slide: 0x10 };
const TASK: Gva = Gva(0xabc0);

/// A guest whose RAM, 1 MiB of it, is mapped where it lies.
pub(crate) fn mapped() -> GuestRam {
    let ram = GuestRam::new(1 << 20).unwrap();
    for (table, entry) in [(0x1000_u64, 0x2003_u64), (0x2000, 0x3003), (0x3000, 0x83)] {
        ram.write(Gpa(table), &entry.to_le_bytes()).unwrap();
    }
    ram
}

/// Its memory.
pub(crate) fn memory(ram: &GuestRam) -> VirtMemory<'_, GuestRam> {
    VirtMemory::new(ram, AddressSpace::new(0x1000, 0))
}

/// Such a guest, and errands in it.
fn guest() -> (GuestRam, Errands) {
    let ram = mapped();
    let errands = Errands::default();
    errands.set_place(PLACE);
    (ram, errands)
}

fn ask(errands: &Errands, ram: &GuestRam, regs: &Regs) -> Regs {
    match errands.ask(regs, memory(ram), TASK) {
        Some(AtGate::GoesOn(regs)) => regs,
        other => panic!("{other:?}"),
    }
}

/// Worker `number` at the gate, with a stack of its own.
fn arriving(number: u64) -> Regs {
    let rdi = PLACE.slots.add(number * slot::SIZE + slot::WORK).0;
    Regs { rip: PLACE.code.trap().0, rsp: 0x8000 + 0x1000 * number, rdi, ..Regs::default() }
}

/// Wants so many calls of `function`, and then says what they returned.
fn want(errands: &Errands, function: u64, calls: usize) -> Wanted<Vec<u64>> {
    let mut returned = Vec::new();
    let next = move |worker: &mut Worker<'_>| {
        returned.extend(worker.returned);
        match returned.len() < calls {
            true => Next::Call(Call::new(Gva(function), &[returned.len() as u64])),
            false => Next::Done(returned.clone()),
        }
    };
    errands.want(next).unwrap()
}

#[test]
fn a_worker_makes_the_calls_of_all_who_wait_and_goes() {
    let (ram, errands) = guest();
    let first = want(&errands, 0x100, 2);
    let second = want(&errands, 0x200, 1);
    assert!(errands.wants_worker());
    assert_eq!(errands.free_worker(), Some(0));
    errands.sent_for(0);
    assert!(!errands.wants_worker() && errands.free_worker() == Some(1));
    let at_gate = arriving(0);
    let mut regs = ask(&errands, &ram, &at_gate);
    assert!(errands.is_worker(TASK) && errands.has_workers());
    let mut calls = Vec::new();
    while regs.rip != PLACE.code.leave(&at_gate).rip {
        calls.push((regs.rip, regs.rdi));
        regs = ask(&errands, &ram, &Regs { rax: regs.rip + regs.rdi, rdi: 0, ..at_gate });
    }
    assert_eq!(calls, [(0x110, 0), (0x110, 1), (0x210, 0)]);
    assert_eq!([first, second].map(|wanted| wanted.look().unwrap()), [vec![0x110, 0x111], vec![0x210]]);
    assert_eq!(regs.rsp, at_gate.rsp);
    assert!(!errands.wants_worker() && !errands.has_workers() && errands.free_worker() == Some(0));
}

#[test]
fn another_worker_is_sent_for_while_one_is_in_a_call() {
    let (ram, errands) = guest();
    let first = want(&errands, 0x100, 1);
    errands.sent_for(0);
    ask(&errands, &ram, &arriving(0));
    let second = want(&errands, 0x200, 1);
    assert!(errands.wants_worker() && errands.free_worker() == Some(1));
    errands.sent_for(1);
    for number in [1, 0] {
        ask(&errands, &ram, &arriving(number));
        ask(&errands, &ram, &Regs { rax: number, ..arriving(number) });
    }
    assert_eq!([first, second].map(|wanted| wanted.look().unwrap()), [vec![0], vec![1]]);
}

#[test]
fn nobody_makes_calls_that_were_given_up() {
    let (ram, errands) = guest();
    let wanted = want(&errands, 0x100, 2);
    errands.sent_for(0);
    let regs = ask(&errands, &ram, &arriving(0));
    assert_eq!(regs.rip, 0x110);
    assert_eq!(wanted.wait(Duration::ZERO), Err(Nothing::Overdue));
    let left = ask(&errands, &ram, &arriving(0));
    assert_eq!(left.rip, PLACE.code.leave(&left).rip);
    assert_eq!(errands.free_worker(), Some(0));
    drop(want(&errands, 0x100, 2));
    assert!(!errands.wants_worker());
}

#[test]
fn a_task_that_comes_by_makes_its_own_calls_and_goes_on_as_it_was() {
    let (ram, errands) = guest();
    let others = want(&errands, 0x100, 1);
    let (answer, at_entry) = (mpsc::channel(), Regs { rip: 0x7000, rsp: 0x8fe8, rdi: 3, ..Regs::default() });
    let mut left = 2;
    let wanted = errands.want_of(1, move |worker| {
        answer.0.send(worker.returned).unwrap();
        left -= 1;
        if left < 0 { Next::Done("done") } else { Next::Call(Call::new(Gva(0x300), &[7])) }
    });
    let wanted = wanted.unwrap();
    assert_eq!(errands.begin(0, TASK, &at_entry, memory(&ram)), None, "it waits on another vCPU");
    let called = errands.begin(1, TASK, &at_entry, memory(&ram)).unwrap();
    assert!(errands.is_worker(TASK));
    assert_eq!((called.rip, called.rsp, called.rdi), (0x310, 0x8fd8, 7), "aligned as at a call");
    assert_eq!(memory(&ram).read_u64(Gva(called.rsp)), Ok(PLACE.code.trap().0));
    let returned = Regs { rsp: called.rsp + 8, rax: 5, ..called };
    let again = ask(&errands, &ram, &returned);
    assert_eq!((again.rip, again.rsp), (0x310, called.rsp));
    let last = errands.ask(&Regs { rax: 6, ..returned }, memory(&ram), TASK);
    assert_eq!(last, Some(AtGate::IsBack(at_entry)));
    assert_eq!((wanted.look(), others.look()), (Some("done"), None), "it does nothing for others");
    assert_eq!(answer.1.try_iter().collect::<Vec<_>>(), [None, Some(5), Some(6)]);
}

#[test]
fn a_task_that_came_by_goes_on_when_it_is_over() {
    let (ram, errands) = guest();
    let at_entry = Regs { rip: 0x7000, rsp: 0x8fe8, ..Regs::default() };
    let endless = || errands.want_of(0, |_| Next::<()>::Call(Call::new(Gva(0x300), &[]))).unwrap();
    let wanted = [endless(), endless()];
    let called = errands.begin(0, TASK, &at_entry, memory(&ram)).unwrap();
    errands.close(Closed::Panicked);
    let back = errands.ask(&Regs { rsp: called.rsp + 8, ..called }, memory(&ram), TASK);
    assert_eq!(back, Some(AtGate::IsBack(at_entry)));
    assert_eq!(errands.begin(0, TASK, &at_entry, memory(&ram)), None);
    assert!(wanted.iter().all(|wanted| wanted.look().is_none()));
}

#[test]
fn nothing_goes_on_once_it_is_over() {
    let (ram, errands) = guest();
    let called = want(&errands, 0x100, 2);
    errands.sent_for(0);
    ask(&errands, &ram, &arriving(0));
    let waiting = want(&errands, 0x100, 1);
    errands.close(Closed::Panicked);
    errands.close(Closed::Ended);
    assert!(
        [called, waiting].map(|it| it.wait(Duration::MAX)) == [Err(Nothing::Dropped), Err(Nothing::Dropped)]
    );
    assert!(!errands.wants_worker());
    assert_eq!(errands.closed(), Some(Closed::Panicked));
    let left = ask(&errands, &ram, &arriving(0));
    assert_eq!(left.rip, PLACE.code.leave(&left).rip);
    assert_eq!(errands.want(|_| Next::Done(())).err(), Some(Closed::Panicked));
}

#[test]
fn whoever_comes_unasked_and_whoever_panics_goes_back() {
    let (ram, errands) = guest();
    let is_left = |regs: &Regs| ask(&errands, &ram, regs).rip == PLACE.code.leave(regs).rip;
    let strangers = [
        arriving(3),
        arriving(99),
        Regs { rdi: 5, ..arriving(0) },
        Regs { rdi: arriving(0).rdi + 8, ..arriving(0) },
        Regs { rdi: u64::MAX, rsp: u64::MAX, ..arriving(0) },
    ];
    errands.sent_for(0);
    assert!(strangers.iter().all(is_left) && !errands.is_worker(TASK));
    let panics = errands.want(|_| -> Next<()> { std::panic::resume_unwind(Box::new("a panic")) }).unwrap();
    let nowhere = want(&errands, 0x100, 1);
    assert!(is_left(&Regs { rsp: 1 << 30, ..arriving(0) }), "no stack to call with");
    assert_eq!(panics.wait(Duration::ZERO), Err(Nothing::Dropped));
    assert!(nowhere.look().is_none() && errands.free_worker() == Some(0));
}

/// A stack of which nobody has said that it is over belongs to whoever is on it now.
#[test]
fn another_task_on_the_same_stack_is_another_one() {
    let (ram, errands) = guest();
    let at_entry = Regs { rip: 0x7000, rsp: 0x8fe8, ..Regs::default() };
    let call = || errands.want_of(0, |_| Next::<()>::Call(Call::new(Gva(0x300), &[]))).unwrap();
    let _died = call();
    let called = errands.begin(0, TASK, &at_entry, memory(&ram)).unwrap();
    let other = Gva(TASK.0 + 0x40);
    let back = Regs { rsp: called.rsp + 8, ..called };
    let left = errands.ask(&back, memory(&ram), other);
    assert_eq!(left, Some(AtGate::GoesOn(PLACE.code.leave(&back))));
    let _comes = call();
    assert!(errands.begin(0, other, &at_entry, memory(&ram)).is_some());
    assert!(errands.is_worker(other) && !errands.is_worker(TASK));
    assert!(matches!(errands.ask(&back, memory(&ram), other), Some(AtGate::GoesOn(_))));
}

/// Who makes calls for itself takes the trap again, without anybody's being told.
#[test]
fn a_task_makes_calls_for_itself() {
    let (ram, errands) = guest();
    let at_entry = Regs { rip: 0x7000, rsp: 0x8fe8, ..Regs::default() };
    let mut left = 2;
    let next = move |_: &mut Worker<'_>| {
        left -= 1;
        if left == 0 { Next::Done(()) } else { Next::Call(Call::new(Gva(0x300), &[7])) }
    };
    errands.want_for_itself(1, next).unwrap();
    let called = errands.begin(1, TASK, &at_entry, memory(&ram)).unwrap();
    assert_eq!((called.rip, called.rdi), (0x310, 7));
    let back = errands.ask(&Regs { rsp: called.rsp + 8, ..called }, memory(&ram), TASK);
    assert_eq!(back, Some(AtGate::TakesTrap(at_entry)));
    assert!(!errands.has_workers());
}

/// So many tasks are in calls at a time, and no more.
#[test]
fn a_guest_whose_tasks_never_come_back_makes_no_more_calls() {
    let (ram, errands) = guest();
    let begin = |number: u64| {
        let wanted = errands.want_of(0, |_| Next::<()>::Call(Call::new(Gva(0x300), &[]))).unwrap();
        let at = Regs { rip: 0x7000, rsp: 0x8fe8 - 0x40 * number, ..Regs::default() };
        std::mem::forget(wanted);
        errands.begin(0, Gva(TASK.0 + number), &at, memory(&ram)).is_some()
    };
    assert_eq!((0..200).filter(|number| begin(*number)).count(), PASSERS - FOR_THEMSELVES);
    let own = || Next::<()>::Call(Call::new(Gva(0x300), &[]));
    errands.want_for_itself(0, move |_| own()).unwrap();
    let at = Regs { rip: 0x7000, rsp: 0x4fe8, ..Regs::default() };
    assert!(errands.begin(0, Gva(TASK.0 + 500), &at, memory(&ram)).is_some(), "others are not kept from it");
}
