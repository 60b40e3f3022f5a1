//! From when on, and of which tasks, hits are wanted.
//!
//! A guest shows by itself what it has come to: `system_state` says that process 1 is being started (kernel_init in
//! init/main.c), and the tree of processes of a command is told by the names of the system that its tasks see, which init has
//! made the command's own (CLONE_NEWUTS): children inherit them, whatever becomes of their parents.

use super::btf::Btf;
use super::symbols::SymbolTable;
use crate::addr::Gva;
use serde::{Deserialize, Serialize};

/// Which hits are a probe's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Scope {
    /// All, from the boot on.
    #[default]
    Boot,
    /// All from when the kernel starts process 1.
    Init,
    /// Those of a command's processes, and no interrupts that came while these ran.
    Command,
}

/// Where a guest shows what is in a scope. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ScopeLayout {
    pub(crate) started: Option<Started>,
    pub(crate) names: Option<SystemNames>,
}

/// The kernel's `system_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Started {
    /// Where it is (GVA).
    pub(crate) at: Gva,
    /// What it is when process 1 is started (SYSTEM_RUNNING), and no less from then on.
    pub(crate) running: u32,
}

/// `task->nsproxy->uts_ns`: a task that is about to be gone has no `nsproxy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SystemNames {
    pub(crate) nsproxy: u64,
    pub(crate) uts_ns: u64,
    /// Process 1's (GVA).
    pub(crate) init: Gva,
}

impl ScopeLayout {
    pub(super) fn find(symbols: &SymbolTable, btf: &Btf<'_>) -> Self {
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        let started = || {
            let running = btf.enum_value("system_states", "SYSTEM_RUNNING")?;
            Some(Started { at: symbols.address_of("system_state")?, running: u32::try_from(running).ok()? })
        };
        let names = || {
            // Without CONFIG_UTS_NS there are no others than process 1's (kernel/utsname.c).
            symbols.address_of("copy_utsname")?;
            Some(SystemNames {
                nsproxy: offset("task_struct", "nsproxy")?,
                uts_ns: offset("nsproxy", "uts_ns")?,
                init: symbols.address_of("init_uts_ns")?,
            })
        };
        Self { started: started(), names: names() }
    }

    pub(super) fn slid(self, slide: u64) -> Self {
        Self {
            started: self.started.map(|started| Started { at: started.at.add(slide), ..started }),
            names: self.names.map(|names| SystemNames { init: names.init.add(slide), ..names }),
        }
    }
}
