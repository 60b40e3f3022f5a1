//! The clock of a guest's own messages: `local_clock`, by which printk says when something was.
//!
//! From when the kernel calls it stable (`__sched_clock_stable`, kernel/sched/clock.c), late in the boot, it is a straight line
//! over the time-stamp counter. What that is is in the guest's memory: kvmclock's parameters, which KVM keeps (`struct
//! pvclock_vcpu_time_info`, Documentation/virt/kvm/x86/msr.rst; arch/x86/kernel/kvmclock.c), or those that the kernel has
//! measured for itself (`cyc2ns`, arch/x86/kernel/tsc.c). Before, it follows the guest's ticks, and nobody can compute it
//! later.

use super::btf::Btf;
use super::per_cpu;
use super::symbols::SymbolTable;
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;
use serde::{Deserialize, Serialize};

/// Where a kernel keeps it (GVA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedClockLayout {
    /// A `struct static_key`, not 0 once the clock is stable.
    stable: Gva,
    /// What is added to it.
    offset: Gva,
    /// A pointer to the function that reads it.
    read_by: Gva,
    kvm: Option<KvmClock>,
    tsc: Option<TscClock>,
}

/// `kvm_sched_clock_read`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct KvmClock {
    function: Gva,
    /// What its boot has begun with.
    began: Gva,
    /// `hv_clock_boot`: parameters of the first CPUs, those of CPU 0 first.
    parameters: Gva,
}

/// `native_sched_clock`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct TscClock {
    function: Gva,
    /// A `struct static_key`, not 0 where it counts by the time-stamp counter.
    used: Gva,
    /// CPU 0's `struct cyc2ns`, from its own area.
    parameters: u64,
    /// Where CPU 0's own area begins.
    area: Gva,
}

/// A guest's clock as a line over its time-stamp counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedClock {
    /// The counter where the line begins.
    pub ticks: u64,
    /// Nanoseconds there.
    pub nanos: u64,
    /// Nanoseconds a tick, in units of 2^-`shift`.
    pub multiplier: u32,
    /// See [`multiplier`](Self::multiplier).
    pub shift: u32,
}

/// `PVCLOCK_TSC_STABLE_BIT`: the parameters of all CPUs are one line.
const ONE_LINE: u8 = 1;

impl SchedClockLayout {
    /// Finds it, for a kernel that was not moved.
    #[must_use]
    pub fn find(symbols: &SymbolTable, btf: Option<&Btf<'_>>) -> Option<Self> {
        let at = |name| symbols.address_of(name);
        let kvm = || {
            let (function, began) = (at("kvm_sched_clock_read")?, at("kvm_sched_clock_offset")?);
            Some(KvmClock { function, began, parameters: at("hv_clock_boot")? })
        };
        let tsc = || {
            // data[2] of { cyc2ns_mul, cyc2ns_shift, cyc2ns_offset }, then the sequence.
            let member = |name| btf?.member("cyc2ns", name)?.offset();
            let as_known = member("data[1].cyc2ns_offset")? == 24 && member("seq")? == 32;
            Some(TscClock {
                function: at("native_sched_clock")?,
                used: at("__use_tsc")?,
                parameters: per_cpu::offset(symbols, "cyc2ns").filter(|_| as_known)?,
                area: at("__per_cpu_offset")?,
            })
        };
        Some(Self {
            stable: at("__sched_clock_stable")?,
            offset: at("__sched_clock_offset")?,
            read_by: at("__SCK__pv_sched_clock")?,
            kvm: kvm(),
            tsc: tsc(),
        })
    }

    /// The same where KASLR has moved the kernel by `slide`.
    #[must_use]
    pub fn slid(self, slide: u64) -> Self {
        let at = |at: Gva| at.add(slide);
        let kvm = self.kvm.map(|KvmClock { function, began, parameters }| KvmClock {
            function: at(function),
            began: at(began),
            parameters: at(parameters),
        });
        let tsc = self.tsc.map(|TscClock { function, used, parameters, area }| TscClock {
            function: at(function),
            used: at(used),
            parameters: per_cpu::slid(parameters, slide),
            area: at(area),
        });
        let (stable, offset, read_by) = (at(self.stable), at(self.offset), at(self.read_by));
        Self { stable, offset, read_by, kvm, tsc }
    }

    /// What it is now; `None` while it is no line, or while the guest or KVM changes it.
    pub fn read<M: PhysMemory + ?Sized>(&self, memory: &VirtMemory<'_, M>) -> Option<SchedClock> {
        let is_on = |key: Gva| memory.read_u32(key).ok().filter(|on| on.cast_signed() > 0);
        is_on(self.stable)?;
        let function = Gva(memory.read_u64(self.read_by).ok()?);
        let offset = memory.read_u64(self.offset).ok()?;
        let raw = if let Some(kvm) = self.kvm.filter(|kvm| kvm.function == function) {
            kvm.read(memory)?
        } else {
            let tsc = self.tsc.filter(|tsc| tsc.function == function)?;
            is_on(tsc.used)?;
            tsc.read(memory)?
        };
        Some(SchedClock { nanos: raw.nanos.wrapping_add(offset), ..raw })
    }
}

impl KvmClock {
    fn read<M: PhysMemory + ?Sized>(&self, memory: &VirtMemory<'_, M>) -> Option<SchedClock> {
        let began = memory.read_u64(self.began).ok()?;
        let mut bytes = [0; 32];
        memory.read(self.parameters, &mut bytes).ok()?;
        // version, pad, tsc_timestamp, system_time, tsc_to_system_mul, tsc_shift, flags, pad
        let version = u32::from_le_bytes(*bytes.first_chunk()?);
        let words = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let multiplier = u32::from_le_bytes(*bytes.get(24..)?.first_chunk()?);
        let (shift, flags) = (bytes.get(28)?.cast_signed(), bytes.get(29)?);
        let is_whole = version & 1 == 0 && memory.read_u32(self.parameters).ok()? == version;
        // delta << shift, times the multiplier, >> 32
        let shift = u32::try_from(32 - i32::from(shift)).ok()?;
        let line = SchedClock { ticks: words(8)?, nanos: words(16)?.wrapping_sub(began), multiplier, shift };
        (is_whole && flags & ONE_LINE != 0).then_some(line)
    }
}

impl TscClock {
    fn read<M: PhysMemory + ?Sized>(&self, memory: &VirtMemory<'_, M>) -> Option<SchedClock> {
        let at = Gva(memory.read_u64(self.area).ok()?.wrapping_add(self.parameters));
        let sequence = memory.read_u32(at.add(32)).ok()?;
        let data = at.add(u64::from(sequence & 1) * 16);
        let (multiplier, shift) = (memory.read_u32(data).ok()?, memory.read_u32(data.add(4)).ok()?);
        let nanos = memory.read_u64(data.add(8)).ok()?;
        let is_whole = memory.read_u32(at.add(32)).ok()? == sequence;
        is_whole.then_some(SchedClock { ticks: 0, nanos, multiplier, shift })
    }
}

impl SchedClock {
    /// The guest's time when its counter was at `ticks`, in nanoseconds: what printk writes in front of a message. A
    /// hostile guest's may be any number.
    #[must_use]
    pub fn nanos(&self, ticks: u64) -> u64 {
        let passed = i128::from(ticks.wrapping_sub(self.ticks).cast_signed());
        let nanos = (passed * i128::from(self.multiplier)).checked_shr(self.shift).unwrap_or(0);
        self.nanos.wrapping_add(nanos as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::symbols::SymbolTableBuilder;
    use crate::linux::testing::{BtfBuilder, Ram};

    const NAMES: [(&str, u64); 9] = [
        ("__sched_clock_stable", 0x100),
        ("__sched_clock_offset", 0x108),
        ("__SCK__pv_sched_clock", 0x110),
        ("kvm_sched_clock_read", 0x1_0000),
        ("kvm_sched_clock_offset", 0x118),
        ("hv_clock_boot", 0x1000),
        ("native_sched_clock", 0x1_1000),
        ("__use_tsc", 0x120),
        ("__per_cpu_offset", 0x128),
    ];

    fn at(name: &str) -> Gva {
        Ram::BASE.add(NAMES.iter().find(|known| known.0 == name).unwrap().1)
    }

    fn layout() -> SchedClockLayout {
        let mut symbols = SymbolTableBuilder::default();
        symbols.push(Gva(0x40), b'A', "cyc2ns").unwrap();
        for (name, _) in NAMES {
            symbols.push(at(name), b'D', name).unwrap();
        }
        let mut btf = BtfBuilder::default();
        let (int, long) = (btf.int("unsigned int", 4), btf.int("unsigned long long", 8));
        let members = [("cyc2ns_mul", int, 0), ("cyc2ns_shift", int, 4), ("cyc2ns_offset", long, 8)];
        let data = btf.structure("cyc2ns_data", 16, &members);
        let both = btf.array(data, 2);
        btf.structure("cyc2ns", 40, &[("data", both, 0), ("seq", int, 32)]);
        let section = btf.finish();
        SchedClockLayout::find(&symbols.finish(), Some(&Btf::parse(&section).unwrap())).unwrap()
    }

    /// A guest whose clock is stable and is read by `function`.
    fn guest(function: &str) -> Ram {
        let ram = Ram::new();
        ram.put(at("__sched_clock_stable"), &1u32.to_le_bytes());
        ram.put(at("__sched_clock_offset"), &(-1000i64).to_le_bytes());
        ram.put(at("__SCK__pv_sched_clock"), &at(function).0.to_le_bytes());
        ram
    }

    fn kvm(version: u32, flags: u8) -> Ram {
        let ram = guest("kvm_sched_clock_read");
        ram.put(at("kvm_sched_clock_offset"), &500u64.to_le_bytes());
        let mut parameters = Vec::new();
        for word in [u64::from(version), 10_000, 2_000_000] {
            parameters.extend(word.to_le_bytes());
        }
        // Half a nanosecond a tick: 2^31 / 2^32, and one more half by the shift.
        parameters.extend((1u32 << 31).to_le_bytes());
        parameters.extend([(-1i8).cast_unsigned(), flags, 0, 0]);
        ram.put(at("hv_clock_boot"), &parameters);
        ram
    }

    #[test]
    fn kvmclock_is_a_line() {
        let clock = layout().read(&kvm(6, 1).memory()).unwrap();
        assert_eq!(clock.nanos(10_000), 2_000_000 - 500 - 1000);
        assert_eq!(clock.nanos(14_000), 2_000_000 - 500 - 1000 + 1000);
        assert_eq!(clock.nanos(6_000), 2_000_000 - 500 - 1000 - 1000, "what was before it was set");
    }

    #[test]
    fn a_clock_that_is_no_line_is_not_known() {
        assert_eq!(layout().read(&kvm(7, 1).memory()), None, "KVM writes it");
        assert_eq!(layout().read(&kvm(6, 0).memory()), None, "each CPU has its own");
        let unstable = kvm(6, 1);
        unstable.put(at("__sched_clock_stable"), &0u32.to_le_bytes());
        assert_eq!(layout().read(&unstable.memory()), None);
        assert_eq!(layout().read(&guest("hv_clock_boot").memory()), None, "another function reads it");
        let slow = guest("native_sched_clock");
        assert_eq!(layout().read(&slow.memory()), None, "it counts ticks of a timer");
    }

    #[test]
    fn the_kernels_own_line_is_one_too() {
        let ram = guest("native_sched_clock");
        let area = Ram::BASE.add(0x2000);
        ram.put(at("__use_tsc"), &1u32.to_le_bytes());
        ram.put(at("__per_cpu_offset"), &area.0.to_le_bytes());
        let parameters = area.add(0x40 + 16);
        ram.put(parameters, &[512u32.to_le_bytes(), 10u32.to_le_bytes()].concat());
        ram.put(parameters.add(8), &7_000u64.to_le_bytes());
        ram.put(area.add(0x40 + 32), &5u32.to_le_bytes());
        let clock = layout().read(&ram.memory()).unwrap();
        assert_eq!(clock.nanos(4_000), 7_000 - 1000 + 2_000);
    }

    #[test]
    fn a_hostile_guests_numbers_are_numbers() {
        let clock = SchedClock { ticks: u64::MAX, nanos: u64::MAX, multiplier: u32::MAX, shift: 160 };
        for ticks in [0, 1, u64::MAX / 2, u64::MAX] {
            let _ = clock.nanos(ticks);
        }
    }
}
