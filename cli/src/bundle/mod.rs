//! Bundles: all that a run needs to be run again, in one folder. `docs/bundles.md` describes it.

mod kept;
mod kept_files;
mod manifest;
mod observed;
mod options;
mod replayed;

pub(crate) use replayed::main as replay;

use crate::args::Run;
use crate::choice::Choosing;
use crate::exit_codes;
use crate::guest_files::Files;
use crate::run;
use crate::say::{note, say};
use anyhow::Result;
use kept::NewBundle;
use manifest::{CONSOLE, Manifest, RECORDING, Verdict};
use std::process::ExitCode;

/// Runs the guest, and makes a bundle of it if that is wanted.
pub(crate) fn run(mut run: Run) -> Result<ExitCode> {
    let Some(folder) = run.bundled.bundle.clone() else { return run::main(&run) };
    let words = options::words_of_this_process()?;
    let mut bundle = NewBundle::begin(&folder)?;
    for (path, name) in options::named_files(&mut run) {
        bundle.add_file(&name, path)?;
    }
    let named = run.records.output.clone();
    // What the user has named is copied in the end.
    let shown = run.records.shown();
    let recording = named.clone().unwrap_or_else(|| {
        // Hits that are recorded for their order alone are not shown.
        run.records.format = shown.filter(|_| run.orders.shaken.is_none());
        bundle.at(RECORDING)
    });
    let console = run.guest.console.clone().unwrap_or_else(|| bundle.at(CONSOLE));
    (run.records.output, run.guest.console) = (Some(recording.clone()), Some(console.clone()));
    let choosing = Choosing::begin(&run.guest);
    let mut files = Files::read(&run.guest)?;
    bundle.add_guest(&mut files)?;
    let root = files.work.as_ref().map(|work| work.root().to_owned());
    let command = files.work.as_ref().map(options::command).transpose()?;
    let code = run::with_files(&run, files, choosing)?;
    if observed::is_empty(&recording) {
        say("there is no bundle: the guest was not started");
        return Ok(code);
    }
    bundle.add_output(RECORDING, &recording)?;
    bundle.add_output(CONSOLE, &console)?;
    if let Some(root) = root {
        bundle.add_tree(&root)?;
    }
    let observed = observed::read(&bundle.at(RECORDING))?;
    let verdict = Verdict { exit_code: exit_codes::number(code), splats: observed.splats };
    let mut manifest = Manifest::new(words, options::seed(&run), command, verdict);
    (manifest.kernel, manifest.host) = (observed.kernel, observed.host);
    bundle.finish(manifest)?;
    run::note_recording(&run.guest, named.as_deref());
    note(format_args!("the bundle is in {0}: vmm replay {0} runs it once more", folder.display()));
    Ok(code)
}
