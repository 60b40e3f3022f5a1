//! Programs that the kernel starts by itself, with all rights: by names in its data, which whoever can write there changes.

use super::finding::{Finding, What};
use super::subject::Subject;
use super::walk::Unreadable;
use crate::addr::Gva;
use crate::memory::PhysMemory;

/// What names a program, and how long a name may be (kernel/module/kmod.c, lib/kobject_uevent.c).
const NAMES: [(&str, usize); 2] = [("modprobe_path", 256), ("uevent_helper", 256)];
/// What names a program and words for it (kernel/reboot.c).
const COMMAND: (&str, usize) = ("poweroff_cmd", 256);
/// What names a program with words behind a `|`, or a file (fs/coredump.c).
const DUMPS: (&str, usize) = ("core_pattern", 128);
/// The longest path (PATH_MAX).
const LONGEST: usize = 4096;
/// Where a system has its programs: who is not root writes nothing there.
const FOLDERS: [&[u8]; 8] =
    [b"/usr/", b"/sbin/", b"/bin/", b"/lib/", b"/lib64/", b"/opt/", b"/nix/store/", b"/run/current-system/"];
/// Programs of the system's that do what their words say, by how their names begin.
const INTERPRETERS: [&[u8]; 11] =
    [b"sh", b"bash", b"dash", b"ash", b"zsh", b"ksh", b"busybox", b"env", b"python", b"perl", b"ld"];

/// Calls `tell` with each name of a program outside of the system's folders, and says how many names there are.
pub(super) fn check<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    tell: &mut dyn FnMut(Finding),
) -> Result<u64, Unreadable> {
    let mut looked_at = 0;
    for (name, size) in NAMES.into_iter().chain([COMMAND, DUMPS]) {
        let Some(link) = subject.kernel.symbol(name) else { continue };
        let at = subject.running.map.gva(link);
        let is = text(subject, at, size)?;
        looked_at += 1;
        let of_file = subject.kernel.image().bytes_at(link, size).map(until_nul);
        let is_foreign = match &*is {
            command if name == COMMAND.0 => runs_foreign(command),
            pattern if name == DUMPS.0 => pattern.strip_prefix(b"|").is_some_and(runs_foreign),
            program => is_elsewhere(program),
        };
        if of_file != Some(&is) && is_foreign {
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

/// Whether a command runs what is in none of the system's folders: a program, or what an interpreter is given.
fn runs_foreign(command: &[u8]) -> bool {
    let mut words = command.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let program = words.next().unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let interprets = |own: &&[u8]| {
        let version = name.strip_prefix(*own);
        version.is_some_and(|rest| rest.iter().all(|byte| byte.is_ascii_digit() || b".-".contains(byte)))
    };
    let mut words = words.peekable();
    is_elsewhere(program)
        || words.peek().is_some() && INTERPRETERS.iter().any(interprets)
        || words.any(|word| word.starts_with(b"/") && is_elsewhere(word))
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
    fn a_command_runs_what_it_names() {
        for own in [
            &b""[..],
            b" ",
            b"/sbin/poweroff",
            b"/usr/share/apport/apport -p%p -s%s -- %E",
            b"/usr/lib/systemd/systemd-coredump %P %u /usr/x",
            b"/usr/bin/sha1 x",
            b"/bin/sh",
        ] {
            assert!(!runs_foreign(own), "{}", own.escape_ascii());
        }
        for foreign in [
            &b"/tmp/x %p %u"[..],
            b" \t/tmp/x\t%p",
            b"x",
            b"/bin/sh /tmp/x %P",
            b"/bin/sh x",
            b"/usr/bin/python3.11 -c x",
            b"/lib64/ld-2.36 x",
            b"/usr/bin/cp x /tmp/y",
        ] {
            assert!(runs_foreign(foreign), "{}", foreign.escape_ascii());
        }
    }
}
