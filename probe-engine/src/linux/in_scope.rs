//! Whether a hit is in a probe's scope.

use super::scope::{Scope, Started};
use super::task::{Context, SOFTIRQS, TaskLayout};
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;

/// What of a `preempt_count` says that a CPU does not work for its task, see [`Context`].
pub(crate) const INTERRUPTS: u32 = 0x00ff_0100;

impl TaskLayout {
    /// Whether this guest shows what is in `scope`.
    #[must_use]
    pub fn tells(&self, scope: Scope) -> bool {
        match scope {
            Scope::Boot => true,
            Scope::Init => self.scopes.started.is_some(),
            Scope::Command => self.scopes.names.is_some() && self.preempt_count.is_some(),
        }
    }

    /// Whether what the CPU with this kernel GS base does now is in `scope`; not where that cannot be read.
    pub fn is_inside<M: PhysMemory + ?Sized>(
        &self,
        scope: Scope,
        memory: &VirtMemory<'_, M>,
        gs_base: u64,
    ) -> bool {
        let inside = match scope {
            Scope::Boot => Some(true),
            Scope::Init => self.scopes.started.and_then(|started| started.is_past(memory)),
            Scope::Command => self.is_of_command(memory, gs_base),
        };
        inside.unwrap_or(false)
    }

    fn is_of_command<M: PhysMemory + ?Sized>(
        &self,
        memory: &VirtMemory<'_, M>,
        gs_base: u64,
    ) -> Option<bool> {
        let names = self.scopes.names?;
        let task = self.current.read(memory, gs_base).ok()?;
        let preempted = memory.read_u32(Gva(gs_base).add(self.preempt_count?)).ok()?;
        let softirqs = match self.softirq_count {
            Some(offset) => memory.read_u32(task.add(offset)).ok()?,
            None => 0,
        };
        if Context::of(preempted | softirqs & SOFTIRQS) != Context::Task {
            return Some(false);
        }
        let proxy = memory.read_u64(task.add(names.nsproxy)).ok().filter(|proxy| *proxy != 0)?;
        let own = memory.read_u64(Gva(proxy).add(names.uts_ns)).ok()?;
        Some(Gva(own) != names.init)
    }
}

impl Started {
    fn is_past<M: PhysMemory + ?Sized>(self, memory: &VirtMemory<'_, M>) -> Option<bool> {
        Some(memory.read_u32(self.at).ok()? >= self.running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::btf::Btf;
    use crate::linux::symbols::SymbolTableBuilder;
    use crate::linux::testing::{BtfBuilder, Ram};

    const STATE: u64 = 0x100;
    const CPU: u64 = 0x1000;
    const TASK: u64 = 0x2000;
    const PROXY: u64 = 0x3000;
    const INIT_NAMES: u64 = 0x4000;

    /// A kernel with PREEMPT_RT, or without.
    fn layout(is_realtime: bool) -> TaskLayout {
        let mut symbols = SymbolTableBuilder::default();
        let variables = [(Gva(0x10), "current_task"), (Gva(0x18), "__preempt_count")];
        let data = [(Ram::BASE.add(STATE), "system_state"), (Ram::BASE.add(INIT_NAMES), "init_uts_ns")];
        symbols.push(Gva(0xffff_ffff_8100_0000), b'T', "copy_utsname").unwrap();
        for (at, name) in variables.into_iter().chain(data) {
            symbols.push(at, b'D', name).unwrap();
        }
        let mut btf = BtfBuilder::default();
        let int = btf.int("int", 4);
        let long = btf.int("long", 8);
        let values = [("SYSTEM_BOOTING", 0), ("SYSTEM_RUNNING", 3)];
        let values = values.map(|(name, value)| [btf.name(name), value]).concat();
        btf.add("system_states", 6, 2, false, 4, &values);
        btf.structure("nsproxy", 16, &[("uts_ns", long, 8)]);
        let mut members = vec![("pid", int, 0), ("tgid", int, 4), ("comm", int, 8), ("nsproxy", long, 16)];
        members.extend(is_realtime.then_some(("softirq_disable_cnt", int, 24)));
        btf.structure("task_struct", 64, &members);
        let section = btf.finish();
        TaskLayout::find(&symbols.finish(), &Btf::parse(&section).unwrap()).unwrap()
    }

    #[test]
    fn a_hit_is_in_the_scopes_of_its_moment_and_its_task() {
        let ram = Ram::new();
        let base = Ram::BASE;
        let (cpu, task) = (base.add(CPU), base.add(TASK));
        ram.put(cpu.add(0x10), &task.0.to_le_bytes());
        let inside = |layout: &TaskLayout, scope| layout.is_inside(scope, &ram.memory(), cpu.0);
        let plain = layout(false);
        assert!([Scope::Boot, Scope::Init, Scope::Command].iter().all(|scope| plain.tells(*scope)));
        assert!(inside(&plain, Scope::Boot));
        for (state, is_past) in [(0u32, false), (2, false), (3, true), (5, true)] {
            ram.put(base.add(STATE), &state.to_le_bytes());
            assert_eq!(inside(&plain, Scope::Init), is_past, "{state}");
        }
        let is_of_command = |layout: &TaskLayout, proxy: u64, names: u64, preempt: u32, softirq: u32| {
            ram.put(task.add(16), &proxy.to_le_bytes());
            ram.put(base.add(PROXY + 8), &names.to_le_bytes());
            ram.put(cpu.add(0x18), &preempt.to_le_bytes());
            ram.put(task.add(24), &softirq.to_le_bytes());
            inside(layout, Scope::Command)
        };
        let (proxy, init) = (base.add(PROXY).0, base.add(INIT_NAMES).0);
        assert!(
            is_of_command(&plain, proxy, init + 8, 0x8000_0201, 0x100),
            "bottom halves are only held off"
        );
        assert!(!is_of_command(&plain, proxy, init, 0, 0), "it sees what process 1 sees");
        assert!(!is_of_command(&plain, 0, init + 8, 0, 0), "it is about to be gone");
        assert!(!is_of_command(&plain, 0x1234, init + 8, 0, 0), "no memory");
        for interrupt in [0x100, 0x1_0000, 0x10_0000] {
            assert!(!is_of_command(&plain, proxy, init + 8, interrupt, 0), "{interrupt:#x}");
        }
        let realtime = layout(true);
        assert!(is_of_command(&realtime, proxy, init + 8, 0, 0x200));
        assert!(!is_of_command(&realtime, proxy, init + 8, 0, 0x100), "it serves a soft interrupt");
    }

    #[test]
    fn a_kernel_without_such_names_tells_no_command() {
        let mut symbols = SymbolTableBuilder::default();
        symbols.push(Gva(0x10), b'A', "current_task").unwrap();
        let mut btf = BtfBuilder::default();
        let int = btf.int("int", 4);
        btf.structure("task_struct", 64, &[("pid", int, 0), ("tgid", int, 4), ("comm", int, 8)]);
        let section = btf.finish();
        let layout = TaskLayout::find(&symbols.finish(), &Btf::parse(&section).unwrap()).unwrap();
        assert!(layout.tells(Scope::Boot) && !layout.tells(Scope::Init) && !layout.tells(Scope::Command));
    }
}
