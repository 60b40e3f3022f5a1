//! `vmm scan` on guests of another monitor: what an attacker has done is found, and what a kernel does itself is not.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::FileHeader;
use probe_engine::addr::Gva;
use probe_engine::linux::btf::Btf;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::modules::ModuleLayout;
use probe_engine::linux::running::RunningKernel;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use tests::broken_module::running;
use tests::kernel::KPROBES;
use tests::product::{Ended, binary, command, initrd_with, kernel, module};
use tests::qemu::QemuGuest;
use vmm::dump::Dump;

/// The kernel's own mapping of itself, without KASLR (`__START_KERNEL_map`).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// What a kernel does to itself beside that: ftrace, and a module.
const CHURN: &str = "\
insmod /dummy.ko
echo vfs_read vfs_write > set_ftrace_filter
echo function > current_tracer
";
/// Behind all of it, so that the guest is there to be looked at. Init code of modules is freed a little later.
const READY: &str = "sleep 2\necho it is ready\nsleep 1000\n";

/// `vmm scan` with these words, of a guest with the kernel under test.
fn scan(binary: &Path, words: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let words = [&["scan", "--kernel", kernel().to_str().unwrap()], words].concat();
    command(binary, folder.path(), &words).output().ended()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A guest that has run `script`, with these modules as files.
fn guest(script: &str, modules: &[(&str, Vec<u8>)], cmdline: &str) -> QemuGuest {
    let script = format!("{script}{READY}").into_bytes();
    let modules = modules.iter().map(|(name, bytes)| (*name, 0o644, bytes.clone()));
    let initrd = initrd_with(modules.chain([("script", 0o644, script)]));
    QemuGuest::booted(initrd.path(), &format!("workload=sh:/script {cmdline}"), "it is ready")
}

fn read_kernel() -> Kernel {
    Kernel::read(&fs::read(kernel()).unwrap(), None).unwrap()
}

/// A place in a function at which an instruction begins, behind its first.
fn inside(kernel: &Kernel, function: &str) -> u64 {
    use iced_x86::{Decoder, DecoderOptions};
    let range = kernel.function(kernel.symbol(function).unwrap()).unwrap();
    let code = kernel.image().bytes(&range).unwrap();
    let instructions = Decoder::with_ip(64, code, range.start.0, DecoderOptions::NONE);
    instructions.into_iter().nth(4).unwrap().ip() - range.start.0
}

#[test]
fn what_a_kernel_does_itself_is_no_finding() {
    let Some(binary) = binary() else { return };
    let offset = format!("{:#x}", inside(&read_kernel(), "vfs_mkdir"));
    let churn = KPROBES.replace("OFFSET", &offset) + CHURN;
    let mut guest = guest(&churn, &[("dummy.ko", module("dummy"))], "");
    // The guest runs on while it is looked at.
    let pid = guest.pid().to_string();
    let output = scan(&binary, &[&pid, "--format=json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}{said}{}",
        String::from_utf8_lossy(&output.stdout),
        guest.console()
    );
    let core = guest.dumped();
    let core = core.to_str().unwrap();
    let output = scan(&binary, &[core, "--format=json"]);
    let found = lines(&output);
    assert_eq!(output.status.code(), Some(0), "{found:?}");
    let of_check = |check: &str| found.iter().find(|line| line["check"] == check).unwrap();
    assert!(of_check("image")["looked_at"].as_u64().unwrap() > 10_000_000);
    assert_eq!(of_check("modules")["looked_at"], 1);
    assert!(of_check("hooks")["looked_at"].as_u64().unwrap() >= 4, "{found:?}");
    for check in
        ["page-tables", "executable", "interrupts", "pointers", "credentials", "helpers", "processors"]
    {
        assert!(of_check(check)["looked_at"].as_u64().unwrap() > 0, "{check}");
    }
    let checks: Vec<_> = found.iter().filter(|line| line["type"] == "scan_check").collect();
    assert_eq!(checks.len(), 10);
    for line in checks {
        assert_eq!((&line["findings"], &line["failure"]), (&0.into(), &Value::Null), "{line}");
    }
    // The same memory, in which other code is mapped in place of the kernel's.
    let elsewhere = remapped(Path::new(core), &read_kernel(), "proc_pid_limits");
    let output = scan(&binary, &[elsewhere.to_str().unwrap(), "--format=json"]);
    let found = lines(&output);
    assert_eq!(output.status.code(), Some(123), "{found:?}");
    let findings: Vec<_> = found.iter().filter(|line| line["type"] == "scan_finding").collect();
    assert!((1..=512).contains(&findings.len()), "{}", findings.len());
    for finding in findings {
        let what = finding["what"].as_str().unwrap();
        assert!(what.starts_with("the page is mapped to 0x"), "{finding}");
        assert_eq!(finding["check"], "page-tables");
    }
    // What is there is listed.
    let text = |words: &[&str]| {
        let output = scan(&binary, &[&[core], words].concat());
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let processes = text(&["--ps"]);
    assert!(processes.lines().any(|line| line.ends_with(" sleep")), "{processes}");
    assert!(processes.lines().any(|line| line.ends_with(" [kthreadd]")), "{processes}");
    assert!(text(&["--modules"]).contains(" live dummy\n"));
    let hooks = text(&["--hooks"]);
    assert!(hooks.contains(" vfs_rmdir+0x") && hooks.contains("ftrace 0x"), "{hooks}");
    let symbols = text(&["--kallsyms"]);
    assert!(symbols.lines().any(|line| line.ends_with(" T vfs_read")), "{symbols:.300}");
}

/// Where in an ELF core the byte at `at` of physical memory is.
fn place_in_core(core: &[u8], at: u64) -> usize {
    let elf = FileHeader64::<LittleEndian>::parse(core).unwrap();
    let loads = elf.program_headers(LittleEndian, core).unwrap().iter();
    let parts = loads.filter(|part| part.p_type.get(LittleEndian) == PT_LOAD).map(|part| {
        [part.p_paddr.get(LittleEndian), part.p_filesz.get(LittleEndian), part.p_offset.get(LittleEndian)]
    });
    let mut parts = parts;
    let [from, _, offset] = parts.find(|[from, size, _]| (*from..from + size).contains(&at)).unwrap();
    (at - from + offset) as usize
}

/// The kernel's own page tables map 2 MiB of its code to other memory.
fn remapped(core: &Path, kernel: &Kernel, function: &str) -> PathBuf {
    const LARGE: u64 = 2 << 20;
    const IS_LARGE: u64 = 1 << 7;
    let mut bytes = fs::read(core).unwrap();
    let memory = Dump::open(core).unwrap();
    let running = RunningKernel::find(kernel, &memory, &memory.ranges());
    let [running] = running[..] else { panic!("{} kernels", running.len()) };
    let entry = running.map.gpa(kernel.symbol("level2_kernel_pgt").unwrap()).0
        + (running.map.gva(kernel.symbol(function).unwrap()).0 - KERNEL_MAP) / LARGE * 8;
    let place = place_in_core(&bytes, entry);
    let entry: &mut [u8; 8] = bytes[place..].first_chunk_mut().unwrap();
    let now = u64::from_le_bytes(*entry);
    assert!(now & IS_LARGE != 0, "{now:#x}");
    *entry = (now ^ (16 * LARGE)).to_le_bytes();
    let path = core.with_file_name("remapped");
    fs::write(&path, bytes).unwrap();
    path
}

/// `mov r64, value` for RAX (0) and RCX (1): addresses without KASLR are 32-bit numbers with a sign.
fn load(register: u8, value: u64) -> Vec<u8> {
    [&[0x48, 0xc7, 0xc0 + register][..], &(value as u32).to_le_bytes()].concat()
}

/// `mov rdx, cr0; btr rdx, 16; mov cr0, rdx`, and the same with `bts`.
const OPEN: &[u8] = &[0x0f, 0x20, 0xc2, 0x48, 0x0f, 0xba, 0xf2, 0x10, 0x0f, 0x22, 0xc2];
const CLOSE: &[u8] = &[0x0f, 0x20, 0xc2, 0x48, 0x0f, 0xba, 0xea, 0x10, 0x0f, 0x22, 0xc2];
/// What a function begins with that is called by a pointer, in some kernels.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `xor eax, eax; ret`: the module stays.
const STAYS: &[u8] = &[0x31, 0xc0, 0xc3];

/// What modules do that have all rights, without KASLR: what it is called, and its code.
fn attacks(kernel: &Kernel, btf: &Btf<'_>) -> Vec<(&'static str, Vec<u8>)> {
    let at = |name: &str| kernel.symbol(name).unwrap_or_else(|| panic!("no {name}")).0;
    let member =
        |structure: &str, path: &str| btf.member(structure, path).and_then(|member| member.offset()).unwrap();
    let hides = [
        // It is the first of the list: rcx = modules.next->next; modules.next = rcx; rcx->prev = &modules
        load(0, at("modules")),
        vec![0x48, 0x8b, 0x08, 0x48, 0x8b, 0x09, 0x48, 0x89, 0x08, 0x48, 0x89, 0x41, 0x08],
    ];
    // lea rcx, [rip]; mov [rax], rcx
    let swaps = [
        load(0, at("tcp_prot") + member("proto", "ioctl")),
        vec![0x48, 0x8d, 0x0d, 0, 0, 0, 0, 0x48, 0x89, 0x08],
    ];
    // Process 1 is the first of the list: rax = init_task.tasks.next; mov [rax + disp32], rcx
    let back = member("task_struct", "cred").wrapping_sub(member("task_struct", "tasks")) as u32;
    let roots = [
        load(0, at("init_task") + member("task_struct", "tasks")),
        vec![0x48, 0x8b, 0x00],
        load(1, at("init_cred")),
        [&[0x48, 0x89, 0x88][..], &back.to_le_bytes()].concat(),
    ];
    // mov word [rax], 0x8000: bits 31:16 of where the gate leads
    let gates = [
        OPEN.to_vec(),
        load(0, at("idt_table") + 64 * 16 + 6),
        vec![0x66, 0xc7, 0x00, 0x00, 0x80],
        CLOSE.to_vec(),
    ];
    let codes = [OPEN.to_vec(), load(0, at("proc_pid_limits")), vec![0xc6, 0x00, 0xf4], CLOSE.to_vec()];
    // A page of memory with code: vmalloc(4096); mov byte [rax], 0xc3; set_memory_ro(rax, 1); set_memory_x(rax, 1)
    let allocates = |name: &str| kernel.symbol(name).map_or_else(|| at(&format!("{name}_noprof")), |at| at.0);
    let vmalloc = allocates("vmalloc");
    let set = |name: &str| {
        // push 1; pop rsi; mov rax, name; call rax
        [&[0x6a, 1, 0x5e][..], &load(0, at(name)), &[0xff, 0xd0]].concat()
    };
    let pages = [
        // push rbx; mov edi, 4096
        vec![0x53, 0xbf, 0, 0x10, 0, 0],
        load(0, vmalloc),
        // call rax; mov rbx, rax; mov byte [rax], 0xc3; mov rdi, rax
        vec![0xff, 0xd0, 0x48, 0x89, 0xc3, 0xc6, 0x00, 0xc3, 0x48, 0x89, 0xc7],
        set("set_memory_ro"),
        // mov rdi, rbx
        vec![0x48, 0x89, 0xdf],
        set("set_memory_x"),
        vec![0x5b],
    ];
    // The processor has a copy of the interrupt table.
    let table = [
        // mov edi, 4096
        vec![0xbf, 0, 0x10, 0, 0],
        load(0, vmalloc),
        // call rax; mov rdi, rax; sub rsp, 16; sidt [rsp]; mov rsi, [rsp + 2]; mov [rsp + 2], rdi
        vec![0xff, 0xd0, 0x48, 0x89, 0xc7, 0x48, 0x83, 0xec, 0x10, 0x0f, 0x01, 0x0c, 0x24],
        vec![0x48, 0x8b, 0x74, 0x24, 0x02, 0x48, 0x89, 0x7c, 0x24, 0x02],
        // mov ecx, 512; rep movsq; lidt [rsp]; add rsp, 16
        vec![0xb9, 0, 0x02, 0, 0, 0xf3, 0x48, 0xa5, 0x0f, 0x01, 0x1c, 0x24, 0x48, 0x83, 0xc4, 0x10],
    ];
    let opens = [OPEN.to_vec()];
    // mov rcx, "/tmp/x"; mov [rax], rcx
    let paths =
        [load(0, at("modprobe_path")), [&[0x48, 0xb9][..], b"/tmp/x\0\0", &[0x48, 0x89, 0x08]].concat()];
    // rbx = vzalloc(4096), which is a structure of the kernel's with this at that member
    let zeroed = || {
        [&[0x53, 0xbf, 0, 0x10, 0, 0][..], &load(0, allocates("vzalloc")), &[0xff, 0xd0, 0x48, 0x89, 0xc3]]
            .concat()
    };
    // mov [rbx + disp32], rcx
    let store = |offset: u64| [&[0x48, 0x89, 0x8b][..], &(offset as u32).to_le_bytes()].concat();
    // mov rdi, rbx; mov rax, function; call rax
    let call_with_it =
        |function: &str| [&[0x48, 0x89, 0xdf][..], &load(0, at(function)), &[0xff, 0xd0]].concat();
    // mov rsi, function; xor edx, edx; xor ecx, ecx: of that function alone
    let traces = |function: &str| {
        let (of, is_set) = ((at(function) as u32).to_le_bytes(), call_with_it("ftrace_set_filter_ip"));
        [
            &[0x48, 0xc7, 0xc6][..],
            &of,
            &[0x31, 0xd2, 0x31, 0xc9],
            &is_set,
            &call_with_it("register_ftrace_function"),
        ]
        .concat()
    };
    // pop rbx; ret, with what has been returned: the module stays if that is 0
    let stays = || vec![0x5b, 0xc3];
    // mov rcx, rbx
    let nobodys = || vec![0x48, 0x89, 0xd9];
    let hooks = [zeroed(), nobodys(), store(member("ftrace_ops", "func")), traces("vfs_rmdir"), stays()];
    // rcx = modules.next, which is this one; rcx = where its text begins
    let list = member("module", "list");
    let text = ModuleLayout::find(kernel.symbols(), btf).unwrap().text.start;
    let own = [
        load(0, at("modules")),
        vec![0x48, 0x8b, 0x08],
        [&[0x48, 0x8b, 0x89][..], &u64::from(text).wrapping_sub(list).to_le_bytes()[..4]].concat(),
    ];
    let steer = [zeroed(), own.concat(), store(member("ftrace_ops", "func")), traces("vfs_mkdir"), stays()];
    let entry = [
        zeroed(),
        nobodys(),
        store(member("kretprobe", "entry_handler")),
        load(1, at("vfs_symlink")),
        store(member("kretprobe", "kp") + member("kprobe", "addr")),
        call_with_it("register_kretprobe"),
        stays(),
    ];
    let traps = [
        zeroed(),
        nobodys(),
        store(member("kprobe", "pre_handler")),
        load(1, at("vfs_rename")),
        store(member("kprobe", "addr")),
        call_with_it("register_kprobe"),
        stays(),
    ];
    let entry_of = |function: &str| {
        let code = kernel.image().bytes_at(Gva(at(function)), ENDBR64.len()).unwrap();
        at(function) + if code == ENDBR64 { ENDBR64.len() as u64 } else { 0 }
    };
    // Of one function, whose address is behind it: mov [rbx + 2048], rcx; lea rsi, [rbx + 2048]; mov edx, 1
    let fprob = || {
        [
            zeroed(),
            nobodys(),
            store(member("fprobe", "entry_handler")),
            load(1, entry_of("vfs_link")),
            store(2048),
            vec![0x48, 0x8d, 0xb3, 0, 8, 0, 0, 0xba, 1, 0, 0, 0],
            call_with_it("register_fprobe_ips"),
            stays(),
        ]
    };
    // Not every kernel has fprobes.
    let fprob = kernel.symbol("register_fprobe_ips").map(|_| fprob());
    let fprob = fprob.as_ref().map(|code| ("fprob", &code[..]));
    // mov rdi, tracepoint; mov rsi, rcx; xor edx, edx: the kernel calls that by a relative call
    let point = [
        vec![0x53],
        own.concat(),
        [&[0x48, 0xc7, 0xc7][..], &(at("__tracepoint_mark_victim") as u32).to_le_bytes()].concat(),
        vec![0x48, 0x89, 0xce, 0x31, 0xd2],
        load(0, at("tracepoint_probe_register")),
        vec![0xff, 0xd0],
        stays(),
    ];
    let all: [(&str, &[Vec<u8>]); 14] = [
        ("hooks", &hooks),
        ("steer", &steer),
        ("traps", &traps),
        ("entry", &entry),
        ("point", &point),
        ("codes", &codes),
        ("gates", &gates),
        ("pages", &pages),
        ("roots", &roots),
        ("swaps", &swaps),
        ("table", &table),
        ("opens", &opens),
        ("paths", &paths),
        ("hides", &hides),
    ];
    fprob
        .into_iter()
        .chain(all)
        .map(|(name, code)| (name, [code.concat(), STAYS.to_vec()].concat()))
        .collect()
}

#[test]
fn what_an_attacker_has_done_is_found() {
    let Some(binary) = binary() else { return };
    let kernel = read_kernel();
    let attacks = attacks(&kernel, &kernel.btf().unwrap());
    let files: Vec<String> = attacks.iter().map(|(name, _)| format!("{name}.ko")).collect();
    let modules = attacks.iter().map(|(name, code)| running(code, name.as_bytes().try_into().unwrap()));
    let modules: Vec<_> = files.iter().map(String::as_str).zip(modules).collect();
    let script: String = files.iter().map(|file| format!("insmod /{file} && echo {file} is in\n")).collect();
    let mut guest = guest(&script, &modules, "nokaslr");
    for file in &files {
        assert!(guest.console().contains(&format!("{file} is in")), "{}", guest.console());
    }
    let core = guest.dumped();
    let output = scan(&binary, &[core.to_str().unwrap(), "--format=json"]);
    let found = lines(&output);
    assert_eq!(output.status.code(), Some(123), "{found:?}");
    let findings: Vec<_> = found.iter().filter(|line| line["type"] == "scan_finding").collect();
    let text = |line: &Value| {
        format!("{} {}", line["symbol"].as_str().unwrap_or(""), line["what"].as_str().unwrap())
    };
    for (check, words) in [
        ("image", "proc_pid_limits+0x0"),
        ("interrupts", "the gate of interrupt 64 leads to"),
        ("executable", "a page of code belongs to nobody"),
        ("credentials", "process 1 (init) has the credentials of the kernel itself"),
        // Where its init was, which is freed.
        ("pointers", "tcp_prot: ioctl leads to "),
        ("helpers", "modprobe_path names /tmp/x, which is in none of the system's folders"),
        ("modules", "module hides is hidden: the list of modules do not have it"),
    ] {
        let of_check: Vec<_> = findings.iter().filter(|line| line["check"] == check).collect();
        let [finding] = of_check[..] else { panic!("{check}: {findings:#?}") };
        assert!(text(finding).contains(words), "{words}: {finding}");
    }
    let of_check = |check: &str| -> Vec<String> {
        findings.iter().filter(|line| line["check"] == check).map(|line| text(line)).collect()
    };
    let hooks = of_check("hooks");
    let is_told =
        |begin: &str, end: &str| hooks.iter().any(|hook| hook.contains(begin) && hook.ends_with(end));
    for (begin, end) in [
        ("ftrace calls ", ", which belongs to nobody"),
        ("vfs_rename+", ", which belongs to nobody"),
        ("vfs_symlink+", ", which belongs to nobody"),
        ("ftrace calls ", ", code of module steer"),
        ("__tracepoint_mark_victim+0x0", ", code of module point"),
    ] {
        assert!(is_told(begin, end), "{begin}..{end}: {hooks:?}");
    }
    let [protection, table] = &*of_check("processors") else { panic!("{findings:#?}") };
    assert!(protection.contains("processor 0 works without CR0.WP"), "{protection}");
    assert!(table.contains("processor 0 has another interrupt table"), "{table}");
    assert_eq!(findings.len(), attacks.len(), "{findings:#?}");
    let output = scan(&binary, &[core.to_str().unwrap(), "--format=ocsf"]);
    let events = lines(&output);
    assert_eq!((output.status.code(), events.len()), (Some(123), findings.len()), "{events:#?}");
    let event = events.iter().find(|event| event["finding_info"]["types"][0] == "scan: modules").unwrap();
    assert_eq!(event["finding_info"]["attacks"][0]["sub_technique"]["uid"], "T1547.006");
    assert_eq!((&event["class_uid"], &event["severity"]), (&2004.into(), &"Critical".into()));
    let listed = scan(&binary, &[core.to_str().unwrap(), "--format=ocsf", "--modules"]);
    let said = String::from_utf8_lossy(&listed.stderr);
    assert!(listed.status.code() == Some(2) && said.contains("what is listed is no finding"), "{said}");
    let output = scan(&binary, &[core.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("\nFINDING: modules: 0x")
            && text.contains(&format!("modules             {} modules: 1 findings\n", attacks.len())),
        "{text}"
    );
}

#[test]
fn what_cannot_be_scanned_is_refused_in_words() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let own = std::process::id().to_string();
    for (memory, words) in [
        (path("none", &[0; 8192]), "nor another Linux runs in this memory"),
        (
            path("other", b"\0Linux version 9.9.9-\x1b[2Jx (a@b)\n"),
            "which says \"Linux version 9.9.9-\\x1b[2Jx (a@b)\"; --kernel names",
        ),
        (path("kdump", b"KDUMP   ..."), "it is compressed (kdump)"),
        (path("elf", b"\x7fELF"), "it is damaged"),
        (folder.path().join("absent").to_str().unwrap().to_owned(), "No such file or directory"),
        (folder.path().to_str().unwrap().to_owned(), "it is no file with memory"),
        ("4194305".to_owned(), "cannot read the memory of process 4194305: there is no such process"),
        // Whether it has as much as a guest may have is chance.
        (own, " memory"),
    ] {
        let output = scan(&binary, &[&memory]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{memory}: {said}");
        assert!(said.contains(words), "{memory}: {said}");
    }
}
