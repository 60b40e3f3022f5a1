//! Guests that boot and are powered off: put in place directly, through their own decompressor, and in plain QEMU. Same
//! kernel, same initramfs, same machine, in turns.

use crate::setup;
use anyhow::{Context as _, ensure};
use guest_kernels::{Cache, Kernel};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The kernels, and how often each boots in each way: those with the drivers of real machines take minutes in some.
const KERNELS: [(&str, usize); 3] = [("6.12", 5), ("6.12-amd64", 1), ("6.1-amd64", 1)];
/// The ways.
const WAYS: [Way; 3] = [Way::Direct, Way::Decompressor, Way::Qemu];
/// What the guest is told: the kernel complains of an option as soon as it reads its command line, and its first program does
/// one thing before it ends.
const CMDLINE: &str = "earlyprintk=ttyS0 loglevel=5 loglevel=x workload=getppid:1";
/// What `vmm run` puts before that.
const BASE: &str = "console=ttyS0 quiet panic=-1";
/// What lines of the console begin with or have in them, at the first two moments. The third is the process's end.
const MARKS: [&str; 2] = ["Malformed early option", "workload: getppid"];
/// The moments, from the start of the process.
const MOMENTS: [&str; 3] = ["the kernel's first line", "init", "power-off"];

#[derive(Clone, Copy)]
enum Way {
    Direct,
    Decompressor,
    Qemu,
}

impl Way {
    fn in_words(self) -> &'static str {
        match self {
            Self::Direct => "directly",
            Self::Decompressor => "by its decompressor",
            Self::Qemu => "in QEMU",
        }
    }

    /// Starts a guest of one CPU and 512 MiB.
    fn command(self, vmm: &Path, own_kvm: bool, [kernel, initramfs]: [&Path; 2]) -> Command {
        let boot = match self {
            Self::Direct => "direct",
            Self::Decompressor => "bzimage",
            Self::Qemu => {
                let mut qemu = Command::new("qemu-system-x86_64");
                qemu.args([
                    "-nodefaults",
                    "-display",
                    "none",
                    "-no-reboot",
                    "-serial",
                    "stdio",
                    "-cpu",
                    "max",
                ]);
                qemu.args(["-m", "512M", "-accel", if own_kvm { "kvm" } else { "tcg" }, "-append"]);
                qemu.arg(format!("{BASE} {CMDLINE}"))
                    .arg("-kernel")
                    .arg(kernel)
                    .arg("-initrd")
                    .arg(initramfs);
                return qemu;
            }
        };
        let mut run = Command::new(vmm);
        run.args(["run", "--boot", boot, "--cmdline", CMDLINE]);
        run.arg("--kernel").arg(kernel).arg("--initrd").arg(initramfs);
        run
    }
}

/// The rows: seconds to each moment in each way, and the ratio to QEMU's.
pub(super) fn rows(vmm: &Path) -> anyhow::Result<Vec<Value>> {
    let own_kvm = setup::has_fit_kvm(vmm)?;
    let on = if own_kvm { "KVM" } else { "no KVM: QEMU emulates one guest, and for vmm a host with a guest" };
    println!("bench: boots, on {on}");
    let mut rows = Vec::new();
    for (name, runs) in KERNELS {
        let kernel: Kernel = name.parse()?;
        setup::quietly(Command::new(vmm).args(["kernel", "fetch", name]))?;
        let cache = Cache::open()?;
        let (image, initramfs) = (cache.kernel(&kernel)?.image, cache.initramfs()?);
        let mut seconds = WAYS.map(|_| Vec::new());
        for _ in 0..runs {
            for (way, seconds) in WAYS.into_iter().zip(&mut seconds) {
                seconds.push(moments(&mut way.command(vmm, own_kvm, [&image, &initramfs]))?);
            }
        }
        let seconds = seconds.map(|runs| median(&runs));
        let [.., of_qemu] = seconds;
        for (way, seconds) in WAYS.into_iter().zip(seconds) {
            let times = MOMENTS.iter().zip(seconds).zip(of_qemu);
            let (row, parts): (Vec<Value>, Vec<String>) = times
                .map(|((moment, ours), theirs)| {
                    let ratio = ours / theirs;
                    let row = json!({
                        "row": format!("{name}, {}: start to {moment}", way.in_words()),
                        "unit": "ratio", "median": ratio, "seconds": ours,
                    });
                    (row, format!("{moment} {ours:.2} s ({ratio:.2} times QEMU's)"))
                })
                .unzip();
            println!("bench: {name}, {}: {}", way.in_words(), parts.join(", "));
            rows.extend(row);
        }
        let [.., power_off] = of_qemu;
        rows.push(empty_case(name, vmm, &image, runs, power_off)?);
    }
    Ok(rows)
}

/// What a case without any work costs: a file with one, from the start of `vmm test` to its end, beside a guest in QEMU.
fn empty_case(name: &str, vmm: &Path, image: &Path, runs: usize, of_qemu: f64) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let cases = folder.path().join("cases.toml");
    let suite = format!("kernels = [\"{}\"]\n[[test]]\nname = \"empty\"\nrun = \"true\"\n", image.display());
    std::fs::write(&cases, suite).context("cannot write cases")?;
    let mut seconds = Vec::new();
    for _ in 0..runs {
        let begun = Instant::now();
        setup::quietly(Command::new(vmm).arg("test").arg(&cases))?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds.get(runs / 2).copied().unwrap_or_default();
    let ratio = median / of_qemu;
    println!("bench: {name}, an empty case: {median:.2} s ({ratio:.2} times a guest in QEMU)");
    Ok(
        json!({ "row": format!("{name}, an empty case"), "unit": "ratio", "median": ratio, "seconds": median }),
    )
}

/// Runs a guest to its end: the seconds to each moment.
fn moments(command: &mut Command) -> anyhow::Result<[f64; 3]> {
    let begun = Instant::now();
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start a guest")?;
    let (mut said, mut at) = (String::new(), [None; 2]);
    for line in BufReader::new(child.stdout.take().context("the guest has no console")?).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        for (mark, at) in MARKS.iter().zip(&mut at) {
            if line.contains(mark) {
                at.get_or_insert(begun.elapsed().as_secs_f64());
            }
        }
        said.extend([&line, "\n"]);
    }
    ensure!(child.wait()?.success(), "a guest did not end well:\n{said}");
    let [Some(first), Some(init)] = at else { anyhow::bail!("the guest did not say what it does:\n{said}") };
    Ok([first, init, begun.elapsed().as_secs_f64()])
}

/// Of each moment, or part.
pub(super) fn median(runs: &[[f64; 3]]) -> [f64; 3] {
    [0, 1, 2].map(|moment| {
        let mut seconds: Vec<f64> = runs.iter().filter_map(|run| run.get(moment).copied()).collect();
        seconds.sort_by(f64::total_cmp);
        seconds.get(runs.len() / 2).copied().unwrap_or_default()
    })
}
