//! The interactive console: a person at a terminal.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use tests::product::{binary, command};

/// A terminal with `vmm` in it.
struct Session {
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    terminal: File,
    child: Child,
}

impl Session {
    fn start(words: &[&str]) -> Option<Self> {
        let binary = binary()?;
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let stream = || Stdio::from(terminal.try_clone().unwrap());
        let child = command(&binary, std::env::temp_dir().as_path(), words)
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .unwrap();
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().unwrap();
        let (lines, screen) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if lines.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Some(Self { keyboard, screen, seen: String::new(), terminal, child })
    }

    /// Waits until the screen shows `text` after what was waited for before.
    fn expect(&mut self, text: &str) {
        const PATIENCE: Duration = Duration::from_secs(120);
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            let bytes = self.screen.recv_timeout(PATIENCE);
            let bytes = bytes.unwrap_or_else(|_| panic!("no {text:?} on the screen:\n{}", self.seen));
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    fn echoes(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }
}

#[test]
fn a_shell_in_the_guest_and_the_way_out_of_it() {
    let words = ["run", "--probe=do_sys_openat2", "--output=/dev/null", "--cmdline=workload=shell"];
    let Some(mut session) = Session::start(&words) else { return };
    session.expect("guest# ");
    assert!(!session.echoes(), "the terminal is in raw mode while the guest has it");
    session.type_in("echo $((6 * 7)) is the answer\n");
    session.expect("42 is the answer");
    session.type_in("sleep 1000\n");
    thread::sleep(Duration::from_millis(300));
    // Ctrl-C is the guest's: it ends the guest's program and not the run.
    session.type_in("\x03");
    session.expect("guest# ");
    session.type_in("\x01x");
    let status = session.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(session.echoes(), "the terminal is as it was before");
}

#[test]
fn a_signal_restores_the_terminal() {
    let Some(mut session) = Session::start(&["run", "--cmdline=workload=shell"]) else { return };
    session.expect("guest# ");
    let id = i32::try_from(session.child.id()).unwrap();
    let id = rustix::process::Pid::from_raw(id).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    let status = session.child.wait().unwrap();
    assert_eq!(status.code(), Some(143));
    assert!(session.echoes(), "the terminal is as it was before");
}
