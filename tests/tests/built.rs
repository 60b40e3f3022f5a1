//! Kernels as people build them (`cargo xtask kernels`): the table of `docs/kernels.md` says what works on each, and by which option
//! what does not. Here both are held to guests.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use probe_engine::insn::decode::instructions;
use probe_engine::linux::kernel::Kernel;
use std::path::{Path, PathBuf};
use tests::pages::{Example, Page};
use tests::product::{Ended, Run, binary, command, initrd_with, run};

const GETPPID: &str = "__x64_sys_getppid";
const CALLS: &str = "--cmdline=workload=getppid:20,open:5 loglevel=5";

/// A row of the table.
struct Feature {
    row: &'static str,
    words: &'static [&'static str],
    /// Fails the test where a guest with these words has not done what the row says.
    holds: fn(&Run),
}

fn each_call_is_a_hit(run: &Run) {
    assert_eq!(run.hits(GETPPID), 20);
}

/// Without that, a guest that has done its work halts, and the run ends with 123.
const POWER_OFF: &str = "the guest switches the machine off";

const FEATURES: [Feature; 13] = [
    Feature { row: POWER_OFF, words: &[CALLS], holds: |_| () },
    Feature {
        row: "probes on traps",
        words: &["--optimize=off", "--probe=__x64_sys_getppid", CALLS],
        holds: each_call_is_a_hit,
    },
    Feature {
        row: "returns",
        words: &["--optimize=off", "--probe=__x64_sys_getppid%return", CALLS],
        holds: |run| assert_eq!(run.returns(GETPPID), 20),
    },
    Feature {
        row: "probes that cost no exit",
        words: &[
            "--optimize=require",
            "--probe=__x64_sys_getppid",
            "--probe=__x64_sys_getppid%return",
            CALLS,
        ],
        holds: |run| assert_eq!([run.hits(GETPPID), run.returns(GETPPID)], [20; 2]),
    },
    Feature {
        row: "hits have their task",
        words: &["--probe=__x64_sys_getppid", CALLS],
        holds: |run| {
            let hits: Vec<_> = run.output.iter().filter(|line| line["type"] == "hit").collect();
            assert!(hits.len() == 20 && hits.iter().all(|hit| hit["task"]["comm"] == "init"), "{hits:?}");
        },
    },
    Feature {
        row: "parameters by name",
        words: &["--probe=p do_sys_openat2 filename:string", CALLS],
        holds: |run| {
            let is_passwd = |hit: &&serde_json::Value| hit["fields"]["filename"] == "/etc/passwd";
            assert_ne!(run.output.iter().filter(is_passwd).count(), 0, "{}", run.said);
        },
    },
    Feature {
        row: "who called (`--stack`)",
        words: &["--stack", "--probe=__x64_sys_getppid", CALLS],
        holds: |run| {
            let hits = run.output.iter().filter(|line| line["type"] == "hit");
            let callers = |hit: &serde_json::Value| hit["stack"].to_string().contains("do_syscall_64");
            assert!(hits.count() == 20 && run.output.iter().any(callers), "{:?}", run.output);
        },
    },
    Feature {
        row: "every function is counted (`--count '*'`)",
        words: &["--count=*", CALLS],
        holds: |run| {
            let called = run.output.iter().filter(|o| o["type"] == "probe" && o["hits"] != 0).count();
            assert!(called > 500, "{called}");
            assert_eq!(run.probe(GETPPID)["hits"], 20);
        },
    },
    Feature {
        row: "memory is watched (`--watch`)",
        words: &["--watch=jiffies_64:8:w", CALLS],
        holds: |run| assert_ne!(run.probe("jiffies_64:8:w")["hits"], 0),
    },
    Feature {
        row: "probes from `start_kernel` on",
        words: &["--probe=start_kernel", "--probe=setup_arch", "--probe=rest_init", CALLS],
        holds: |run| {
            assert_eq!([run.hits("start_kernel"), run.hits("setup_arch"), run.hits("rest_init")], [1; 3]);
        },
    },
    Feature {
        row: "its own decompressor (`--boot bzimage`)",
        words: &["--boot=bzimage", "--optimize=off", "--probe=__x64_sys_getppid", CALLS],
        holds: each_call_is_a_hit,
    },
    Feature {
        row: "two CPUs",
        words: &["--cpus=2", "--probe=__x64_sys_getppid", CALLS],
        holds: each_call_is_a_hit,
    },
    Feature {
        row: "functions of modules",
        words: &["--cpus=1", "--probe=dummy:dummy_dev_init", "--cmdline=workload=sh:/script loglevel=5"],
        holds: |run| assert_eq!(run.hits("dummy:dummy_dev_init"), 1),
    },
];

#[test]
fn the_table_of_tiny_is_so() {
    check("tiny");
}

#[test]
fn the_table_of_clang_is_so() {
    check("clang");
}

#[test]
fn the_table_of_defconfig_is_so() {
    check("defconfig");
}

fn page() -> Page {
    Page::open("docs/kernels.md")
}

#[test]
fn what_the_page_shows_of_a_build_is_what_happens() {
    let Some((folder, binary)) = built("clang") else { return };
    let examples: Vec<_> = page().examples().into_iter().filter(Example::needs_build).collect();
    assert_ne!(examples.len(), 0);
    for example in examples {
        let words = example.words_with(folder.to_str().unwrap());
        let output = command(&binary, std::env::temp_dir().as_path(), &words).output().ended();
        example.assert_printed_by(&output);
    }
}

/// Where clang (kCFI) loads the number that it compares with the callee's: the kernel writes others there at boot, and makes
/// FineIBT of all if it is asked to. A trap that stood there before that made it leave the number, and the guest died of the call.
#[test]
fn probes_stand_in_the_checks_of_indirect_calls() {
    const LOADS_HASH: [u8; 2] = [0x41, 0xba];
    let Some((folder, binary)) = built("clang") else { return };
    let image = folder.join("arch/x86/boot/bzImage");
    let kernel = Kernel::read(&std::fs::read(&image).unwrap(), None).unwrap();
    let range = kernel.function(kernel.symbol("vfs_read").unwrap()).unwrap();
    let code = kernel.image().bytes(&range).unwrap();
    let checks = instructions(code, range.start).filter_map(|instruction| {
        let offset = instruction.ip() - range.start.0;
        code.get(offset as usize..)?.starts_with(&LOADS_HASH).then(|| format!("vfs_read+{offset:#x}"))
    });
    let places: Vec<String> = checks.collect();
    assert!(places.len() >= 2, "{places:?}");
    let probes: Vec<String> = places.iter().map(|place| format!("--probe={place}")).collect();
    for cfi in ["kcfi", "fineibt"] {
        let cmdline = format!("--cmdline=workload=open:5 loglevel=7 cfi={cfi}");
        let mut words =
            vec!["--kernel", image.to_str().unwrap(), "--timeout=300", "--optimize=off", &cmdline];
        words.extend(probes.iter().map(String::as_str));
        let run = run(&binary, &words);
        run.assert_success();
        let said = if cfi == "kcfi" { "Using kCFI" } else { "Using FineIBT CFI" };
        assert!(run.console.contains(said), "{}", run.console);
        assert_ne!(places.iter().map(|place| run.hits(place)).sum::<u64>(), 0, "{}", run.said);
    }
}

/// Its functions with file and line of their source, of which those ran that the workload calls.
#[test]
fn coverage_of_a_build_is_a_tracefile() {
    let Some((folder, binary)) = built("clang") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let kernel = folder.to_str().unwrap();
    let words = ["coverage", "--kernel", kernel, "--format=lcov", "--append=workload=open:3", "vfs_*"];
    let output = command(&binary, temporary.path(), &words).output().ended();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names = 0;
    for record in text.split_terminator("end_of_record\n") {
        let fields: Vec<(&str, &str)> = record.lines().map(|line| line.split_once(':').unwrap()).collect();
        let all = |key: &str| -> Vec<&str> {
            fields.iter().filter(|(field, _)| *field == key).map(|(_, value)| *value).collect()
        };
        let (lines, calls) = (all("FN"), all("FNDA"));
        let ran = calls.iter().filter(|call| call.starts_with("1,")).count();
        assert_eq!([all("FNF"), all("FNH")], [[calls.len().to_string()], [ran.to_string()]], "{record}");
        assert!(lines.iter().all(|line| line.split_once(',').unwrap().0.parse::<u32>().unwrap() > 0));
        if all("SF") == ["fs/read_write.c"] {
            assert!(calls.contains(&"1,vfs_read") && lines.iter().any(|line| line.ends_with(",vfs_read")));
        }
        names += lines.len();
    }
    assert!(names > 50 && text.contains("SF:fs/read_write.c\n"), "{text}");
}

/// The folder of a kernel that was built, and the product. Otherwise prints why a test is skipped.
fn built(name: &str) -> Option<(PathBuf, PathBuf)> {
    let binary = binary()?;
    let folder = std::env::var_os(format!("VMM_BUILT_{}", name.to_uppercase())).map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: kernel {name} is not named; `cargo xtask test --long kernels` does that");
    }
    Some((folder?, binary))
}

/// A column: in a cell is `yes`, or the option without which a guest does not do that, and which is then named.
fn check(name: &str) {
    let Some((folder, binary)) = built(name) else { return };
    let table = page().table("What works on which build", name);
    let powers_off = table.iter().any(|(row, cell)| row == POWER_OFF && cell == "yes");
    let rows = table.len();
    for (row, cell) in table {
        if row == "a command" {
            runs_a_command(&binary, &folder, &cell);
            continue;
        }
        let feature = FEATURES.iter().find(|feature| feature.row == row);
        let Feature { words, holds, .. } = feature.unwrap_or_else(|| panic!("nothing tests `{row}`"));
        let kernel = ["--kernel", folder.to_str().unwrap(), "--timeout=300"];
        let initrd = with_module(&folder);
        let initrd = ["--initrd", initrd.path().to_str().unwrap()];
        let words = [&kernel[..], &initrd, words].concat();
        println!("{name}: {row}: {cell}");
        if cell != "yes" {
            let temporary = tempfile::tempdir().unwrap();
            let output =
                command(&binary, temporary.path(), &[&["run"], &words[..]].concat()).output().ended();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(&cell), "{row}: {cell} is not named in\n{said}");
            continue;
        }
        let run = run(&binary, &words);
        run.assert_code(if powers_off { 0 } else { 123 });
        assert!(powers_off || run.said.contains("has halted for good"), "{}", run.said);
        holds(&run);
    }
    assert_eq!(rows, FEATURES.len() + 1, "rows of the table");
}

/// The folder and the image alone, on one CPU and on four.
fn runs_a_command(binary: &Path, folder: &Path, cell: &str) {
    let image = folder.join("arch/x86/boot/bzImage");
    for (kernel, cpus) in [(folder, "1"), (folder, "4"), (&image, "1"), (&image, "4")] {
        let temporary = tempfile::tempdir().unwrap();
        let kernel = kernel.to_str().unwrap();
        let words = [
            "run",
            "--kernel",
            kernel,
            "--cpus",
            cpus,
            "--timeout=300",
            "--probe=p do_sys_openat2 filename:string",
        ];
        let words = [&words[..], &["--", "cat", "/etc/passwd"]].concat();
        let output = command(binary, temporary.path(), &words).output().ended();
        let said = String::from_utf8_lossy(&output.stderr);
        match cell {
            "yes" => {
                assert_eq!(output.status.code(), Some(0), "{kernel}: {said}");
                assert_eq!(output.stdout, std::fs::read("/etc/passwd").unwrap(), "{kernel}: {said}");
                assert!(said.contains("filename=\"/etc/passwd\""), "{kernel}: {said}");
            }
            option => assert!(output.status.code() == Some(2) && said.contains(option), "{kernel}: {said}"),
        }
    }
}

/// The guest's initramfs with a script that loads the build's `dummy`, if it has one.
fn with_module(folder: &Path) -> tempfile::NamedTempFile {
    let module = modules(folder).into_iter().find(|path| path.ends_with("drivers/net/dummy.ko"));
    let module = module.map(|path| std::fs::read(path).unwrap()).unwrap_or_default();
    initrd_with([("dummy.ko", 0o644, module), ("script", 0o644, "insmod /dummy.ko\n".into())])
}

/// The modules that were installed.
fn modules(folder: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.join("lib/modules")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found
}
