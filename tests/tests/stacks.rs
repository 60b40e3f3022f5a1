//! `--stack` on real kernels: who called, by name, through modules and through calls that are followed to their returns.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use serde_json::Value;
use tests::compiled::compiled;
use tests::kernel::name_of;
use tests::product::{Run, binary, initrd_with, kernel, module, run};

/// A dummy network device is registered by the module's init.
const SCRIPT: &str = "\
set -e
insmod /dummy.ko
rmmod dummy
";

/// The frames of a hit: each one's function, and ` [module]` behind those of modules.
fn functions(hit: &Value) -> Vec<String> {
    let frame = |frame: &Value| {
        let name = frame["name"].as_str().unwrap_or_else(|| panic!("a frame without a name: {hit:#}"));
        assert!(frame.get("guessed").is_none(), "{hit:#}");
        let (function, place) = name.split_once('+').unwrap();
        format!(
            "{function}{}",
            place.split_once(' ').map(|(_, module)| format!(" {module}")).unwrap_or_default()
        )
    };
    hit["stack"].as_array().unwrap().iter().map(frame).collect()
}

/// What was written of `probe`.
fn hits<'a>(run: &'a Run, probe: &str) -> Vec<&'a Value> {
    let is_hit = |o: &&Value| ["hit", "return"].iter().any(|kind| o["type"] == *kind);
    run.output.iter().filter(is_hit).filter(|o| o["probe"] == probe).collect()
}

/// Whether `functions` has these one after the other, with any others in between.
fn has_in_order(functions: &[String], wanted: &[&str]) -> bool {
    let mut functions = functions.iter();
    wanted.iter().all(|wanted| functions.any(|function| function == wanted))
}

#[test]
fn stacks_show_who_called() {
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let initrd = initrd_with([("dummy.ko", 0o644, module("dummy")), ("script", 0o644, SCRIPT.into())]);
    let opener = name_of("do_filp_open");
    let returned = format!("{opener}%return");
    let probes = [
        "vfs_open",
        // Their return addresses are trampolines on the stacks of the others.
        &returned,
        "path_openat%return",
        "register_netdevice%return",
        "dummy:dummy_dev_init",
    ];
    let mut words = vec!["--kernel", kernel.to_str().unwrap(), "--initrd", initrd.path().to_str().unwrap()];
    words.extend(["--cmdline", "workload=open:3,sh:/script loglevel=5", "--stack"]);
    words.extend(probes.iter().flat_map(|probe| ["--probe", probe]));
    let run = run(&binary, &words);
    run.assert_success();
    run.assert_clean_log();
    assert_eq!(run.workload("sh path=/script", "status"), 0, "{}", run.console);
    const TO_USER: [&str; 3] = ["do_sys_openat2", "do_syscall_64", "entry_SYSCALL_64_after_hwframe"];
    let by_process: Vec<&Value> =
        hits(&run, "vfs_open").into_iter().filter(|hit| hit["stack_end"] == "user").collect();
    assert!(by_process.len() >= 3, "{}", run.said);
    let opens = by_process.iter().map(|hit| functions(hit)).filter(|functions| {
        let wanted = ["vfs_open", "path_openat", opener, TO_USER[0], TO_USER[1], TO_USER[2]];
        has_in_order(functions, &wanted)
    });
    assert!(opens.count() >= 3, "{by_process:#?}");
    for hit in &by_process {
        assert!(!hit["user_stack"].as_array().unwrap().is_empty(), "{hit:#}");
        assert!(hit["user_stack_end"].is_string(), "{hit:#}");
    }
    // Where a function has returned to comes first.
    let returned = hits(&run, &returned);
    let returned = returned
        .iter()
        .map(|hit| functions(hit))
        .filter(|functions| functions[0] == TO_USER[0] && has_in_order(functions, &TO_USER));
    assert!(returned.count() >= 3, "{}", run.said);
    let inits = hits(&run, "dummy:dummy_dev_init");
    assert_eq!(inits.len(), 1);
    let wanted = [
        "dummy_dev_init [dummy]",
        "register_netdevice",
        "dummy_init_module [dummy]",
        "do_one_initcall",
        "do_init_module",
        TO_USER[1],
        TO_USER[2],
    ];
    assert!(has_in_order(&functions(inits[0]), &wanted), "{:#}", inits[0]);
}

/// A program whose frames are told.
const CALLS: &str = r#"
#include <unistd.h>
__attribute__((noipa)) int asks(void) { return getppid() > 0 ? 1 : 2; }
__attribute__((noipa)) int leaf(void) { return asks() + 1; }
__attribute__((noipa)) int middle(void) { return leaf() + 1; }
int main(void) { return middle() == 3 ? 0 : 1; }
"#;

/// Functions of the process, of its library and of the program, also above a function whose return is probed. A file of the guest's
/// own has no names here.
#[test]
fn frames_of_a_process_have_names() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let options = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    let program = compiled(folder.path(), "calls", CALLS, &options);
    let path = program.to_str().unwrap();
    let returns = format!("-pr {path}:middle");
    let script = format!("{path}; cp {path} /tmp/own-copy; /tmp/own-copy");
    let filter = r#"comm == "calls" || comm == "own-copy""#;
    let asked = format!("-pp:asked __x64_sys_getppid if {filter}");
    let run = run(&binary, &[&asked, &returns, "--stack", "--", "sh", "-ec", &script]);
    run.assert_success();
    let asked: Vec<&Value> = run.of_type("hit").into_iter().filter(|hit| hit["event"] == "asked").collect();
    let [first, copied] = asked.as_slice() else { panic!("{asked:#?}") };
    let places = first["user_places"].as_array().unwrap_or_else(|| panic!("{first:#}"));
    let function = |place: &Value| Some(place["name"].as_str()?.split('+').next().unwrap().to_owned());
    let named: Vec<_> = places.iter().filter_map(function).collect();
    assert!(has_in_order(&named, &["getppid", "leaf", "middle", "main"]), "{first:#}");
    let library = places[0]["file"].as_str().unwrap();
    assert!(library.contains("libc") && places[1]["file"] == path, "{first:#}");
    // Where the program stands in its file is the same, whatever is known of that.
    let own = copied["user_places"].as_array().unwrap_or_else(|| panic!("{copied:#}"));
    let offsets = |places: &[Value]| places.iter().map(|place| place["offset"].clone()).collect::<Vec<_>>();
    assert_eq!(offsets(own), offsets(places));
    assert!(
        own[1].get("name").is_none() && own[1]["file"].as_str().unwrap().ends_with("/own-copy"),
        "{copied:#}"
    );
    let back = run.of_type("return")[0];
    assert_eq!(function(&back["user_places"][0]).as_deref(), Some("main"), "{back:#}");
}
