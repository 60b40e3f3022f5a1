//! What is said of a guest that did not come to an end by itself: where its CPUs stood, and who had called.

use crate::output::{GuestNames, named_lock, sleeper};
use crate::say::say;
use probe_engine::addr::Gva;
use probe_engine::regs::{Register, Regs};
use vmm::session::{Death, Stands, Stood};
use vmm::stack::Stack;

/// Says how a guest died, with what is known of the moment.
pub(crate) fn say_death(death: &Death, names: &GuestNames) {
    say(death);
    if let Some(regs) = death.regs() {
        say_registers(regs, names);
    }
    if let Some(stack) = death.stack() {
        say(format_args!("called by"));
        say_stack(stack, names);
    }
    if let Some(stands) = death.stands() {
        say_stands(stands, names);
    }
}

/// Says where each CPU of the guest stood, and which tasks slept until what they wait for would have come.
pub(crate) fn say_stands(Stands { cpus, sleepers }: &Stands, names: &GuestNames) {
    for (cpu, Stood { rip, is_halted, stack, lock, .. }) in cpus.iter().enumerate() {
        let name = names.symbol(*rip).map(|name| format!(" {name}")).unwrap_or_default();
        let line = names.lines(*rip).last().map(|line| format!(" {line}")).unwrap_or_default();
        let halted = if *is_halted { ", halted" } else { "" };
        let lock = lock.map(|lock| named_lock(lock, names).to_string()).unwrap_or_default();
        say(format_args!("cpu{cpu} at {rip}{name}{line}{halted}{lock}"));
        if let Some(stack) = stack {
            say_stack(stack, names);
        }
    }
    for asleep in sleepers {
        sleeper(asleep, names).to_string().lines().for_each(say);
    }
}

fn say_stack(stack: &Stack, names: &GuestNames) {
    if let Some(stack) = names.stack(stack) {
        stack.to_string().lines().for_each(say);
    }
}

fn say_registers(r: &Regs, names: &GuestNames) {
    say(format_args!("rip {:016x} rsp {:016x} rflags {:08x}", r.rip, r.rsp, r.rflags));
    say(format_args!("rax {:016x} rbx {:016x} rcx {:016x} rdx {:016x}", r.rax, r.rbx, r.rcx, r.rdx));
    say(format_args!("rsi {:016x} rdi {:016x} rbp {:016x} r8  {:016x}", r.rsi, r.rdi, r.rbp, r.r8));
    say(format_args!("r9  {:016x} r10 {:016x} r11 {:016x} r12 {:016x}", r.r9, r.r10, r.r11, r.r12));
    say(format_args!("r13 {:016x} r14 {:016x} r15 {:016x}", r.r13, r.r14, r.r15));
    for register in Register::ALL.into_iter().filter(|register| *register != Register::Rflags) {
        if let Some(name) = names.pointee(Gva(register.of(r))) {
            say(format_args!("{} is {name}", register.processor_name()));
        }
    }
}
