//! `vmm replay`: the run of a bundle once more, compared with what it came to.

use super::manifest::{INITRD, KERNEL, MODULES, Manifest, RECORDING, ROOT, VMLINUX, Verdict};
use super::observed::{self, Observed};
use super::options;
use crate::args::{Format, Imposed, Replay, Run};
use crate::choice::Choosing;
use crate::exit_codes::{self, FAILED, INFRASTRUCTURE};
use crate::file;
use crate::guest_files::Files;
use crate::run;
use crate::say::{note, say};
use crate::work::Work;
use anyhow::{Context, Result};
use guest_kernels::{KernelFiles, Modules};
use std::process::ExitCode;
use vmm::command::Words;
use vmm::files::Folder;

/// `vmm replay`.
pub(crate) fn main(args: &Replay) -> Result<ExitCode> {
    let folder = &args.folder;
    let manifest = Manifest::read(folder)?;
    manifest.check(folder)?;
    if let Some(differs) = manifest.differs() {
        note(differs);
    }
    let then = observed::read(&folder.join(RECORDING))?;
    let temporary = tempfile::tempdir().context("cannot make a temporary folder")?;
    let recording = args.output.clone().unwrap_or_else(|| temporary.path().join(RECORDING));
    let mut run = options::run_of(&manifest.words, manifest.seed)?;
    for (path, name) in options::named_files(&mut run) {
        *path = folder.join(name);
    }
    run.guest.place = args.place.clone();
    run.guest.console = None;
    if run.orders.shaken.is_none() {
        run.records.format.get_or_insert(Format::Text);
    }
    run.records.output = Some(recording.clone());
    file::refuse_an_input(args.output.as_deref(), [&*folder.join(RECORDING)])?;
    if !args.free && run.splats.recent.is_none() {
        let (order, probes) = (then.turns.clone(), then.order.probes().clone());
        run.orders.imposed = Some(Imposed { order, probes, within: args.within });
    }
    let choosing = Choosing::begin(&run.guest);
    let files = files(args, &mut run, &manifest)?;
    let code = exit_codes::number(run::with_files(&run, files, choosing)?);
    if code == INFRASTRUCTURE && manifest.verdict.exit_code != INFRASTRUCTURE {
        return Ok(ExitCode::from(INFRASTRUCTURE));
    }
    if observed::is_empty(&recording) {
        say("nothing is compared: the guest was not started");
        return Ok(ExitCode::from(INFRASTRUCTURE));
    }
    let now = observed::read(&recording)?;
    run::note_recording(&run.guest, args.output.as_deref());
    let is_same = compare((&manifest.verdict, &then), (code, &now));
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// The files of the bundle, as those of its run.
fn files(args: &Replay, run: &mut Run, manifest: &Manifest) -> Result<Files> {
    let folder = &args.folder;
    let there = |name: &str| Some(folder.join(name)).filter(|path| path.exists());
    let kernel = match &args.kernel {
        Some(kernel) => {
            // That is of the bundle's own kernel.
            run.guest.symbols.symbols = None;
            kernel.files()?
        }
        None => KernelFiles {
            image: folder.join(KERNEL),
            modules: there(MODULES).map_or(Modules::Unknown, Modules::Below),
            vmlinux: there(VMLINUX),
        },
    };
    let work = manifest.command.as_ref().map(|command| {
        let root = folder.join(ROOT);
        let root = root.canonicalize().with_context(|| format!("cannot share {}", root.display()))?;
        let said = run.guest.command.split_first().context("the words of the bundle have no command")?;
        let environment = command.environment.iter().map(|(name, value)| (name.into(), value.into()));
        let words = Words {
            program: said.0.clone(),
            args: said.1.to_vec(),
            env: environment.collect(),
            folder: root.join(command.folder.trim_start_matches('/')),
        };
        let folders = vec![Folder { path: root, writable: false }];
        anyhow::Ok(Work { words, folders, repeat: run.guest.repeat, fail_from: None, notes: None })
    });
    let work = work.transpose()?;
    run.guest.initrd = work.is_none().then(|| folder.join(INITRD));
    Ok(Files { were_checked: true, ..Files::of(&run.guest, work, kernel)? })
}

/// Says whether what a run came to, and in which order, is the same as `then`.
fn compare((was, then): (&Verdict, &Observed), (exit_code, now): (u8, &Observed)) -> bool {
    let is = Verdict { exit_code, splats: now.splats.clone() };
    let difference = then.order.difference(&now.order);
    match *was == is {
        true => say(format_args!("replayed: the verdict is the same: {}", shown(&is))),
        false => say(format_args!("replayed: the verdict differs: {}; it was {}", shown(&is), shown(was))),
    }
    match &difference {
        None => match then.order.count() {
            1 => say("replayed: the order is the same, of 1 hit"),
            count => say(format_args!("replayed: the order is the same, of {count} hits")),
        },
        Some(difference) => say(format_args!("replayed: the order differs: {difference}")),
    }
    if let Some(imposed) = &now.imposed {
        say(imposed);
    }
    *was == is && difference.is_none()
}

fn shown(Verdict { exit_code, splats }: &Verdict) -> String {
    let splats: Vec<&str> = splats.iter().map(String::as_str).collect();
    match &splats[..] {
        [] => format!("exit code {exit_code}, no splat"),
        splats => format!("exit code {exit_code}, {}", splats.join(", ")),
    }
}
