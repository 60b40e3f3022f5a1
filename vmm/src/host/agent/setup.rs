//! What process 1 owes everyone else: file systems, modules, and a clean end.

use super::AgentError;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, finit_module, reboot};
use rustix::time::{ClockId, Timespec, clock_settime};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

const MODULES: &str = "/modules";
/// Whether files in memory have large pages (Documentation/admin-guide/mm/transhuge.rst).
const LARGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Mounts what programs expect and loads the modules.
pub(super) fn prepare() -> Result<(), AgentError> {
    let mounts = [
        ("proc", "/proc", None),
        ("sysfs", "/sys", None),
        ("devtmpfs", "/dev", None),
        ("devpts", "/dev/pts", Some(c"mode=0600,ptmxmode=0666")),
        ("tmpfs", "/dev/shm", None),
        // Input files go there, and the host was given memory for them.
        ("tmpfs", "/run", Some(c"size=100%")),
        ("tmpfs", "/tmp", None),
    ];
    for (kind, target, options) in mounts {
        fs::create_dir_all(target).map_err(AgentError::file("create", target))?;
        let mounted = mount(kind, target, kind, MountFlags::empty(), options);
        mounted.map_err(|e| AgentError::file("mount", target)(e.into()))?;
    }
    symlink("/proc/self/fd", "/dev/fd").map_err(AgentError::file("create", "/dev/fd"))?;
    load_modules()
}

fn load_modules() -> Result<(), AgentError> {
    let order = Path::new(MODULES).join("load-order");
    if !order.exists() {
        return Ok(());
    }
    let order = fs::read_to_string(&order).map_err(AgentError::file("read", order))?;
    let processor = fs::read_to_string("/proc/cpuinfo").map_err(AgentError::file("read", "/proc/cpuinfo"))?;
    for name in order.lines().map(str::trim).filter(|name| fits(name, &processor)) {
        let path = Path::new(MODULES).join(name);
        let loaded = File::open(&path).and_then(|file| Ok(finit_module(file, c"", 0)?));
        loaded.map_err(AgentError::file("load the module", path))?;
    }
    Ok(())
}

/// Whether the module file `name` is for the processor that `/proc/cpuinfo` describes.
fn fits(name: &str, cpuinfo: &str) -> bool {
    let has = |flag| cpuinfo.split_ascii_whitespace().any(|word| word == flag);
    match name.trim_end_matches(".ko").replace('_', "-").as_str() {
        "" => false,
        "kvm-intel" => has("vmx"),
        "kvm-amd" => has("svm"),
        _ => true,
    }
}

/// Files in memory have large pages where somebody advises that: the RAM of a guarded guest is one. Without them that guest boots more
/// slowly, and that is all.
pub(super) fn allow_large_pages() {
    let _ = fs::write(LARGE_PAGES, "advise");
}

/// Sets the clock to `seconds` since 1970; a wrong clock is no reason not to run.
pub(super) fn set_clock(seconds: u64) {
    if let Ok(seconds) = i64::try_from(seconds) {
        let _ = clock_settime(ClockId::Realtime, Timespec { tv_sec: seconds, tv_nsec: 0 });
    }
}

/// Ends the machine.
pub(super) fn power_off() {
    // The serial port is slower than the end of the machine, and what was printed last says how it went.
    let _ = rustix::termios::tcdrain(std::io::stdout());
    rustix::fs::sync();
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        // Process 1 returns now, the kernel panics, and the machine ends all the same.
        eprintln!("vmm agent: cannot power off: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn only_the_processors_own_kvm_module_is_loaded() {
        let amd = "flags\t\t: fpu svm sse\n";
        assert!(fits("kvm-amd.ko", amd) && fits("kvm_amd.ko", amd) && fits("kvm.ko", amd));
        assert!(!fits("kvm-intel.ko", amd) && !fits("", amd));
    }
}
