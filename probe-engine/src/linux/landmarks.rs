//! What must be known of a kernel while it boots and runs: a few addresses, as plain data.
//!
//! The kernel's file, unpacked, takes hundreds of milliseconds to understand; this takes nothing, and can be sent
//! to wherever the guest runs. All addresses are link-time addresses.

use super::boot::Boot;
use super::branches::BranchSites;
use super::current::{self, CurrentTask, Preemption};
use super::errands::{ErrandLayout, NoErrands};
use super::kernel::Kernel;
use super::mappings::MappingsLayout;
use super::modules::ModuleLayout;
use super::nofault::Nofault;
use super::per_cpu;
use super::printk::PrintkLayout;
use super::relocations::RelocatedPointer;
use super::sched_clock::SchedClockLayout;
use super::sleepers::TaskListLayout;
use super::task::TaskLayout;
use super::thunks::Thunks;
use super::tracepoints::{NoTracepoints, TracepointCalls};
use super::uprobes::{NoUprobes, UprobeCalls};
use super::uretprobes::ReturnInstances;
use crate::addr::{Gpa, Gva};
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The kernel's landmarks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landmarks {
    /// Where its text starts, virtually.
    pub text: Gva,
    /// Where its text ends, virtually.
    pub text_end: Gva,
    /// Where its text starts, physically.
    pub text_load: Gpa,
    /// Its entry point, physically.
    pub entry: Gpa,
    /// A pointer that tells what KASLR has added to all virtual addresses; `None` for a kernel that it does not move.
    pub relocated: Option<RelocatedPointer>,
    /// What runs before it.
    pub boot: Boot,
    /// The first function that is not written for the place at which the kernel lies: `start_kernel`.
    pub start: Option<Gva>,
    /// The guest's entry for breakpoints from `setup_arch` on: `asm_exc_int3` (since 5.8).
    pub int3_entry: Option<Gva>,
    /// The last function of the boot before alternatives are applied: `arch_cpu_finalize_init` (since 6.1.39).
    pub early: Option<Gva>,
    /// The first function after: `rest_init`.
    pub late: Option<Gva>,
    /// `panic`.
    pub panic: Option<Gva>,
    /// `free_initmem`.
    pub free_init: Option<Gva>,
    /// Text that is freed after boot.
    pub init_text: Vec<Range<Gva>>,
    /// Functions that tell what the guest does to its own text, its tasks and its faults.
    pub hooks: HookAddresses,
    /// How to read its modules; `None` without modules, or without type information.
    pub modules: Option<ModuleLayout>,
    /// How to tell which task runs.
    pub current: Option<CurrentTask>,
    /// How a task is preempted from outside; `None` for a kernel that does not preempt its own code.
    pub preemption: Option<Preemption>,
    /// How to read about that task; `None` without type information.
    pub task: Option<TaskLayout>,
    /// How to read what its process has mapped; `None` without type information.
    pub mappings: Option<MappingsLayout>,
    /// How to read where its calls return to at whose returns the kernel has probes; `None` without such, or type information.
    pub uretprobes: Option<ReturnInstances>,
    /// How to find all tasks, and what they wait for; `None` without type information.
    pub tasks: Option<TaskListLayout>,
    /// The clock of its messages, where that can be computed.
    pub clock: Option<SchedClockLayout>,
    /// How to read the log of its messages; `None` before 5.10, or without type information.
    pub printk: Option<PrintkLayout>,
    /// Where a CPU keeps its own number, in bytes from the kernel's GS base.
    pub cpu_number: Option<u64>,
    /// Where a CPU keeps what lies between a per-CPU variable and its own one, in bytes from the kernel's GS base.
    pub this_cpu_off: Option<u64>,
    /// What it jumps to where it means an indirect branch.
    pub thunks: Thunks,
    /// Where it shows how it returns, and jumps indirectly.
    pub branches: BranchSites,
    /// What copies memory that may not be there; `None` without it, or without type information.
    pub nofault: Option<Nofault>,
    /// How it calls its own functions for somebody outside, or why it does not.
    pub errands: Result<ErrandLayout, NoErrands>,
    /// How it has others called at its tracepoints, or why it does not.
    pub tracepoints: Result<TracepointCalls, NoTracepoints>,
    /// How it has others called in programs, or why it does not.
    pub uprobes: Result<UprobeCalls, NoUprobes>,
}

/// Places in the kernel for internal traps: functions at their entry, with their arguments in registers.
///
/// None of them is inlined in 6.1 or 6.12, and all calls go to these. Those of ftrace have no nop of ftrace's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HookAddresses {
    /// `do_init_module(module)`: its text and tables are final, its init has not run.
    pub module_init: Option<Gva>,
    /// `free_module(module)`: its exit, or its init in vain, has run, and its memory is about to be freed. A module
    /// that never came to `do_init_module` may be freed without it.
    pub module_free: Option<Gva>,
    /// `ftrace_free_mem(module, start, end)`: this init text is about to be freed. The kernel's own has no module.
    /// Not called for a module whose init fails: see `module_free`.
    pub init_free: Option<Gva>,
    /// `ftrace_arch_code_modify_prepare()`: ftrace is about to verify and to change its sites.
    pub ftrace_begin: Option<Gva>,
    /// In `ftrace_arch_code_modify_post_process()`, behind its call of `text_poke_finish`: the last changes, which
    /// are still queued at the function's entry, are in the text, and `text_mutex` is still held.
    pub ftrace_end: Option<Gva>,
    /// `fixup_exception(regs)`: a fault of kernel code is about to be resumed elsewhere, or reported.
    pub fault: Option<Gva>,
    /// `page_fault_oops(regs)`: one is about to be reported that never passes `fixup_exception`, as a null
    /// pointer's with SMAP.
    pub page_fault_oops: Option<Gva>,
    /// Whether there is no such fault: before 5.12 all that are reported come from `no_context`, and have passed
    /// `fixup_exception` there.
    pub all_pass_fixup: bool,
    /// `atomic_notifier_call_chain(list, 0, message)`, which a panic calls once its message is formatted, and the list that
    /// it calls it with (`panic_notifier_list`).
    pub panic_told: Option<(Gva, Gva)>,
    /// Functions that nothing but reports calls. One report may call several of them.
    pub reports: [Option<Gva>; REPORTS.len()],
    /// `add_taint(flag, lockdep_ok)`: where it is reported that something is wrong, the report has been written, and the CPU is still in it.
    pub tainted: Option<Gva>,
    /// `__put_task_struct(task)`: a task of this address does not exist any more.
    pub task_free: Option<Gva>,
}

/// See [`HookAddresses::reports`].
///
/// A warning comes by `__warn`, a fault by `oops_enter`, a stall by `print_cpu_stall` and its like; what lockdep and others find, by
/// `dump_stack_lvl`. `print_modules` is there for soft lock-ups.
const REPORTS: [&str; 8] = [
    "__warn",
    "oops_enter",
    "kasan_report",
    "kfence_report_error",
    "print_cpu_stall",
    "print_other_cpu_stall",
    "print_modules",
    "dump_stack_lvl",
];

impl HookAddresses {
    /// Whether this kernel tells when its own code faults, so that RIP can be put right.
    #[must_use]
    pub fn sees_faults(&self) -> bool {
        self.fault.is_some() && (self.page_fault_oops.is_some() || self.all_pass_fixup)
    }

    fn of(kernel: &Kernel) -> Self {
        Self {
            module_init: kernel.symbol("do_init_module"),
            module_free: kernel.symbol("free_module"),
            init_free: kernel.symbol("ftrace_free_mem"),
            ftrace_begin: kernel.symbol("ftrace_arch_code_modify_prepare"),
            // 6.16 has renamed it.
            ftrace_end: ["text_poke_finish", "smp_text_poke_batch_finish"]
                .into_iter()
                .find_map(|callee| behind_call(kernel, "ftrace_arch_code_modify_post_process", callee)),
            fault: kernel.symbol("fixup_exception"),
            page_fault_oops: kernel.symbol("page_fault_oops"),
            all_pass_fixup: has_function(kernel, "no_context"),
            panic_told: kernel
                .symbol("atomic_notifier_call_chain")
                .zip(kernel.symbols().address_of("panic_notifier_list")),
            reports: REPORTS.map(|name| kernel.symbol(name)),
            tainted: kernel.symbol("add_taint"),
            task_free: kernel.symbol("__put_task_struct"),
        }
    }
}

/// Whether there is a function `name`, of which the compiler may have made a variant (`name.constprop.0`).
fn has_function(kernel: &Kernel, name: &str) -> bool {
    kernel.symbols().text().any(|symbol| symbol.name.split('.').next() == Some(name))
}

/// The instruction behind the first call in `function`, if it calls `callee`.
fn behind_call(kernel: &Kernel, function: &str, callee: &str) -> Option<Gva> {
    let range = kernel.function(kernel.symbol(function)?)?;
    let code = kernel.image().bytes(&range)?;
    let mut instructions = Decoder::with_ip(64, code, range.start.0, DecoderOptions::NONE).into_iter();
    let call = instructions.find(|instruction| instruction.flow_control() != FlowControl::Next)?;
    let is_it = call.is_call_near() && Some(Gva(call.near_branch_target())) == kernel.symbol(callee);
    is_it.then_some(Gva(call.next_ip()))
}

impl Landmarks {
    /// Finds them in `kernel`, which is booted [directly](Boot::Direct).
    #[must_use]
    pub fn of(kernel: &Kernel) -> Self {
        let image = kernel.image();
        let text = image.text_start();
        let segment = image.segments().iter().find(|segment| segment.range.contains(&text));
        let init_text =
            image.sections().filter(|s| image.is_init_text(s.range.start)).map(|s| s.range).collect();
        let btf = kernel.btf().ok();
        let text_end = image.sections().filter(|s| image.is_text(s.range.start)).map(|s| s.range.end).max();
        Self {
            text,
            text_end: text_end.unwrap_or(text),
            text_load: segment.map_or(Gpa(0), |segment| segment.phys),
            entry: image.entry(),
            relocated: kernel.relocated(),
            boot: kernel.direct(),
            start: kernel.symbol("start_kernel"),
            int3_entry: kernel.symbol("asm_exc_int3"),
            early: kernel.symbol("arch_cpu_finalize_init"),
            late: kernel.symbol("rest_init"),
            panic: kernel.symbol("panic"),
            free_init: kernel.symbol("free_initmem"),
            init_text,
            hooks: HookAddresses::of(kernel),
            modules: btf.as_ref().and_then(|btf| ModuleLayout::find(kernel.symbols(), btf)),
            current: CurrentTask::find(kernel.symbols(), btf.as_ref()),
            preemption: Preemption::find(kernel.symbols(), btf.as_ref()).ok(),
            task: btf.as_ref().and_then(|btf| TaskLayout::find(kernel.symbols(), btf)),
            mappings: btf.as_ref().and_then(MappingsLayout::find),
            uretprobes: btf.as_ref().and_then(ReturnInstances::find),
            tasks: btf.as_ref().and_then(|btf| TaskListLayout::find(kernel.symbols(), btf)),
            clock: SchedClockLayout::find(kernel.symbols(), btf.as_ref()),
            printk: btf.as_ref().and_then(|btf| PrintkLayout::find(kernel.symbols(), btf)),
            cpu_number: current::cpu_number(kernel.symbols(), btf.as_ref()),
            this_cpu_off: per_cpu::offset(kernel.symbols(), "this_cpu_off"),
            thunks: Thunks::of(kernel),
            branches: BranchSites::of(kernel),
            nofault: Nofault::of(kernel),
            errands: ErrandLayout::of(kernel),
            tracepoints: TracepointCalls::of(kernel),
            uprobes: UprobeCalls::of(kernel),
        }
    }

    /// Whether `at` is freed after boot.
    #[must_use]
    pub fn is_init_text(&self, at: Gva) -> bool {
        self.init_text.iter().any(|range| range.contains(&at))
    }
}
