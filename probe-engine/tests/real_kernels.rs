//! The readers of `linux/` on real kernels: `VMM_TEST_KERNELS` lists boot images, separated by colons.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use object::{Object, ObjectSection};
use probe_engine::addr::Gva;
use probe_engine::guard::sealed::{SealedKernel, SiteKind};
use probe_engine::linux::branches::{BranchSites, Branches};
use probe_engine::linux::btf::{Btf, Kind, c};
use probe_engine::linux::bzimage::BzImage;
use probe_engine::linux::current::CurrentTask;
use probe_engine::linux::kallsyms;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::left_alone::Why;
use probe_engine::linux::modules::CountedArray;
use probe_engine::linux::patched::PatchedText;
use probe_engine::linux::relocations;
use probe_engine::linux::symbols::SymbolTable;
use probe_engine::linux::unpack::unpack;
use probe_engine::linux::vmlinux::Vmlinux;

/// Calls `check` with each kernel's name and boot image.
fn each_kernel(check: impl Fn(&str, &BzImage<'_>)) {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        eprintln!("skipped: VMM_TEST_KERNELS names no kernels");
        return;
    };
    for path in list.split(':') {
        let file = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let image = BzImage::parse(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
        check(path.rsplit('/').next().unwrap_or(path), &image);
    }
}

/// Unpacks and decodes a kernel, and prints what each step takes.
fn open(name: &str, image: &BzImage<'_>) -> (Vmlinux, SymbolTable) {
    let start = Instant::now();
    let unpacked = unpack(image.payload()).unwrap();
    let unpacking = start.elapsed();
    let len = unpacked.len();
    let vmlinux = Vmlinux::parse(unpacked).unwrap();
    let start = Instant::now();
    let symbols = kallsyms::decode(&vmlinux).unwrap();
    let count = symbols.len();
    eprintln!("{name}: {len} bytes in {unpacking:?}, {count} symbols in {:?}", start.elapsed());
    (vmlinux, symbols)
}

#[test]
fn the_decompressors_jumps_are_found() {
    each_kernel(|name, image| {
        let jumps = image.kernel_jumps().unwrap();
        eprintln!("{name}: {jumps:x?}");
        let code = |at: u64| image.protected().get(at as usize..at as usize + 2);
        assert_eq!(code(jumps.relocation_jump), Some(&[0xff, 0xe0][..]));
        assert_eq!(code(jumps.entry_jump), Some(&[0xff, 0xe0][..]));
        assert!((0x200..0x400).contains(&jumps.relocation_jump));
        assert!(jumps.relocated < jumps.entry_jump);
    });
}

#[test]
fn symbols_are_complete_and_where_code_is() {
    each_kernel(|name, image| {
        let (vmlinux, symbols) = open(name, image);
        assert!(symbols.len() > 80_000);
        assert_eq!(symbols.address_of("_text"), Some(vmlinux.text_start()));
        let pointer = relocations::first_pointer(&vmlinux).unwrap().unwrap();
        assert_eq!(vmlinux.bytes_at(pointer.at, 8).unwrap(), pointer.value.0.to_le_bytes());
        for function in ["do_sys_openat2", "asm_exc_int3", "rest_init", "vfs_read"] {
            let at = symbols.address_of(function).unwrap();
            assert!(vmlinux.is_text(at) && !vmlinux.is_init_text(at), "{function}");
            assert_eq!(symbols.place(at.add(1)).to_string(), format!("{function}+0x1"));
        }
        assert!(vmlinux.is_init_text(symbols.address_of("start_kernel").unwrap()));
        let start = Instant::now();
        let near = symbols.nearest("do_sys_opnat2", 3);
        eprintln!("{name}: nearest in {:?}: {near:?}", start.elapsed());
        assert_eq!(near.first(), Some(&"do_sys_openat2"));
    });
}

/// The instruction that a probe on a function's entry stands on: what follows an `endbr64`.
fn entry(vmlinux: &Vmlinux, function: Gva) -> Range<Gva> {
    let code = vmlinux.bytes_from(function).unwrap();
    let at = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { function.add(4) } else { function };
    let code = vmlinux.bytes_from(at).unwrap();
    let len = iced_x86::Decoder::new(64, code, 0).decode().len();
    at..at.add(len as u64)
}

#[test]
fn few_functions_are_refused_at_their_entry() {
    each_kernel(|name, image| {
        let (vmlinux, symbols) = open(name, image);
        let start = Instant::now();
        let patched = PatchedText::from_image(&vmlinux, &symbols);
        eprintln!("{name}: tables in {:?}, missing {:?}", start.elapsed(), patched.missing());
        assert_eq!(patched.missing(), []);

        let covers = |function| patched.covers(entry(&vmlinux, symbols.address_of(function).unwrap()));
        for function in ["vfs_read", "do_sys_openat2", "rest_init", "schedule", "start_kernel", "panic"] {
            assert_eq!(covers(function), None, "{function}");
        }
        assert_eq!(covers("asm_exc_int3"), Some(Why::Entry));
        assert_eq!(covers("exc_int3"), Some(Why::Noinstr));
        assert_eq!(covers("notify_die"), Some(Why::Blacklisted));
        for function in ["start_secondary", "cr4_init", "load_current_idt"] {
            assert_eq!(covers(function), Some(Why::Startup), "{function}");
        }

        let mut refused: BTreeMap<Why, (usize, &str)> = BTreeMap::new();
        let (mut functions, mut after_boot, mut last) = (0, 0, None);
        for symbol in symbols.text().filter(|symbol| vmlinux.is_text(symbol.at)) {
            let is_function = !symbol.name.starts_with("__pfx_") && !symbol.name.starts_with("__SCT__");
            if !is_function || last.replace(symbol.at) == Some(symbol.at) {
                continue;
            }
            functions += 1;
            if let Some(why) = patched.covers(entry(&vmlinux, symbol.at)) {
                refused.entry(why).or_insert((0, symbol.name)).0 += 1;
                after_boot += usize::from(!why.is_final_after_boot());
            }
        }
        eprintln!("{name}: of {functions} functions {after_boot} are refused after boot; in all {refused:?}");
        assert!(functions > 40_000);
        assert!(after_boot * 50 < functions);
    });
}

/// Whether its kernel has PREEMPT_RT, under which soft interrupts are tasks' own.
fn is_realtime(btf: &Btf<'_>) -> bool {
    btf.member("task_struct", "softirq_disable_cnt").is_some()
}

/// Which of Debian's kernels it is: what is known of their structures by heart.
#[derive(Clone, Copy, PartialEq)]
enum Series {
    SixOne,
    SixTwelve,
    /// From 6.15 on. Which of them it is changes with Debian: only what their own types say is known.
    Newer,
}

impl Series {
    fn of(btf: &Btf<'_>) -> Self {
        match (btf.member("module", "mem").is_some(), btf.structure("pcpu_hot").is_some()) {
            (false, _) => Self::SixOne,
            (true, true) => Self::SixTwelve,
            (true, false) => Self::Newer,
        }
    }
}

#[test]
fn types_tell_where_members_are() {
    each_kernel(|name, image| {
        let (vmlinux, _) = open(name, image);
        let start = Instant::now();
        let btf = Btf::parse(vmlinux.section(".BTF").unwrap().bytes).unwrap();
        let parsing = start.elapsed();
        let start = Instant::now();
        let offset = |structure, path| btf.member(structure, path).and_then(|member| member.offset());
        let function = btf.function("do_sys_openat2").unwrap();
        eprintln!("{name}: {btf:?} in {parsing:?}, a function in {:?}: {function:?}", start.elapsed());
        assert!(btf.function("do_sys_openat3").is_none());
        assert_eq!(btf.size_of("pt_regs"), Some(168));
        assert_eq!(offset("pt_regs", "ip"), Some(128));
        assert_eq!(offset("list_head", "prev"), Some(8));
        assert_eq!(offset("page", "lru.next"), Some(8));
        let has_format = offset("bug_entry", "format_disp").is_some();
        assert_eq!(offset("bug_entry", "flags"), Some(if has_format { 14 } else { 10 }));
        let comm = btf.member("task_struct", "comm").unwrap();
        assert_eq!(btf.array(comm.ty).map(|(_, count)| count), Some(16));
        assert_eq!(btf.enum_value("module_state", "MODULE_STATE_UNFORMED"), Some(3));
    });
}

/// What a user is shown of types that everybody knows. Debian builds 6.1 and 6.12 with the same compiler.
#[test]
fn types_are_written_as_c() {
    each_kernel(|name, image| {
        let (vmlinux, _) = open(name, image);
        let btf = Btf::parse(vmlinux.section(".BTF").unwrap().bytes).unwrap();
        assert!(btf.type_count() > 90_000);
        let show = |name| btf.named(name).map(|found| c::definition(&btf, found)).collect::<Vec<_>>();
        let returned = if Series::of(&btf) == Series::Newer { "int" } else { "long int" };
        assert_eq!(
            show("do_sys_openat2"),
            [format!("{returned} do_sys_openat2(int dfd, const char *filename, struct open_how *how);")]
        );
        assert_eq!(show("gfp_t"), ["typedef unsigned int gfp_t;"]);
        let list = [
            "struct list_head {",
            "    struct list_head *next;                     /* offset: 0, size: 8 */",
            "    struct list_head *prev;                     /* offset: 8, size: 8 */",
            "};                                              /* size: 16 */",
        ];
        assert_eq!(show("list_head"), [list.join("\n")]);
        let task = show("task_struct").concat();
        let size = btf.size_of("task_struct").unwrap();
        let pid = btf.member("task_struct", "pid").unwrap().offset().unwrap();
        let expected = match (Series::of(&btf), is_realtime(&btf)) {
            (Series::SixTwelve, false) => (9792, 2432),
            (Series::SixTwelve, true) => (9792, 2472),
            (Series::SixOne, _) => (size, 2416),
            (Series::Newer, _) => (size, pid),
        };
        assert_eq!((size, pid), expected);
        assert!(
            task.contains(&format!(
                "pid_t pid;                                  /* offset: {pid}, size: 4 */"
            ))
        );
        assert!(task.ends_with(&format!("/* size: {size} */")));

        let start = Instant::now();
        let (mut ambiguous, mut bytes, mut left_out) = (0, 0, 0);
        let mut named: Vec<_> = btf.types().filter(|found| !found.name().is_empty()).collect();
        named.sort_by_key(|found| found.name());
        for same in named.chunk_by(|one, other| one.name() == other.name()) {
            ambiguous += usize::from(same.len() > 1);
            for found in same {
                let text = c::definition(&btf, *found);
                bytes += text.len();
                left_out +=
                    text.lines().filter(|line| line.contains("{...}") || line.trim() == "...").count();
            }
        }
        let taken = start.elapsed();
        eprintln!("{name}: {btf:?}, {ambiguous} names of several types, {bytes} bytes of C in {taken:?}");
        assert_eq!(left_out, 0);
    });
}

/// The modules that were fetched with a kernel lie beside it.
#[test]
fn types_of_modules_are_read_on_top_of_the_kernels() {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        eprintln!("skipped: VMM_TEST_KERNELS names no kernels");
        return;
    };
    for path in list.split(':') {
        let kernel = Kernel::read(&std::fs::read(path).unwrap(), None).unwrap();
        let btf = kernel.btf().unwrap();
        let folder = Path::new(path).with_file_name("modules");
        let entries = std::fs::read_dir(&folder);
        let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let modules: Vec<_> = entries.map(|module| module.unwrap().path()).collect();
        assert!(modules.iter().any(|module| module.ends_with("dummy.ko")), "{path}: {modules:?}");
        for module in modules {
            let file = std::fs::read(&module).unwrap();
            let file = object::read::elf::ElfFile64::<object::LittleEndian>::parse(&*file).unwrap();
            let section = file.section_by_name(".BTF").unwrap();
            let own = Btf::split(&btf, section.data().unwrap()).unwrap();
            eprintln!("{}: {} types", module.display(), own.type_count() - btf.type_count());
            assert!(own.type_count() > btf.type_count());
            assert_eq!(own.types().count(), own.type_count() as usize);
            assert_eq!(own.size_of("task_struct"), btf.size_of("task_struct"));
            for found in own.types().skip(btf.type_count() as usize) {
                if let Kind::Structure(structure) = found.kind {
                    assert!(structure.members().all(|member| own.get(member.ty).is_some()));
                }
            }
            if module.ends_with("dummy.ko") {
                let function = own.function("dummy_xmit").unwrap();
                assert!(btf.function("dummy_xmit").is_none());
                let parameters: Vec<_> = function.prototype.parameters().collect();
                let [("skb", skb), ("dev", device)] = parameters[..] else { panic!("{parameters:?}") };
                let pointee = |ty| own.get(own.pointee(ty).unwrap()).unwrap().name();
                assert_eq!((pointee(skb), pointee(device)), ("sk_buff", "net_device"));
            }
        }
    }
}

#[test]
fn modules_tasks_and_hooks_are_found() {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        eprintln!("skipped: VMM_TEST_KERNELS names no kernels");
        return;
    };
    for path in list.split(':') {
        let kernel = Kernel::read(&std::fs::read(path).unwrap(), None).unwrap();
        let start = Instant::now();
        let landmarks = Landmarks::of(&kernel);
        eprintln!("{path}: landmarks in {:?}: {landmarks:#?}", start.elapsed());
        let btf = kernel.btf().unwrap();
        let series = Series::of(&btf);

        let layout = landmarks.modules.unwrap();
        assert_eq!((layout.state, layout.list, layout.name), (0, 8, 24));
        let in_module = |path: &str| btf.member("module", path).unwrap().offset().unwrap() as u32;
        let (text, init_text) = match series {
            Series::SixOne => ((320, 332), (400, 412)),
            Series::SixTwelve => ((320, 328), (608, 616)),
            Series::Newer => (
                (in_module("mem[0].base"), in_module("mem[0].size")),
                (in_module("mem[4].base"), in_module("mem[4].size")),
            ),
        };
        for (found, (start, count)) in [(layout.text, text), (layout.init_text, init_text)] {
            assert_eq!(found, CountedArray { start, count, entry: 1 });
        }
        let types = layout.btf.unwrap();
        assert_eq!((types.list, types.module, types.btf, types.data.start), (0, 16, 24, 0));
        let tables = layout.tables;
        for (found, entry) in [
            (tables.fixups, 12),
            (tables.jump_labels, 16),
            (tables.static_calls, 8),
            (tables.bugs, if series == Series::Newer { 16 } else { 12 }),
            (tables.blacklist, 8),
            (tables.noinstr, 1),
            (tables.kprobes_text, 1),
        ] {
            assert_eq!(found.map(|table| table.entry), Some(entry));
        }
        let orc = layout.orc.unwrap();
        assert_eq!((orc.ips.entry, orc.rows.entry, orc.ips.count), (4, 6, orc.rows.count));

        let offset = match (series, is_realtime(&btf)) {
            (Series::SixTwelve, false) => 0x35000,
            (Series::SixTwelve, true) => 0x35e00,
            (Series::SixOne, _) => 0x1fb80,
            (Series::Newer, _) => kernel.symbol("current_task").unwrap().0,
        };
        assert_eq!(landmarks.current, Some(CurrentTask { offset }));

        let hooks = landmarks.hooks;
        for hook in [
            hooks.module_init,
            hooks.module_free,
            hooks.init_free,
            hooks.ftrace_begin,
            hooks.ftrace_end,
            hooks.fault,
            hooks.page_fault_oops,
            hooks.task_free,
        ] {
            let hook = hook.unwrap();
            let left_alone = kernel.patched().covers(entry(kernel.image(), hook));
            eprintln!("{}: left alone {left_alone:?}", kernel.symbols().place(hook));
            assert_eq!(left_alone.filter(|why| !why.is_final_after_boot()), None);
            assert!(kernel.image().is_text(hook) && !kernel.image().is_init_text(hook));
        }
        assert!(hooks.ftrace_end > kernel.symbol("ftrace_arch_code_modify_post_process"));
    }
}

/// As a kernel is linked, it returns by a thunk and jumps by another: it changes both while it boots.
#[test]
fn what_is_sealed_is_found() {
    each_kernel(|name, image| {
        let kernel = Kernel::read(&unpack(image.payload()).unwrap(), None).unwrap();
        let sealed = SealedKernel::of(&kernel).unwrap();
        let count = |is: fn(SiteKind) -> bool| sealed.sites.iter().filter(|site| is(site.kind)).count();
        let labels = count(|kind| matches!(kind, SiteKind::JumpLabel(_)));
        let calls = count(|kind| kind == SiteKind::StaticCall);
        let traced = count(|kind| kind == SiteKind::Ftrace);
        let pages: u64 = sealed.pages.iter().map(|range| (range.end.0 - range.start.0) >> 12).sum();
        eprintln!("{name}: {pages} pages, {labels} jump labels, {calls} static calls, {traced} of ftrace's");
        assert!(labels > 1_000 && calls > 500 && traced > 20_000 && pages > 5_000);
        for site in &sealed.sites {
            let bytes = kernel.image().bytes_at(site.at, site.length.into()).unwrap();
            assert!(matches!(site.length, 1 | 2 | 5 | 6), "{site:x?}: {bytes:02x?}");
        }
        assert!(sealed.sites.is_sorted() && sealed.pages.len() == 3);
        // What is sealed of modules.
        assert!(sealed.kprobes.is_some_and(|kprobes| kprobes.behind.is_some()));
        let layout = Landmarks::of(&kernel).modules.unwrap();
        let read_only = layout.read_only.unwrap();
        assert_ne!(read_only.constants, read_only.after_init);
        let tables = layout.tables;
        assert!(tables.jump_labels.is_some() && tables.static_calls.is_some() && tables.ftrace.is_some());
    });
}

#[test]
fn a_kernel_shows_how_it_branches() {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        eprintln!("skipped: VMM_TEST_KERNELS names no kernels");
        return;
    };
    for path in list.split(':') {
        let file = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let kernel = Kernel::read(&file, None).unwrap_or_else(|error| panic!("{path}: {error}"));
        let read = |at| {
            let found: [u8; 5] = kernel.image().bytes_at(at, 5)?.try_into().ok()?;
            eprintln!("{path}: {} is {found:02x?}", kernel.symbols().place(at));
            Some(found)
        };
        let linked = Branches {
            ret: kernel.symbol("__x86_return_thunk"),
            jump: kernel.symbol("__x86_indirect_thunk_rax"),
        };
        assert!(linked.ret.is_some() && linked.jump.is_some(), "{path}");
        assert_eq!(BranchSites::of(&kernel).branches(0, read), Ok(linked), "{path}");
    }
}
