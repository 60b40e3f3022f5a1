//! The language of probe definitions, from the kernel's documentation: kprobetrace, fprobetrace, events, histogram.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests may fail like tests")]

use probe_engine::lang::ast::{Definition, Statement};
use probe_engine::lang::{Error, argument_name, check_fields, check_names, parse, parse_filter};
use proptest::prelude::*;

/// What is written, and what it is understood as: the text of the definition in its plainest form.
const WELL_FORMED: &[(&str, &str)] = &[
    // Places.
    ("p vfs_read", "p vfs_read"),
    ("vfs_read", "p vfs_read"),
    ("  vfs_read  ", "p vfs_read"),
    ("p", "p p"),
    ("r5", "p r5"),
    ("vfs_read%return", "r vfs_read"),
    ("vfs_*", "p vfs_*"),
    ("vfs_*%return $retval", "r vfs_* $retval"),
    ("p vfs_[a-z]?ad", "p vfs_[a-z]?ad"),
    ("p vfs_read+0x10", "p vfs_read+0x10"),
    ("p vfs_read+16", "p vfs_read+0x10"),
    ("p vfs_read+020", "p vfs_read+0x10"),
    ("p vfs_read+0", "p vfs_read"),
    ("p ext4:ext4_readdir+4", "p ext4:ext4_readdir+0x4"),
    ("8021q:vlan_init.isra.0", "p 8021q:vlan_init.isra.0"),
    ("p 0xffffffff81000000", "p 0xffffffff81000000"),
    ("p 18446744071578845184", "p 0xffffffff81000000"),
    ("p vfs_read:460 %di", "p vfs_read:460 %di"),
    ("p:a fs/open.c:01420", "p:a fs/open.c:1420"),
    ("p 8250_core.c:12 if cpu == 1", "p 8250_core.c:12 if cpu == 1"),
    ("p t_next#2:7", "p t_next#2:7"),
    ("p t_next#2+4", "p t_next#2+0x4"),
    ("p ext4:init_once#12", "p ext4:init_once#12"),
    ("p vfs_read%return", "r vfs_read"),
    ("r vfs_read%return", "r vfs_read"),
    ("r vfs_read+0", "r vfs_read"),
    ("f vfs_read", "f vfs_read"),
    ("f vfs_read%return", "r vfs_read"),
    ("t sched_switch", "t sched_switch"),
    ("t sched:sched_switch", "t sched:sched_switch"),
    (
        "t:mine/event sched/sched_switch prev->pid next=$arg3 if preempt == 0",
        "t:mine/event sched:sched_switch prev->pid next=$arg3 if preempt == 0",
    ),
    ("t sched:* $arg*", "t sched:* $arg*"),
    ("t", "p t"),
    // Names and numbers of calls.
    ("p:myprobe do_sys_open", "p:myprobe do_sys_open"),
    ("p:my/probe do_sys_open", "p:my/probe do_sys_open"),
    ("p:my.probe do_sys_open", "p:my/probe do_sys_open"),
    ("p:my-group/ do_sys_open", "p:my-group/ do_sys_open"),
    ("r10 vfs_read", "r10 vfs_read"),
    ("r0:x vfs_read", "r:x vfs_read"),
    ("r4096:a/b vfs_read", "r4096:a/b vfs_read"),
    ("f3:x vfs_read%return", "r3:x vfs_read"),
    ("-:myprobe", "-:myprobe"),
    ("-:my/probe ", "-:my/probe"),
    ("-:my/", "-:my/"),
    // What is fetched.
    (
        "p do_sys_open dfd=%ax filename=%dx flags=%cx mode=+4($stack)",
        "p do_sys_open dfd=%ax filename=%dx flags=%cx mode=+4($stack)",
    ),
    ("p x %di %r15 %orig_ax %flags %ip %rip %rsp", "p x %di %r15 %orig_ax %flags %ip %rip %rsp"),
    ("p x $stack $stack0 $stack2048 $comm $COMM", "p x $stack $stack0 $stack2048 $comm $comm"),
    ("p x $arg1 $arg12", "p x $arg1 $arg12"),
    ("p x g=$cgroup $comm if g == \"/\"", "p x g=$cgroup $comm if g == \"/\""),
    ("p x $arg*", "p x $arg*"),
    ("r x $arg* $retval", "r x $arg* $retval"),
    ("r x $arg1 size", "r x $arg1 size"),
    ("p x @0xffffffff82000000 @16", "p x @0xffffffff82000000 @0x10"),
    ("p x @jiffies @jiffies+8 @jiffies-0x8", "p x @jiffies @jiffies+8 @jiffies-8"),
    ("p x @init_once#2+8 +0(@init_once#2)", "p x @init_once#2+8 +0(@init_once#2)"),
    ("p x \\5 \\-5 \\+5 \\0x10", "p x \\5 \\-5 \\5 \\16"),
    ("p x \\18446744073709551615", "p x \\-1"),
    ("p x a=\\\"text\"", "p x a=\\\"text\""),
    ("p x a=\\\"two words: a=b\" %di", "p x a=\\\"two words: a=b\" %di"),
    ("p x +0(%di) -8(%sp) +u4(%si) -u0x10(%dx) +-8(%sp)", "p x +0(%di) -8(%sp) +u4(%si) -u16(%dx) -8(%sp)"),
    ("p x +0(+8(+u0x10(%di)))", "p x +0(+8(+u16(%di)))"),
    ("p x +0(@jiffies)", "p x +0(@jiffies)"),
    ("p x +0(\\0xffff)", "p x +0(\\65535)"),
    ("p x file count=count", "p x file count=count"),
    ("f x file->f_path.dentry->d_name.name", "f x file->f_path.dentry->d_name.name"),
    ("r x $retval->i_ino", "r x $retval->i_ino"),
    ("p x ino=$arg1->i_ino:u64", "p x ino=$arg1->i_ino:u64"),
    ("p x +0(file->f_op)", "p x +0(file->f_op)"),
    ("p x hist:u64", "p x hist:u64"),
    // Programs.
    ("p /bin/ls:main %di", "p /bin/ls:main %di"),
    ("p:a/b /lib/a:b.so:f@V1+16 x=+8(%si):string", "p:a/b /lib/a:b.so:f@V1+0x10 x=+8(%si):string"),
    ("r /bin/ls:0x1234 $retval", "r /bin/ls:0x1234 $retval"),
    ("p /bin/ls:ma*[ln]", "p /bin/ls:ma*[ln]"),
    ("usdt /bin/py:python:gc__start", "usdt /bin/py:python:gc__start"),
    ("usdt:gc /a:b/py:python:gc-1 n=$arg1:s32", "usdt:gc /a:b/py:python:gc-1 n=$arg1:s32"),
    ("p /bin/ls:4660(0x10)%return", "r /bin/ls:0x1234(0x10)"),
    // The task.
    ("p x $current c=$current->pid:s32", "p x $current c=$current->pid:s32"),
    ("p x $current->cred->uid.val +8($current)", "p x $current->cred->uid.val +8($current)"),
    ("p x+4 $current->comm:string", "p x+0x4 $current->comm:string"),
    ("p 0xffffffff81000000 c=$current if c != 0", "p 0xffffffff81000000 c=$current if c != 0"),
    // Per-CPU variables.
    ("p x this_cpu_read(@a) this_cpu_ptr(@a+8)", "p x this_cpu_read(@a) this_cpu_ptr(@a+8)"),
    ("p x+4 this_cpu_read(+8(%di)):u32[2]", "p x+0x4 this_cpu_read(+8(%di)):u32[2]"),
    ("p x n=this_cpu_read(a->b):s32", "p x n=this_cpu_read(a->b):s32"),
    ("p x +8(this_cpu_ptr(@a)):string", "p x +8(this_cpu_ptr(@a)):string"),
    ("p x this_cpu_ptr(this_cpu_read(@a)):symbol", "p x this_cpu_ptr(this_cpu_read(@a)):symbol"),
    ("p x this_cpu_read(@a):symstr", "p x this_cpu_read(@a):symstr"),
    ("p x this_cpu_ptr this_cpu_read->a", "p x this_cpu_ptr this_cpu_read->a"),
    // Casts.
    ("p x (file)f->f_mode m=(file)$arg1->f_mode:x32", "p x (file)f->f_mode m=(file)$arg1->f_mode:x32"),
    ("p x (file)(f)->f_mode", "p x (file)f->f_mode"),
    (
        "r x (file)$retval->f_path.dentry->d_name.name:string",
        "r x (file)$retval->f_path.dentry->d_name.name:string",
    ),
    ("p x (a)(b->c)->d (a)((b)c->d.e)->f", "p x (a)(b->c)->d (a)((b)c->d.e)->f"),
    ("p x (a,b)c->d (a,b.c)%di->d.e->f", "p x (a,b)c->d (a,b.c)%di->d.e->f"),
    ("p x (a)+8(%di)->b (a)(-u8((b)c->d))->e", "p x (a)+8(%di)->b (a)-u8((b)c->d)->e"),
    ("p x (a)@b->c (a)(@b)->c (a)(@b+8)->c (a)@0x10->c", "p x (a)@b->c (a)@b->c (a)(@b+8)->c (a)@0x10->c"),
    ("p x (a)@+0x8->c (a)(@+8)->c", "p x (a)@+0x8->c (a)@+0x8->c"),
    (
        "p x (a)\\5->b (a)(\\-5)->b (a)$stack->b (a)$stack1->b",
        "p x (a)\\5->b (a)(\\-5)->b (a)$stack->b (a)$stack1->b",
    ),
    ("p x (a)$current->b (a,b)($current->c)->d", "p x (a)$current->b (a,b)($current->c)->d"),
    (
        "p x (a)this_cpu_read(@b)->c (a)(this_cpu_ptr(@b+8))->c",
        "p x (a)this_cpu_read(@b)->c (a)this_cpu_ptr(@b+8)->c",
    ),
    (
        "p x n=this_cpu_read((a,b)c->d) +0((a)b->c):ustring",
        "p x n=this_cpu_read((a,b)c->d) +0((a)b->c):ustring",
    ),
    // Variables, and casts anywhere.
    ("p x+4 count file->f_mode n=+8(file)", "p x+0x4 count file->f_mode n=+8(file)"),
    ("p a/b.c:7 how.flags how.a->b.c:x32", "p a/b.c:7 how.flags how.a->b.c:x32"),
    ("p x:7 (a)(how.b)->c (a)%di->b", "p x:7 (a)(how.b)->c (a)%di->b"),
    // Types.
    ("p x a=%ax:u8 %ax:u16 %ax:u32 %ax:u64", "p x a=%ax:u8 %ax:u16 %ax:u32 %ax:u64"),
    ("p x %ax:s8 %ax:s16 %ax:s32 %ax:s64", "p x %ax:s8 %ax:s16 %ax:s32 %ax:s64"),
    ("p x %ax:x8 %ax:x16 %ax:x32 %ax:x64 %ax:char", "p x %ax:x8 %ax:x16 %ax:x32 %ax:x64 %ax:char"),
    ("p x %ax:symbol %ax:symstr", "p x %ax:symbol %ax:symstr"),
    (
        "p x +0(%di):string +0(%di):ustring +u0(%di):string",
        "p x +0(%di):string +0(%di):ustring +u0(%di):string",
    ),
    ("p x $comm:string \\\"a\":string \\4096:string", "p x $comm:string \\\"a\":string \\4096:string"),
    ("r x name:string $retval:ustring", "r x name:string $retval:ustring"),
    (
        "p x +0(%di):x8[0x40] +0(%di):string[1] @a:char[16]",
        "p x +0(%di):x8[64] +0(%di):string[1] @a:char[16]",
    ),
    ("p x file->f_path:x8[16]", "p x file->f_path:x8[16]"),
    ("p x %ax:b1@0/8 +0(%di):b0x10@16/32 %ax:b64@0/64", "p x %ax:b1@0/8 +0(%di):b16@16/32 %ax:b64@0/64"),
    ("p x +0(%di):b4@4/8[4]", "p x +0(%di):b4@4/8[4]"),
    ("p x $arg1:%pd name=$arg2:%pD", "p x $arg1:%pd name=$arg2:%pD"),
    // Filters.
    ("p x a=%di if a == 1", "p x a=%di if a == 1"),
    ("x a=%di if a==1", "p x a=%di if a == 1"),
    ("p x if common_pid != 0x10", "p x if common_pid != 16"),
    ("p x if a<1&&b<=2||c>3&&d>=-4", "p x if a < 1 && b <= 2 || c > 3 && d >= -4"),
    ("p x if a & 010", "p x if a & 8"),
    ("p x if (a == 1 || b == 2) && c == 3", "p x if (a == 1 || b == 2) && c == 3"),
    ("p x if a == 1 && (b == 2 && c == 3)", "p x if a == 1 && (b == 2 && c == 3)"),
    ("p x if ((a == 1))", "p x if a == 1"),
    ("p x if !a == 1 || !(b == 2 && c == 3)", "p x if !(a == 1) || !(b == 2 && c == 3)"),
    ("p x if !!a == 1", "p x if a == 1"),
    ("p x if comm == \"cat\" || comm != 'a\"b'", "p x if comm == \"cat\" || comm != 'a\"b'"),
    ("p x if comm == bash && name ~ ext[0-9]*", "p x if comm == \"bash\" && name ~ \"ext[0-9]*\""),
    ("p x if name ~ 7*", "p x if name ~ \"7*\""),
    ("p x if (comm == sh)", "p x if comm == \"sh\""),
    ("p x if a.ustring ~ \"*pass*\"", "p x if a.ustring ~ \"*pass*\""),
    ("p x if cpu & CPUS{4,0-3,17-42}", "p x if cpu & CPUS{0-4,17-42}"),
    ("p x if CPU != CPUS{1}", "p x if CPU != CPUS{1}"),
    ("p x if CPU & CPUS{all}", "p x if CPU & CPUS{0-8191}"),
    ("p x if CPU & CPUS{0,2-N}", "p x if CPU & CPUS{0,2-8191}"),
    (
        "p x if a == 18446744073709551615 && b == -9223372036854775808",
        "p x if a == 18446744073709551615 && b == -9223372036854775808",
    ),
    // Histograms.
    ("p x hist:keys=common_pid", "p x hist:keys=common_pid"),
    ("p x hist:key=a,b.hex,c.sym", "p x hist:keys=a,b.hex,c.sym"),
    (
        "p x hist:keys=a.sym-offset,b.syscall,common_pid.execname",
        "p x hist:keys=a.sym-offset,b.syscall,common_pid.execname",
    ),
    ("p x hist:keys=a.log2,b.buckets=0x10", "p x hist:keys=a.log2,b.buckets=16"),
    ("p x hist:keys=stacktrace", "p x hist:keys=common_stacktrace"),
    (
        "p x hist:keys=a:values=hitcount,b,c:sort=b.descending,a:size=4096:name=n",
        "p x hist:keys=a:values=b,c:sort=b.descending,a:size=4096:name=n",
    ),
    ("p x hist:vals=b:keys=a:sort=hitcount.ascending", "p x hist:keys=a:values=b:sort=hitcount"),
    ("p x hist:keys=a:val=hitcount:size=65", "p x hist:keys=a:size=128"),
    ("p x hist:keys=a:size=100000", "p x hist:keys=a:size=131072"),
    ("p x b=%di hist:keys=b if b > 4", "p x b=%di if b > 4 hist:keys=b"),
    ("p x b=%di if b > 4 hist:keys=b", "p x b=%di if b > 4 hist:keys=b"),
];

/// What is written, with the mistake between « and », and what is said of it.
const MALFORMED: &[(&str, &str)] = &[
    // The head.
    ("«»", "nothing is defined"),
    ("  «»", "nothing is defined"),
    ("p:vfs/ vfs_read extra=«»", "something that can be fetched is missing"),
    ("p:«» vfs_read", "the event has no name"),
    ("p:«»/read vfs_read", "the group has no name"),
    ("p:«».read vfs_read", "the group has no name"),
    ("p:«2reads» vfs_read", "`2reads` cannot be the name of the event"),
    ("p:«my-event» vfs_read", "`my-event` cannot be the name of the event"),
    ("p:a/«b/c» vfs_read", "`b/c` cannot be the name of the event"),
    ("p:«my+group»/read vfs_read", "`my+group` cannot be the name of the group"),
    ("p:«ext4:read» vfs_read", "`ext4:read` cannot be the name of the event"),
    ("-:«»", "the event has no name"),
    ("-:a «b»", "nothing else may be said when an event is removed"),
    ("-:a/«2»", "`2` cannot be the name of the event"),
    ("p«5» vfs_read", "only return probes have a number of calls that are followed at once"),
    ("p«5»:x vfs_read%return", "only return probes have a number of calls that are followed at once"),
    ("f«5» vfs_read", "only return probes have a number of calls that are followed at once"),
    ("r«08» vfs_read", "`08` is not a number of calls"),
    ("r«4097» vfs_read", "at most 4096 calls can be followed at once"),
    ("r«99999999999999999999» vfs_read", "`99999999999999999999` is not a number of calls"),
    // Places.
    ("p «+4»", "`+4` is not a symbol"),
    ("p «:vfs_read»", "there is no module before the `:`"),
    ("p ext4:«»", "a symbol is missing"),
    ("p «ext-4»:ext4_readdir", "'-' is in no name of a module"),
    ("p a:b«:c»", "':' is in no name of a function"),
    ("r «/bin/ls:main+4»", "a function returns as a whole: there is no offset but 0"),
    (
        "r «/bin/ls:main.cold»",
        "this is a part of a function, which the function jumps to: no call returns from there",
    ),
    (
        "p «/bin/ls:main.cold.2»%return",
        "this is a part of a function, which the function jumps to: no call returns from there",
    ),
    ("r «./a.out»:main+4 x=%di", "a program is named by its whole path, which begins with `/`"),
    ("p /bin/ls:«ma*+4»", "a pattern takes no offset"),
    ("p /bin/ls:«ma[»", "the pattern has a '[' without a ']'"),
    ("«usdt:/bin/py:python:gc»", "a word that begins with `usdt` is followed by a place"),
    ("usdt «/bin/py:gc»", "`/bin/py:gc` is not a tracepoint that a program has of its own"),
    ("usdt «py»:python:gc", "a program is named by its whole path, which begins with `/`"),
    ("usdt /bin/py:python:«»", "a tracepoint that a program has of its own is missing"),
    ("usdt /bin/py:python:«g*»", "'*' is in no name of a function"),
    ("f «/bin/ls:main»", "an `f` probe is at a function of the kernel"),
    ("p /bin/ls:«0x12zz»", "`0x12zz` is not an offset into a file"),
    ("p /bin/ls:0x1234«(12»", "`(12` is not an offset into a file"),
    ("p /bin/ls:main+«x»", "`x` is not an offset into a function"),
    ("p /bin/ls:«»", "a symbol is missing"),
    ("r«8» /bin/ls:main", "only return probes have a number of calls that are followed at once"),
    ("t«1» sched_switch", "only return probes have a number of calls that are followed at once"),
    ("t sched:«»", "the name of a tracepoint is missing"),
    ("t «»:sched_switch", "the name of a tracepoint is missing"),
    ("t sched:«sched_switch%return»", "'%' is in no name of a tracepoint"),
    ("t sched:«a:b»", "':' is in no name of a tracepoint"),
    ("t sched:«[a»", "the pattern has a '[' without a ']'"),
    ("«tracepoint:sched:sched_switch» x", "`tracepoint:` is a word of other tools"),
    ("«e» syscalls/sys_enter_openat", "events made of events cannot be probed yet"),
    ("«kprobe:vfs_read» { @ = count(); }", "`kprobe:` is a word of other tools"),
    ("p ext4:«ext4_*»", "a pattern takes no module"),
    ("p «vfs_*+4»", "a pattern takes no offset"),
    ("p «vfs_[a»", "the pattern has a '[' without a ']'"),
    ("p «vfs_*,x»", "',' is in no name of a function"),
    ("p vfs_rea«{d»", "'{' is in no name of a function"),
    ("p vfs_read«()»", "'(' is in no name of a function"),
    ("p vfs_read«-4»", "a probe cannot lie before its symbol"),
    ("p vfs_read+«»", "an offset into a function is missing"),
    ("p vfs_read+«x»", "`x` is not an offset into a function"),
    ("p vfs_read+«08»", "`08` is not an offset into a function"),
    ("p vfs_read+«0x100000000»", "`0x100000000` is not an offset into a function"),
    ("p vfs_read«%exit»", "`%exit` cannot follow a place"),
    ("p vfs_read«%return%return»", "`%return%return` cannot follow a place"),
    ("r «vfs_read+4»", "a function returns as a whole: there is no offset but 0"),
    ("f «vfs_read+4»", "an `f` probe is at a function's entry: there is no offset but 0"),
    ("«vfs_read+4»%return", "a function returns as a whole: there is no offset but 0"),
    ("p «0xffffffff81000000+4»", "an address takes no offset"),
    ("p «0xfoo»", "`0xfoo` is not an address"),
    ("p «12ab»", "`12ab` is not an address"),
    ("p «0x1ffffffff81000000»", "`0x1ffffffff81000000` is not an address"),
    ("r «0xffffffff81000000»", "a function's name alone is needed here, no address and no line"),
    ("f «0xffffffff81000000»", "a function's name alone is needed here, no address and no line"),
    ("r «vfs_read:460»", "a function's name alone is needed here, no address and no line"),
    ("p «vfs_read:0»", "`vfs_read:0` is not a line of the source"),
    ("p «vfs_read+4»:7", "`vfs_read+4` is not a symbol"),
    ("p sym#«»", "the number of one of several symbols is missing"),
    ("p sym#«0»", "`0` is not the number of one of several symbols"),
    ("p sym#«»+2", "the number of one of several symbols is missing"),
    ("p sym#«x»", "`x` is not the number of one of several symbols"),
    ("p «#2»", "`#2` is not a symbol"),
    // Arguments.
    ("p x «=»%di", "the argument has no name"),
    ("p x a=«»", "something that can be fetched is missing"),
    ("p x «1a»=%di", "`1a` cannot be the name of the argument"),
    ("p x «a-b»=%di", "`a-b` cannot be the name of the argument"),
    ("p x «common_pid»=%di", "`common_pid` is a name that every event has already"),
    ("p x «__probe_ip»=%di", "`__probe_ip` is a name that every event has already"),
    ("p x a=%di «a»=%si", "`a` is the name of another argument already"),
    ("p x arg2=%di «%si»", "`arg2` is the name of another argument already"),
    ("p x count=%dx «count»", "`count` is the name of another argument already"),
    ("p x $arg* «$arg*»", "`$arg*` is there already"),
    ("p x «a=$arg*»", "`$arg*` stands for itself"),
    ("p x «$arg*:u64»", "`$arg*` stands for itself"),
    ("p x +0(«$arg*»)", "`$arg*` stands for itself"),
    ("p x «*»", "`*` is not something that can be fetched"),
    ("p x «*a»", "`*a` is not something that can be fetched"),
    ("p x «%foo»", "there is no register `%foo`"),
    ("p x «%rdii»", "there is no register `%rdii`"),
    ("p x «%eax»", "there is no register `%eax`"),
    ("p x «%AX»", "there is no register `%AX`"),
    ("p x «%»", "there is no register `%`"),
    ("p x %di«+4»", "`+4` was not expected here"),
    ("p x «$foo»", "there is no variable `$foo`"),
    ("p x «$retvall»", "there is no variable `$retvall`"),
    ("r x «$args»", "there is no variable `$args`"),
    ("p x «$stack2049»", "the stack has entries from 0 to 2048"),
    ("p x $stack«-1»", "`-1` was not expected here"),
    ("p x «$stackx»", "there is no variable `$stackx`"),
    ("p x $comm«+1»", "`+1` was not expected here"),
    ("p x «$retval»", "`$retval` is known only where a function returns"),
    ("p x «$retval»->a", "`$retval` is known only where a function returns"),
    ("p x «$arg0»", "arguments are counted from 1 to 2048"),
    ("p x «$arg2049»", "arguments are counted from 1 to 2048"),
    ("p x «$arg»", "there is no variable `$arg`"),
    ("p x+4 «$arg1»", "a function's parameters are known only at its entry and its returns"),
    ("p x+4 «$arg*»", "a function's parameters are known only at its entry and its returns"),
    ("p 0xffffffff81000000 «$arg1»", "a function's parameters are known only at its entry and its returns"),
    ("p x «$currentt»", "there is no variable `$currentt`"),
    ("p x $current«.»pid", "a parameter is no structure: the first member comes after `->`"),
    ("p x $current«+8»", "`+8` was not expected here"),
    ("p x this_cpu_read(@a«»", "the parenthesis is not closed"),
    ("p x this_cpu_read(@a)«x»", "`x` was not expected here"),
    ("p x this_cpu_ptr(@a)«->b»", "`->b` was not expected here"),
    ("p x this_cpu_read(«»)", "something that can be fetched is missing"),
    ("p x this_cpu_read(«$comm»)", "a text is not an address that could be read from"),
    ("p x this_cpu_read(«this_cpu_ptr(@a)»)", "this is the address of the CPU's own variable already"),
    ("p x this_cpu_write«(@a)»", "`(@a)` was not expected here"),
    ("p x («»)a->b", "the name of a structure is missing"),
    ("p x («1a»)b->c", "`1a` is not the name of a structure"),
    ("p x («file*»)f->g", "`file*` is not the name of a structure"),
    ("p x («struct» file)f->g", "`struct` is not the name of a structure"),
    ("p x (a«»", "the parenthesis is not closed"),
    ("p x (a)«»", "something that can be fetched is missing"),
    ("p x (a)(«»)->b", "something that can be fetched is missing"),
    ("p x (a)b«»", "a cast leads to a member, and there is no `->`"),
    ("p x (a)(b)«.c»", "a cast leads to a member, and there is no `->`"),
    ("p x (a)+8(b)«»", "a cast leads to a member, and there is no `->`"),
    ("p x (a)(b)«c->d»", "a cast leads to a member, and there is no `->`"),
    ("p x (a)b«-»c", "a member comes after `->`"),
    ("p x (a)b->«»", "the name of a member is missing"),
    ("p x (a)b«.»c->d", "a parameter is no structure: the first member comes after `->`"),
    ("p x (a)(b«»", "the parenthesis is not closed"),
    ("p x (a)«+8->b»", "an offset reads memory only together with an address in parentheses"),
    ("p x (a)«@b+8»->c", "an offset from a symbol needs parentheses in a cast"),
    ("p x (a)«@b»-8->c", "an offset from a symbol needs parentheses in a cast"),
    ("p x (a)«$comm»->b", "a text is not an address that could be read from"),
    ("p x (a)«$retval»->b", "`$retval` is known only where a function returns"),
    ("p x (a)«$arg*»->b", "`$arg*` stands for itself"),
    ("p x (a,«»)b->c", "the name of a member is missing"),
    ("p x (a,«.b»)c->d", "`.b` is not the name of a member"),
    ("p x (a,b.«»)c->d", "the name of a member is missing"),
    ("p x (a,b.«1»)c->d", "`1` is not the name of a member"),
    ("p x (a,b«->»c)d->e", "the member in a cast lies in the structure itself, and `->` leads out of it"),
    ("p x (a,b«-c»)d->e", "`-c` was not expected here"),
    ("p x @«»", "a symbol is missing"),
    ("p x @a#«0»", "`0` is not the number of one of several symbols"),
    ("p /bin/ls:main @+«x»", "`x` is not an offset into a file"),
    ("p x @«0xg»", "`0xg` is not an address"),
    ("p x @jiffies«+»", "`+` is not an offset"),
    ("p x @jiffies«+x»", "`+x` is not an offset"),
    ("p x @jiffies«-»", "`-` is not an offset"),
    ("p x @jiffies«*4»", "'*' is in no name of a function"),
    ("p x \\«»", "a number of 64 bits is missing"),
    ("p x \\«x»", "`x` is not a number of 64 bits"),
    ("p x \\«--5»", "`--5` is not a number of 64 bits"),
    (
        "p x \\9223372036854775808 \\«-9223372036854775809»",
        "`-9223372036854775809` is not a number of 64 bits",
    ),
    ("p x \\«18446744073709551616»", "`18446744073709551616` is not a number of 64 bits"),
    ("p x «\\\"text»", "the text does not end"),
    ("p x \\\"text\"«x»", "`x` was not expected here"),
    ("p x «+0»", "an offset reads memory only together with an address in parentheses"),
    ("p x «+0%di»", "an offset reads memory only together with an address in parentheses"),
    ("p x +«»(%di)", "an offset is missing"),
    ("p x +«x»(%di)", "`x` is not an offset"),
    ("p x +«9223372036854775808»(%di)", "`9223372036854775808` is not an offset"),
    ("p x +0(%di«»", "the parenthesis is not closed"),
    ("p x +0(+8(%di«»)", "the parenthesis is not closed"),
    ("p x +0(%di)«x»", "`x` was not expected here"),
    ("p x +0(%di«)»)", "`)` was not expected here"),
    ("p x +0(«»)", "something that can be fetched is missing"),
    ("p x +0(«$comm»)", "a text is not an address that could be read from"),
    ("p x +0(«\\\"a\"»)", "a text is not an address that could be read from"),
    (
        "p x +0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(«%di»)))))))))))))))",
        "memory is read more than 14 times, one behind the other",
    ),
    (
        "p x +0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(«@a»))))))))))))))",
        "memory is read more than 14 times, one behind the other",
    ),
    ("p x file«-»f_op", "a member comes after `->`"),
    ("p x file«.»f_op", "a parameter is no structure: the first member comes after `->`"),
    ("r x $retval«.»a", "a parameter is no structure: the first member comes after `->`"),
    ("p x file->«»", "the name of a member is missing"),
    ("p x file->a.«».b", "the name of a member is missing"),
    ("p x file->«2»", "`2` is not the name of a member"),
    ("p x file«[0]»", "`[0]` was not expected here"),
    (
        "p x a->b->b->b->b->b->b->b->b->b->b->b->b->b->b«->b»",
        "memory is read more than 14 times, one behind the other",
    ),
    // Types.
    ("p x %di:«»", "a type is missing"),
    ("p x %di:«u128»", "there is no type `u128`"),
    ("p x %di:«strng»", "there is no type `strng`"),
    ("p x %di:«foo»", "there is no type `foo`"),
    ("p x %di:«b4@0»", "`b4@0` is not a bit field"),
    ("p x %di:«b0@0/8»", "`b0@0/8` is not a bit field"),
    ("p x %di:«b@0/8»", "`b@0/8` is not a bit field"),
    ("p x %di:«b4@/8»", "`b4@/8` is not a bit field"),
    ("p x %di:«b4@0/7»", "a bit field is part of 8, 16, 32 or 64 bits"),
    ("p x %di:«b4@5/8»", "4 bits above the lowest 5 are more than the 8 that there are"),
    ("p x %di:«b300@0/64»", "300 bits above the lowest 0 are more than the 64 that there are"),
    ("p x +0(%di):u8[«»", "the array lacks its `]`"),
    ("p x +0(%di):u8[«»]", "an array has 1 to 64 elements"),
    ("p x +0(%di):u8[«0»]", "an array has 1 to 64 elements"),
    ("p x +0(%di):u8[«65»]", "an array has 1 to 64 elements"),
    ("p x +0(%di):u8[4]«x»", "`x` was not expected here"),
    ("p x %di:«u8[4]»", "an array is read from memory, and this is a value"),
    ("p x $stack1:«x8[8]»", "an array is read from memory, and this is a value"),
    ("p x file:«u8[4]»", "an array is read from memory, and this is a value"),
    ("p x %di:«string»", "a string is read from memory, and this is a value"),
    ("p x %di:«string»", "a string is read from memory, and this is a value"),
    ("p x $stack:«ustring»", "a string is read from memory, and this is a value"),
    ("p x $comm:«u64»", "a text has the type `string`, and is no array"),
    ("p x $current:«string»", "a string is read from memory, and this is a value"),
    ("p x $current:«symstr»", "a value is needed for a symbol's name"),
    ("p x $current:«u8[4]»", "an array is read from memory, and this is a value"),
    ("p x this_cpu_ptr(@a):«ustring»", "a string is read from memory, and this is a value"),
    ("p x this_cpu_ptr(@a):«symstr»", "a value is needed for a symbol's name"),
    ("p x this_cpu_ptr(@a):«x64[2]»", "an array is read from memory, and this is a value"),
    ("p x $comm:«string[2]»", "a text has the type `string`, and is no array"),
    ("p x \\\"a\":«ustring»", "a text has the type `string`, and is no array"),
    ("p x $stack:«symstr»", "a value is needed for a symbol's name"),
    ("p x +u0(%di):«symstr»", "a value is needed for a symbol's name"),
    ("p x %di:«symstr[2]»", "this type has no arrays"),
    ("p x %di:«%pd[2]»", "this type has no arrays"),
    ("p x $comm:«%pd»", "a text has the type `string`, and is no array"),
    // Filters.
    ("p x if«»", "the name of a field is missing"),
    ("p x if a«»", "the comparison lacks its operator"),
    ("p x if a «=» 1", "a single `=` compares nothing"),
    ("p x if a «&»& b == 1", "the comparison lacks its operator"),
    ("p x if a ==«»", "a value to compare with is missing"),
    ("p x if a == «»&& b == 1", "a value to compare with is missing"),
    ("p x if «==» 1", "`==` is not the name of a field"),
    ("p x if a == 1 «b» == 2", "the filter has ended before this"),
    ("p x if a == 1 «&» b == 2", "the filter has ended before this"),
    ("p x if a == 1 &&«»", "the name of a field is missing"),
    ("p x if (a == 1«»", "the parenthesis is not closed"),
    ("p x if (a == 1 «b» == 2)", "the filter has ended before this"),
    ("p x if a == 1«)»", "the filter has ended before this"),
    ("p x if («)»", "`)` is not the name of a field"),
    ("p x if !«»", "the name of a field is missing"),
    ("p x if a == «\"b»", "the quotation does not end"),
    ("p x if a == «'b\"»", "the quotation does not end"),
    ("p x if a < «\"b\"»", "texts are equal, different or like a pattern; they have no order and no bits"),
    ("p x if a & «b»", "texts are equal, different or like a pattern; they have no order and no bits"),
    ("p x if a ~ «7»", "a pattern is a text, and `7` is a number"),
    ("p x if a ~ «\"x[1\"»", "the pattern has a '[' without a ']'"),
    ("p x if a == «7zip»", "`7zip` is not a number of 64 bits"),
    ("p x if a == «0x»", "`0x` is not a number of 64 bits"),
    ("p x if a == «18446744073709551616»", "`18446744073709551616` is not a number of 64 bits"),
    ("p x if a == «-9223372036854775809»", "`-9223372036854775809` is not a number of 64 bits"),
    ("p x if a«.function» == \"x\"", "`.function` cannot follow the name of a field"),
    ("p x if a.ustring == «4»", "`.ustring` makes a text of the field, and `4` is none"),
    ("p x if a.ustring & «CPUS{1}»", "`.ustring` makes a text of the field, and `CPUS{1}` is none"),
    ("p x if cpu < «CPUS{1}»", "sets of CPUs are compared with `&`, `==` and `!=`"),
    ("p x if cpu & «CPUS{}»", "`CPUS{}` is not a list of CPUs"),
    ("p x if cpu & «CPUS{1»", "`CPUS{1` is not a list of CPUs"),
    ("p x if cpu & «CPUS{3-1}»", "`CPUS{3-1}` is not a list of CPUs"),
    ("p x if cpu & «CPUS{9000}»", "`CPUS{9000}` is not a list of CPUs"),
    ("p x if cpu & «CPUS{N}»", "`CPUS{N}` is not a list of CPUs"),
    ("p x if cpu & «CPUS{a}»", "`CPUS{a}` is not a list of CPUs"),
    ("p x if a == 1 «if» b == 1", "there is a filter already"),
    ("p x if a == 1 hist:keys=a «if» b == 1", "there is a filter already"),
    // Histograms.
    ("p x hist:«»", "a part of the histogram is missing"),
    ("p x «hist:size=100»", "a histogram needs a key"),
    ("p x hist:«keys=»", "nothing is behind `keys=`"),
    ("p x hist:keys=«»,a", "the name of a field is missing"),
    ("p x hist:keys=a,b,c,«d»", "there are at most 3 keys"),
    ("p x hist:keys=a:«key»=b", "`key` was said already"),
    ("p x hist:keys=a:vals=b:«values»=c", "`values` was said already"),
    ("p x hist:keys=a:sort=a,a,«a»", "there are at most 2 fields to sort by"),
    ("p x hist:keys=a:sort=«b»", "lines can be sorted by keys, values and `hitcount`, not by `b`"),
    ("p x hist:keys=a:sort=a.«down»", "there is no modifier `.down` here"),
    ("p x hist:keys=a:sort=a.«descendin»", "there is no modifier `.descendin` here"),
    ("p x hist:keys=a.«foo»", "there is no modifier `.foo` here"),
    ("p x hist:keys=a.«hexx»", "there is no modifier `.hexx` here"),
    (
        "p x hist:keys=common_timestamp.«usecs»",
        "`.usecs` is something that histograms can do in the kernel, but not here",
    ),
    ("p x hist:keys=a.«execname»", "only a process ID has a process's name"),
    ("p x hist:keys=a.buckets=«0»", "`0` is not the width of a bucket"),
    ("p x hist:keys=a.«buckets»", "there is no modifier `.buckets` here"),
    ("p x hist:keys=«a+b»", "`a+b` is something that histograms can do in the kernel, but not here"),
    ("p x hist:keys=«$x»", "`$x` is something that histograms can do in the kernel, but not here"),
    (
        "p x hist:keys=a:vals=b.«percent»",
        "`.percent` is something that histograms can do in the kernel, but not here",
    ),
    ("p x hist:keys=a:size=«64»", "a histogram has room for 65 to 131072 keys"),
    ("p x hist:keys=a:size=«131073»", "a histogram has room for 65 to 131072 keys"),
    ("p x hist:keys=a:size=«x»", "a histogram has room for 65 to 131072 keys"),
    ("p x hist:keys=a:«name=»", "nothing is behind `name=`"),
    ("p x hist:keys=a:«pause»", "`pause` is something that histograms can do in the kernel, but not here"),
    ("p x hist:keys=a:«clear»", "`clear` is something that histograms can do in the kernel, but not here"),
    (
        "p x hist:keys=a:«onmatch(x.y).trace(z,a)»",
        "`onmatch(x.y).trace(z,a)` is something that histograms can do in the kernel, but not here",
    ),
    ("p x hist:keys=a:«foo»=4", "a histogram has no `foo`"),
    ("p x hist:keys=a:«ts0»=common_timestamp", "a histogram has no `ts0`"),
    ("p x hist:keys=a:«vaules»=b", "a histogram has no `vaules`"),
    ("p x hist:keys=a «hist:keys=b»", "there is a histogram already"),
    ("p x hist:keys=a «b=%di»", "the definition has ended before this"),
    ("p x if a == 1 «b=%di»", "the filter has ended before this"),
];

fn definition(text: &str) -> Definition {
    match parse(text) {
        Ok(Statement::Define(definition)) => *definition,
        other => panic!("{text}: {other:?}"),
    }
}

fn error(text: &str) -> Error {
    parse(text).expect_err(text)
}

#[test]
fn well_formed() {
    for (text, expected) in WELL_FORMED {
        let statement = parse(text).unwrap_or_else(|error| panic!("{text}: {error} at {:?}", error.span));
        assert_eq!(statement.to_string(), *expected, "{text}");
        assert_eq!(parse(expected).unwrap().to_string(), *expected, "reads back as the same");
    }
}

#[test]
fn malformed() {
    for (marked, expected) in MALFORMED {
        let text = marked.replace(['«', '»'], "");
        let Error { span, mistake } = error(&text);
        let (before, rest) = text.split_at(span.start);
        let (wrong, behind) = rest.split_at(span.len());
        assert_eq!(format!("{before}«{wrong}»{behind}"), *marked, "{mistake}");
        assert_eq!(mistake.to_string(), *expected, "{text}");
    }
}

#[test]
fn filters_are_read_alone() {
    let filter = parse_filter(" count > 4 && comm ~ \"b*sh\" ").unwrap();
    assert_eq!((filter.to_string().as_str(), filter.span), ("count > 4 && comm ~ \"b*sh\"", 1..27));
    for (text, span, sentence) in [
        ("", 0..0, "the name of a field is missing"),
        ("if count > 4", 3..4, "the comparison lacks its operator"),
        ("count > 4 hist:keys=a", 10..21, "the filter has ended before this"),
        ("count >", 7..7, "a value to compare with is missing"),
    ] {
        let error = parse_filter(text).unwrap_err();
        assert_eq!((error.span.clone(), error.to_string().as_str()), (span, sentence), "{text}");
    }
    assert!(parse_filter(&"!".repeat(5000)).is_err());
}

#[test]
fn every_hint_says_what_to_write() {
    let cases = [
        ("", "write a place: `vfs_read`, `p vfs_read+0x10`, `r vfs_read $retval`"),
        (
            "p:vfs/ vfs_read extra=",
            "fetch `%REG`, `$argN`, `$retval`, `$stackN`, `$comm`, `$current`, `@SYM`, `+OFFS(FETCH)`, `(STRUCT)FETCH->MEMBER`, `this_cpu_read(FETCH)`, `\\NUMBER` or a parameter",
        ),
        ("p: vfs_read", "name the event, or leave out the `:`"),
        ("p:/read vfs_read", "name the group, or leave out the `/`"),
        ("p:2reads vfs_read", "names have letters, digits and `_`, and begin with no digit"),
        ("p5 vfs_read", "leave out the number, or write `r` instead of `p`"),
        ("r08 vfs_read", "write a decimal number, or leave it out"),
        ("p :vfs_read", "write the module's name, or leave out the `:`"),
        ("p ext-4:ext4_readdir", "a module's name has `_` where the name of its file has `-`"),
        (
            "e sched/sched_switch",
            "write a function of the kernel with `p` (calls) or `r` (returns), a tracepoint with `t`, or syscall:NAME",
        ),
        ("kretprobe:vfs_read {}", "write `r FUNCTION`"),
        ("t sched:", "write `sched:sched_switch`, or a pattern: `sched:*`"),
        (
            "t sched:sched-switch",
            "tracepoints are written as `sched:sched_switch`, and have letters, digits and `_`; patterns have `*`, `?` and `[a-z]`",
        ),
        ("p x if a = 1", "write `==` to compare"),
        ("p x if a ==", "write a number, or text in quotation marks"),
        ("p x a>3", "a condition comes behind `if`"),
        ("p a:b:c", "symbols have letters, digits, `_`, `.` and `$`; patterns have `*`, `?` and `[a-z]`"),
        ("p ext4:ext4_*", "name one function"),
        ("p vfs_read-4", "name the function that holds the address, and count from there"),
        ("p vfs_read+", "write it in decimal, in hexadecimal after `0x`, or in octal after `0`"),
        ("p vfs_read%exit", "`%return` is all that may follow"),
        ("p 0xffffffff81000000+4", "add it to the address"),
        ("p 0xfoo", "write `0x` and up to 16 hexadecimal digits"),
        ("r 0xffffffff81000000", "write the function's name"),
        ("p sym#", "write `#2` for the second of that name"),
        ("p x =%di", "write a name before the `=`, or leave it out"),
        ("p x common_pid=%di", "write another name, and a `=`, before it"),
        ("p x a=$arg*", "leave out name, type and whatever is around it"),
        ("p x %foo", "registers are called `%ax`, `%di`, `%sp`, `%r8`, `%flags`..."),
        ("p x %rdii", "did you mean `%rdi` or `%di`?"),
        ("p x %eax", "did you mean `%ax` or `%rax`?"),
        ("p x %AX", "did you mean `%ax` or `%bx`?"),
        (
            "p x $foo",
            "variables are `$retval`, `$argN`, `$arg*`, `$stack`, `$stackN`, `$comm` and `$current`",
        ),
        ("p x $curent", "did you mean `$current`?"),
        ("p x (struct file)f->f_mode", "write the structure's name alone: `(file)$arg1->f_mode`"),
        ("p x (file)f", "write `(STRUCT)VALUE->MEMBER`"),
        ("p x (a)@b+8->c", "write `(STRUCT)(@SYM+OFFS)->MEMBER`"),
        ("p x (a,b->c)d->e", "write `.`"),
        ("p x this_cpu_ptr(this_cpu_ptr(@a))", "leave out one of both, or write `this_cpu_read`"),
        ("p x $retvall", "did you mean `$retval`?"),
        ("r x $args", "did you mean `$arg*` or `$arg1`?"),
        ("p x $stackx", "did you mean `$stack` or `$stack0`?"),
        ("p x $retval", "make it a return probe: `r`, or `%return` behind the function"),
        (
            "p x+4 $arg1",
            "put the probe on the function's name, give the kernel's debugging information so that variables have names elsewhere, or fetch registers: the first parameters came in `%di`, `%si`, `%dx`, `%cx`, `%r8` and `%r9`",
        ),
        ("p x \\\"text", "end it with a `\"`"),
        ("p x +0", "write `+8(%sp)`"),
        ("p x +0(%di", "write a `)` here"),
        ("p x file.f_op", "write `->`"),
        ("p x %di:u128", "did you mean `u8` or `u16`?"),
        ("p x %di:strng", "did you mean `string` or `ustring`?"),
        (
            "p x %di:foo",
            "types are `u8` to `u64`, `s8` to `s64`, `x8` to `x64`, `char`, `symbol`, `symstr`, `string`, `ustring`, `%pd`, `%pD` and bit fields",
        ),
        ("p x %di:b4@0", "write `b<bits>@<bits below them>/<8, 16, 32 or 64>`"),
        ("p x +0(%di):u8[", "write a `]` at the end"),
        ("p x %di:u8[4]", "write `+0(...)` around the value to read what it points to"),
        ("p x $comm:u64", "leave out the type"),
        ("p x if a", "write one of `==`, `!=`, `<`, `<=`, `>`, `>=`, `&` and `~`"),
        ("p x if a == 1 b == 2", "join comparisons with `&&` or `||`; arguments come before the `if`"),
        ("p x if a < \"b\"", "write `==`, `!=` or `~`"),
        ("p x if a ~ 7", "put it in quotation marks"),
        ("p x if a.function == \"x\"", "`.ustring` is all that may follow"),
        ("p x if cpu & CPUS{}", "write `CPUS{0-3,7}`"),
        ("p x if a == 1 if b == 1", "join both with `&&`"),
        ("p x hist:", "histograms have `keys`, `values`, `sort`, `size` and `name`"),
        ("p x hist:size=100", "write `hist:keys=` and a field"),
        ("p x hist:keys=a:sort=b", "add it to the values first"),
        (
            "p x hist:keys=a:sort=a.down",
            "keys have `.hex`, `.sym`, `.sym-offset`, `.syscall`, `.execname`, `.log2` and `.buckets=N`, fields to sort by `.ascending` and `.descending`",
        ),
        ("p x hist:keys=a:sort=a.descendin", "did you mean `descending` or `ascending`?"),
        ("p x hist:keys=a.hexx", "did you mean `hex`?"),
        ("p x hist:keys=a.execname", "write `common_pid.execname`"),
        ("p x hist:keys=a.buckets=0", "write `.buckets=` and a number above 0"),
        ("p x hist:keys=a.buckets", "did you mean `buckets=10`?"),
        ("p x hist:keys=a:vaules=b", "did you mean `values`?"),
        ("p x hist:keys=a b=%di", "arguments come before the histogram, and a filter begins with `if`"),
    ];
    for (text, expected) in cases {
        assert_eq!(error(text).hint().as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn nothing_grows_without_bound() {
    let reads =
        |count: usize, value: &str| format!("p x {}{value}{}", "+0(".repeat(count), ")".repeat(count));
    let casts =
        |count: usize, value: &str| format!("p x {}{value}{}", "(a)(".repeat(count), ")->b".repeat(count));
    let own = |count: usize| format!("p x {}%di{}", "this_cpu_read(".repeat(count), ")".repeat(count));
    let parentheses = |count: usize| format!("p x if {}a == 1{}", "(".repeat(count), ")".repeat(count));
    let comparisons = |count: usize| format!("p x if {}", vec!["a == 1"; count].join(" || "));
    for (most, one_more, expected) in [
        (
            format!("p:{} x", "e".repeat(63)),
            format!("p:{} x", "e".repeat(64)),
            "the name of the event is longer than 63 bytes",
        ),
        (
            format!("p:{}/a x", "g".repeat(63)),
            format!("p:{}/a x", "g".repeat(64)),
            "the name of the group is longer than 63 bytes",
        ),
        (
            format!("p x {}=%ax", "n".repeat(32)),
            format!("p x {}=%ax", "n".repeat(33)),
            "the name of the argument is longer than 32 bytes",
        ),
        (
            format!("p x{}", " %ax".repeat(128)),
            format!("p x{}", " %ax".repeat(129)),
            "a probe has at most 128 arguments",
        ),
        (reads(14, "%di"), reads(15, "%di"), "memory is read more than 14 times, one behind the other"),
        (reads(13, "@a"), reads(14, "@a"), "memory is read more than 14 times, one behind the other"),
        (
            reads(13, "a->b.c"),
            reads(13, "a->b->c"),
            "memory is read more than 14 times, one behind the other",
        ),
        (casts(14, "%di"), casts(15, "%di"), "memory is read more than 14 times, one behind the other"),
        (casts(13, "@a"), casts(14, "@a"), "memory is read more than 14 times, one behind the other"),
        (own(14), own(15), "memory is read more than 14 times, one behind the other"),
        (parentheses(64), parentheses(65), "parentheses are nested more than 64 deep"),
        (comparisons(128), comparisons(129), "a filter has at most 128 comparisons"),
        (
            format!("p {}", "x".repeat(4094)),
            format!("p {}", "x".repeat(4095)),
            "a definition has at most 4096 bytes",
        ),
    ] {
        parse(&most).unwrap_or_else(|error| panic!("{most}: {error}"));
        assert_eq!(error(&one_more).to_string(), expected);
    }
    assert!(parse(&format!("p x if {} a == 1", "!".repeat(4000))).is_ok());
    assert!(parse(&format!("p x {}", "+0(".repeat(1300))).is_err());
    assert!(parse(&casts(400, "b")).is_err());
}

#[test]
fn names_that_are_not_given() {
    let definition = definition("p x a=%ax %bx count count->x $arg1");
    let names: Vec<String> =
        definition.args.iter().enumerate().map(|(index, arg)| argument_name(arg, index)).collect();
    assert_eq!(names, ["a", "arg2", "count", "arg4", "arg5"]);
}

#[test]
fn names_and_fields_are_checked_again_when_all_arguments_are_known() {
    let text = "p x $arg* b=%ax if file != 0 && coun > 4 hist:keys=common_pid,comm,cuont";
    let mut definition = definition(text);
    check_names(&definition.args).unwrap();
    let unknown = check_fields(&definition, &["file", "count", "b"], &[]).unwrap_err();
    assert_eq!(text.get(unknown.span.clone()), Some("coun"));
    assert_eq!(unknown.to_string(), "there is no field `coun`");
    assert_eq!(
        unknown.hint().as_deref(),
        Some(
            "did you mean `count` or `cpu`? the fields here are `file`, `count` and `b`; every event has `comm`, `cpu` and `common_pid`"
        )
    );
    let many: Vec<String> = (0..13).map(|n| format!("f{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (names, expected) in [
        (&[][..], "no field is read here; every event"),
        (&["file"], "the field here is `file`; every event"),
        (&["file", "buf", "file", "buf"], "the fields here are `file` and `buf`; every event"),
        (&many[..10], "`f8` and `f9`; every event"),
        (&many[..], "`f8`, `f9` and 3 more; every event"),
    ] {
        let hint = check_fields(&definition, names, &[]).unwrap_err().hint().unwrap();
        assert!(hint.contains(expected), "{hint}");
    }
    definition.filter = None;
    let unknown = check_fields(&definition, &["file", "count", "b"], &[]).unwrap_err();
    assert_eq!(text.get(unknown.span), Some("cuont"));
    check_fields(&definition, &["cuont"], &[]).unwrap();

    let of_return = self::definition("r x if __probe_ret_ip != 0 && __probe_func != 0");
    check_fields(&of_return, &[], &[]).unwrap();
    let of_entry = self::definition("p x if __probe_ret_ip != 0");
    assert!(check_fields(&of_entry, &[], &[]).is_err());

    let expanded = self::definition("p x $arg* count=%ax");
    let [_, count] = expanded.args.as_slice() else { panic!("{expanded}") };
    let twice = check_names(&[count.clone(), count.clone()]).unwrap_err();
    assert_eq!(twice.to_string(), "`count` is the name of another argument already");
}

/// Whatever comes out points into the text, and what is understood reads back as the same.
fn holds(text: &str) {
    match parse(text) {
        Ok(statement) => {
            let plain = statement.to_string();
            let again = parse(&plain).unwrap_or_else(|error| panic!("{text:?} -> {plain:?}: {error}"));
            assert_eq!(again.to_string(), plain, "{text:?}");
            if let Statement::Define(definition) = statement {
                let _ = check_fields(&definition, &["a"], &[]);
            }
        }
        Err(error) => {
            assert!(text.get(error.span.clone()).is_some(), "{text:?}: {error} at {:?}", error.span);
            assert!(text.contains('`') || !error.to_string().contains("``"), "{text:?}: {error}");
            let _ = error.hint();
        }
    }
}

/// What definitions are made of.
const PIECES: &str = "$current|this_cpu_read(|this_cpu_ptr(|(a)|(a,b.c)|->b|p|r|f|-|:|/|.| |5|0x10|x|vfs_read|#|+|*|%return|=|a|b|%di|$arg1|$arg*|$retval|$stack|@|(|)|+0(|u|->|[|]|\\|\"|u8|string|b4@0/8|if|&&|==|~|!|<|&|CPUS{|}|,|'|hist:|keys=|.hex|.buckets=|sort=|size=|\u{e4}|\u{2028}|\n";

fn pieces() -> impl Strategy<Value = String> {
    let pieces: Vec<&str> = PIECES.split('|').filter(|piece| !piece.is_empty()).chain(["||"]).collect();
    proptest::collection::vec(proptest::sample::select(pieces), 0..24).prop_map(|pieces| pieces.concat())
}

fn a_definition() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(WELL_FORMED).prop_map(|(text, _)| text)
}

/// `text` with `insert` in place of `length` characters from `at` on.
fn changed(text: &str, at: usize, length: usize, insert: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let at = at % (characters.len() + 1);
    let (before, rest) = characters.split_at(at);
    before.iter().copied().chain(insert.chars()).chain(rest.iter().skip(length).copied()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in "\\PC{0,60}") {
        holds(&text);
    }

    #[test]
    fn any_pieces(text in pieces()) {
        holds(&text);
        holds(&format!("p x {text}"));
        holds(&format!("p x if {text}"));
        holds(&format!("p x hist:keys=a{text}"));
    }

    #[test]
    fn any_change(text in a_definition(), at: usize, length in 0_usize..6, insert in pieces()) {
        holds(&changed(text, at, length, &insert));
        holds(&changed(text, at, length, ""));
    }

    #[test]
    fn any_two_halves(left in a_definition(), right in a_definition(), at: usize, from: usize) {
        let half = left.len().min(at % (left.len() + 1));
        let other = right.len().min(from % (right.len() + 1));
        if let (Some(left), Some(right)) = (left.get(..half), right.get(other..)) {
            holds(&format!("{left}{right}"));
        }
    }
}
