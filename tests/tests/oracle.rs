//! The guest as oracle: the same definitions through its own tracefs, at a function's entry, and through us. Both see one
//! program; event by event, the values have to be the same, written the same.
//!
//! Where the guest's tracer works, our probe stands one instruction further on: neither sees the other.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use guest_kernels::Series;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tests::kernel::{name_of, under_test};
use tests::linux_rig::subject;
use tests::product::{Ended, binary, command, initrd_with, kernel, report};

/// Defines all events and enables them for the subject, which is a program of a name of its own, and prints what they
/// saw.
const SCRIPT: &str = r#"
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo 8192 > buffer_size_kb
while read -r definition; do
    printf '%s\n' "$definition" >> dynamic_events || echo "refused: $definition"
done < /definitions
echo 'comm == "subject"' > events/oracle/filter
while read -r event filter; do
    printf '%s\n' "$filter" > events/oracle/$event/filter || echo "refused: $filter"
done < /filters
echo 1 > events/oracle/enable
cp /init /tmp/subject
/tmp/subject --steps open:6,getppid:3,walk:3,pipe:4,signal:2,try:/no/such/file,fork:2
echo 0 > events/oracle/enable
echo "the trace begins"
cat trace
echo "the trace ends"
"#;

/// A definition's event and arguments, and a filter of its own.
type Row = (&'static str, &'static str);

/// For all kernels.
const COMMON: &[Row] = &[
    ("p:dfd do_sys_openat2 dfd=$arg1:s32 path=+0($arg2):ustring", ""),
    ("p:how do_sys_openat2 flags=+0($arg3):x64 mode=+8($arg3):u64 resolve=+16($arg3):u64", ""),
    ("p:path do_sys_openat2 path=+0(%si):string", ""),
    ("p:words do_sys_openat2 how=+0($arg3):x32[6]", ""),
    (
        "p:bytes do_sys_openat2 bytes=+0($arg2):u8[8] signed=+0($arg2):s8[3] pairs=+0($arg2):x16[2] user=+u4($arg2):x32",
        "",
    ),
    ("r:opened do_sys_openat2 ret=$retval:s64", ""),
    ("p:read vfs_read file=%di buf=%si:x64 count=%dx:u64 pos=%cx:x64", ""),
    ("p:file vfs_read word=+16($arg1):x32 more=+24($arg1):u64 far=+0x48($arg1):x64", ""),
    ("r:got vfs_read low=$retval:u32 all=$retval:x64 byte=$retval:s8", ""),
    ("p:slots vfs_write first=$stack0 second=$stack1:x64 eighth=$stack8:u64", ""),
    ("p:stack vfs_write sp=$stack", ""),
    ("p:named vfs_read comm=$comm", ""),
    ("p:fixed vfs_read small=\\42:u8 minus=\\-1:s16 hex=\\0xabc:x32 text=\\\"hello\"", ""),
    (
        "p:symbols vfs_read system=@init_uts_ns:string release=@init_uts_ns+130:string cpus=@nr_cpu_ids:u32 cmdline=+0(@saved_command_line):string",
        "",
    ),
    ("p:bits vfs_read low=%dx:b4@0/8 high=%dx:b5@3/16 file=+20(%di):b4@2/32 wide=+24(%di):b20@8/64", ""),
    ("p:opening vfs_open name=+0(+40(+8($arg1))):string", ""),
    ("p:pair vfs_open path=+0($arg1):x64[2]", ""),
    ("p:made vfs_mkdir mode=$arg4:u16 octal=$arg4:x16 name=+0(+40($arg3)):string", ""),
    ("r:making vfs_mkdir ret=$retval:s32", ""),
    ("p:unmade vfs_rmdir name=+0(+40($arg3)):string len=+36($arg3):u32", ""),
    ("p:parent __x64_sys_getppid nr=+0x78($arg1):s64 cs=+0x88($arg1):x16", ""),
    ("r:parented __x64_sys_getppid pid=$retval:u32 wide=$retval", ""),
    ("p:lookup do_filp_open dfd=$arg1:s32 path=+0(+0($arg2)):string flags=+0($arg3):x32", ""),
    ("r:looked do_filp_open file=$retval error=$retval:s32", ""),
    ("p:registers vfs_write ax=%ax bx=%bx cx=%cx dx=%dx si=%si di=%di bp=%bp sp=%sp r8=%r8 r9=%r9", ""),
    // The guest's tracer uses r10 and r11 on its way to the next instruction.
    ("p:others vfs_write r12=%r12 r13=%r13 r14=%r14 r15=%r15", ""),
    ("p:sizes vfs_read a=%dx:x8 b=%dx:x16 c=%dx:x32 d=%si:s8 e=%si:s16 f=%si:s32 g=%si:s64 h=%si:u16", ""),
    ("p:nowhere vfs_read bad=+0(\\16):string worse=+0(+8(\\16)):string fine=%dx:u8", ""),
    ("p:caller vfs_write caller=$stack0:symbol own=%di:symbol", ""),
    ("p:executed __x64_sys_execve path=+0(+112($arg1)):ustring args=+104($arg1):x64[2]", ""),
    ("p:strings do_filp_open both=+0($arg2):string[2] one=+8($arg2):string[1]", ""),
    ("p:anonymous vfs_read %di %si $stack1 +0(%di):x8", ""),
    ("p:etc do_sys_openat2 path=+0($arg2):ustring", "path ~ \"/etc/*g*\""),
    ("p:large vfs_read count=$arg3:u64 c=$arg3:s32", "count > 100 && (count < 5000 || c == -1)"),
    ("p:masked do_sys_openat2 flags=+0($arg3):x64 dfd=$arg1:s32", "flags & 0x80000 && dfd == -100"),
    ("r:failed do_sys_openat2 ret=$retval:s32", "ret < 0 && ret != -13"),
    ("p:not do_filp_open path=+0(+0($arg2)):string", "!(path ~ \"/etc/*\") && path != \"/tmp/subject\""),
    ("p:named_so vfs_read comm=$comm count=$arg3:u32", "comm == \"subject\" && common_pid > 1 && count >= 1"),
];

/// By the kernel's own types, and what else came after 6.1.
const SINCE_6_12: &[Row] = &[
    ("p:b_chars do_sys_openat2 chars=+0($arg2):char[4]", ""),
    ("p:b_behind vfs_read second=@init_uts_ns+1:char[4]", ""),
    ("p:b_open do_sys_openat2 dfd filename:string flags=how->flags mode=how->mode", ""),
    ("p:b_all vfs_read $arg*", ""),
    (
        "p:b_path vfs_read mode=file->f_mode ino=file->f_inode->i_ino name=file->f_path.dentry->d_name.name:string",
        "",
    ),
    ("r:b_value vfs_read $retval", ""),
    (
        "r:b_member do_filp_open file=$retval:x64 flags=$retval->f_flags ino=$retval->f_inode->i_ino",
        "file < 0xfffffffffffff000",
    ),
    ("f:b_entry vfs_open flags=file->f_flags len=path->dentry->d_name.len", ""),
    ("f:b_return vfs_read%return ret=$retval", ""),
    ("r:b_entered vfs_read count ret=$retval", ""),
    ("p:b_task wake_up_new_task pid=p->pid reset=p->sched_reset_on_fork io=p->in_iowait", ""),
    ("p:b_more wake_up_new_task prio=p->prio policy=p->policy uid=p->cred->uid.val exec=p->in_execve", ""),
    ("p:b_dentry vfs_mkdir dentry:%pd mode", ""),
    ("p:b_file vfs_read file:%pD count", ""),
    ("p:b_symstr vfs_write caller=$stack0:symstr", ""),
    ("p:b_typed vfs_read count:x32 pos:u64 file:x64", ""),
    ("p:b_numbers vfs_write $arg3 $arg4 $arg1:x32 $arg2", ""),
    ("p:b_filter do_sys_openat2 filename:string dfd", "filename ~ \"*passwd\" || dfd > 0"),
];

/// What came with 7.3: casts, the task, and per-CPU variables.
const SINCE_7_3: &[Row] = &[
    (
        "p:c_cast vfs_read mode=(file)file->f_mode same=(file)(file)->f_mode name=(dentry)((file)file->f_path.dentry)->d_name.name:string",
        "",
    ),
    (
        "p:c_container vfs_read mode=(file,f_path)file->f_mode inode=(file,f_path.dentry)file->f_inode own=(file,f_mode)%di->f_mode",
        "",
    ),
    (
        "r:c_returned do_filp_open file=$retval:x64 flags=(file)$retval->f_flags ino=(inode)((file)$retval->f_inode)->i_ino",
        "file < 0xfffffffffffff000",
    ),
    ("r:c_entered vfs_read mode=(file)$arg1->f_mode:x32 pid=$current->pid", ""),
    (
        "p:c_task vfs_read task=$current pid=$current->pid name=$current->comm:string uid=$current->cred->uid.val io=$current->in_iowait tgid=(task_struct)$current->tgid",
        "pid > 1",
    ),
    // The path is a member of what leads to it.
    (
        "p:c_parent vfs_open depth=(nameidata,path)path->depth dfd=(nameidata,path)$arg1->dfd last=(nameidata,path)path->last.name:string whole=(filename)((nameidata,path)path->name)->name:string",
        "",
    ),
    (
        "p:c_own vfs_read task=this_cpu_read(@current_task) low=this_cpu_read(@current_task):u32 cpu=this_cpu_read(@cpu_number):u32 off=this_cpu_read(@this_cpu_off)",
        "task != 0",
    ),
    (
        "p:c_pointer vfs_read at=this_cpu_ptr(@current_task) behind=this_cpu_ptr(@current_task+8) words=+0(this_cpu_ptr(@current_task)):x32[2] pid=(task_struct)this_cpu_read(@current_task)->pid",
        "at != 0",
    ),
    ("p:c_relative vfs_read base=this_cpu_ptr(\\0) far=this_cpu_ptr($current):x32", ""),
];

/// What kernels before 7.3 cannot say, and how it is said to them.
const OTHERWISE: &[(&str, &str)] = &[
    ("p:d_task exit_files task=$arg1", "p:d_task exit_files task=$current"),
    (
        "p:d_own exit_files task=$arg1 low=$arg1:x32",
        "p:d_own exit_files task=this_cpu_read(@current_task) low=this_cpu_read(@current_task):x32",
    ),
    ("p:d_pointer exit_files task=$arg1", "p:d_pointer exit_files task=+0(this_cpu_ptr(@current_task))"),
    (
        "p:d_container vfs_read mode=+0($arg1):x32",
        "p:d_container vfs_read mode=(file,f_mode)$arg1->f_mode:x32",
    ),
];

/// The same, by the kernel's own types. Its bit-fields are no last arguments where there is a string: it shifts 8 bytes in a
/// place for 4, and so clears the beginning of the string behind them.
const OTHERWISE_SINCE_6_12: &[(&str, &str)] = &[
    (
        "p:e_cast vfs_read mode=file->f_mode ino=file->f_inode->i_ino name=file->f_path.dentry->d_name.name:string",
        "p:e_cast vfs_read mode=(file)%di->f_mode ino=(inode)((file)$arg1->f_inode)->i_ino name=(dentry)(file->f_path.dentry)->d_name.name:string",
    ),
    (
        "p:e_task exit_files pid=tsk->pid io=tsk->in_iowait name=tsk->comm:string uid=tsk->cred->uid.val",
        "p:e_task exit_files pid=$current->pid io=(task_struct)$current->in_iowait name=$current->comm:string uid=$current->cred->uid.val",
    ),
    (
        "p:e_own exit_files pid=tsk->pid",
        "p:e_own exit_files pid=(task_struct)this_cpu_read(@current_task)->pid",
    ),
    ("r:e_entered vfs_read mode=file->f_mode", "r:e_entered vfs_read mode=(file)$arg1->f_mode"),
];

/// With the group that the script enables.
fn in_group(definition: &str) -> String {
    definition.replacen(':', ":oracle/", 1)
}

/// What was seen of each event by each task, by its number: the arguments as written, in order. In which order two probes see the tasks is
/// the scheduler's business: a kernel may switch between the two.
type Seen = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// Notes down what was seen of a task, `NAME-NUMBER`.
fn note(seen: &mut Seen, task: Option<&str>, event: &str, arguments: &str) {
    let (_, number) =
        task.and_then(|task| task.rsplit_once('-')).unwrap_or_else(|| panic!("{task:?}, {event}"));
    let of_event = seen.entry(event.to_owned()).or_default();
    of_event.entry(number.to_owned()).or_default().push(arguments.to_owned());
}

/// `subject-7 [000] ..... 1.234567: EVENT: (PLACE) ARGUMENTS`
fn theirs(console: &str) -> Seen {
    let trace = console.split("the trace begins").nth(1).unwrap().split("the trace ends").next().unwrap();
    let mut seen = Seen::new();
    // The kernel may say something in between, and the tracer has a head.
    for line in trace.lines().filter(|line| !line.starts_with(['#', '[']) && !line.trim().is_empty()) {
        let (head, rest) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let (event, rest) = rest.split_once(": (").unwrap_or_else(|| panic!("{line}"));
        let arguments = rest.split_once(')').unwrap().1.trim();
        note(&mut seen, head.split_whitespace().next(), event, arguments);
    }
    seen
}

/// `[1.234567890] cpu0 subject-7 oracle/EVENT: (PLACE) ARGUMENTS`, at a return `took=...` behind it.
fn ours(output: &str) -> Seen {
    let mut seen = Seen::new();
    // Behind them comes the table.
    for line in output.lines().take_while(|line| line.starts_with('[')) {
        let (head, rest) = line.split_once(" oracle/").unwrap_or_else(|| panic!("{line}"));
        let (event, rest) = rest.split_once(": (").unwrap_or_else(|| panic!("{line}"));
        let arguments = rest.split_once(')').unwrap().1;
        let arguments = arguments.rsplit_once(" took=").map_or(arguments, |(arguments, _)| arguments).trim();
        note(&mut seen, head.split_whitespace().last(), event, arguments);
    }
    seen
}

/// A task with each of its events.
fn by_task((task, events): (&String, &Vec<String>)) -> Vec<(String, String)> {
    events.iter().map(|arguments| (task.clone(), arguments.clone())).collect()
}

/// Whether the kernel's own words about its tracing have these.
fn says(words: &str) -> bool {
    let image = subject().kernel.image();
    let mut segments = image.segments().iter().filter_map(|segment| image.bytes_from(segment.range.start));
    segments.any(|bytes| bytes.windows(words.len()).any(|window| window == words.as_bytes()))
}

/// Definitions for the guest and for us, each pair with a filter.
fn agrees_with_the_guest(rows: &[&[Row]], otherwise: &[&[(&str, &str)]]) {
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let opener = name_of("do_filp_open");
    // From 6.2 to 6.14 the first of several words.
    let hot = subject().kernel.symbols().address_of("pcpu_hot").is_some();
    let current = if hot { "@pcpu_hot" } else { "@current_task" };
    let here = |text: &str| text.replace("do_filp_open", opener).replace("@current_task", current);
    let same = rows.concat().into_iter().map(|(definition, filter)| (definition, definition, filter));
    let otherwise = otherwise.concat().into_iter().map(|(theirs, ours)| (theirs, ours, ""));
    let rows: Vec<(String, String, &str)> =
        same.chain(otherwise).map(|(theirs, ours, filter)| (here(theirs), here(ours), filter)).collect();
    let event = |definition: &str| definition.split([' ', ':']).nth(1).unwrap().to_owned();
    let mut definitions = String::new();
    let mut filters = String::new();
    let mut asked = String::new();
    for (theirs, ours, filter) in &rows {
        let (definition, ours) = (in_group(theirs), in_group(ours));
        definitions.push_str(&format!("{definition}\n"));
        let filter = match *filter {
            "" => "comm == \"subject\"".to_owned(),
            filter => format!("comm == \"subject\" && ({filter})"),
        };
        asked.push_str(&format!("{ours} if {filter}\n"));
        filters.push_str(&format!("{} {filter}\n", event(&definition).trim_start_matches("oracle/")));
    }
    let initrd = initrd_with([
        ("script", 0o644, SCRIPT.into()),
        ("definitions", 0o644, definitions.into()),
        ("filters", 0o644, filters.into()),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let (probes, hits) = (folder.path().join("probes"), folder.path().join("hits.json"));
    fs::write(&probes, asked).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let words = [
        "run".to_owned(),
        format!("--kernel={}", path(kernel)),
        format!("--initrd={}", path(initrd.path())),
        format!("--probes={}", path(&probes)),
        format!("--output={}", path(&hits)),
        "--maxactive=32".to_owned(),
        "--cmdline=workload=sh:/script".to_owned(),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = command(&binary, folder.path(), &words).output().ended();
    let (console, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{console}\n{said}");
    assert!(!console.contains("refused: "), "{console}");
    let (theirs, ours) = (theirs(&console), ours(&String::from_utf8(report(&binary, &hits, &[])).unwrap()));
    let mut compared = 0;
    let mut wrong = Vec::new();
    for (_, definition, _) in &rows {
        let event = event(definition);
        let of = |seen: &Seen| seen.get(&event).into_iter().flatten().flat_map(by_task).collect::<Vec<_>>();
        let (their, our) = (of(&theirs), of(&ours));
        compared += their.len();
        if their != our || their.is_empty() {
            let differ = their.iter().zip(&our).filter(|(their, our)| their != our).take(3);
            let differ: Vec<_> = differ.collect();
            wrong.push(format!("{definition}: {} and {} events: {differ:#?}", their.len(), our.len()));
        }
    }
    println!("{} definitions, {compared} events compared, {} differ", rows.len(), wrong.len());
    assert!(wrong.is_empty(), "{}\n{said}", wrong.join("\n"));
}

#[test]
fn definitions_mean_what_they_mean_in_the_guest() {
    match under_test().series {
        Series::Is(6, 1) => agrees_with_the_guest(&[COMMON], &[OTHERWISE]),
        _ if says("this_cpu_read(<fetcharg>)") => {
            agrees_with_the_guest(&[COMMON, SINCE_6_12, SINCE_7_3], &[OTHERWISE, OTHERWISE_SINCE_6_12]);
        }
        _ => agrees_with_the_guest(&[COMMON, SINCE_6_12], &[OTHERWISE, OTHERWISE_SINCE_6_12]),
    }
}
