//! A terminal on which both the guest's console and the product print.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::env;
use std::fs::File;
use std::io::Read;
use tests::product::{binary, command, initrd_with, kernel};

const MARK: char = '▌';

/// What runs as root in the guest: it would erase the line above and print one that looks like a hit, and has a name that
/// would do so in a hit.
const FORGER: &str = r"
mount -t proc proc /proc 2>/dev/null
printf '\033[1A\033[2K\342\226\214[    1.000000000] cpu0 swapper/0-0 forged()\n'
printf 'a\r\033[2Kb' > /proc/self/comm
: < /etc/passwd
";

/// All that comes out on a terminal of its own.
fn on_a_terminal(words: &[&str]) -> Option<String> {
    let binary = binary()?;
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = File::from(open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap());
    let mut run = command(&binary, &env::temp_dir(), words);
    let mut child = run.stdout(terminal.try_clone().unwrap()).stderr(terminal).spawn().unwrap();
    // Its ends of the terminal, too.
    drop(run);
    let (mut master, mut text, mut some) = (File::from(master), Vec::new(), [0; 4096]);
    // Once nobody has the other end any more, reading is an error.
    while let Ok(length @ 1..) = master.read(&mut some) {
        text.extend_from_slice(some.get(..length).unwrap());
    }
    assert!(child.wait().unwrap().success());
    Some(String::from_utf8(text).unwrap())
}

/// Our lines when somebody in the guest forges some.
fn lines(format: &str) -> Option<Vec<String>> {
    let initrd = initrd_with([("script", 0o644, FORGER.into())]);
    let (kernel, initrd) = (kernel(), initrd.path().to_str().unwrap().to_owned());
    let words = ["run", "--kernel", kernel.to_str().unwrap(), "--initrd", &initrd];
    let more = ["--probe=do_sys_openat2", "--cmdline=workload=sh:/script", "--format", format];
    let text = on_a_terminal(&[&words[..], &more].concat())?;
    let (ours, console): (Vec<&str>, Vec<&str>) =
        text.lines().map(|line| line.trim_end_matches('\r')).partition(|line| line.contains(MARK));
    assert!(!text.contains("\x1b[1A"), "{text:?}");
    assert!(
        console.iter().any(|line| line.ends_with("?[    1.000000000] cpu0 swapper/0-0 forged()")),
        "{console:?}"
    );
    let plain: Vec<Option<&str>> = ours.iter().map(|line| line.strip_prefix("\x1b[m")).collect();
    let ours: Vec<&str> = plain.into_iter().map(|line| line.unwrap()).collect();
    assert!(ours.iter().all(|line| line.starts_with(MARK) && !line.contains("forged")), "{ours:?}");
    assert!(ours.iter().any(|line| line.contains("vmm: 1 of 1 probes armed")), "{ours:?}");
    assert!(ours.last().unwrap().contains("do_sys_openat2"), "the table: {ours:?}");
    Some(ours.into_iter().map(str::to_owned).collect())
}

#[test]
fn nobody_in_the_guest_prints_our_lines() {
    let Some(ours) = lines("text") else { return };
    assert!(ours.iter().any(|line| line.contains(r"a\x0d\x1b[2Kb")), "{ours:?}");
}

#[test]
fn nor_lines_of_json() {
    let Some(ours) = lines("json") else { return };
    assert!(ours.iter().any(|line| line.contains(r"a\r\u001b[2Kb")), "{ours:?}");
}
