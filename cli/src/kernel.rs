//! `vmm kernel`: the kernels of Debian that are fetched.

use crate::args::{FetchKernels, KernelCommand, KernelSymbols};
use crate::file::read;
use crate::kernel_choice::{all_known, unfetched};
use crate::listing::list;
use crate::say::note;
use crate::symbol_elf;
use crate::symbol_file::KernelSource;
use anyhow::{Context, Result};
use guest_kernels::{Cache, Fetcher, Kernel};
use std::fs;
use std::process::ExitCode;

/// `vmm kernel`.
pub(crate) fn main(command: &KernelCommand) -> Result<ExitCode> {
    match command {
        KernelCommand::Fetch(FetchKernels { kernels }) => fetch(kernels)?,
        KernelCommand::List => list_all()?,
        KernelCommand::Symbols(args) => write_symbols(args)?,
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

fn write_symbols(args: &KernelSymbols) -> Result<()> {
    let KernelSymbols { kernel, source, file } = args;
    let files = kernel.which.files()?;
    let image = read(&files.image)?;
    let kernel = KernelSource::of(&files, source).kernel(&image)?;
    let elf = symbol_elf::of(&kernel).context("the symbols cannot be written")?;
    fs::write(file, elf).with_context(|| format!("cannot write {}", file.display()))
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
