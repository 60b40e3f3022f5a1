//! `vmm kernel`: the kernels of Debian that are fetched.

use crate::args::{FetchKernels, KernelCommand};
use crate::kernel_choice::{all_known, unfetched};
use crate::listing::list;
use crate::say::note;
use anyhow::{Context, Result};
use guest_kernels::{Cache, Fetcher, Kernel};
use std::process::ExitCode;

/// `vmm kernel`.
pub(crate) fn main(command: &KernelCommand) -> Result<ExitCode> {
    match command {
        KernelCommand::Fetch(FetchKernels { kernels }) => fetch(kernels)?,
        KernelCommand::List => list_all()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn fetch(kernels: &[Kernel]) -> Result<()> {
    let cache = Cache::open()?;
    let writer = cache.lock()?;
    let notice = |line: &str| note(line);
    let mut fetcher = Fetcher::new(&writer, &notice);
    for kernel in kernels {
        let fetched = fetcher.fetch(kernel).with_context(|| unfetched(kernel))?;
        list(|out| writeln!(out, "{fetched}"))?;
    }
    Ok(())
}

fn list_all() -> Result<()> {
    let cache = Cache::open()?;
    let kernels = all_known(Some(&cache));
    list(|out| {
        writeln!(out, "{:10}  {:24}  package", "kernel", "version")?;
        for kernel in &kernels {
            let (version, package) = match cache.kernel(kernel) {
                Ok(there) => (there.record.version, there.record.package),
                Err(_) => ("not fetched".to_owned(), kernel.origin()),
            };
            writeln!(out, "{kernel:10}  {version:24}  {package}")?;
        }
        Ok(())
    })
}
