//! What developers run: `cargo xtask setup`, and what builds on it.

mod bench;
mod bochs;
mod demo;
mod kernels;
#[cfg(test)]
mod layout;
mod peer;
mod release;
mod setup;
mod test;
mod workload;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Prepares this machine, and shows, tests and measures the product on it.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Installs Debian packages, fetches the guest kernels, and builds what runs: quick when all is there
    Setup,
    /// Sets up, then probes a real kernel and checks what was seen: ends by itself
    Demo,
    /// Sets up, then runs every test
    Test(test::Options),
    /// Builds kernels as people build them, for `test --long kernels`: quick when they are there
    Kernels(kernels::Options),
    /// Sets up, then measures: exact instructions inside Bochs, and times beside others' on this machine
    Bench(bench::Options),
    /// Builds what is given to others, in `target/dist`: a package for Debian, and an archive
    Release,
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Setup => setup::run().map(drop),
        Task::Demo => demo::run(),
        Task::Test(options) => test::run(&options),
        Task::Kernels(options) => kernels::run(&options),
        Task::Release => release::run(),
        Task::Bench(options) => bench::run(&options, &setup::run()?.vmm),
    }
}
