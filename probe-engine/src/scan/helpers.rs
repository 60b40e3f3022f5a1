//! Programs that the kernel starts by itself, with all rights: by names in its data, which whoever can write there changes.

use super::finding::{Finding, What};
use super::subject::Subject;
use super::walk::Unreadable;
use crate::addr::Gva;
use crate::memory::PhysMemory;

/// What names a program, and how long a name may be (kernel/module/kmod.c, kernel/reboot.c, lib/kobject_uevent.c).
const NAMES: [(&str, usize); 3] = [("modprobe_path", 256), ("poweroff_cmd", 256), ("uevent_helper", 256)];
/// What names a program behind a `|`, or a file (fs/coredump.c).
const DUMPS: (&str, usize) = ("core_pattern", 128);
/// The longest path (PATH_MAX).
const LONGEST: usize = 4096;
/// Where a system has its programs: who is not root writes nothing there.
const FOLDERS: [&[u8]; 8] =
    [b"/usr/", b"/sbin/", b"/bin/", b"/lib/", b"/lib64/", b"/opt/", b"/nix/store/", b"/run/current-system/"];

/// Calls `tell` with each name of a program outside of the system's folders, and says how many names there are.
pub(super) fn check<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    tell: &mut dyn FnMut(Finding),
) -> Result<u64, Unreadable> {
    let mut looked_at = 0;
    for (name, size) in NAMES.into_iter().chain([DUMPS]) {
        let Some(link) = subject.kernel.symbol(name) else { continue };
        let at = subject.running.map.gva(link);
        let is = text(subject, at, size)?;
        looked_at += 1;
        let of_file = subject.kernel.image().bytes_at(link, size).map(until_nul);
        let program = if name == DUMPS.0 { dumped_to(&is) } else { Some(&*is) };
        if of_file != Some(&is) && program.is_some_and(is_elsewhere) {
            tell(Finding { at, what: What::Helper { of: name, program: is } });
        }
    }
    // struct cgroup_root, include/linux/cgroup-defs.h: each hierarchy of version 1 has a program of its own.
    if let (Some(roots), Some(node), Some(path)) = (
        subject.symbol("cgroup_roots"),
        subject.offset("cgroup_root", "root_list"),
        subject.offset("cgroup_root", "release_agent_path"),
    ) {
        for root in subject.listed(roots, node)? {
            let at = root.add(path);
            let program = text(subject, at, LONGEST)?;
            looked_at += 1;
            if is_elsewhere(&program) {
                tell(Finding { at, what: What::Helper { of: "release_agent", program } });
            }
        }
    }
    match looked_at {
        0 => Err(Unreadable::Unknown("names of programs that it starts")),
        _ => Ok(looked_at),
    }
}

/// The text at `at`, of at most `size` bytes.
fn text<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    at: Gva,
    size: usize,
) -> Result<Vec<u8>, Unreadable> {
    let mut bytes = vec![0; size];
    subject.memory.read(at, &mut bytes)?;
    Ok(until_nul(&bytes).to_vec())
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The program that gets a process's memory, if one does.
fn dumped_to(pattern: &[u8]) -> Option<&[u8]> {
    let command = pattern.strip_prefix(b"|")?.trim_ascii_start();
    command.split(|byte| byte.is_ascii_whitespace()).next()
}

/// Whether a program is named that is in none of the system's folders.
fn is_elsewhere(program: &[u8]) -> bool {
    let leaves = program.windows(4).any(|part| part == b"/../");
    !program.is_empty() && (leaves || !FOLDERS.iter().any(|folder| program.starts_with(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_the_systems_is_in_its_folders() {
        for own in
            [&b""[..], b"/sbin/modprobe", b"/usr/share/apport/apport", b"/usr/lib/systemd/systemd-coredump"]
        {
            assert!(!is_elsewhere(own), "{own:?}");
        }
        for elsewhere in
            [&b"/tmp/x"[..], b"x", b"/dev/shm/a", b"/usr/../tmp/x", b"/var/lib/docker/overlay2/a/x"]
        {
            assert!(is_elsewhere(elsewhere), "{elsewhere:?}");
        }
    }

    #[test]
    fn a_dump_goes_to_a_program_or_a_file() {
        assert_eq!(dumped_to(b"core"), None);
        assert_eq!(dumped_to(b"/tmp/core.%p"), None);
        assert_eq!(dumped_to(b"|/tmp/x %p %u"), Some(&b"/tmp/x"[..]));
        assert_eq!(dumped_to(b"| \t/tmp/x\t%p"), Some(&b"/tmp/x"[..]), "the kernel passes over blanks");
        assert_eq!(dumped_to(b"|"), Some(&b""[..]));
    }
}
