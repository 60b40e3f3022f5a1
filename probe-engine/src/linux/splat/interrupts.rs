//! Interrupts that no processor takes: an emulated one may deliver an interrupt twice, the second time while interrupts are off.
//!
//! Where that happens in the first instructions of the kernel's entry, the kernel dies of it, and its report has two frames that
//! tell: an interrupt's entry, and under it registers of an entry in which IF is not set.

use super::line::{frame, rip};

/// RFLAGS.IF (Intel SDM, volume 1, 3.4.3).
const INTERRUPTS_ON: u64 = 1 << 9;

/// Follows the lines of a report.
#[derive(Debug, Default)]
pub(super) struct ImpossibleInterrupts {
    /// The entry of an interrupt, if that was the last frame.
    entry: Option<String>,
    /// Whether the registers behind the frame are those of an entry.
    is_in_entry: bool,
    found: Option<String>,
}

impl ImpossibleInterrupts {
    pub(super) fn line(&mut self, line: &str) {
        let text = line.trim_start();
        if let Some(frame) = frame(text) {
            self.entry = is_interrupt(&frame.function).then_some(frame.function);
            self.is_in_entry = false;
        } else if text.starts_with("RIP: ") {
            self.is_in_entry = rip(line).is_some_and(|at| is_entry(&at.function));
        } else if let Some(flags) = flags(text).filter(|_| self.is_in_entry) {
            let entry = self.entry.take().filter(|_| flags & INTERRUPTS_ON == 0);
            self.found = self.found.take().or(entry);
        }
    }

    /// The entry of the first one.
    pub(super) fn found(self) -> Option<String> {
        self.found
    }
}

/// The entry of the first interrupt in a log that no processor takes, if there is one. Lines may begin with their times.
#[must_use]
pub fn impossible_interrupt(log: &str) -> Option<String> {
    let mut interrupts = ImpossibleInterrupts::default();
    for line in log.lines() {
        interrupts.line(line.split_once("] ").map_or(line, |(_, text)| text));
    }
    interrupts.found()
}

/// Whether a function is the entry of an interrupt that can be switched off (arch/x86/include/asm/idtentry.h).
fn is_interrupt(function: &str) -> bool {
    function.starts_with("asm_sysvec_") || function == "asm_common_interrupt"
}

/// Whether a function runs before the kernel knows where it came from.
fn is_entry(function: &str) -> bool {
    is_interrupt(function) || function.starts_with("asm_exc_") || function == "error_entry"
}

/// Those of `RSP: 0000:fffffe486417ffd0 EFLAGS: 00010046`.
fn flags(text: &str) -> Option<u64> {
    let (_, flags) = text.strip_prefix("RSP: ")?.split_once("EFLAGS: ")?;
    u64::from_str_radix(flags.split(' ').next()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a report of 6.12 in an emulated host.
    const TWICE: &str = "\
[   15.115553]  sysvec_apic_timer_interrupt+0xe/0x90
[   15.115565]  asm_sysvec_apic_timer_interrupt+0x1a/0x20
[   15.115575] RIP: 0010:asm_sysvec_apic_timer_interrupt+0xa/0x20
[   15.115586] Code: f3 0f 1e fa 0f 01 ca fc 6a ff e8 c1 05 00 00 48 89 c4
[   15.115592] RSP: 0000:fffffe486417ffd0 EFLAGS: 00010046
[   15.115599] RAX: 00007fe014861650 RBX: 0000000000000000 RCX: 00007fe014887f60
";

    #[test]
    fn one_that_interrupts_an_entry_without_interrupts_is_found() {
        let entry = Some("asm_sysvec_apic_timer_interrupt".to_owned());
        assert_eq!(impossible_interrupt(TWICE), entry);
        assert_eq!(
            impossible_interrupt(&TWICE.replace("010:asm_sysvec_apic_timer_interrupt", "010:error_entry")),
            entry
        );
    }

    #[test]
    fn what_a_processor_does_is_none() {
        for (from, to) in [
            // Interrupts are on.
            ("EFLAGS: 00010046", "EFLAGS: 00010246"),
            // A fault is taken there, and no interrupt.
            ("asm_sysvec_apic_timer_interrupt+0x1a", "asm_exc_page_fault+0x26"),
            // Who virtualises enters interrupts by hand, without interrupts.
            ("RIP: 0010:asm_sysvec_apic_timer_interrupt", "RIP: 0010:vmx_do_interrupt_irqoff"),
            ("RIP: 0010:asm_sysvec_apic_timer_interrupt", "RIP: 0033:0x7fe014861720"),
        ] {
            assert_eq!(impossible_interrupt(&TWICE.replace(from, to)), None, "{to}");
        }
        assert_eq!(impossible_interrupt("RSP: 0000:1 EFLAGS: x\nRSP: 1\n"), None);
    }
}
