//! `cargo xtask test --long NAME`: what takes too long for CI, in pieces of less than an hour.

use super::guests::Guests;
use super::kvm::Kvm;
use super::pool::side_by_side;
use super::programs::{OF_SUITES, Programs};
use super::selftests::Which;
use super::{built, churn, debug_info, hosts, kernels, races, selftests};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use guest_kernels::{DEFAULT_KERNEL, Flavour, KERNELS, Kernel};
use std::path::Path;
use std::time::Instant;

/// A piece.
#[derive(Clone, Copy)]
pub(super) enum Piece {
    /// All guest tests, on a kernel other than the default one.
    Kernel(&'static Kernel),
    /// Registering and unregistering under load, and probes everywhere.
    Storms,
    /// Ten thousand errands under load, on 1, 2 and 4 CPUs: on each kernel.
    Errands,
    /// All tracepoints, switched on and off under load for a minute: on each kernel.
    Tracepoints,
    /// Probes in programs that come and go under load for a minute, and beside the guest's own: on each kernel.
    Uprobes,
    /// What is seen of attacks on a kernel, and kept of what a sample leaves: on each kernel.
    Guard,
    /// Guarded kernels that change themselves, of which nothing may be found, in so many boots of each.
    Churn(u32),
    /// Guests that take commands while they run, from fifty clients at once, from gdb, drgn and Python: on each kernel.
    Control,
    /// What debuggers find with a kernel's debugging information, in guests and their dumps: on each kernel.
    DebugInfo,
    /// Millions of hits, many CPUs, every system call: on each kernel.
    Soaks,
    /// Guests of the default kernel, of which no emulated host is to die.
    Host,
    /// Twenty boots in each way, of each series.
    Boots,
    /// Each example that is shown by `--help`.
    Help,
    /// A million requests for files.
    Files,
    /// The kernel's own tests, beside QEMU.
    Selftests(Which),
    /// What can be probed, compared with what the guest's own kprobes accept: in each series.
    Probeable,
    /// Where a jump may stand, compared with what the guest's own kprobes optimise: in each series.
    Optimized,
    /// Kernels as people build them.
    Built,
    /// Suites of cases, and what belongs to them: what each command does.
    Suites,
    /// Five hundred runs of one case, of which none may fail.
    Ci,
    /// Known races, forced: a window in a module, and a bug that the kernel had.
    Races,
    /// Cases on three series of kernels, again and again, and a bisection of failures that come seldom.
    Series,
}

/// Every piece and its name.
fn pieces() -> Vec<(String, Piece)> {
    let others = KERNELS.iter().filter(|kernel| **kernel != DEFAULT_KERNEL);
    let mut pieces: Vec<_> = others.map(|kernel| (kernel.to_string(), Piece::Kernel(kernel))).collect();
    let rest = [
        ("storms", Piece::Storms),
        ("errands", Piece::Errands),
        ("tracepoints", Piece::Tracepoints),
        ("uprobes", Piece::Uprobes),
        ("guard", Piece::Guard),
        ("guard-churn", Piece::Churn(5)),
        ("guard-churn-50", Piece::Churn(50)),
        ("control", Piece::Control),
        ("debug-info", Piece::DebugInfo),
        ("soaks", Piece::Soaks),
        ("host", Piece::Host),
        ("boots", Piece::Boots),
        ("help", Piece::Help),
        ("files", Piece::Files),
        ("selftests", Piece::Selftests(Which::Memory)),
        ("selftests-timers", Piece::Selftests(Which::Timers)),
        ("selftests-slow", Piece::Selftests(Which::Slow)),
        ("probeable", Piece::Probeable),
        ("optimized", Piece::Optimized),
        ("kernels", Piece::Built),
        ("suites", Piece::Suites),
        ("ci", Piece::Ci),
        ("ci-races", Piece::Races),
        ("ci-series", Piece::Series),
    ];
    pieces.extend(rest.map(|(name, piece)| (name.to_owned(), piece)));
    pieces
}

/// Takes the name of a piece.
pub(super) fn names() -> impl TypedValueParser<Value = Piece> {
    let names = pieces().into_iter().map(|(name, _)| PossibleValue::new(name));
    PossibleValuesParser::new(names).try_map(|name| {
        let piece = pieces().into_iter().find(|(known, _)| *known == name);
        piece.map(|(_, piece)| piece).ok_or("no such piece")
    })
}

impl Piece {
    pub(super) fn run(self, start: Instant, vmm: &Path) -> anyhow::Result<()> {
        Kvm::all(vmm)?.iter().try_for_each(|kvm| self.run_on(start, vmm, *kvm))
    }

    fn run_on(self, start: Instant, vmm: &Path, kvm: Kvm) -> anyhow::Result<()> {
        let of = |kernel| Guests { start, vmm, kvm, kernel };
        match self {
            Self::Kernel(kernel) => {
                if kernels::is_there(start, kernel)? {
                    // Whoever has waited for the one wants to know of the other, too.
                    let library = of(kernel).session();
                    side_by_side(start, of(kernel).product(&Programs::built()?)?)?;
                    library?;
                }
            }
            Self::Storms => of(&DEFAULT_KERNEL).long_session(&["storm::", "fire::"])?,
            Self::Errands => each_kernel(start, vmm, kvm, "errands::", &[])?,
            Self::Tracepoints => each_kernel(start, vmm, kvm, "tracepoints::", &[])?,
            Self::Uprobes => each_kernel(start, vmm, kvm, "uprobes::", &["uprobes"])?,
            Self::Guard => {
                each_kernel(start, vmm, kvm, "guard::", &["guard", "memory_scan", "guard_rules", "dropped"])?;
            }
            Self::Churn(boots) => churn::run(start, vmm, kvm, boots)?,
            Self::Control => {
                each_kernel(start, vmm, kvm, "control::", &["control", "gdb", "qmp", "python"])?;
            }
            Self::DebugInfo => each(start, KERNELS.iter(), |kernel| debug_info::run(of(kernel)))?,
            Self::Soaks => each(start, KERNELS.iter(), |kernel| of(kernel).long_product("soak"))?,
            Self::Host if kvm == Kvm::Emulated => hosts::run(start, vmm)?,
            Self::Host => {}
            Self::Boots => each_series(start, vmm, kvm, "boots")?,
            Self::Help => of(&DEFAULT_KERNEL).long_product("help")?,
            Self::Files => of(&DEFAULT_KERNEL).long_product("round_trips")?,
            Self::Selftests(which) => selftests::run(start, vmm, which)?,
            Self::Probeable => each_series(start, vmm, kvm, "probeable")?,
            Self::Optimized => each_series(start, vmm, kvm, "optimized")?,
            Self::Built => built::run(start, vmm, kvm)?,
            Self::Suites => OF_SUITES.iter().try_for_each(|name| of(&DEFAULT_KERNEL).long_product(name))?,
            Self::Ci => of(&DEFAULT_KERNEL).long_product("false_failures")?,
            Self::Races => races::run(of(&DEFAULT_KERNEL))?,
            Self::Series => {
                of(&DEFAULT_KERNEL).long_product("series")?;
                of(&DEFAULT_KERNEL).long_product("bisect")?;
            }
        }
        Ok(())
    }
}

/// Runs the long tests of the library whose names begin so, and those of these programs, on each kernel: side by side, as each keeps a
/// processor busy.
fn each_kernel(start: Instant, vmm: &Path, kvm: Kvm, library: &str, product: &[&str]) -> anyhow::Result<()> {
    let programs = Programs::built_of(&[&["session"], product].concat())?;
    let mut jobs = Vec::new();
    for kernel in KERNELS {
        if kernels::is_there(start, kernel)? {
            let guests = Guests { start, vmm, kvm, kernel };
            jobs.push(guests.long_session_job(&programs, &[library])?);
            for name in product {
                jobs.push(guests.long_product_job(name, &programs, &[])?);
            }
        }
    }
    side_by_side(start, jobs)
}

/// Runs the long tests of this program in each series.
fn each_series(start: Instant, vmm: &Path, kvm: Kvm, name: &str) -> anyhow::Result<()> {
    let series = KERNELS.iter().filter(|kernel| kernel.flavour != Flavour::Realtime);
    each(start, series, |kernel| Guests { start, vmm, kvm, kernel }.long_product(name))
}

/// Does it with all of these kernels that are there. Where one fails, whoever has waited for it wants to know of the others, too.
fn each(
    start: Instant,
    kernels: impl Iterator<Item = &'static Kernel>,
    run: impl Fn(&'static Kernel) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for kernel in kernels {
        if kernels::is_there(start, kernel)?
            && let Err(error) = run(kernel)
        {
            println!("{error:#}");
            failed.push(kernel.to_string());
        }
    }
    anyhow::ensure!(failed.is_empty(), "failed on {}", failed.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_but_the_default_one_is_a_piece() {
        let names: Vec<_> = pieces().into_iter().map(|(name, _)| name).collect();
        let others: Vec<_> = KERNELS.iter().map(Kernel::to_string).filter(|name| name != "6.12").collect();
        assert_eq!(names[..others.len()], others);
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
}
