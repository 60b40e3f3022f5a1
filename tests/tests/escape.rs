//! What a guest tries that wants files which are not its own, and that none of it succeeds.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use tests::product::{Ended, binary, command};

const SECRET: &str = "what the guest is not to know";
const INNOCENT: &str = "what the guest may know";

/// How often the guest goes through a folder that is swapped for a link meanwhile.
const TURNS: usize = 500;

/// An attempt: what it is, what a shell in the guest does for it, and what the shell is to say.
type Attempt = (&'static str, &'static str, &'static [&'static str]);

/// `/` is a share, `/w` is a folder in it that may be changed, and `/outside` is what a guest on this machine's root would
/// find beside the share. `$out` is its path on this machine.
const ATTEMPTS: &[Attempt] = &[
    ("what is shared is there", "cat /inside /in /w/in", &[INNOCENT, INNOCENT, INNOCENT]),
    ("links out of the share", "cat /relative; cat /absolute; cat /w/relative", &[NONE, NONE, NONE]),
    (
        "a link to the folder above",
        "cat /above/outside/secret; cat /w/above/above/outside/secret",
        &[NONE, NONE],
    ),
    ("steps up", "cat /../../../../../..$out/secret; cd /w/deep; cat ../../../outside/secret", &[NONE, NONE]),
    (
        "a link that the guest makes",
        "ln -s ../../outside/secret /w/made; cat /w/made; ln -s $out /w/far; echo x > /w/far/secret; ls /w/far",
        &[NONE, "nonexistent directory", NONE],
    ),
    ("a disk", "mknod /w/disk b 254 0; mknod /w/sda b 8 0; ls /w/disk", &[DENIED, DENIED, NONE]),
    ("a character device", "mknod /w/mem c 1 1; cat /w/mem", &[DENIED, NONE]),
    (
        "somebody else's rights",
        "cp /bin/busybox /w/su; chmod 4755 /w/su; chmod 2755 /w/su; chmod 755 /w/su && echo harmless",
        &[DENIED, DENIED, "harmless"],
    ),
    (
        "hard links",
        "ln /relative /w/hard; ln /inside /w/hard; ln /w/relative /w/hard && cat /w/hard",
        &["Invalid cross-device link", "Invalid cross-device link", NONE],
    ),
    (
        "renames",
        "echo mine > /w/mine; mv /w/mine /../../outside/mine; mv /w/deep $out/deep; mv /w /elsewhere; ls /w/deep/file",
        &[NONE, NONE, "Device or resource busy", "/w/deep/file"],
    ),
    (
        "a name of 255 bytes, one of 256, and a path of more than a page",
        "n=$(printf %0255d 0); echo long > /w/$n && cat /w/$n; rm /w/$n; echo x > /w/0$n; \
         chain=$n/$n/$n/$n/$n/$n/$n/$n/$n/$n; mkdir -p /w/$chain /tmp/$chain; mv /w/$n /w/first; mkdir -p /w/$chain; \
         mv /w/first /w/$chain/; cd /w/$chain; rest=first/${chain#$n/}; echo deep > $rest/file && cat $rest/file; \
         up=../../../../../../; cat $rest/$up$up${up}outside/secret; cat /w/$chain/$rest/file; mv first /w",
        &["long", "File name too long", "deep", NONE, "File name too long"],
    ),
    (
        "what is open and gone",
        "echo kept > /w/gone; exec 3<> /w/gone; rm /w/gone; echo more >&3; cat /w/gone; cat <&3; exec 3<&-; \
         mkdir /w/left; cd /w/left; rmdir /w/left; cat ../../outside/secret; ls; echo x > new",
        &[NONE, NONE, "nonexistent directory"],
    ),
    (
        "a folder that is moved under one's feet",
        "mkdir -p /w/a/b; cd /w/a/b; mv /w/a/b /w/b; cat ../../outside/secret; cat ../inside; cat ../../inside",
        &[NONE, NONE, INNOCENT],
    ),
    (
        "other views of the root",
        "cat /proc/1/root/../outside/secret; cat /proc/self/cwd/../../outside/secret; chroot /w /bin/busybox true; \
         cat /proc/1/root$out/secret",
        &[NONE, NONE, "can't execute", NONE],
    ),
    (
        "the share, mounted once more",
        "mkdir /tmp/m; mount -t virtiofs vmm0 /tmp/m && cat /tmp/m/inside; echo x > /tmp/m/new; rm /tmp/m/inside; \
         echo x > /tmp/m/inside; chmod 777 /tmp/m/inside; mount -o remount,rw /tmp/m; mkdir /tmp/m/new; \
         mv /tmp/m/inside /tmp/m/new; ln -s x /tmp/m/new; cat /tmp/m/../../outside/secret; cat /tmp/m/relative",
        &[INNOCENT, FIXED, FIXED, FIXED, FIXED, ABSENT, ABSENT, ABSENT, NONE, NONE],
    ),
    (
        "the folder that may be changed, mounted once more",
        "mkdir /tmp/w; mount -t virtiofs vmm1 /tmp/w && cat /tmp/w/deep/file; cat /tmp/w/../outside/secret; \
         cat /tmp/w/relative; mknod /tmp/w/disk b 254 0",
        &[INNOCENT, NONE, NONE, DENIED],
    ),
    (
        "a mount above it",
        "mkdir /tmp/b; mount --bind /w /tmp/b; cat /tmp/b/../outside/secret; mount --move /tmp/b /w/deep; \
         cat /w/deep/../../outside/secret",
        &[NONE, NONE],
    ),
    (
        "a folder that becomes a link meanwhile",
        // The overlay above the share would keep for ever what the folder was at first, and the guest's cache keeps it for a
        // second: each turn looks the folder up anew, in a mount without an overlay.
        "mkdir /tmp/t; mount -t virtiofs vmm0 /tmp/t; i=0; while [ $i -lt $turns ]; do \
         read line < /tmp/t/turn/$i && echo $line >> /tmp/seen; echo changed > /w/turn/$i; \
         echo 2 > /proc/sys/vm/drop_caches; i=$((i+1)); done 2> /dev/null; sort -u /tmp/seen; \
         [ $(wc -l < /tmp/seen) -lt $turns ] && echo sometimes",
        &[INNOCENT, "sometimes"],
    ),
];

const NONE: &str = "No such file or directory";
const DENIED: &str = "Operation not permitted";
const FIXED: &str = "Read-only file system";
const ABSENT: &str = "Function not implemented";

/// A share, and what is outside of it.
struct Trees(TempDir);

impl Trees {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for made in ["outside/deep", "share/bin", "share/tmp", "share/w/deep", "share/turn", "share/w/turn"] {
            fs::create_dir_all(at(made)).unwrap();
        }
        fs::write(at("outside/secret"), SECRET).unwrap();
        fs::write(at("share/inside"), format!("{INNOCENT}\n")).unwrap();
        fs::write(at("share/w/deep/file"), format!("{INNOCENT}\n")).unwrap();
        for turn in 0..TURNS {
            fs::write(at(&format!("outside/{turn}")), SECRET).unwrap();
            fs::write(at(&format!("share/turn/{turn}")), format!("{INNOCENT}\n")).unwrap();
        }
        fs::copy("/bin/busybox", at("share/bin/busybox")).unwrap();
        let outside = at("outside").display().to_string();
        for (link, target) in [
            ("share/in", "inside"),
            ("share/w/in", "../inside"),
            ("share/relative", "../outside/secret"),
            ("share/w/relative", "../../outside/secret"),
            ("share/absolute", &format!("{outside}/secret")),
            ("share/above", ".."),
            ("share/w/above", ".."),
            ("share/turn.link", "../outside"),
            ("share/w/turn.link", &outside),
        ] {
            symlink(target, at(link)).unwrap();
        }
        Self(folder)
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.0.path().join(path)
    }

    /// Runs `script` in a guest whose root is the share, and swaps folders for links while it runs.
    fn run(&self, binary: &Path, script: &str) -> Output {
        let (share, writable) = (self.at("share"), self.at("share/w"));
        let words = ["run", "--root", share.to_str().unwrap(), "--rwdir", writable.to_str().unwrap(), "--"];
        let mut run = command(binary, self.0.path(), &words);
        run.args(["/bin/busybox", "sh", "-c", script]).current_dir(&share);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for turn in ["share/turn", "share/w/turn"] {
                        let link = self.at(&format!("{turn}.link"));
                        renameat_with(CWD, self.at(turn), CWD, link, RenameFlags::EXCHANGE).unwrap();
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let output = run.stdin(Stdio::null()).output();
            is_over.store(true, Ordering::Relaxed);
            output.unwrap()
        })
    }
}

/// What would be changed by whoever changes a file below `path`: by name, and without the names in `except`.
fn stamps(path: &Path, except: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if except.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            let is = fs::symlink_metadata(&path).unwrap();
            // Linux sets the time of change itself, in nanoseconds, and nobody sets it back.
            all.push(format!(
                "{path:?} {} {:o} {} {} {}",
                is.ino(),
                is.mode(),
                is.len(),
                is.ctime(),
                is.ctime_nsec()
            ));
            if is.is_dir() {
                open.push(path);
            }
        }
    }
    all.sort();
    all
}

/// Fails where there is a device, or a program that lends rights, below `path`.
fn assert_harmless(path: &Path) {
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let is = fs::symlink_metadata(&path).unwrap();
        let kind = is.file_type();
        assert!(!kind.is_block_device() && !kind.is_char_device(), "{path:?}");
        assert!(kind.is_symlink() || is.permissions().mode() & 0o6000 == 0, "{path:?}");
        if kind.is_dir() {
            assert_harmless(&path);
        }
    }
}

#[test]
fn no_attempt_to_leave_the_share_succeeds() {
    let (Some(binary), trees) = (binary(), Trees::new()) else { return };
    let swapped = ["turn", "turn.link"];
    let outside = stamps(&trees.at("outside"), &[]);
    let inside = stamps(&trees.at("share"), &[&["w"], &swapped[..]].concat());
    let mut script =
        format!("/bin/busybox --install -s /bin; out={}; turns={TURNS}; ", trees.at("outside").display());
    for (number, (_, words, _)) in ATTEMPTS.iter().enumerate() {
        script.push_str(&format!("echo \"== {number}\"; (cd /; {words}) 2>&1\n"));
    }
    let output = trees.run(&binary, &script);
    let (said, notes) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!said.contains(SECRET), "{said}");
    let mut answers = said.split("== ").skip(1);
    for (number, (what, _, expected)) in ATTEMPTS.iter().enumerate() {
        let answer = answers.next().unwrap_or_else(|| panic!("{what} was not tried: {said}{notes}"));
        let (tried, lines) = answer.split_once('\n').unwrap();
        assert_eq!(tried, number.to_string());
        let lines: Vec<_> = lines.lines().collect();
        let is_as_expected = lines.len() == expected.len()
            && lines.iter().zip(*expected).all(|(line, part)| line.contains(part));
        assert!(is_as_expected, "{what}: {lines:#?}");
    }
    assert_eq!(stamps(&trees.at("outside"), &[]), outside);
    assert_eq!(stamps(&trees.at("share"), &[&["w"], &swapped[..]].concat()), inside);
    assert_harmless(&trees.at("share/w"));
}

#[test]
fn a_command_that_writes_everywhere_changes_what_it_may_alone() {
    let (Some(binary), temporary) = (binary(), tempfile::tempdir().unwrap()) else { return };
    let at = |name: &str| temporary.path().join(name);
    for made in ["kept/deep", "written/deep"] {
        fs::create_dir_all(at(made)).unwrap();
        for file in ["cut", "gone", "grown", "linked", "mode", "moved", "mine", "new"] {
            fs::write(at(made).join(file), "as it was").unwrap();
        }
    }
    let places = [at("kept"), "/etc".into(), "/usr".into(), "/var/lib".into(), "/opt".into()];
    let before = places.each_ref().map(|place| stamps(place, &[]));
    let each = "for d in $kept/deep $written/deep; do cd $d; \
        : > cut; rm gone; echo more >> grown; ln linked other; ln -s cut link; chmod 700 mode; mv moved away; \
        chown 1:1 mine; touch -d 2001-01-01 mode; mkdir folder; echo new > folder/file; cp -p /bin/sh new; done;";
    let everywhere = "all=$(mktemp); find / -xdev -maxdepth 2 -type d > $all; n=0; \
        while read d; do echo > $d/vmm-was-here && n=$((n+1)); done < $all; echo $n; xargs chmod 777 < $all; \
        rm -rf /usr/share/doc/a* /usr/include /opt; for f in /etc/*; do echo x >> $f; done 2> /dev/null; \
        mv /etc/passwd /etc/passed; cat /etc/vmm-was-here /usr/bin/vmm-was-here && rm -rf /etc && ! ls /etc/passwd && echo over";
    let (kept, written) = (at("kept").display().to_string(), at("written").display().to_string());
    let script = format!("kept={kept}; written={written}; {each} cd /; {everywhere}");
    let mut run =
        command(&binary, temporary.path(), &["run", "--rwdir", &written, "--", "sh", "-c", &script]);
    let output = run.output().ended();
    let (said, notes) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}{notes}");
    let [folders, .., over] = &said.lines().collect::<Vec<_>>()[..] else { panic!("{said}{notes}") };
    assert!(folders.parse::<u32>().unwrap() > 50 && *over == "over", "{said}{notes}");
    for (place, before) in places.iter().zip(before) {
        let after = stamps(place, &[]);
        let other: Vec<_> = after.iter().filter(|stamp| !before.contains(stamp)).collect();
        assert!(after == before, "{other:#?}");
    }
    let written = at("written/deep");
    let text = |name: &str| fs::read_to_string(written.join(name)).unwrap();
    assert_eq!(
        [text("cut"), text("grown"), text("away"), text("folder/file")],
        ["", "as it wasmore\n", "as it was", "new\n"]
    );
    assert!(!written.join("gone").exists() && !written.join("moved").exists());
    assert_eq!(fs::read_link(written.join("link")).unwrap(), Path::new("cut"));
    let is = |name: &str| fs::metadata(written.join(name)).unwrap();
    assert_eq!(is("linked").ino(), is("other").ino());
    assert_eq!((is("mode").mode() & 0o777, is("mode").mtime()), (0o700, 978_307_200));
    assert_eq!(fs::read(written.join("new")).unwrap(), fs::read("/bin/sh").unwrap());
}
