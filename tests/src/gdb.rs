//! The real gdb, with a guest of `--gdb guest.gdb`.

use crate::product::kernel;
use crate::served::{PATIENCE, Served, said, text};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Writes the kernel's symbols for gdb to this file in the guest's folder.
#[track_caller]
pub fn write_symbols(guest: &Served, file: &str) {
    let symbols = Command::new(guest.binary())
        .args(["kernel", "symbols", "--kernel", kernel().to_str().unwrap(), file])
        .current_dir(guest.folder())
        .output()
        .unwrap();
    assert!(symbols.status.success(), "{}", said(&symbols));
}

/// The functions that gdb's `bt` shows in the first trace behind `mark`, from the innermost on: those of the kernel, but for
/// `<signal handler called>`.
pub fn traced<'a>(said: &'a str, mark: &str) -> Vec<&'a str> {
    let behind = said.split_once(mark).map_or("", |(_, behind)| behind);
    let lines = behind.lines().skip_while(|line| !line.starts_with("#0 "));
    lines.take_while(|line| line.starts_with('#')).filter_map(function).collect()
}

/// `NAME` of `#N  [ADDRESS in ]NAME (...`.
fn function(line: &str) -> Option<&str> {
    let (_, frame) = line.split_once(' ')?;
    let frame = frame.trim_start();
    let frame = if frame.starts_with("0x") { frame.split_once(" in ")?.1 } else { frame };
    frame.split_once(" (").map(|(name, _)| name).filter(|name| *name != "??")
}

/// What gdb with these `symbols` says to this script, which begins with a guest that stands still. When the script has made a file called `ready`, gdb gets
/// what Ctrl-C is.
#[track_caller]
pub fn gdb(guest: &Served, symbols: &Path, script: &str) -> String {
    let begin =
        "set pagination off\nset confirm off\nset width 0\nset remotetimeout 300\ntarget remote guest.gdb\n";
    fs::write(guest.path("script"), format!("{begin}{script}")).unwrap();
    let mut gdb = Command::new("gdb");
    let gdb = gdb.args(["-nx", "-batch", "-x", "script"]).arg(symbols).current_dir(guest.folder());
    let gdb = gdb.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut gdb = gdb.spawn().unwrap();
    let (begun, mut is_interrupted) = (Instant::now(), false);
    while gdb.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            gdb.kill().unwrap();
            break;
        }
        if !is_interrupted && guest.path("ready").exists() {
            // It is about to let the guest go on.
            thread::sleep(Duration::from_secs(3));
            kill_process(Pid::from_child(&gdb), Signal::INT).unwrap();
            is_interrupted = true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let output = gdb.wait_with_output().unwrap();
    let all = format!("{}{}", text(&output.stdout), said(&output));
    println!("{all}");
    assert!(begun.elapsed() < PATIENCE, "gdb does not come to an end");
    all
}
