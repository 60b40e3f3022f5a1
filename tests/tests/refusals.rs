//! The guest as oracle of mistakes: what its tracefs refuses is refused here, and where its `error_log` puts its mark
//! stands ours.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use guest_kernels::Series;
use tests::kernel::under_test;
use tests::product::{Ended, binary, command, initrd_with, kernel};

/// Asks for each definition, and prints what the guest says to it. The kernel's log may print beside it.
const SCRIPT: &str = r#"
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
while read -r definition; do
    echo > error_log
    printf '%s\n' "$definition" >> dynamic_events && echo "taken: $definition"
    echo "asked: $definition"
    cat error_log
done < /definitions
echo "all asked"
"#;

/// How much of an answer is compared.
#[derive(Clone, Copy, PartialEq)]
enum Marks {
    /// Both put their marks at the same column.
    Agree,
    /// The guest puts its mark elsewhere, or none.
    Differ,
}
use Marks::{Agree, Differ};

const COMMON: &[(&str, Marks)] = &[
    ("p no_such_function", Agree),
    ("p:x no_such_function %di", Agree),
    ("p:x vfs_read+1", Agree),
    ("p:x vfs_read %dii", Agree),
    ("p:x vfs_read $retva", Agree),
    ("p:x vfs_read $retval", Agree),
    ("p:x vfs_read x=%di:u7", Agree),
    ("p:x vfs_read x=%di:string", Agree),
    ("p:x vfs_read x=+8(%di", Agree),
    ("p:x vfs_read x=%di x=%si", Agree),
    ("r5000:x vfs_read", Agree),
    ("r:x vfs_read+9", Agree),
    ("p:1x vfs_read", Agree),
];

/// By the kernel's own types.
const SINCE_6_12: &[(&str, Marks)] = &[
    ("f:x kfree $arg10", Agree),
    // The guest marks the whole argument, and we the type.
    ("f:x vfs_read file:string", Differ),
    ("f:x vfs_read no_such_parameter", Agree),
    ("f:x vfs_read file->no_such_member", Agree),
    ("f:x no_such_function", Agree),
    // The guest marks what is behind the `r`; here, functions may be called so.
    ("r1a111 vfs_read", Differ),
];

/// What the guest said to each definition: whether it took the definition, and the column of its mark, from 0.
fn theirs(console: &str, definition: &str) -> (bool, Option<usize>) {
    let asked = format!("asked: {definition}\n");
    let answer = console.split(&asked).nth(1).unwrap_or_else(|| panic!("{definition}: {console}"));
    let answer = answer.split("asked: ").next().unwrap();
    let mut lines = answer.lines().skip_while(|line| !line.starts_with("  Command: "));
    let mark = lines.nth(1).and_then(|line| line.find('^')).map(|column| column - "  Command: ".len());
    (console.contains(&format!("taken: {definition}\n")), mark)
}

/// The column, from 0, that `--probe:1:COLUMN` says.
fn our_mark(said: &str) -> Option<usize> {
    let column = said.split("--probe:1:").nth(1)?.split(' ').next()?;
    column.parse::<usize>().ok()?.checked_sub(1)
}

#[test]
fn what_the_guest_refuses_is_refused_at_the_same_place() {
    let Some(binary) = binary() else { return };
    let rows = match under_test().series {
        Series::Is(6, 1) => COMMON.to_vec(),
        _ => [COMMON, SINCE_6_12].concat(),
    };
    let definitions: String = rows.iter().map(|(definition, _)| format!("{definition}\n")).collect();
    let initrd = initrd_with([("script", 0o644, SCRIPT.into()), ("definitions", 0o644, definitions.into())]);
    let folder = tempfile::tempdir().unwrap();
    let kernel = format!("--kernel={}", kernel().display());
    let initrd = format!("--initrd={}", initrd.path().display());
    let words = ["run", &kernel, &initrd, "--cmdline=quiet workload=sh:/script"];
    let output = command(&binary, folder.path(), &words).output().ended();
    let console = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    assert!(output.status.success() && console.contains("all asked"), "{console}");
    let mut wrong = Vec::new();
    for (definition, marks) in rows {
        let (taken, their_mark) = theirs(&console, definition);
        let words = ["run", "--dry-run", &kernel, "--probe", definition];
        let ours = command(&binary, folder.path(), &words).output().ended();
        let said = String::from_utf8_lossy(&ours.stderr);
        let our_mark = our_mark(&said);
        println!("{definition}: the guest's mark {their_mark:?}, ours {our_mark:?}");
        if taken || ours.status.code() != Some(2) {
            wrong.push(format!("{definition}: taken by the guest: {taken}; here {}: {said}", ours.status));
        }
        let agree = our_mark.is_some() && our_mark == their_mark;
        if agree != (marks == Agree) {
            wrong.push(format!("{definition}: the guest marks {their_mark:?}, and we mark {our_mark:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{console}", wrong.join("\n"));
}
