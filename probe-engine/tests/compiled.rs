//! Definitions with a kernel at hand: what they read, and which mistakes only a kernel shows. `VMM_TEST_KERNELS` lists
//! boot images, separated by colons.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

use probe_engine::capture::shape::Shape;
use probe_engine::capture::{Base, Capture, Hop, Read, Register, What};
use probe_engine::lang::ast::{Statement, WrittenPlace};
use probe_engine::lang::compile::{CompileContext, FilePlace, capture};
use probe_engine::lang::{self, parse};
use probe_engine::linux::kernel::Kernel;

/// Calls `check` with the first kernel that has types, by which definitions at a function's entry are compiled.
fn with_kernel(check: impl Fn(&dyn Fn(&str) -> Result<Capture, lang::Error>)) {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        eprintln!("skipped: VMM_TEST_KERNELS names no kernels");
        return;
    };
    for path in list.split(':') {
        let kernel = Kernel::read(&std::fs::read(path).unwrap(), None).unwrap();
        let btf = kernel.btf().unwrap();
        check(&|text| {
            let Statement::Define(definition) = parse(text)? else { panic!("{text}") };
            let function = match &definition.place.value {
                WrittenPlace::Symbol { symbol, offset: 0, .. } => Some(symbol.as_str()),
                _ => None,
            };
            let site = CompileContext {
                function,
                signature: None,
                skipped: 0,
                in_file: FilePlace::Kernel,
                event: None,
                kernel: &kernel,
                btf: Some(&btf),
                own: Some(&btf),
                variables: &|| Ok(None),
            };
            capture(&definition, &site, Vec::new())
        });
    }
}

#[test]
fn parameters_and_members_become_registers_and_offsets() {
    with_kernel(|compile| {
        let fields = |text: &str| compile(text).unwrap_or_else(|error| panic!("{text}: {error}")).fields;
        let names = |text: &str| fields(text).into_iter().map(|field| field.name).collect::<Vec<_>>();
        assert_eq!(names("p do_sys_openat2 $arg*"), ["dfd", "filename", "how"]);
        assert_eq!(names("p vfs_read $arg3 x=$arg1 %di"), ["count", "x", "arg3"]);
        assert_eq!(names("p vfs_read file:%pD"), ["arg1"]);
        let [dfd, filename, how] = fields("p do_sys_openat2 $arg*").try_into().unwrap();
        assert_eq!((dfd.fetch.read, dfd.shape), (Read::Word(4), Shape::Signed));
        assert_eq!((filename.fetch.base, filename.shape), (Base::Argument(1), Shape::Hex));
        assert_eq!((how.fetch.read, how.shape), (Read::Word(8), Shape::Hex));
        let hop = |offset| Hop::at(offset);
        let [path, mode] = fields("p do_sys_openat2 filename:string how->mode").try_into().unwrap();
        assert_eq!(path.fetch.read, Read::Memory(hop(0), What::String(4096)));
        assert_eq!(
            (mode.fetch.base, mode.fetch.read),
            (Base::Argument(2), Read::Memory(hop(8), What::Bytes(8)))
        );
        // file->f_path.dentry->d_name.name: two pointers on the way to the string.
        let [name] = fields("p vfs_read n=file->f_path.dentry->d_name.name:string").try_into().unwrap();
        assert_eq!(name.fetch.hops.len(), 2);
        assert_eq!(name.fetch.read, Read::Memory(hop(0), What::String(4096)));
        let [value] = fields("r vfs_read $retval").try_into().unwrap();
        assert_eq!((value.fetch.base, value.shape), (Base::Register(Register::Rax), Shape::Signed));
        let [ino] = fields("r fget ino=$retval->f_inode->i_ino").try_into().unwrap();
        assert_eq!((ino.fetch.hops.len(), ino.shape), (1, Shape::Unsigned));
        let [bit] = fields("p wake_up_new_task io=p->in_iowait").try_into().unwrap();
        assert!(matches!(bit.shape, Shape::BitField { width: 1, .. }), "{bit:?}");
        let [banner] = fields("p vfs_read b=@linux_banner+2:string").try_into().unwrap();
        assert!(matches!(banner.fetch.base, Base::Kernel(_)), "an address that KASLR moves");
    });
}

#[test]
fn casts_the_task_and_per_cpu_variables_become_offsets() {
    with_kernel(|compile| {
        let fields = |text: &str| compile(text).unwrap_or_else(|error| panic!("{text}: {error}")).fields;
        let one = |text: &str| {
            let [field] = fields(text).try_into().unwrap_or_else(|fields| panic!("{text}: {fields:?}"));
            (field.fetch, field.shape)
        };
        // What is cast to its own type is what it is.
        for (cast, plain) in [
            ("p vfs_read (file)file->f_mode", "p vfs_read file->f_mode"),
            ("p vfs_read (file)$arg1->f_mode:u8", "p vfs_read file->f_mode:u8"),
            ("p vfs_read (file)%di->f_inode->i_ino", "p vfs_read +0(%di) file->f_inode->i_ino"),
            (
                "p vfs_read (dentry)((file)file->f_path.dentry)->d_name.name:string",
                "p vfs_read file->f_path.dentry->d_name.name:string",
            ),
            ("p vfs_read (file)file->f_path.dentry:%pd", "p vfs_read file->f_path.dentry:%pd"),
            ("p wake_up_new_task (task_struct)p->in_iowait", "p wake_up_new_task p->in_iowait"),
            ("p vfs_read +8((file)file->f_inode):u32", "p vfs_read +8(file->f_inode):u32"),
            ("p vfs_read (task_struct)$current->pid", "p vfs_read $current->pid"),
        ] {
            let Ok(compiled) = compile(cast) else { panic!("{cast}: {}", compile(cast).unwrap_err()) };
            let [field] = compiled.fields.as_slice() else { panic!("{cast}") };
            let plain = fields(plain);
            let Some(plain) = plain.last() else { panic!("{cast}") };
            let base_is_same = field.fetch.base == plain.fetch.base || cast.contains("%di");
            assert!(base_is_same, "{cast}: {:?}", field.fetch);
            assert_eq!(
                (&field.fetch.hops, field.fetch.read),
                (&plain.fetch.hops, plain.fetch.read),
                "{cast}"
            );
            assert_eq!(field.shape, plain.shape, "{cast}");
        }
        // The address of a member is so far behind the structure.
        let (container, _) = one("p vfs_read (file,f_path.dentry)file->f_path.dentry");
        assert_eq!(container.read, Read::Memory(Hop::at(0), What::Bytes(8)));
        let (behind, _) = one("p vfs_read (open_how,resolve)buf->flags");
        assert_eq!(
            (behind.base, behind.read),
            (Base::Argument(1), Read::Memory(Hop::at(-16), What::Bytes(8)))
        );
        let (task, shape) = one("p vfs_read+4 $current");
        assert_eq!((task.base, task.read, shape), (Base::Current, Read::Word(8), Shape::Hex));
        let (pid, shape) = one("p vfs_read+4 $current->pid");
        assert!(matches!(pid.read, Read::Memory(Hop { offset: 1.., .. }, What::Bytes(4))), "{pid:?}");
        assert_eq!((pid.base, shape), (Base::Current, Shape::Signed));
        // The variable's own address, whichever kind it is, and where it is told by a pointer.
        let own = |offset| Hop { per_cpu: true, ..Hop::at(offset) };
        for (text, read) in [
            ("p vfs_read this_cpu_read(@this_cpu_off)", Read::Memory(own(0), What::Bytes(8))),
            ("p vfs_read this_cpu_read(@this_cpu_off+4):u32", Read::Memory(own(4), What::Bytes(4))),
            ("p vfs_read this_cpu_ptr(@this_cpu_off-8)", Read::Address(own(-8), 8)),
            ("p vfs_read this_cpu_ptr(@this_cpu_off):x32", Read::Address(own(0), 4)),
            ("p vfs_read +4(this_cpu_ptr(@this_cpu_off)):u8[2]", Read::Memory(own(4), What::Bytes(2))),
        ] {
            let (fetch, _) = one(text);
            assert!(
                matches!(fetch.base, Base::Constant(1..0x100_0000) | Base::Kernel(_)),
                "{text}: {fetch:?}"
            );
            assert_eq!((fetch.hops.as_slice(), fetch.read), ([].as_slice(), read), "{text}");
        }
        let (pointer, _) = one("p vfs_read this_cpu_read(+8(%si))");
        assert_eq!(pointer.hops, [Hop::at(8)]);
        assert_eq!(pointer.read, Read::Memory(own(0), What::Bytes(8)));
        let (twice, _) = one("p vfs_read this_cpu_read(this_cpu_read(%si)):string");
        assert_eq!((twice.hops, twice.read), (vec![own(0)], Read::Memory(own(0), What::String(4096))));
    });
}

/// The mistake is between « and ».
#[test]
fn what_only_a_kernel_shows_is_refused_where_it_is_written() {
    const CASES: &[(&str, &str, Option<&str>)] = &[
        ("p vfs_read «@linux_baner:string»", "the kernel has no symbol `linux_baner`", Some("linux_banner")),
        (
            "p vfs_read «@+4»",
            "memory is read by its offset in a file where the probe is in a program, and not in the kernel",
            Some("`@SYM+OFFS`"),
        ),
        ("p vfs_read «fil»", "there is no variable `fil`", Some("file")),
        ("p vfs_read file->«f_mod»", "there is no member `f_mod`", Some("f_mode")),
        ("p vfs_read file->f_path.dentry->«d_nam»", "there is no member `d_nam`", Some("d_name")),
        ("p vfs_read file->f_path->«dentry»", "what is before the `->` is a structure", Some("`.`")),
        ("p vfs_read file->f_inode.«i_ino»", "what is before the `.` is a pointer", Some("`->`")),
        ("p vfs_read count->«x»", "there is no structure that could have a member `x`", None),
        ("p vfs_read «file->f_path»", "this is no number and no pointer", Some("fetch a member")),
        ("p vfs_read count:«string»", "this is no `char *` and no array of `char`, and so no string", None),
        ("p vfs_read $arg3:«string»", "this is no `char *` and no array of `char`, and so no string", None),
        ("f vfs_read file:«string»", "this is no `char *` and no array of `char`, and so no string", None),
        ("p vfs_read x=$arg3:«string»", "a string is read from memory, and this is a value", None),
        ("f kfree «$arg10»", "there is no parameter 10: `kfree` has 1", None),
        ("p vfs_read+4 «file»", "a function's parameters are known only at its entry and its returns", None),
        ("p vfs_read count if «coun» > 1", "there is no field `coun`", Some("count")),
        ("p vfs_read count if count == «\"x\"»", "`count` is a number, and is not compared with text", None),
        ("p vfs_read c=$comm if c == «1»", "`c` is text, and is not compared with a number", None),
        ("p vfs_read count «$arg*»", "`count` is the name of another argument already", None),
        ("r schedule «$retval»", "the function returns nothing", None),
        ("r schedule +0(«$retval»)", "the function returns nothing", None),
        ("r schedule (file)«$retval»->f_mode", "the function returns nothing", None),
        ("p vfs_read («fil»)file->f_mode", "the kernel has no structure `fil`", Some("file")),
        ("p vfs_read («sigval»)file->x", "the kernel has no structure `sigval`", None),
        ("p vfs_read (file)«fil»->f_mode", "there is no variable `fil`", Some("file")),
        ("p vfs_read (file)file->«f_mod»", "there is no member `f_mod`", Some("f_mode")),
        ("p vfs_read (file,«f_mod»)file->f_mode", "there is no member `f_mod`", Some("f_mode")),
        (
            "p vfs_read (file,f_inode.«i_ino»)file->f_mode",
            "what is before the `.` is a pointer",
            Some("`->`"),
        ),
        (
            "p vfs_read (task_struct,«in_iowait»)file->pid",
            "`in_iowait` begins inside a byte, and has no address",
            None,
        ),
        ("p vfs_read (file)file->f_path->«dentry»", "what is before the `->` is a structure", Some("`.`")),
        ("p vfs_read «(file)file->f_path»", "this is no number and no pointer", Some("fetch a member")),
        (
            "p vfs_read (file)file->f_mode:«string»",
            "this is no `char *` and no array of `char`, and so no string",
            None,
        ),
        ("p vfs_read $current->«pidd»", "there is no member `pidd`", Some("pid")),
        (
            "p vfs_read this_cpu_read(«@this_cpu_of»)",
            "the kernel has no symbol `this_cpu_of`",
            Some("this_cpu_off"),
        ),
    ];
    with_kernel(|compile| {
        for (marked, message, hint) in CASES {
            let text = marked.replace(['«', '»'], "");
            let start = marked.find('«').unwrap();
            let end = marked.replace('«', "").find('»').unwrap();
            let error = compile(&text).map(|_| ()).unwrap_err();
            assert_eq!(error.to_string(), *message, "{text}");
            // A fetch's span may or may not have its type in it.
            assert_eq!(error.span.start, start, "{text}");
            assert!(error.span.end <= end, "{text}: {:?}", error.span);
            let said = error.hint().unwrap_or_default();
            assert!(hint.is_none_or(|hint| said.contains(hint)), "{text}: {said}");
        }
    });
}
