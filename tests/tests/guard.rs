//! `vmm guard` on real kernels: attacks by a module, which runs with all rights of the kernel.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::modules::ModuleLayout;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use tests::broken_module::{running, running_with};
use tests::product::{Run, binary, guard, initrd_with, kernel, module, report};

/// What an attack writes at first.
const PAYLOAD: u8 = 0xf4;
/// The kernel's own mapping of itself, without KASLR (`__START_KERNEL_map`).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// An attack.
struct Attack {
    /// Of the module, five letters.
    name: &'static str,
    /// Where it writes.
    at: Place,
    /// What it writes with: RDI is where. RDX is not changed.
    store: Vec<u8>,
}

/// Where an attack writes.
#[derive(Clone, Copy)]
enum Place {
    /// To the kernel, at a link-time address.
    Kernel(u64),
    /// There, by the kernel's mapping of all memory.
    Alias(u64),
    /// To its own code, at the start of this function.
    Own(&'static str),
}

/// `mov rax, value; mov [rdi], rax`
fn store_value(value: u64) -> Vec<u8> {
    [&[0x48, 0xb8][..], &value.to_le_bytes(), &[0x48, 0x89, 0x07]].concat()
}

/// `mov byte [rdi], PAYLOAD`
const STORE: &[u8] = &[0xc6, 0x07, PAYLOAD];
/// `mov rax, PAYLOAD in each byte; mov [rdi], rax`
const STORE_WORD: &[u8] = &[0x48, 0xb8, 0xf4, 0xf4, 0xf4, 0xf4, 0xf4, 0xf4, 0xf4, 0xf4, 0x48, 0x89, 0x07];
/// `mov al, PAYLOAD; mov ecx, 9; rep stosb; sub rdi, 9`
const STORE_STRING: &[u8] = &[0xb0, PAYLOAD, 0xb9, 9, 0, 0, 0, 0xf3, 0xaa, 0x48, 0x83, 0xef, 9];
/// `movups [rdi], xmm0`
const STORE_VECTOR: &[u8] = &[0x0f, 0x11, 0x07];
/// `mov rsp, rdi; ud2`
const FAULT_THERE: &[u8] = &[0x48, 0x89, 0xfc, 0x0f, 0x0b];

/// `push rdx; mov rax, rdi; mov rdx, rdi; shr rdx, 32; mov ecx, IA32_CSTAR; wrmsr; pop rdx`: no program of the guest's makes such
/// system calls.
const SET_ENTRY: &[u8] = &[
    0x52, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xfa, 0x48, 0xc1, 0xea, 0x20, 0xb9, 0x83, 0, 0, 0xc0, 0x0f, 0x30,
    0x5a,
];

impl Attack {
    /// A module that clears CR0.WP, stores, sets CR0.WP, and is refused (-1) where the payload is there then.
    fn module(&self, kernel: &Kernel) -> Vec<u8> {
        // mov rdi, address
        let load = |address: u64| [&[0x48, 0xbf][..], &address.to_le_bytes()].concat();
        let place = match self.at {
            Place::Kernel(at) => load(at),
            Place::Alias(at) => {
                let offset = kernel.symbol("page_offset_base").unwrap().0 as u32;
                // mov rdi, [page_offset_base]; add rdi, physical address
                let load = [&[0x48, 0x8b, 0x3c, 0x25][..], &offset.to_le_bytes()].concat();
                let physical = (at - KERNEL_MAP) as u32;
                [&load[..], &[0x48, 0x81, 0xc7], &physical.to_le_bytes()].concat()
            }
            Place::Own(_) => load(0),
        };
        // cli; mov rdx, cr0; btr rdx, 16; mov cr0, rdx. A task that is preempted then leaves its CPU without CR0.WP, which is a finding.
        const OPEN: &[u8] = &[0xfa, 0x0f, 0x20, 0xc2, 0x48, 0x0f, 0xba, 0xf2, 0x10, 0x0f, 0x22, 0xc2];
        // bts rdx, 16; mov cr0, rdx; sti
        const CLOSE: &[u8] = &[0x48, 0x0f, 0xba, 0xea, 0x10, 0x0f, 0x22, 0xc2, 0xfb];
        // xor eax, eax; cmp byte [rdi], PAYLOAD; sete al; neg eax; ret
        const ANSWER: &[u8] = &[0x31, 0xc0, 0x80, 0x3f, PAYLOAD, 0x0f, 0x94, 0xc0, 0xf7, 0xd8, 0xc3];
        let code = [OPEN, &place, &self.store, CLOSE, ANSWER].concat();
        let name = self.name.as_bytes().try_into().unwrap();
        match self.at {
            Place::Kernel(_) | Place::Alias(_) => running(&code, name),
            Place::Own(function) => running_with(&code, name, OPEN.len() + 2, function),
        }
    }
}

/// Runs a guest of these CPUs that loads the modules one after the other.
fn attacked(attacks: &[Attack], kernel_file: &Kernel, on_write: &str) -> Option<Run> {
    attacked_after(attacks, kernel_file, &["--on-write", on_write], 0)
}

/// The same with these words, and so many seconds before each module but the first.
fn attacked_after(attacks: &[Attack], kernel_file: &Kernel, words: &[&str], pause: u32) -> Option<Run> {
    let binary = binary()?;
    let load = |Attack { name, .. }: &Attack| {
        format!("insmod /{name}.ko && echo {name} in vain || echo {name} done\n")
    };
    let script = attacks.iter().map(load).collect::<Vec<_>>().join(&format!("sleep {pause}\n"));
    let names: Vec<String> = attacks.iter().map(|attack| format!("{}.ko", attack.name)).collect();
    let modules = attacks.iter().map(|attack| attack.module(kernel_file));
    let files = names.iter().zip(modules).map(|(name, module)| (name.as_str(), 0o644, module));
    let initrd = initrd_with(files.chain([("script", 0o644, script.into_bytes())]));
    let machine = [
        "--kernel",
        kernel().to_str()?,
        "--initrd",
        initrd.path().to_str()?,
        "--cpus",
        "2",
        "--append",
        "nokaslr workload=sh:/script",
    ];
    Some(guard(&binary, &[&machine[..], words].concat()))
}

fn findings(run: &Run) -> Vec<&Value> {
    run.output.iter().filter(|line| line["type"] == "finding").collect()
}

fn read_kernel() -> Kernel {
    Kernel::read(&fs::read(kernel()).unwrap(), None).unwrap()
}

#[test]
fn attacks_by_a_module_are_denied_and_the_guest_goes_on() {
    let kernel = read_kernel();
    let at = |name: &str| kernel.symbol(name).unwrap().0;
    let attack = |name, at, store: &[u8]| Attack { name, at: Place::Kernel(at), store: store.to_vec() };
    let attacks = [
        attack("codea", at("proc_pid_limits"), STORE),
        attack("words", at("proc_pid_limits") + 0x20, STORE_WORD),
        attack("lines", at("proc_pid_limits") + 0x40, STORE_STRING),
        attack("calls", at("sys_call_table") + 8, STORE_WORD),
        attack("gates", at("idt_table") + 0x200, STORE_WORD),
        Attack { at: Place::Alias(at("proc_pid_limits") + 0x60), ..attack("alias", 0, STORE) },
        Attack { at: Place::Own("dummy_xmit"), ..attack("texts", 0, STORE) },
        attack("entry", at("proc_pid_limits"), SET_ENTRY),
    ];
    let Some(run) = attacked(&attacks, &kernel, "deny") else { return };
    run.assert_code(123);
    let mut findings = findings(&run);
    let Some(entry) = findings.pop() else { panic!("{}", run.said) };
    let [attacks @ .., _] = &attacks;
    assert_eq!((&entry["done"], &entry["register"]), (&"denied".into(), &"CSTAR".into()), "{entry}");
    for (Attack { name, at, .. }, finding) in attacks.iter().zip(&findings) {
        assert!(run.console.contains(&format!("{name} in vain")), "{}", run.console);
        assert_eq!(finding["done"], "denied");
        match at {
            Place::Kernel(at) | Place::Alias(at) => assert_eq!(finding["at"], format!("{at:#x}")),
            Place::Own(function) => {
                let symbol = finding["symbol"].as_str().unwrap();
                assert!(symbol.starts_with(&format!("{function}+0x0/")), "{finding}");
                assert!(symbol.ends_with(&format!(" [{name}]")), "{finding}");
            }
        }
        assert_eq!(finding["task"]["comm"], "insmod", "{finding}");
        let writer = finding["writer"].as_str().unwrap();
        assert!(writer.starts_with("dummy_init_module+"), "{finding}");
        // The module's tables are of the code that was there.
        assert!(!finding["stack"].as_array().unwrap().is_empty(), "{finding}");
    }
    assert_eq!(findings.len(), attacks.len(), "{findings:?}");
    assert!(run.said.contains("has found 8 writes"), "{}", run.said);
    let guard = run.output.iter().find(|line| line["type"] == "guard").unwrap();
    assert!(guard["module_pages"].as_u64().unwrap() >= attacks.len() as u64, "{guard}");
    assert_eq!(guard["unsealed_modules"], 0, "{guard}");
}

/// What is not sealed is looked at while the guest runs, and when it has ended. Who knows the last does not leave anything there.
#[test]
fn what_an_attacker_has_changed_in_data_is_found_also_if_it_is_undone() {
    let kernel = read_kernel();
    let ioctl = kernel.btf().unwrap().member("proto", "ioctl").unwrap().offset().unwrap();
    let pointer = |protocol| kernel.symbol(protocol).unwrap().add(ioctl);
    let (undone, left) = (pointer("tcp_prot"), pointer("udp_prot"));
    let before = kernel.image().bytes_at(undone, 8).unwrap().try_into().unwrap();
    let entry = kernel.symbol("proc_pid_limits").unwrap().0;
    let nowhere = entry - 0x1000_0000;
    let attack = |name, at, store| Attack { name, at: Place::Kernel(at), store };
    let attacks = [
        attack("swaps", undone.0, store_value(nowhere)),
        attack("undos", undone.0, store_value(u64::from_le_bytes(before))),
        attack("leave", left.0, store_value(nowhere)),
        attack("calls", entry, SET_ENTRY.to_vec()),
    ];
    let words = ["--on-write", "report", "--scan", "500ms", "--rules", "default"];
    let Some(run) = attacked_after(&attacks, &kernel, &words, 2) else { return };
    run.assert_code(123);
    let loads = run.of_type("hit").into_iter().filter_map(|hit| Some((hit["fields"]["name"].as_str()?, hit)));
    let loads: BTreeMap<&str, &Value> = loads.collect();
    // The register was seen when it was set.
    let [set] = findings(&run)[..] else { panic!("{}", run.said) };
    assert_eq!((&set["done"], &set["register"]), (&"written".into(), &"CSTAR".into()));
    let why = format!("CSTAR was to be {entry:#x}, by which programs enter the kernel");
    assert!(set["why"].as_str().unwrap().starts_with(&why), "{set}");
    assert!(set["writer"].as_str().unwrap().starts_with("dummy_init_module+"), "{set}");
    let scanned: Vec<_> = run.output.iter().filter(|line| line["type"] == "scan_finding").collect();
    let [swapped, stays, processor] = scanned[..] else { panic!("{scanned:?} {}", run.said) };
    for (name, finding) in [("swaps", swapped), ("leave", stays), ("calls", set), ("calls", processor)] {
        let [loaded, seen] = [loads[name], finding].map(|line| line["time_ns"].as_u64().unwrap());
        println!("{name}: told {} ms after its module came", (seen - loaded) / 1_000_000);
    }
    for (finding, at, protocol) in [(swapped, undone, "tcp_prot"), (stays, left, "udp_prot")] {
        assert_eq!((&finding["check"], &finding["at"]), (&"pointers".into(), &format!("{:#x}", at.0).into()));
        let what = format!("{protocol}: ioctl leads to {nowhere:#x}, which is no known code");
        assert_eq!(finding["what"], what);
        assert!(finding["time_ns"].as_u64().is_some_and(|time| time > 0), "{finding}");
    }
    assert_eq!(
        (&processor["check"], &processor["at"]),
        (&"processors".into(), &format!("{entry:#x}").into())
    );
    assert!(processor["what"].as_str().unwrap().ends_with("no entry for them (CSTAR)"), "{processor}");
    assert!(run.said.contains("scans of the memory have found 3 things"), "{}", run.said);
    let guard = run.output.iter().find(|line| line["type"] == "guard").unwrap();
    assert_eq!(guard["scan_findings"], 2, "what was undone is not there at the end: {guard}");
}

/// What a module's tables say is let through where the module is. One that is not there has the kernel's code as its own.
#[test]
fn a_made_up_module_opens_nothing() {
    let Some(binary) = binary() else { return };
    let file = read_kernel();
    let at = |name: &str| file.symbol(name).unwrap().0;
    let layout = ModuleLayout::find(file.symbols(), &file.btf().unwrap()).unwrap();
    let uses = file.btf().unwrap().member("module", "refcnt").unwrap().offset().unwrap();
    // mov rax, value, which has a sign
    let load = |value: u64| [&[0x48, 0xc7, 0xc0][..], &(value as u32).to_le_bytes()].concat();
    // mov dword [rbx + disp32], value
    let count =
        |offset: u32, value: u32| [&[0xc7, 0x83][..], &offset.to_le_bytes(), &value.to_le_bytes()].concat();
    // Until 6.3 constants follow the text in the same area, and end no sooner.
    let read_only = layout.read_only.unwrap();
    let same = [read_only.constants, read_only.after_init].into_iter();
    let same =
        same.filter(|range| range.start == layout.text.start).flat_map(|range| count(range.count, 4096));
    let allocates = file.symbol("vzalloc").or_else(|| file.symbol("vzalloc_noprof")).unwrap().0;
    let attacked = at("proc_pid_limits");
    let forges = [
        // push rbx; mov edi, 8192; call; mov rbx, rax
        &[0x53, 0xbf, 0, 0x20, 0, 0][..],
        &load(allocates),
        &[0xff, 0xd0, 0x48, 0x89, 0xc3],
        // Its text is a page of the kernel's: mov rax, page; mov [rbx + disp32], rax
        &load(attacked & !0xfff),
        &[0x48, 0x89, 0x83],
        &layout.text.start.to_le_bytes(),
        &count(layout.text.count, 4096),
        &same.collect::<Vec<u8>>(),
        &count(layout.name, u32::from_le_bytes(*b"fake")),
        // It has no symbols: lea rax, [rbx + 4096]; mov [rbx + disp32], rax
        &[0x48, 0x8d, 0x83, 0, 0x10, 0, 0, 0x48, 0x89, 0x83],
        &layout.kallsyms.to_le_bytes(),
        // Somebody uses it, so that the kernel has nothing to warn of.
        &count(uses as u32, 1),
        // mov rdi, rbx; call; pop rbx; ret: the module stays if that returns 0
        &[0x48, 0x89, 0xdf],
        &load(at("do_init_module")),
        &[0xff, 0xd0, 0x5b, 0xc3],
    ]
    .concat();
    let writes = Attack { name: "codea", at: Place::Kernel(attacked), store: STORE.to_vec() };
    let script = b"insmod /forge.ko && echo it is made ready\ninsmod /codea.ko && echo in vain\n".to_vec();
    let initrd = initrd_with([
        ("forge.ko", 0o644, running(&forges, b"forge")),
        ("codea.ko", 0o644, writes.module(&file)),
        ("script", 0o644, script),
    ]);
    let words = ["--kernel", kernel().to_str().unwrap(), "--initrd", initrd.path().to_str().unwrap()];
    let words =
        [&words[..], &["--timeout", "120", "--on-write", "deny", "--append", "nokaslr workload=sh:/script"]]
            .concat();
    let run = guard(&binary, &words);
    run.assert_code(123);
    for line in ["it is made ready", "in vain"] {
        assert!(run.console.contains(line), "{}", run.console);
    }
    let [finding] = findings(&run)[..] else { panic!("{}", run.said) };
    assert_eq!((&finding["done"], &finding["at"]), (&"denied".into(), &format!("{attacked:#x}").into()));
    let guard = run.output.iter().find(|line| line["type"] == "guard").unwrap();
    assert_eq!((&guard["unsealed_modules"], &guard["findings"]), (&1.into(), &1.into()), "{guard}");
}

/// An exception whose frame has no room is not tried for ever, and what the host cannot carry out is not let through.
#[test]
fn a_write_that_is_not_understood_ends_the_guest() {
    let kernel = read_kernel();
    let at = kernel.symbol("proc_pid_limits").unwrap().0 + 0x800;
    for (store, why) in
        [(FAULT_THERE, "`ud2` does not store there"), (STORE_VECTOR, "does not carry out `movups")]
    {
        let attack = Attack { name: "stray", at: Place::Kernel(at), store: store.to_vec() };
        let Some(run) = attacked(&[attack], &kernel, "report") else { return };
        run.assert_code(123);
        let [finding] = findings(&run)[..] else { panic!("{}", run.said) };
        assert_eq!(finding["done"], "stopped");
        assert!(finding["why"].as_str().unwrap().contains(why), "{finding}");
        assert!(run.said.contains("the guest was stopped by its guard"), "{}", run.said);
    }
}

#[test]
fn a_guest_that_nobody_attacks_has_no_findings() {
    let Some(binary) = binary() else { return };
    // The kernel looks for algorithms while it boots, and asks this program for their modules: one is there before it has sealed itself.
    let loads = b"#!/bin/busybox sh\n/bin/busybox insmod /dummy.ko\n".to_vec();
    let initrd = initrd_with([("sbin/modprobe", 0o755, loads), ("dummy.ko", 0o644, module("dummy"))]);
    let words = ["--kernel", kernel().to_str().unwrap(), "--initrd", initrd.path().to_str().unwrap()];
    let work = ["--scan", "1s", "--fail", "stop", "--append", "workload=open:20,pipe:200,idle:4"];
    let run = guard(&binary, &[&words[..], &work].concat());
    run.assert_success();
    assert!(findings(&run).is_empty(), "{}", run.said);
    // Its memory has been looked at, when it had ended.
    let checks: Vec<_> = run.output.iter().filter(|line| line["type"] == "scan_check").collect();
    assert_eq!(checks.len(), 10, "{}", run.said);
    let processors = checks.iter().find(|line| line["check"] == "processors").unwrap();
    assert_eq!(processors["looked_at"], 1);
    for check in checks {
        assert_eq!((&check["findings"], &check["failure"]), (&0.into(), &Value::Null), "{check}");
    }
    let line = run.output.iter().find(|line| line["type"] == "guard").unwrap();
    assert!(line["pages"].as_u64().unwrap() > 5_000 && line["findings"] == 0, "{line}");
    assert!(line["scans"].as_u64().unwrap() >= 2 && line["guards_entries"] == true, "{line}");
    assert!(line["module_pages"].as_u64().unwrap() >= 2 && line["unsealed_modules"] == 0, "{line}");
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("guard.json");
    let lines: String = run.output.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&recording, lines).unwrap();
    let text = String::from_utf8(report(&binary, &recording, &[])).unwrap();
    assert!(text.contains("guard: ") && text.contains("; in the memory at the end 0 findings\n"), "{text}");
}
