//! Functions that are on the stack of a report because of the report.

use super::kind::SplatKind;

/// By their whole names in the source.
const WHOLE: &[&str] = &[
    "__dump_stack",
    "__lock_acquire",
    "__might_fault",
    "__might_resched",
    "__might_sleep",
    "__report_bug",
    "__schedule_bug",
    "__warn",
    "__warn_printk",
    "_printk",
    "add_taint",
    "bad_page",
    "check_noncircular",
    "check_panic_on_warn",
    "check_preemption_disabled",
    "check_prev_add",
    "check_prevs_add",
    "debug_smp_processor_id",
    "die",
    "die_addr",
    "do_error_trap",
    "do_raw_spin_lock",
    "do_raw_spin_unlock",
    "do_trap",
    "do_user_addr_fault",
    "dump_stack",
    "dump_stack_lvl",
    "end_report",
    "fixup_exception",
    "handle_bug",
    "kernelmode_fixup_or_oops",
    "lock_acquire",
    "lock_release",
    "lockdep_rcu_suspicious",
    "mark_lock",
    "page_fault_oops",
    "panic",
    "refcount_warn_saturate",
    "report_bug",
    "sched_show_task",
    "show_regs",
    "show_stack",
    "show_trace_log_lvl",
    "spin_bug",
    "spin_dump",
    "validate_chain",
    "vpanic",
    "warn_bogus_irq_restore",
    "warn_slowpath_fmt",
    "warn_slowpath_null",
];

/// By how their names begin.
const BEGINNINGS: &[&str] = &[
    "__asan_",
    "__die",
    "__kasan_",
    "__kfence_",
    "__list_add_valid",
    "__list_del_entry_valid",
    "__msan_",
    "__tsan_",
    "__ubsan_",
    "asm_exc_",
    "exc_",
    "kasan_",
    "kcsan_",
    "kfence_",
    "kmsan_",
    "oops_",
    "print_",
    "ubsan_",
];

/// By which a timer's interrupt comes to report a CPU.
const OF_TIMER: &[&str] = &[
    "__hrtimer_run_queues",
    "__sysvec_apic_timer_interrupt",
    "asm_sysvec_apic_timer_interrupt",
    "check_cpu_stall",
    "hrtimer_interrupt",
    "nmi_cpu_backtrace",
    "nmi_cpu_backtrace_handler",
    "nmi_trigger_cpumask_backtrace",
    "rcu_check_gp_kthread_starvation",
    "rcu_dump_cpu_stacks",
    "rcu_pending",
    "rcu_sched_clock_irq",
    "sysvec_apic_timer_interrupt",
    "tick_nohz_handler",
    "tick_sched_handle",
    "tick_sched_timer",
    "timer_interrupt",
    "trigger_single_cpu_backtrace",
    "update_process_times",
    "watchdog_timer_fn",
];

/// In which a task sleeps, whatever it sleeps for: by whole names,
const OF_SLEEP: &[&str] = &[
    "__down",
    "__down_common",
    "__mutex_lock",
    "__mutex_lock_slowpath",
    "__schedule",
    "__wait_for_common",
    "__wait_on_bit",
    "bit_wait",
    "bit_wait_io",
    "down",
    "io_schedule",
    "io_schedule_timeout",
    "mutex_lock",
    "mutex_lock_nested",
    "out_of_line_wait_on_bit",
    "schedule",
    "schedule_preempt_disabled",
    "schedule_timeout",
    "schedule_timeout_uninterruptible",
    "synchronize_rcu",
    "synchronize_rcu_expedited",
];

/// and by how they begin.
const BEGINNINGS_OF_SLEEP: &[&str] =
    &["__down_", "down_read", "down_write", "rwsem_down_", "wait_for_completion"];

/// Whether the function of this name is there to make the report.
pub(super) fn reports(name: &str, kind: SplatKind) -> bool {
    WHOLE.binary_search(&name).is_ok()
        || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
        || kind.is_found_by_timer() && OF_TIMER.binary_search(&name).is_ok()
        || kind == SplatKind::HungTask
            && (OF_SLEEP.binary_search(&name).is_ok()
                || BEGINNINGS_OF_SLEEP.iter().any(|beginning| name.starts_with(beginning)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_report_are_told_from_others() {
        assert!(WHOLE.is_sorted() && OF_TIMER.is_sorted() && OF_SLEEP.is_sorted());
        let (warning, stall) = (SplatKind::Warning, SplatKind::RcuStall);
        for (name, kind, expected) in [
            ("__warn", warning, true),
            ("asm_exc_invalid_op", warning, true),
            ("kasan_report", warning, true),
            ("vfs_write", warning, false),
            ("tick_sched_timer", warning, false),
            ("tick_sched_timer", stall, true),
            ("schedule", stall, false),
            ("schedule", SplatKind::HungTask, true),
            ("rwsem_down_write_slowpath", SplatKind::HungTask, true),
        ] {
            assert_eq!(reports(name, kind), expected, "{name}");
        }
    }
}
