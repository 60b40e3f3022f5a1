//! What a kernel has by which it calls its own functions for somebody outside: a work of a workqueue, queued by an irq_work.
//!
//! Both are structures that are only linked into lists of the kernel's (include/linux/irq_work.h, include/linux/workqueue.h).
//! Here is what their first bytes must be, and where the lists are. A kernel in which anything of this is otherwise has no
//! errands: what it would make of such a structure is not known.

use super::btf::{Btf, Kind};
use super::kernel::Kernel;
use super::per_cpu;
use super::symbols::SymbolTable;
use crate::addr::Gva;
use serde::{Deserialize, Serialize};

/// Bytes of `struct irq_work`: a node of a list, flags, and what is called.
pub const IRQ_WORK: u64 = 32;
/// Bytes of `struct work_struct`: data, a node of a list, and what is called.
pub const WORK: u64 = 32;
/// `irq_work.node.u_flags`, a u32.
pub const IRQ_WORK_FLAGS: u64 = 8;
/// `irq_work.func`
pub const IRQ_WORK_FUNCTION: u64 = 16;
/// `work_struct.entry`, linked to itself while it is in no list.
pub const WORK_ENTRY: u64 = 8;
/// `work_struct.func`
pub const WORK_FUNCTION: u64 = 24;
/// `IRQ_WORK_CLAIMED | IRQ_WORK_HARD_IRQ | CSD_TYPE_IRQ_WORK`: it is in a list, and runs in the interrupt itself.
pub const CLAIMED: u32 = 0x2b;

/// Where each of these is, in bytes.
const MEMBERS: [(&str, &str, u64); 7] = [
    ("irq_work", "node.llist.next", 0),
    ("irq_work", "node.u_flags", IRQ_WORK_FLAGS),
    ("irq_work", "func", IRQ_WORK_FUNCTION),
    ("work_struct", "data", 0),
    ("work_struct", "entry.next", WORK_ENTRY),
    ("work_struct", "entry.prev", WORK_ENTRY + 8),
    ("work_struct", "func", WORK_FUNCTION),
];

/// Addresses and numbers of a kernel that was not moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrandLayout {
    /// `asm_sysvec_irq_work`, to which the vector of irq_works leads.
    pub interrupt: Gva,
    /// The list of irq_works that a CPU is to run (`raised_list`), in bytes from the kernel's GS base.
    pub raised: u64,
    /// `__per_cpu_offset`, a u64 for each CPU: the kernel's GS base there.
    pub per_cpu: Gva,
    /// `__cpu_online_mask`
    pub online: Gva,
    /// `queue_work_on(cpu, queue, work)`
    pub queue_work: Gva,
    /// Where the address of a workqueue is whose works run on any CPU and may sleep.
    pub queue: Gva,
    /// Which CPU is any (`WORK_CPU_UNBOUND`).
    pub any_cpu: u32,
    /// `work_struct.data` of a work that is in no queue.
    pub idle: u64,
}

/// Why a kernel has no errands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NoErrands {
    /// Nothing tells how its structures are laid out.
    #[error("it has no type information (CONFIG_DEBUG_INFO_BTF)")]
    NoTypes,
    /// A function or a variable is missing, or there are several.
    #[error("it has no `{0}` that is one of its kind")]
    NoSymbol(String),
    /// A number is missing.
    #[error("its type information has no `{0}`")]
    NoNumber(String),
    /// A structure is another one than is known.
    #[error("its `struct {0}` is another one than is known (CONFIG_LOCKDEP makes it so)")]
    Structure(String),
    /// It keeps book of all works.
    #[error("it keeps book of all works (CONFIG_DEBUG_OBJECTS_WORK), and ours are in no book")]
    DebugObjects,
    /// Each indirect call looks whom it calls.
    #[error("its indirect calls look at whom they call (CONFIG_CFI_CLANG, CONFIG_CFI)")]
    Cfi,
    /// Each access looks where it goes.
    #[error("its accesses to memory are checked (CONFIG_KASAN, CONFIG_KMSAN), and it does not know ours")]
    Sanitizer,
}

impl ErrandLayout {
    /// Finds it.
    ///
    /// # Errors
    /// [`NoErrands`].
    pub fn of(kernel: &Kernel) -> Result<Self, NoErrands> {
        if kernel.image().section(".kcfi_traps").is_some() {
            return Err(NoErrands::Cfi);
        }
        let btf = kernel.btf().map_err(|_| NoErrands::NoTypes)?;
        Self::find(kernel.symbols(), &btf)
    }

    fn find(symbols: &SymbolTable, btf: &Btf<'_>) -> Result<Self, NoErrands> {
        let is_there = |name: &&str| symbols.lookup(name).next().is_some();
        if ["kasan_report", "kmsan_report"].iter().any(is_there) {
            return Err(NoErrands::Sanitizer);
        }
        for (structure, size) in [("irq_work", IRQ_WORK), ("work_struct", WORK)] {
            let has_members = MEMBERS.iter().filter(|(of, ..)| *of == structure).all(|(_, member, at)| {
                btf.member(structure, member).and_then(|member| member.offset()) == Some(*at)
            });
            if btf.size_of(structure) != Some(size) || !has_members {
                return Err(NoErrands::Structure(structure.to_owned()));
            }
        }
        let [static_work, any_cpu, shift, bits] = enumerators(
            btf,
            ["WORK_STRUCT_STATIC_BIT", "WORK_CPU_UNBOUND", "WORK_OFFQ_POOL_SHIFT", "WORK_OFFQ_POOL_BITS"],
        );
        if static_work.is_some() {
            return Err(NoErrands::DebugObjects);
        }
        let number = |name: &str, value: Option<i64>, most: i64| {
            let value = value.filter(|value| (0..=most).contains(value));
            value.ok_or_else(|| NoErrands::NoNumber(name.to_owned()))
        };
        let any_cpu = number("WORK_CPU_UNBOUND", any_cpu, i32::MAX.into())? as u32;
        let shift = number("WORK_OFFQ_POOL_SHIFT", shift, 32)?;
        let bits = number("WORK_OFFQ_POOL_BITS", bits, 31)?;
        let symbol =
            |name: &str| symbols.address_of(name).ok_or_else(|| NoErrands::NoSymbol(name.to_owned()));
        let raised = per_cpu::offset(symbols, "raised_list");
        Ok(Self {
            interrupt: symbol("asm_sysvec_irq_work")?,
            raised: raised.ok_or_else(|| NoErrands::NoSymbol("raised_list".to_owned()))?,
            per_cpu: symbol("__per_cpu_offset")?,
            online: symbol("__cpu_online_mask")?,
            queue_work: symbol("queue_work_on")?,
            // Newer kernels warn of the old name.
            queue: symbol("system_dfl_wq").or_else(|_| symbol("system_unbound_wq"))?,
            any_cpu,
            idle: ((1 << bits) - 1) << shift,
        })
    }
}

/// The numbers of these names, which are in enumerations with or without a name of their own.
fn enumerators<const N: usize>(btf: &Btf<'_>, names: [&str; N]) -> [Option<i64>; N] {
    let mut found = [None; N];
    for ty in btf.types() {
        let Kind::Enumeration(enumeration) = ty.kind else { continue };
        for (name, value) in enumeration.values() {
            for (found, _) in
                found.iter_mut().zip(names).filter(|(found, wanted)| found.is_none() && *wanted == name)
            {
                *found = Some(value);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::symbols::SymbolTableBuilder;
    use crate::linux::testing::BtfBuilder;

    const NUMBERS: [(&str, u32); 3] =
        [("WORK_CPU_UNBOUND", 0x2000), ("WORK_OFFQ_POOL_SHIFT", 21), ("WORK_OFFQ_POOL_BITS", 31)];
    const SYMBOLS: [(u64, &str); 6] = [
        (0xffff_ffff_8100_0b00, "asm_sysvec_irq_work"),
        (0x2_0040, "raised_list"),
        (0xffff_ffff_8260_0000, "__per_cpu_offset"),
        (0xffff_ffff_8260_1000, "__cpu_online_mask"),
        (0xffff_ffff_810b_0000, "queue_work_on"),
        (0xffff_ffff_8280_0000, "system_unbound_wq"),
    ];

    /// A kernel whose `work_struct` has so many bytes more in front of its function.
    fn find(more: u32, numbers: &[(&str, u32)], symbols: &[(u64, &str)]) -> Result<ErrandLayout, NoErrands> {
        let mut btf = BtfBuilder::default();
        let (pointer, word) = (btf.pointer(0), btf.int("unsigned int", 4));
        let long = btf.int("long", 8);
        let list = btf.structure("list_head", 16, &[("next", pointer, 0), ("prev", pointer, 8)]);
        let node = btf.structure("llist_node", 8, &[("next", pointer, 0)]);
        let node = btf.structure("__call_single_node", 16, &[("llist", node, 0), ("u_flags", word, 8)]);
        btf.structure("irq_work", 32, &[("node", node, 0), ("func", pointer, 16), ("irqwait", pointer, 24)]);
        let members = [("data", long, 0), ("entry", list, 8), ("func", pointer, 24 + more)];
        btf.structure("work_struct", 32 + more, &members);
        let mut values = Vec::new();
        for (name, value) in numbers {
            values.extend([btf.name(name), *value]);
        }
        btf.add("", 6, numbers.len() as u32, false, 4, &values);
        let bytes = btf.finish();
        let mut table = SymbolTableBuilder::default();
        for (at, name) in symbols {
            let kind = if *at < 1 << 32 { b'A' } else { b'T' };
            table.push(Gva(*at), kind, name).unwrap();
        }
        ErrandLayout::find(&table.finish(), &Btf::parse(&bytes).unwrap())
    }

    #[test]
    fn a_kernel_is_as_is_known() {
        let found = find(0, &NUMBERS, &SYMBOLS).unwrap();
        let expected = ErrandLayout {
            interrupt: Gva(0xffff_ffff_8100_0b00),
            raised: 0x2_0040,
            per_cpu: Gva(0xffff_ffff_8260_0000),
            online: Gva(0xffff_ffff_8260_1000),
            queue_work: Gva(0xffff_ffff_810b_0000),
            queue: Gva(0xffff_ffff_8280_0000),
            any_cpu: 0x2000,
            idle: 0x7fff_ffff << 21,
        };
        assert_eq!(found, expected);
        let newer = [&SYMBOLS[..], &[(0xffff_ffff_8280_0008, "system_dfl_wq")]].concat();
        assert_eq!(find(0, &NUMBERS, &newer).unwrap().queue, Gva(0xffff_ffff_8280_0008));
    }

    #[test]
    fn what_is_otherwise_is_refused_for_a_reason() {
        let with = |number| [&NUMBERS[..], &[number]].concat();
        let without = |name: &str| NUMBERS.into_iter().filter(|(own, _)| *own != name).collect::<Vec<_>>();
        let no_number = |name: &str| NoErrands::NoNumber(name.to_owned());
        let numbers = [
            (with(("WORK_STRUCT_STATIC_BIT", 4)), NoErrands::DebugObjects),
            (without("WORK_CPU_UNBOUND"), no_number("WORK_CPU_UNBOUND")),
            (without("WORK_OFFQ_POOL_BITS"), no_number("WORK_OFFQ_POOL_BITS")),
            (vec![NUMBERS[0], ("WORK_OFFQ_POOL_SHIFT", 64)], no_number("WORK_OFFQ_POOL_SHIFT")),
        ];
        for (numbers, refusal) in numbers {
            assert_eq!(find(0, &numbers, &SYMBOLS), Err(refusal));
        }
        assert_eq!(find(48, &NUMBERS, &SYMBOLS), Err(NoErrands::Structure("work_struct".to_owned())));
        for (_, missing) in SYMBOLS {
            let symbols: Vec<_> = SYMBOLS.into_iter().filter(|(_, name)| *name != missing).collect();
            assert_eq!(find(0, &NUMBERS, &symbols), Err(NoErrands::NoSymbol(missing.to_owned())));
        }
        let checked = [&SYMBOLS[..], &[(0xffff_ffff_8110_0000, "kasan_report")]].concat();
        assert_eq!(find(0, &NUMBERS, &checked), Err(NoErrands::Sanitizer));
    }
}
