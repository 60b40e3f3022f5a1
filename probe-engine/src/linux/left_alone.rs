//! Why an instruction of the guest's is left alone: the guest must not trap there, or rewrites it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Why an instruction is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Why {
    /// `__entry_text_start` to `__entry_text_end`.
    Entry,
    /// The `.noinstr.text` section.
    Noinstr,
    /// `_kprobe_blacklist` and `.kprobes.text`.
    Blacklisted,
    /// What the guest runs to handle an int3.
    BreakpointPath,
    /// What a CPU runs when it is started, before it has the kernel's exception handlers.
    Startup,
    /// The bytes before a function that `__pfx_` and `__cfi_` symbols name.
    Padding,
    /// The `.altinstr_replacement` section.
    Replacement,
    /// `__bug_table`.
    Bug,
    /// `__jump_table`.
    JumpLabel,
    /// What may be in `__jump_table`, of which nothing tells where it is.
    PossibleLabel,
    /// `.static_call_sites` and the trampolines `__SCT__*`.
    StaticCall,
    /// `ftrace_call`, `ftrace_regs_call`. The sites at the start of functions are none of these.
    FtraceCall,
    /// `.smp_locks`.
    LockPrefix,
    /// `.altinstructions`.
    Alternative,
    /// `.parainstructions`, to 6.7.
    Paravirt,
    /// `.retpoline_sites`.
    IndirectBranch,
    /// `.return_sites`.
    Return,
    /// `.call_sites`, except the calls of `__fentry__`, which are ftrace's.
    Call,
    /// `.ibt_endbr_seal`, and behind `.cfi_sites`.
    Endbr,
    /// What clang (kCFI) puts before the sites of `.retpoline_sites`.
    CallCheck,
    /// `runtime_ptr_*` and `runtime_shift_*`, since 6.11.
    RuntimeConstant,
}

impl Why {
    /// Whether a site that the guest rewrites may still be probed: the guest does so once, before sites like it are armed
    /// from the live text. Alternatives are not among them: what is one instruction in the file may be several then.
    #[must_use]
    pub fn is_settled_late(self) -> bool {
        self.is_final_after_boot() && !matches!(self, Self::Alternative | Self::Paravirt)
    }

    /// Whether the guest rewrites it while it boots and never again (all of it is done before `rest_init`): then
    /// the live bytes are as good as any other.
    #[must_use]
    pub fn is_final_after_boot(self) -> bool {
        match self {
            Self::Alternative
            | Self::Paravirt
            | Self::IndirectBranch
            | Self::Return
            | Self::Call
            | Self::Endbr
            | Self::CallCheck
            | Self::RuntimeConstant => true,
            Self::Entry
            | Self::Noinstr
            | Self::Blacklisted
            | Self::BreakpointPath
            | Self::Startup
            | Self::Padding
            | Self::Replacement
            | Self::Bug
            | Self::JumpLabel
            | Self::PossibleLabel
            | Self::StaticCall
            | Self::FtraceCall
            | Self::LockPrefix => false,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Entry => "it is entry code, where the guest cannot take an exception",
            Self::Noinstr => "it is code that the kernel marks as not to be instrumented (noinstr)",
            Self::Blacklisted => "the kernel forbids probes in this function (NOKPROBE)",
            Self::BreakpointPath => "the guest runs it to handle its own breakpoints",
            Self::Startup => "a CPU that is started runs it before it can take an exception",
            Self::Padding => "it is padding before a function, not code",
            Self::Replacement => "it is a template for patching, which never runs",
            Self::Bug => "it is a BUG or WARN, which the guest finds by its address",
            Self::JumpLabel => "the guest rewrites it at any time (jump label)",
            Self::PossibleLabel => {
                "the guest may rewrite it at any time (jump label), which symbols of functions alone do not tell (CONFIG_KALLSYMS_ALL)"
            }
            Self::StaticCall => "the guest rewrites it at any time (static call)",
            Self::FtraceCall => "the guest rewrites it at any time (ftrace trampoline)",
            Self::LockPrefix => "the guest rewrites it when a second CPU comes up (lock prefix)",
            Self::Alternative => "the guest rewrites it while it boots (alternative instruction)",
            Self::Paravirt => "the guest rewrites it while it boots (paravirtual call)",
            Self::IndirectBranch => "the guest rewrites it while it boots (indirect branch)",
            Self::Return => "the guest rewrites it while it boots (return)",
            Self::Call => "the guest rewrites it while it boots (call)",
            Self::Endbr => "the guest rewrites it while it boots (endbr)",
            Self::CallCheck => "the guest rewrites it while it boots (check of an indirect call)",
            Self::RuntimeConstant => "the guest rewrites it while it boots (run-time constant)",
        })
    }
}
