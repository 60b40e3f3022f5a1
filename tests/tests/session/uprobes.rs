//! The guest's own uprobes, registered for somebody outside: each calls a function of the guest's that does nothing, at which a probe stands.

use super::Notes;
use probe_engine::addr::Gva;
use std::time::Duration;
use tests::linux_rig::{Guest, Subject};
use vmm::probe::Probe;
use vmm::session::{Handle, Next, Worker};

/// Longer than any call here takes, on a busy machine too.
const LONG: Duration = Duration::from_secs(60);
/// The program whose entry is probed.
const PROGRAM: &[u8] = b"/bin/sh\0";
/// `int noop_fsync(file, loff_t, loff_t, int)` returns 0 (fs/libfs.c), as a handler does that lets its probe be.
const NO_OP: &str = "noop_fsync";

/// Where things are in memory of the guest's.
struct Memory {
    /// The name of the program.
    name: u64,
    /// `struct path`
    path: u64,
    /// `struct uprobe_consumer`, whose first member is its handler (include/linux/uprobes.h).
    consumer: u64,
    /// How far the file is read.
    position: u64,
    /// What the file begins with.
    file: u64,
}

impl Memory {
    const BYTES: u64 = 0x2000;

    fn at(start: u64) -> Self {
        let at = |offset| start + offset;
        Self { name: at(0), path: at(0x100), consumer: at(0x200), position: at(0x300), file: at(0x1000) }
    }
}

fn function(subject: &Subject, name: &str) -> Option<Gva> {
    let mut all = subject.kernel.symbols().lookup(name).filter(|symbol| symbol.is_text());
    all.next().map(|symbol| symbol.at)
}

fn in_memory<T: Send + 'static>(
    handle: &Handle,
    mut body: impl FnMut(&Worker<'_>) -> T + Send + 'static,
) -> T {
    handle.errand(LONG, move |worker| Next::Done(body(worker))).unwrap()
}

/// Where in its file the entry of the program is that begins at `elf` (elf(5)).
fn entry(worker: &Worker<'_>, elf: u64) -> u64 {
    const LOAD: u32 = 1;
    let word = |at: u64| worker.memory.read_u64(Gva(at)).unwrap();
    let half = |at: u64| worker.memory.read_u32(Gva(at)).unwrap();
    let (entry, headers, count) = (word(elf + 24), elf + word(elf + 32), u64::from(half(elf + 56) & 0xffff));
    let mut segments = (0..count).map(|n| headers + 56 * n).filter(|at| half(*at) == LOAD);
    let found = segments.find_map(|at| {
        let (in_file, start, bytes) = (word(at + 8), word(at + 16), word(at + 32));
        (start..start + bytes).contains(&entry).then(|| entry - start + in_file)
    });
    found.unwrap()
}

/// Each shell that starts meanwhile comes by, and none afterwards.
#[test]
fn the_guests_own_uprobe_calls_a_function_that_does_nothing() {
    let Some(guest) = Guest::new() else { return };
    let find = |name: &str| function(guest.subject, name);
    let needed = |name: &str| find(name).unwrap_or_else(|| panic!("the kernel has no {name}"));
    // A macro where the kernel keeps book of memory.
    let vmalloc = find("vmalloc_noprof").unwrap_or_else(|| needed("vmalloc"));
    let no_op = needed(NO_OP);
    let btf = guest.subject.kernel.btf().unwrap();
    let member = |of, path| btf.member(of, path).unwrap().offset().unwrap();
    let (dentry_of, inode_of) = (member("path", "dentry"), member("dentry", "d_inode"));
    let seen = Notes::new();
    let probe = Probe::at(NO_OP).pre({
        let seen = seen.clone();
        move |hit| seen.add(hit.argument(0))
    });
    let steps = "open:1,sh:/gate,sh:/script,sh:/script,sh:/gate,sh:/script";
    let guest = guest.cpus(2).cmdline("nokaslr").probe(probe).script("echo hello\n");
    let ended = guest.run_with(steps, |handle, console| {
        console.wait_for("workload: open", 1);
        let call = |function: Gva, args: &[u64]| handle.call(LONG, function, args).unwrap();
        let start = call(vmalloc, &[Memory::BYTES]);
        let Memory { name, path, consumer, position, file } = Memory::at(start);
        in_memory(handle, move |worker| {
            let put = |at, bytes: &[u8]| worker.memory.write(Gva(at), bytes).unwrap();
            put(start, &[0; Memory::BYTES as usize]);
            put(name, PROGRAM);
            put(consumer, &no_op.0.to_le_bytes());
        });
        let opened = call(needed("filp_open"), &[name, 0, 0]);
        assert_eq!(call(needed("kernel_read"), &[opened, file, 0x1000, position]), 0x1000);
        call(needed("fput"), &[opened]);
        // From a worker the root of process 1 is seen. The path keeps the file there while it is probed.
        const FOLLOW: u64 = 1;
        assert_eq!(call(needed("kern_path"), &[name, FOLLOW, path]), 0);
        let (offset, inode) = in_memory(handle, move |worker| {
            let word = |at: u64| worker.memory.read_u64(Gva(at)).unwrap();
            (entry(worker, file), word(word(path + dentry_of) + inode_of))
        });
        // Since 6.11 `uprobe_register` takes the place of a counter as well, and returns the uprobe.
        match find("uprobe_unregister") {
            Some(unregister) => {
                assert_eq!(call(needed("uprobe_register"), &[inode, offset, consumer]), 0);
                console.open_gate();
                console.wait_for("workload: sh path=/script", 2);
                call(unregister, &[inode, offset, consumer]);
            }
            None => {
                let uprobe = call(needed("uprobe_register"), &[inode, offset, 0, consumer]);
                assert!(Gva(uprobe).is_kernels() && uprobe < u64::MAX - 4095, "{uprobe:#x}");
                console.open_gate();
                console.wait_for("workload: sh path=/script", 2);
                call(needed("uprobe_unregister_nosync"), &[uprobe, consumer]);
                call(needed("uprobe_unregister_sync"), &[]);
            }
        }
        call(needed("path_put"), &[path]);
        in_memory(handle, move |worker| worker.memory.write(Gva(consumer), &[0; 64]).unwrap());
        call(needed("vfree"), &[start]);
        // The shell of this gate may have started before.
        let hits = seen.take();
        assert!(
            (2..=3).contains(&hits.len()) && hits.iter().all(|first| *first == Some(consumer)),
            "{hits:?}"
        );
        console.open_gate();
    });
    ended.assert_in_order();
    assert_eq!(seen.take(), []);
}
