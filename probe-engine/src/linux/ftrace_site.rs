//! The five bytes that ftrace keeps at the entry of a function.

/// Bytes of `call __fentry__`, and of the nop that ftrace makes of it.
pub const FTRACE_SITE: u64 = 5;

/// What `call __fentry__` is turned into by ftrace (`x86_nops[5]`). Nothing patches it again except ftrace itself.
pub const FTRACE_NOP: [u8; FTRACE_SITE as usize] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// What it is turned into instead on some CPUs, before 5.13 (`K8_NOP5_ATOMIC`, `arch_init_ideal_nops`).
const K8_FTRACE_NOP: [u8; FTRACE_SITE as usize] = [0x66, 0x66, 0x66, 0x66, 0x90];

/// The nop that ftrace has made of the site at which `text` begins; `None` if it is none of ftrace's.
#[must_use]
pub fn ftrace_nop(text: &[u8]) -> Option<[u8; FTRACE_SITE as usize]> {
    text.first_chunk().copied().filter(|site| [FTRACE_NOP, K8_FTRACE_NOP].contains(site))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Gva;
    use crate::insn::plan::{StepPlan, plan};

    const START: Gva = Gva(0xffff_ffff_8100_0000);

    #[test]
    fn ftraces_nops_are_known_and_passed_by_emulation() {
        for nop in [FTRACE_NOP, K8_FTRACE_NOP] {
            let text = [&nop[..], &[0x55, 0xc3]].concat();
            assert_eq!(ftrace_nop(&text), Some(nop));
            assert!(matches!(plan(&text, START, None, false), Ok(StepPlan::Emulate(_))), "{nop:x?}");
        }
        assert_eq!(ftrace_nop(&[0xe8, 0, 0, 0, 0]), None);
        assert_eq!(ftrace_nop(&K8_FTRACE_NOP[..4]), None);
    }
}
