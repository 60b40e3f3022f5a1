//! Commands in the guest on a terminal of ours: a person types, and sees what there is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tests::product::{binary, child, command};

/// No step takes longer, on the slowest host.
const PATIENCE: Duration = Duration::from_secs(180);

/// A command in a guest, and the terminal on which it runs.
struct Terminal {
    master: File,
    printed: Receiver<Vec<u8>>,
    /// All that it has printed.
    screen: String,
    run: Child,
    _temporary: TempDir,
}

impl Terminal {
    /// `vmm run` with these `options`, whose guest runs `words`.
    fn open(options: &[&str], words: &[&str]) -> Option<Self> {
        let (binary, temporary) = (binary()?, tempfile::tempdir().unwrap());
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let peer = File::from(open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap());
        let mut run = command(&binary, temporary.path(), &[&["run"], options, &["--"], words].concat());
        run.env("TERM", "vt100").process_group(0);
        run.stdin(peer.try_clone().unwrap()).stdout(peer.try_clone().unwrap()).stderr(peer);
        let child = run.spawn().unwrap();
        // Its ends of the terminal, too.
        drop(run);
        let master = File::from(master);
        let (send, printed) = channel();
        let mut reader = master.try_clone().unwrap();
        thread::spawn(move || {
            let mut some = [0; 4096];
            // Once nobody has the other end any more, reading is an error.
            while let Ok(length @ 1..) = reader.read(&mut some) {
                let _ = send.send(some.get(..length).unwrap().to_vec());
            }
        });
        let terminal = Self { master, printed, screen: String::new(), run: child, _temporary: temporary };
        terminal.resize(24, 80);
        Some(terminal)
    }

    fn resize(&self, ws_row: u16, ws_col: u16) {
        tcsetwinsize(&self.master, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        // The kernel tells whoever has the terminal as its own, which nobody has here.
        let _ = kill_process(Pid::from_child(&self.run), Signal::WINCH);
    }

    fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` has been printed behind what was waited for before.
    fn wait_for(&mut self, text: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.screen.contains(text) {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(bytes) = self.printed.recv_timeout(left) else {
                let _ = self.run.kill();
                panic!("there is no {text:?} on {:?}", self.screen);
            };
            self.screen.push_str(&String::from_utf8_lossy(&bytes));
        }
        let behind = self.screen.find(text).unwrap() + text.len();
        self.screen.drain(..behind);
    }

    fn end(mut self) -> ExitStatus {
        self.wait_for_end()
    }

    fn wait_for_end(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.run.try_wait().unwrap() {
                Some(status) => return status,
                None if Instant::now() > end => {
                    let _ = self.run.kill();
                    panic!("it does not end");
                }
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

#[test]
fn a_run_ends_in_order_when_the_guests_files_are_lost() {
    let folder = tempfile::tempdir().unwrap();
    let hits = folder.path().join("hits");
    let options = ["--probe", "do_sys_openat2", "--output", hits.to_str().unwrap()];
    let Some(mut terminal) = Terminal::open(&options, &["sh", "-c", "echo begun; sleep 1000"]) else {
        return;
    };
    terminal.wait_for("begun");
    let is_raw = |terminal: &Terminal| {
        !tcgetattr(&terminal.master).unwrap().local_modes.intersects(LocalModes::ECHO | LocalModes::ICANON)
    };
    assert!(is_raw(&terminal));
    kill_process(child(terminal.run.id(), &["serve-files"]).unwrap(), Signal::KILL).unwrap();
    terminal.wait_for("the server of the guest's files was ended by signal 9");
    terminal.wait_for("the run was ended because the guest had lost its files");
    terminal.wait_for("[OPTIMIZED]");
    terminal.wait_for_end();
    assert!(!is_raw(&terminal));
    assert_eq!(terminal.end().code(), Some(125));
    let hits = fs::read_to_string(hits).unwrap();
    assert!(hits.contains("\"filename\":\"/etc/ld.so.cache\""), "{hits}");
}

#[test]
fn an_editor_changes_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    fs::write(&file, "the first line\nthe second line\n").unwrap();
    let (at, name) = (folder.path().to_str().unwrap(), file.to_str().unwrap());
    let Some(mut terminal) = Terminal::open(&["--rwdir", at], &["busybox", "vi", name]) else { return };
    terminal.wait_for("the second line");
    terminal.type_in("jIchanged: \x1b");
    terminal.wait_for("changed: the second line");
    terminal.type_in(":wq\r");
    assert_eq!(terminal.end().code(), Some(0));
    assert_eq!(fs::read_to_string(&file).unwrap(), "the first line\nchanged: the second line\n");
}

#[test]
fn a_shell_knows_its_terminal_and_obeys_its_keys() {
    let Some(mut terminal) = Terminal::open(&[], &["sh"]) else { return };
    terminal.wait_for("# ");
    terminal.type_in("tty; stty size\r");
    terminal.wait_for("/dev/pts/0");
    terminal.wait_for("24 80");
    terminal.resize(33, 101);
    // The size goes through two machines, which takes as long as they are busy.
    terminal.type_in("until stty size | grep 33.101; do sleep 1; done\r");
    terminal.wait_for("33 101");
    // What is typed has no such word in it: the command is the terminal's by the time at which there is one.
    terminal.type_in("sh -c 'echo be''gun; exec sleep 1000'; echo $((6 * 7))\r");
    terminal.wait_for("begun");
    // Ctrl-C ends the one, and the shell goes on.
    terminal.type_in("\x03");
    terminal.wait_for("# ");
    terminal.type_in("exit 5\r");
    assert_eq!(terminal.end().code(), Some(5));
}
