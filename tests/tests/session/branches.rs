//! Mitigations against speculation: code of ours in a guest that has switched them on branches as that guest does.

use crate::Notes;
use probe_engine::addr::Gva;
use probe_engine::insn::decode::decode;
use probe_engine::linux::glob::Glob;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::place::{Place, in_kernel};
use probe_engine::virt_memory::VirtMemory;
use tests::linux_rig::{Guest, subject};
use vmm::memory::GuestRam;
use vmm::probe::Probe;
use vmm::session::{Missed, ProbeState};

/// Its entry has a probe of its returns.
const FUNCTION: &str = "__x64_sys_getppid";
/// A directory is removed once, and our code is looked at there.
const LOOKED_AT: &str = "vfs_rmdir";
/// The thunk of retpolines.
const JUMPS: &str = "__x86_indirect_thunk_rax";

type Memory<'a> = VirtMemory<'a, GuestRam>;

/// What our code ends with, and where that leads: nowhere, if the code does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Return,
    Jump,
    To(Gva),
}

/// The next end from `at` on. Direct jumps inside the same 2 MiB are followed, as our code is nowhere else.
fn end(memory: &Memory<'_>, mut at: Gva) -> End {
    loop {
        let mut bytes = [0; 15];
        memory.read(at, &mut bytes).unwrap();
        let instruction = decode(&bytes, at).unwrap();
        let target = Gva(instruction.near_branch_target());
        at = match instruction.mnemonic() {
            iced_x86::Mnemonic::Ret => return End::Return,
            iced_x86::Mnemonic::Jmp if target == Gva(0) => return End::Jump,
            iced_x86::Mnemonic::Jmp if target.0 >> 21 != at.0 >> 21 => return End::To(target),
            iced_x86::Mnemonic::Jmp => target,
            _ => Gva(instruction.next_ip()),
        };
    }
}

/// How the code for the returns of `function` ends, and the code that leads there.
fn ends(memory: &Memory<'_>, function: Gva) -> [End; 2] {
    const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    /// Behind the instances' trampolines, which are 64 KiB into the 2 MiB.
    const LEAVE: u64 = (64 << 10) + (256 << 10);
    let mut first = [0; 4];
    memory.read(function, &mut first).unwrap();
    let site = if first == ENDBR { function.add(4) } else { function };
    let mut jump = [0; 15];
    memory.read(site, &mut jump).unwrap();
    let stub = Gva(decode(&jump, site).unwrap().near_branch_target());
    let mut code = [0; 1024];
    memory.read(stub, &mut code).unwrap();
    let returns = code.windows(4).position(|bytes| bytes == ENDBR).unwrap();
    let window = Gva(stub.0 >> 21 << 21);
    [end(memory, stub.add(returns as u64)), end(memory, window.add(LEAVE))]
}

/// The function of ftrace's that is nearest to `at`.
fn nearest(kernel: &Kernel, at: Gva) -> Place {
    let any = Glob::new("*").unwrap();
    let all = kernel.symbols().matching(&any).filter(|symbol| !kernel.image().is_init_text(symbol.at));
    let all = all.filter_map(|symbol| {
        let info = in_kernel(symbol.at, kernel).ok().filter(|info| info.ftrace.is_some())?;
        Some((symbol.at.0.abs_diff(at.0), Place::Kernel { name: symbol.name.to_owned(), info }))
    });
    let (distance, place) = all.min_by_key(|(distance, _)| *distance).unwrap();
    println!("{} is {distance} bytes from the thunk", place.name());
    place
}

/// With these `words` the guest returns by `thunk`, and jumps indirectly by [`JUMPS`] if it is `retpolines`: so does the code
/// that follows its calls, which stood before the guest had chosen. All calls are seen.
fn branches_as_the_guest(words: &'static str, thunk: Option<&str>, retpolines: bool) {
    let Some(guest) = Guest::new() else { return };
    let kernel = &subject().kernel;
    let link = |name: &str| kernel.symbol(name).unwrap_or_else(|| panic!("no {name}"));
    let (function, looked_at) = (link(FUNCTION), link(LOOKED_AT));
    let (choice, notes) = (link("x86_return_thunk"), Notes::new());
    let look = Probe::at(LOOKED_AT).pre({
        let notes = notes.clone();
        move |hit| {
            // It stands on the function's entry, or behind its endbr.
            let slide = hit.at.0.wrapping_sub(looked_at.0) & !0xfff;
            let chosen = hit.memory.read_u64(choice.add(slide)).unwrap();
            notes.add((slide, Gva(chosen), ends(&hit.memory, function.add(slide))));
        }
    });
    let early = Probe::on_return("vfs_caches_init");
    let neighbour = nearest(kernel, thunk.map_or(link(JUMPS), link));
    let guest = guest.optimize().cmdline(words).probe(look);
    let guest = guest.probe(Probe::on_return(FUNCTION).record()).probe(Probe::at(FUNCTION)).probe(early);
    let guest = guest.probe(Probe::at(neighbour));
    let ended = guest.run("getppid:500,walk:1,getppid:500");
    ended.assert_in_order();
    let [returns, calls, early] = [1, 2, 3].map(|n| ended.probe(n));
    assert!(matches!(returns.state, ProbeState::Optimized(_)), "{returns:?}");
    assert_eq!((returns.hits, calls.hits, early.hits), (calls.hits, calls.hits, 1));
    assert!(calls.hits >= 1000);
    // What lies beside a thunk is not a part of the thunk.
    assert!(matches!(ended.probe(4).state, ProbeState::Optimized(_)), "{:?}", ended.probe(4));
    assert_eq!((returns.missed, returns.outstanding), (Missed::default(), 0));
    let notes = notes.take();
    assert!(!notes.is_empty());
    for (slide, chosen, ends) in notes {
        let to = |name: &str| End::To(link(name).add(slide));
        println!("{words}: {ends:x?}, and the guest's thunk is {chosen:?}");
        if let Some(thunk) = thunk {
            assert_eq!(End::To(chosen), to(thunk), "what the guest says");
        }
        let expected = [thunk.map_or(End::Return, to), if retpolines { to(JUMPS) } else { End::Jump }];
        assert_eq!(ends, expected);
    }
}

#[test]
fn returns_without_mitigations_are_returns() {
    branches_as_the_guest("mitigations=off", None, false);
}

#[test]
fn returns_go_by_the_thunk_that_untrains() {
    let words = "spectre_v2=retpoline retbleed=unret,force";
    branches_as_the_guest(words, Some("retbleed_return_thunk"), true);
}

#[test]
fn returns_go_by_the_thunk_that_counts_calls() {
    const THUNK: &str = "call_depth_return_thunk";
    if subject().kernel.symbol(THUNK).is_none() {
        println!("skipped: this kernel has no call depth tracking");
        return;
    }
    branches_as_the_guest("spectre_v2=retpoline retbleed=stuff,force", Some(THUNK), true);
}

#[test]
fn returns_go_by_the_thunk_against_its() {
    branches_as_the_guest("indirect_target_selection=force", Some("its_return_thunk"), true);
}
