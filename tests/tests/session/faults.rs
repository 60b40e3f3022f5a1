//! A fault in the probed instruction belongs to the guest, at the probed address; the fault handler is told.

use crate::{Notes, path_at_filp_open, path_at_openat, string_store};
use probe_engine::addr::Gva;
use tests::kernel::name_of;
use tests::linux_rig::Guest;
use vmm::probe::{Fault, Hit, Probe};
use vmm::session::Outcome;

const GP: u8 = 13;
const PF: u8 = 14;
/// Error code of #PF: a write in kernel mode to a page that is not there.
const KERNEL_WRITE: u32 = 2;

/// Of a copied instruction: the guest's log names the original place, its task is killed, and it goes on.
#[test]
fn a_fault_of_a_copied_instruction() {
    /// Not canonical.
    const NOWHERE: u64 = 0x1234_5678_9abc_def0;
    /// Kernel memory that is never mapped: a hole in the memory map of x86-64 (Documentation/arch/x86/x86_64/mm).
    const HOLE: u64 = 0xffff_8000_0000_1000;
    let Some(guest) = Guest::new() else { return };
    let Some(copied) = string_store(guest.subject) else { return };
    let faults = Notes::<(Gva, u64, Fault)>::new();
    let posts = Notes::new();
    let ended = guest
        .script("cat /null\ncat /nowhere\ncat /hole\necho $(cat /etc/hostname) goes on\n")
        .probe({
            let (faults, posts) = (faults.clone(), posts.clone());
            Probe::at(copied.place.as_str())
                .pre(|hit| match path_at_filp_open(hit).as_slice() {
                    b"/null" => hit.regs.rdi = 0,
                    b"/nowhere" => hit.regs.rdi = NOWHERE,
                    b"/hole" => hit.regs.rdi = HOLE,
                    _ => {}
                })
                .post(move |hit| posts.add(path_at_filp_open(hit)))
                .fault(move |hit: &Hit<'_>, fault| faults.add((hit.at, hit.regs.rip, *fault)))
        })
        .run("sh:/script,open:20");
    assert_eq!(ended.report.end, Outcome::PoweredOff, "{}", ended.console);
    assert!(ended.console.contains("guest goes on"), "{}", ended.console);
    assert_eq!(ended.workload("open", "calls"), 20);
    // The log names the original, three times, and an address that it does not know nowhere.
    let named = format!("RIP: 0010:{}/", copied.place);
    assert_eq!(
        ended.console.matches(&format!("RIP: 0010:{}+", name_of("do_filp_open"))).count(),
        2 * 3,
        "{}",
        ended.console
    );
    assert_eq!(ended.console.matches(&named).count(), 2 * 3, "{}", ended.console);
    assert!(!ended.console.contains("RIP: 0010:0x"), "{}", ended.console);
    let at = ended.probe(0).address;
    let told: Vec<Fault> = faults
        .take()
        .into_iter()
        .map(|(place, rip, fault)| {
            assert_eq!((place, rip), (at, at.0));
            fault
        })
        .collect();
    let page_fault = |at| Fault { vector: PF, code: KERNEL_WRITE, address: Gva(at) };
    let expected = [page_fault(0), Fault { vector: GP, code: 0, address: Gva(0) }, page_fault(HOLE)];
    assert_eq!(told, expected);
    assert_eq!(posts.take().len() as u64 + 3, ended.hits(0), "no post handler runs behind a fault");
}

/// Of an emulated instruction with an entry in the exception table: the guest finds its fix-up.
#[test]
fn a_fault_of_an_emulated_instruction_with_a_fixup() {
    const NOT_MAPPED: u64 = 0x1000;
    let Some(guest) = Guest::new() else { return };
    let fixed = guest.subject.find("strncpy_from_user", |i| i.info.fixup && !i.is_copied);
    let faults = Notes::<(Gva, Fault)>::new();
    let posts = Notes::new();
    let ended = guest
        .probe(Probe::at("do_sys_openat2").pre(|hit| {
            if path_at_openat(hit).as_deref() == Some(b"/victim") {
                hit.regs.rsi = NOT_MAPPED;
            }
        }))
        .probe({
            let (faults, posts) = (faults.clone(), posts.clone());
            Probe::at(fixed.place.as_str())
                .post(move |_| posts.add(()))
                .fault(move |hit: &Hit<'_>, fault| faults.add((Gva(hit.regs.rip), *fault)))
        })
        .run("open:5,try:/victim,try:/etc/passwd,try:/victim,open:5");
    ended.assert_in_order();
    assert_eq!(ended.workload("try path=/victim", "errno"), 14);
    assert_eq!(ended.workload("try path=/etc/passwd", "errno"), 0);
    let at = ended.probe(1).address;
    let faults = faults.take();
    assert!(faults.iter().all(|(rip, _)| *rip == at), "{faults:?}");
    let here: Vec<_> = faults.iter().filter(|(_, fault)| fault.address.0 == NOT_MAPPED).collect();
    let expected = Fault { vector: PF, code: 0, address: Gva(NOT_MAPPED) };
    assert_eq!(here, [&(at, expected); 2]);
    assert_eq!((posts.take().len() + faults.len()) as u64, ended.hits(1));
}
