//! The emulated host as this program makes it, and one that starts while something else is done.

use crate::kernel_choice;
use crate::say::note;
use crate::work::THIS_PROGRAM;
use anyhow::{Context, Result};
use guest_kernels::{Cache, DEFAULT_KERNEL, FetchedKernel, initramfs};
use std::env;
use std::error::Error;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use vmm::host::{EmulatedHost, HostImage, Qemu, fingerprint};

/// Describes the emulated host: Debian's kernel, and this very program in an initramfs.
pub(crate) fn with_image<T>(use_image: impl FnOnce(&HostImage<'_>) -> Result<T>) -> Result<T> {
    let cache = Cache::open()?;
    if cache.kernel(&DEFAULT_KERNEL).is_err() {
        // A host that cannot start is not worth a kernel that must be fetched.
        Qemu::find()?;
    }
    let kernel = kernel_choice::fetched(&DEFAULT_KERNEL)?;
    let program = env::current_exe().context("cannot find this program's own file")?;
    let program_key = fingerprint(&program).context("cannot look at this program's own file")?;
    let key = format!("{program_key} {}", kernel.record.modules.join(" "));
    let build = || -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        Ok(initramfs::host(fs::read(THIS_PROGRAM)?, read_modules(&kernel)?, [])?)
    };
    use_image(&HostImage {
        kernel: &kernel.image,
        initramfs_key: &key,
        initramfs: &build,
        cache_dir: cache.root(),
        notice: &|line| note(line),
    })
}

/// The modules that KVM needs, in the order in which they load.
fn read_modules(kernel: &FetchedKernel) -> io::Result<Vec<(String, Vec<u8>)>> {
    let name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    kernel.modules.iter().map(|path| Ok((name(path), fs::read(path)?))).collect()
}

/// An emulated host that starts on a thread of its own. It ends with that thread.
pub(crate) struct Begun {
    memory: u64,
    host: Receiver<Result<EmulatedHost>>,
    stays: Stays,
}

/// The thread goes on until this is dropped.
pub(crate) struct Stays(#[expect(dead_code, reason = "its end is what counts")] Sender<()>);

impl Begun {
    /// Begins to start one with `memory` MiB, where nothing has to be prepared for that: what has to be is said, and may be
    /// in vain.
    pub(crate) fn new(memory: u64) -> Option<Self> {
        let has_kernel = Cache::open().is_ok_and(|cache| cache.kernel(&DEFAULT_KERNEL).is_ok());
        let is_prepared =
            || with_image(|image| Ok(EmulatedHost::is_prepared(image, memory))).unwrap_or(false);
        (has_kernel && is_prepared()).then(|| {
            let ((started, host), (stays, gone)) = (mpsc::channel(), mpsc::channel::<()>());
            thread::spawn(move || {
                let host = with_image(|image| Ok(EmulatedHost::start(image, memory)?));
                if started.send(host).is_ok() {
                    let _ = gone.recv();
                }
            });
            Self { memory, host, stays: Stays(stays) }
        })
    }

    /// The host, if it has at least `memory` MiB.
    pub(crate) fn host(self, memory: u64) -> Option<Result<(EmulatedHost, Stays)>> {
        let Self { memory: has, host, stays } = self;
        (has >= memory).then(|| {
            let host = host.recv().context("the thread of the emulated host has ended")??;
            Ok((host, stays))
        })
    }
}
