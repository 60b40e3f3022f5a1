//! Debian packages that the product and its tests need.

use anyhow::ensure;
use guest_kernels::sources::{self, Sources};

use super::Log;
use super::apt::{self, Apt};

/// Packages that every supported release has in a version that serves, with what for.
const PACKAGES: &[(&str, &str)] = &[
    ("busybox-static", "the guest's shell"),
    ("binutils", "objdump, the tests' second opinion on x86"),
    ("bochs", "the instruction-exact machine of the tests"),
    ("bochsbios", "its firmware"),
    ("vgabios", "its firmware"),
    ("grub-common", "making the disc that it boots"),
    ("grub-pc-bin", "the boot loader on that disc"),
    ("xorriso", "writing that disc"),
    ("mtools", "writing that disc"),
    ("chromium", "the browser in which tests open pages"),
    ("gdb", "the debugger to which tests show guests"),
    ("jq", "the tests' second opinion on JSON"),
    ("python3-pip", "Perfetto's own package, the tests' second opinion on traces"),
];

/// The source that is added for backports.
const BACKPORTS_FILE: &str = "/etc/apt/sources.list.d/vmm-backports.sources";

/// The emulated host.
const QEMU: &str = "qemu-system-x86";

/// The first QEMU whose emulated CPU has working debug registers inside a guest of a guest.
const QEMU_MAJOR: u32 = 10;

/// Installs what is missing.
pub(super) fn install(log: &Log, apt: &mut Apt<'_>) -> anyhow::Result<()> {
    install_missing(log, apt, PACKAGES)?;
    let qemu = apt::installed(QEMU)?;
    if !serves(qemu.as_deref()) {
        let found = qemu.as_deref().unwrap_or("missing");
        log.say(format_args!("{QEMU} is {found}: the emulated host needs {QEMU_MAJOR}"));
        install_qemu(log, apt)?;
    }
    log.say("packages: all there");
    Ok(())
}

/// Installs those of these packages, each with what for, that are missing.
pub(super) fn install_missing(log: &Log, apt: &mut Apt<'_>, packages: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut missing = Vec::new();
    for (package, purpose) in packages {
        if apt::installed(package)?.is_none() {
            log.say(format_args!("{package} is missing: {purpose}"));
            missing.push(*package);
        }
    }
    if missing.is_empty() { Ok(()) } else { apt.install(&missing, None) }
}

/// Installs QEMU from the release itself where it is new enough, otherwise from the release's backports.
fn install_qemu(log: &Log, apt: &mut Apt<'_>) -> anyhow::Result<()> {
    apt.update()?;
    if serves(apt::offered(QEMU)?.as_deref()) {
        return apt.install(&[QEMU], None);
    }
    let backports = format!("{}-backports", sources::release()?);
    let sources = Sources::of_this_machine()?;
    if !sources.name(&backports) {
        let source = sources.of_this_release()?;
        log.say(format_args!("adding {backports} to apt, in {}", BACKPORTS_FILE));
        apt::write_as_root(BACKPORTS_FILE.as_ref(), &source.with_suite(&backports))?;
        apt.update_again()?;
    }
    apt.install(&[QEMU], Some(&backports))?;
    let version = apt::installed(QEMU)?;
    ensure!(
        serves(version.as_deref()),
        "{backports} has {QEMU} {}, and {QEMU_MAJOR} is needed",
        version.unwrap_or_default()
    );
    Ok(())
}

/// Whether a version of QEMU is new enough.
fn serves(version: Option<&str>) -> bool {
    version.and_then(major).is_some_and(|major| major >= QEMU_MAJOR)
}

/// 10 for `1:10.0.2+ds-2+deb13u1~bpo12+1`.
fn major(version: &str) -> Option<u32> {
    let upstream = version.split_once(':').map_or(version, |(_epoch, upstream)| upstream);
    upstream.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookworms_qemu_is_too_old() {
        assert!(!serves(Some("1:7.2+dfsg-7+deb12u18+b3")));
        assert!(serves(Some("1:10.0.2+ds-2+deb13u1~bpo12+1")));
        assert!(serves(Some("11.1")));
        assert!(!serves(None));
    }
}
