//! The real gdb, with a guest of `--gdb guest.gdb`.

use crate::served::{PATIENCE, Served, said, text};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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
