//! Files of rules and the definitions that they become; mistakes and where they are.

use super::file::{DEFAULT, RuleFile};
use super::mistake::Mistake;
use super::parse::policies;
use super::resolve::resolved;
use super::translate::{Translated, translated};
use probe_engine::capture::typed::Expand;
use probe_engine::linux::debug_info::DebugInfo;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::plan::{Action, GuardAction};
use probe_engine::request::{Definitions, ProbeRequest};
use proptest::prelude::*;
use std::env;

/// A file with one rule of these hooks.
fn file(spec: &str) -> String {
    format!("apiVersion: cilium.io/v1alpha1\nkind: TracingPolicy\nmetadata:\n  name: a-rule\nspec:\n{spec}")
}

fn probes(text: &str) -> Result<Vec<Translated>, Mistake> {
    let mut probes = Vec::new();
    for hook in policies(text)?.iter().flat_map(|policy| &policy.hooks) {
        probes.extend(translated(hook)?);
    }
    Ok(probes)
}

/// The definitions of a rule with these hooks.
#[track_caller]
fn definitions(spec: &str) -> Vec<String> {
    let text = file(spec);
    let probes =
        probes(&text).unwrap_or_else(|mistake| panic!("{}: {}", mistake.message, &text[mistake.span]));
    probes.into_iter().map(|probe| probe.text).collect()
}

/// What is said of a mistake, what is marked, and what to write instead.
#[track_caller]
fn wrong(text: &str) -> (String, String, String) {
    let Mistake { span, message, hint } = probes(text).unwrap_err();
    (message, text[span].trim_end().to_owned(), hint.unwrap_or_default())
}

/// One kprobe, `call: f` with these lines.
fn kprobe(lines: &str) -> String {
    let lines: String = lines.lines().map(|line| format!("    {line}\n")).collect();
    format!("  kprobes:\n  - call: f\n{lines}")
}

#[test]
fn a_hook_becomes_a_definition() {
    let argument = |ty: &str| kprobe(&format!("args:\n- index: 1\n  type: {ty}"));
    for (spec, expected) in [
        (kprobe("syscall: false"), "p f"),
        ("  kprobes:\n  - call: dummy:dummy_xmit\n".to_owned(), "p dummy:dummy_xmit"),
        ("  kprobes:\n  - call: init_once#2\n".to_owned(), "p init_once#2"),
        ("  kprobes:\n  - call: sys_openat\n    syscall: true\n".to_owned(), "p syscall:openat"),
        ("  kprobes:\n  - call: __x64_sys_openat\n    syscall: true\n".to_owned(), "p syscall:openat"),
        ("  lsmhooks:\n  - hook: file_open\n".to_owned(), "p security_file_open"),
        (
            "  tracepoints:\n  - subsystem: sched\n    event: sched_switch\n    raw: true\n    args: [{index: 0, type: int}]\n".to_owned(),
            "t sched:sched_switch arg0=$arg1:s32",
        ),
        ("  uprobes:\n  - path: /bin/sh\n    symbols: [main]\n".to_owned(), "p /bin/sh:main"),
        (argument("int"), "p f arg1=$arg2:s32"),
        (argument("size_t"), "p f arg1=$arg2:u64"),
        (argument("string"), "p f arg1=+0($arg2):string"),
        (argument("file"), "p f arg1=$arg2->f_path:path"),
        (argument("path"), "p f arg1=$arg2:path"),
        (argument("filename"), "p f arg1=$arg2->name:string"),
        (argument("linux_binprm"), "p f arg1=$arg2->file->f_path:path"),
        (argument("nop"), "p f"),
        (argument("auto"), "p f arg1=$arg2"),
        (argument("user_namespace").replace("type", "label: a b\n      type"), "p f a_b_level=$arg2->level a_b_owner=$arg2->owner.val a_b_group=$arg2->group.val a_b_inum=$arg2->ns.inum"),
        (argument("int").replace("type", "resolve: a.b\n      type"), "p f arg1=$arg2->a.b:s32"),
        (argument("string").replace("type", "resolve: a.b\n      type"), "p f arg1=$arg2->a.b:string"),
        (kprobe("return: true\nargs:\n- {index: 0, type: int}\nreturnArg: {index: 0, type: int}"), "r f arg0=$arg1:s32 ret=$retval:s32"),
        (kprobe("return: true"), "r f ret=$retval"),
        (kprobe("data:\n- {source: current_task, type: command_line, label: words}"), "p f words=$cmdline"),
        (kprobe("data:\n- {source: current_task, type: uint32, resolve: cred.uid.val}"), "p f data0=$current->cred.uid.val:u32"),
    ] {
        assert_eq!(definitions(&spec), [expected], "{spec}");
    }
}

#[test]
fn filters_of_a_selector_hold_together_and_one_value_of_each_is_enough() {
    let compared = |ty: &str, filter: &str| {
        let lines = format!(
            "args:\n- {{index: 0, type: {ty}, label: a}}\nselectors:\n- matchArgs:\n  - {{index: 0, {filter}}}"
        );
        let [text] = &definitions(&kprobe(&lines))[..] else { panic!() };
        text.split_once(" if ").unwrap().1.to_owned()
    };
    for (ty, filter, expected) in [
        ("int", "operator: Equal, values: [1, \"-2\", 0x10]", "(a == 1 || a == -2 || a == 16)"),
        ("int", "operator: NotEqual, values: [1]", "!(a == 1)"),
        ("int", "operator: GT, values: [1]", "(a > 1)"),
        ("int", "operator: LessThan, values: [1]", "(a < 1)"),
        ("int", "operator: Mask, values: [\"2\"]", "(a & 2)"),
        ("int", "operator: InRange, values: [\"1:3\"]", "((a >= 1 && a <= 3))"),
        ("string", "operator: Equal, values: [x, \"y z\"]", "(a == \"x\" || a == \"y z\")"),
        ("string", "operator: Prefix, values: [\"/e*\"]", "(a ~ \"/e\\**\")"),
        ("string", "operator: NotPostfix, values: [x]", "!(a ~ \"*x\")"),
        ("string", "operator: SubString, values: [x]", "(a ~ \"*x*\")"),
        ("file", "operator: Equal, values: [/etc/passwd]", "(a == \"/etc/passwd\")"),
        ("dentry", "operator: Postfix, values: [/passwd]", "(a == \"passwd\")"),
        ("dentry", "operator: Postfix, values: [.so]", "(a ~ \"*.so\")"),
    ] {
        assert_eq!(compared(ty, filter), expected, "{ty} {filter}");
    }
    let lines = "\
return: true
args:
- {index: 0, type: int}
selectors:
- matchArgs:
  - {index: 0, operator: Equal, values: [1]}
  matchPIDs:
  - {operator: NotIn, values: [1, 2]}
- matchBinaries:
  - {operator: In, values: [/bin/a]}
  matchReturnArgs:
  - {operator: Equal, values: [-2]}";
    assert_eq!(
        definitions(&kprobe(lines)),
        ["r f process=$current->tgid binary=$current->mm->exe_file->f_path:path arg0=$arg1:s32 ret=$retval \
          if (arg0 == 1) && !(process == 1 || process == 2) || (ret == -2) && (binary == \"/bin/a\")"]
    );
    // What is read for selectors alone does not take the place of parameters.
    let alone = kprobe("selectors:\n- matchPIDs:\n  - {operator: In, values: [1]}");
    assert_eq!(definitions(&alone), ["p f process=$current->tgid $arg* if (process == 1)"]);
}

#[test]
fn the_first_selector_that_matches_says_what_is_made_of_a_hit() {
    let lines = "\
args:
- {index: 0, type: int}
selectors:
- matchArgs:
  - {index: 0, operator: Equal, values: [1]}
  matchActions:
  - {action: Override, argError: -1}
- matchArgs:
  - {index: 0, operator: Equal, values: [2]}
  matchActions:
  - {action: Sigkill}
- matchActions:
  - {action: NoPost}";
    let text = file(&kprobe(lines));
    let probes = probes(&text).unwrap();
    let [denied, stopped, counted] = &probes[..] else { panic!("{probes:?}") };
    assert_eq!(denied.text, "p f arg0=$arg1:s32 if (arg0 == 1)");
    assert_eq!(stopped.text, "p f arg0=$arg1:s32 if (arg0 == 2) && !((arg0 == 1))");
    assert_eq!(counted.text, "p f arg0=$arg1:s32 if !((arg0 == 1)) && !((arg0 == 2))");
    assert_eq!(denied.actions.denied.as_ref().map(|error| error.value), Some(-1));
    assert!(stopped.actions.stops.is_some() && counted.actions.is_silent);
    // Where all do the same, they are one probe.
    let same = lines
        .replace("action: Override, argError: -1", "action: Post")
        .replace("Sigkill", "Post")
        .replace("NoPost", "Post");
    assert_eq!(definitions(&kprobe(&same)), ["p f arg0=$arg1:s32"]);
}

#[test]
fn mistakes_are_told_at_their_place() {
    let argument = |lines: &str| file(&kprobe(&format!("args:\n- index: 0\n  {lines}")));
    let selector =
        |lines: &str| file(&kprobe(&format!("args:\n- {{index: 0, type: int}}\nselectors:\n- {lines}")));
    for (text, message, marked, hint) in [
        (String::new(), "there is no rule in this file", "", "apiVersion"),
        ("a: 1".to_owned(), "a policy has no `apiVersion`", "a", ""),
        (
            file("  kprobes: []\n").replace("TracingPolicy", "Pod"),
            "`Pod` is not taken here",
            "Pod",
            "write `TracingPolicy`",
        ),
        (file("  kprobes: []\n"), "the rule has no hooks", "kprobes", "`kprobes`"),
        (file("  podSelector: {}\n"), "`podSelector` is not taken here", "podSelector", "no pods"),
        (file("  kprobe: []\n"), "there is no key `kprobe` here", "kprobe", "there is `kprobes`"),
        (file("  kprobes: 1\n"), "`kprobes` is a list, and this is a text", "1", "`- `"),
        (
            file("  kprobes:\n  - call: list:x\n"),
            "a list of functions is not taken here",
            "list:x",
            "each function",
        ),
        (file("  kprobes:\n  - call: a:b:c\n"), "`a:b:c` is no name of a function", "a:b:c", "each function"),
        (file("  kprobes:\n  - call: vfs_*\n"), "`vfs_*` is no name of a function", "vfs_*", "each function"),
        (
            file("  kprobes:\n  - call: f\n    syscall: true\n"),
            "`f` is no system call's name",
            "f",
            "write `sys_f`",
        ),
        (argument("type: fd"), "the type `fd` is not read here", "fd", "`int` is its number"),
        (
            file("  kprobes:\n  - call: f\n    tags: [a.b, severity.hihg]\n"),
            "`severity.hihg` is no severity",
            "severity.hihg",
            "there is informational",
        ),
        (
            file("  kprobes:\n  - call: f\n    tags: [attack.T10]\n"),
            "`attack.T10` is no technique",
            "attack.T10",
            "attack.T1547.006",
        ),
        (
            argument("type: char_buf\n  sizeArgIndex: 3"),
            "`sizeArgIndex` is not taken here",
            "sizeArgIndex",
            "`string`",
        ),
        (argument("type: sring"), "there is no type `sring`", "sring", "there is `string`"),
        (
            argument("type: int\n  source: current_task"),
            "what is no argument is read under `data`",
            "current_task",
            "",
        ),
        (
            argument("type: int\n  resolve: a->b"),
            "`resolve` is names of members with dots between them",
            "a->b",
            "",
        ),
        (argument("type: command_line"), "a `command_line` is one of a task", "command_line", "`data`"),
        (
            file(&kprobe("args:\n- {index: 0, type: int}\n- {index: 0, type: int}")),
            "two values are called `arg0`",
            "int",
            "`label`",
        ),
        (
            selector("matchArgs:\n  - {index: 3, operator: Equal, values: [1]}"),
            "argument 3 is not read",
            "3",
            "`args`",
        ),
        (
            selector("matchArgs:\n  - {index: 0, operator: Equals, values: [1]}"),
            "the operator `Equals` is not taken here",
            "Equals",
            "Equal",
        ),
        (
            selector("matchArgs:\n  - {index: 0, operator: Prefix, values: [1]}"),
            "`Prefix` compares texts, and `int` is a number",
            "Prefix",
            "",
        ),
        (
            selector("matchArgs:\n  - {index: 0, operator: Equal, values: [x]}"),
            "`x` is no number of 64 bits",
            "x",
            "",
        ),
        (
            selector("matchArgs:\n  - {index: 0, operator: Equal}"),
            "there is nothing to compare with",
            "Equal",
            "`values`",
        ),
        (
            selector("matchNamespaces: []"),
            "`matchNamespaces` is not taken here",
            "matchNamespaces",
            "matchData",
        ),
        (
            selector("matchPIDs:\n  - {operator: In, values: [1], followForks: true}"),
            "`followForks: true` is not taken here",
            "operator",
            "children",
        ),
        (
            selector("matchReturnArgs:\n  - {operator: Equal, values: [1]}"),
            "a call that is about to be made has returned nothing",
            "Equal",
            "return: true",
        ),
        (
            selector("matchActions:\n  - action: FollowFD"),
            "the action `FollowFD` is not taken here",
            "FollowFD",
            "`Post`",
        ),
        (selector("matchActions:\n  - action: Override"), "`Override` has no `argError`", "action", "EPERM"),
        (
            selector("matchActions:\n  - {action: Override, argError: 1}"),
            "`argError` is an error, from -4095 to -1",
            "1",
            "",
        ),
        (
            selector("matchActions:\n  - {action: Post, rateLimit: 5x}"),
            "`rateLimit` is a time: a number of seconds, or with `s`, `m` or `h`",
            "5x",
            "",
        ),
        (
            selector("matchActions:\n  - action: Sigkill\n- matchActions:\n  - action: NoPost"),
            "this selector matches every hit, so that those behind it never do",
            "matchActions",
            "the last one",
        ),
        (
            file(
                "  tracepoints:\n  - subsystem: sched\n    event: sched_switch\n    args: [{index: 5, type: int}]\n",
            ),
            "arguments of a tracepoint are those that the kernel calls it with",
            "int",
            "raw: true",
        ),
        (
            file(&kprobe(
                "args:\n- {index: 0, type: dentry}\nselectors:\n- matchArgs:\n  - {index: 0, operator: Prefix, values: [/etc]}",
            )),
            "`Prefix` compares the whole of a path, and of a `dentry` its last part alone is known",
            "Prefix",
            "`Postfix`",
        ),
    ] {
        let (said, place, advice) = wrong(&text);
        assert_eq!((said.as_str(), place.as_str()), (message, marked), "{text}");
        assert!(advice.contains(hint), "{advice}: {text}");
    }
}

#[test]
fn a_mistake_is_shown_with_its_line_and_column() {
    let text = file("  kprobes:\n  - call: f\n    args:\n    - index: 0\n      type: fd\n");
    let said = RuleFile::of("own.yaml".to_owned(), text).err().unwrap().to_string();
    assert!(said.starts_with("own.yaml: the type `fd` is not read here"), "{said}");
    assert!(said.contains("own.yaml:10:13") && said.contains("`int` is its number"), "{said}");
}

#[test]
fn no_two_rules_have_one_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml").display().to_string();
    std::fs::write(&path, file("  kprobes:\n  - call: f\n")).unwrap();
    assert_eq!(RuleFile::read_all(&[path.clone(), DEFAULT.to_owned()]).unwrap().len(), 5);
    let error = RuleFile::read_all(&[path.clone(), path]).err().unwrap().to_string();
    assert!(error.contains("there is a rule `a-rule` already"), "{error}");
}

/// Calls `check` with each kernel that `VMM_TEST_KERNELS` names.
fn each_kernel(check: impl Fn(&str, &Kernel)) {
    let Ok(list) = env::var("VMM_TEST_KERNELS") else {
        return println!("skipped: VMM_TEST_KERNELS names no kernels");
    };
    for path in list.split(':') {
        check(path, &Kernel::read(&std::fs::read(path).unwrap(), None).unwrap());
    }
}

/// The probes of these rules in a kernel, and what they lack there.
fn in_kernel(files: &[RuleFile], kernel: &Kernel) -> anyhow::Result<(Vec<ProbeRequest>, Vec<String>)> {
    let (btf, debug) = (kernel.btf().ok(), DebugInfo::found_by(kernel, || Ok(None)));
    let mut definitions = Definitions::of(kernel, btf.as_ref(), &debug, Expand::Small);
    let found = resolved(files, &mut definitions, 0)?;
    Ok((found.probes, found.missing.into_iter().flat_map(|(_, missing)| missing).collect()))
}

#[test]
fn the_shipped_rules_are_resolved_in_every_kernel() {
    let files = RuleFile::read_all(&[DEFAULT.to_owned()]).unwrap();
    let rules: Vec<_> = files.iter().flat_map(|file| &file.rules).collect();
    for rule in &rules {
        assert!(rule.policy.description.is_some(), "{}", rule.policy.name.value);
        for hook in &rule.policy.hooks {
            let techniques = hook.tags.iter().filter_map(|tag| crate::attack::technique(tag));
            let names: Vec<_> = techniques.map(crate::attack::name).collect();
            assert!(
                !names.is_empty() && names.iter().all(Option::is_some),
                "{names:?} of {}",
                rule.policy.name.value
            );
            assert!(hook.message.is_some());
        }
    }
    each_kernel(|path, kernel| {
        let (probes, missing) = in_kernel(&files, kernel).unwrap_or_else(|error| panic!("{path}: {error:#}"));
        println!("{path}: {} probes, without {missing:?}", probes.len());
        for rule in &rules {
            let name = &rule.policy.name.value;
            assert!(probes.iter().any(|probe| probe.rule.as_ref().unwrap().name == *name), "{path}: {name}");
        }
        assert!(probes.iter().all(|probe| probe.plan.guard == Some(GuardAction::GoOn)));
    });
}

#[test]
fn what_a_kernel_has_not_is_told_at_its_place_and_arrows_are_found() {
    each_kernel(|_, kernel| {
        let read =
            |spec: &str| in_kernel(&[RuleFile::of("own.yaml".to_owned(), file(spec)).unwrap()], kernel);
        let said = |spec: &str| read(spec).unwrap_err().to_string();
        let missing = said("  kprobes:\n  - call: do_sys_opena2\n");
        assert!(
            missing.contains("no function `do_sys_opena2`") && missing.contains("own.yaml:7:11"),
            "{missing}"
        );
        let (none, lacks) =
            read("  kprobes:\n  - call: do_sys_opena2\n    ignore: {callNotFound: true}\n").unwrap();
        assert!(none.is_empty() && lacks == ["do_sys_opena2"]);
        let member = said(
            "  kprobes:\n  - call: commit_creds\n    args:\n    - {index: 0, type: int, resolve: user.uidd.val}\n",
        );
        assert!(member.contains("there is no member `uidd`") && member.contains("own.yaml:9:"), "{member}");
        let other = said("  kprobes:\n  - call: commit_creds\n    args:\n    - {index: 0, type: file}\n");
        assert!(other.contains("there is no member `f_path`") && other.contains("own.yaml:9:24"), "{other}");
        let denied = |call: &str| {
            format!(
                "  kprobes:\n  - call: {call}\n    selectors:\n    - matchActions:\n      - {{action: Override, argError: -1}}\n      - action: NoPost\n"
            )
        };
        let unprepared = said(&denied("commit_creds"));
        assert!(unprepared.contains("own.yaml:7:11"), "{unprepared}");
        let (probes, _) = read(&denied("security_file_open")).unwrap();
        assert!(probes[0].plan.inject.is_some() && probes[0].plan.action == Action::Count);
        assert_eq!(probes[0].injected.as_ref().unwrap().text, "rule a-rule: security_file_open=-1");
        // What a program passes is where the kernel has saved it, by whatever way it is written.
        let (btf, debug) = (kernel.btf().ok(), DebugInfo::found_by(kernel, || Ok(None)));
        let mut definitions = Definitions::of(kernel, btf.as_ref(), &debug, Expand::Small);
        definitions.read("p syscall:openat $arg2:string a=$arg2:string b=+0($arg2):string").unwrap();
        let found = definitions.finish().probes;
        let sources: Vec<_> = found[0].plan.capture.fields.iter().map(|field| field.source(false)).collect();
        assert_eq!((&sources[1], &sources[2]), (&sources[0], &sources[0]));
        // `user` is a pointer, and so is `ns` of it.
        let deep = "  kprobes:\n  - call: commit_creds\n    args:\n    - {index: 0, type: uint32, resolve: user.uid.val}\n    - {index: 0, type: int, label: level, resolve: user_ns.parent.level}\n";
        let (probes, _) = read(deep).unwrap();
        assert_eq!(probes[0].plan.capture.fields.len(), 2);
    });
}

proptest! {
    /// Any tree of YAML that is nearly a rule.
    #[test]
    fn no_file_panics_the_translator(
        lines in proptest::collection::vec("( {2,10})(- )?(call|args|index|type|label|selectors|matchArgs|operator|values|kprobes|return|resolve|data|matchActions|action|syscall): ?(f|int|file|\\[\\]|\\[1, x\\]|0|true|Equal|Prefix|Override|)", 0..24),
        cut in any::<proptest::sample::Index>(),
    ) {
        let text = file(&lines.join("\n"));
        let cut = text.floor_char_boundary(cut.index(text.len() + 1));
        for text in [text.as_str(), &text[..cut]] {
            if let Err(mistake) = probes(text) {
                prop_assert!(text.get(mistake.span).is_some());
            }
        }
    }
}
