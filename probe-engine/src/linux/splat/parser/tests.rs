use super::*;

/// Lines as one caller writes them, each a record.
fn read(parser: &mut SplatParser, caller: PrintkCaller, text: &str) -> Vec<Splat> {
    let record = |(n, line): (usize, &str)| PrintkRecord {
        sequence: n as u64,
        nanos: n as u64,
        facility: 0,
        caller,
        text: line.as_bytes().to_vec(),
    };
    text.lines().enumerate().flat_map(|(n, line)| parser.record(&record((n, line)))).collect()
}

/// All reports of a log that one task writes.
fn reports(text: &str) -> Vec<Splat> {
    let mut parser = SplatParser::default();
    let mut all = read(&mut parser, PrintkCaller::Task(1), text);
    all.extend(parser.finish());
    all
}

/// What is known of each report: title, fingerprint, task, CPU, taint, place.
fn facts(text: &str) -> Vec<String> {
    let fact = |splat: Splat| {
        let task = splat.task.as_ref().map(|task| format!("{}-{}", task.comm, task.pid)).unwrap_or_default();
        let cpu = splat.cpu.map(|cpu| format!("cpu{cpu}")).unwrap_or_default();
        let taint = splat.taint.clone().unwrap_or_default();
        let at = splat.at.clone().unwrap_or_default();
        format!("{} | {} | {task} | {cpu} | {taint} | {at}", splat.title, splat.fingerprint())
    };
    reports(text).into_iter().map(fact).collect()
}

macro_rules! log {
    ($name:literal) => {
        include_str!(concat!("logs/", $name, ".txt"))
    };
}

#[test]
fn a_process_writes_no_report() {
    let record = PrintkRecord {
        sequence: 0,
        nanos: 0,
        facility: 1,
        caller: PrintkCaller::Task(1),
        text: b"BUG: kernel NULL pointer dereference, address: 0000000000000000".to_vec(),
    };
    let mut parser = SplatParser::default();
    assert!(parser.record(&record).is_empty() && parser.finish().is_empty());
}

#[test]
fn reports_of_several_callers_are_told_from_each_other() {
    let mut parser = SplatParser::default();
    let lines = |function: &str| -> Vec<String> {
        let frames = format!("Call Trace:\n <TASK>\n {function}+0x1/0x2\n </TASK>\n---[ end trace 0 ]---");
        let text = format!("BUG: sleeping function called from invalid context at {function}.c:1\n{frames}");
        text.lines().map(str::to_owned).collect()
    };
    let mut all = Vec::new();
    for (one, other) in lines("one").iter().zip(lines("other")) {
        all.extend(read(&mut parser, PrintkCaller::Task(1), one));
        all.extend(read(&mut parser, PrintkCaller::Cpu(1), &other));
    }
    let prints: Vec<String> = all.iter().map(Splat::fingerprint).collect();
    assert_eq!(prints, ["atomic:one", "atomic:other"]);
    assert!(!parser.is_open());
}

#[test]
fn a_report_without_an_end_is_over_when_nothing_more_comes() {
    let mut parser = SplatParser::default();
    assert!(
        read(&mut parser, PrintkCaller::Task(1), "unregister_netdevice: waiting for lo\nmore").is_empty()
    );
    for _ in 0..PAUSES {
        assert!(parser.pause().is_empty() && parser.is_open());
    }
    assert_eq!(parser.pause().len(), 1);
    assert!(!parser.is_open());
}

#[test]
fn what_a_report_is_about_may_be_a_name_of_a_process() {
    assert!(reports("BUG: my program\nCode: 00").is_empty());
    let unknown = reports("BUG: something new\nCall Trace:\n f+0x1/0x2\n");
    assert_eq!(unknown[0].fingerprint(), "general:f");
}

#[test]
fn reports_have_bounds() {
    let long = format!("BUG: KASAN: {}\nCall Trace:\n{}", "é".repeat(2000), " f+0x1/0x2\n".repeat(2000));
    let splat = &reports(&long)[0];
    assert!(splat.text.len() <= MOST_LINES && splat.frames.len() <= MOST_FRAMES);
    assert!(splat.text.iter().all(|line| line.len() <= LONGEST_LINE));
    let mut parser = SplatParser::default();
    for caller in 0..1000 {
        read(&mut parser, PrintkCaller::Task(caller), "unregister_netdevice: waiting for lo");
    }
    assert_eq!(parser.open.len(), MOST_OPEN);
}

/// They are from guests of Debian's kernels, without registers and most guesses.
#[test]
fn real_reports_are_read() {
    const INIT: &str = "dummy_init_module,do_one_initcall,do_init_module,init_module_from_file";
    for (log, expected) in [
        (
            log!("sysrq-crash-6.12"),
            "Kernel panic - not syncing: sysrq triggered crash | \
             panic:sysrq_handle_crash,__handle_sysrq,write_sysrq_trigger,proc_reg_write,vfs_write | sh-132 | cpu0 |  | "
                .to_owned(),
        ),
        (
            log!("warning-6.12"),
            format!(
                "WARNING in register_netdevice: RTNL: assertion failed at net/core/dev.c (10606) | \
                 warning:register_netdevice,{INIT} | insmod-132 | cpu0 | GE | net/core/dev.c:10606"
            ),
        ),
        (
            log!("null-6.12"),
            format!(
                "BUG: kernel NULL pointer dereference in dummy_init_module | oops:{INIT},idempotent_init_module | \
                 insmod-133 | cpu0 | GWE | "
            ),
        ),
        (
            log!("list-6.12"),
            "kernel BUG at lib/list_debug.c:52! in __list_del_entry_valid_or_report | \
             memory:__rtnl_link_unregister,rtnl_link_unregister,__do_sys_delete_module,do_syscall_64,\
             entry_SYSCALL_64_after_hwframe | rmmod-136 | cpu0 | GDWE | lib/list_debug.c:52"
                .to_owned(),
        ),
        (
            log!("soft-lockup-6.12"),
            format!(
                "BUG: soft lockup | soft-lockup:{INIT},idempotent_init_module | insmod-137 | cpu0 | GDWE | "
            ),
        ),
        (
            log!("hung-task-6.12"),
            format!(
                "INFO: task insmod blocked for more than 1 seconds. | hung-task:{INIT},idempotent_init_module | \
                 insmod-133 |  | GE | "
            ),
        ),
        (
            log!("hung-task-6.1"),
            "INFO: task insmod blocked for more than 1 seconds. | hung-task:dummy_init_module,do_one_initcall,\
             do_init_module,__do_sys_finit_module,do_syscall_64 | insmod-80 |  | GE | "
                .to_owned(),
        ),
        (
            log!("warning-7.2"),
            "WARNING in __kvmalloc_node_noprof | warning:__kvmalloc_node_noprof,alloc_netdev_mqs,dummy_init_module,\
             do_one_initcall,do_init_module | insmod-96 | cpu0 | GE | mm/slub.c:6946"
                .to_owned(),
        ),
    ] {
        assert_eq!(facts(log), [expected]);
    }
}
