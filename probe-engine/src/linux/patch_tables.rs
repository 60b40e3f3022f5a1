//! The kernel's tables of instructions that it rewrites, and of functions that must not trap.
//!
//! Almost every table holds 32-bit distances from the entry's own field to an instruction (`PREL32`): the formats
//! are given where each is read.

mod cfi;
mod possible;

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::left_alone::Why;
use super::read::{u32_at, u64_at};
use super::symbols::SymbolTable;
use super::vmlinux::Vmlinux;
use crate::addr::Gva;

/// Pairs of symbols around text that must not trap (include/asm-generic/vmlinux.lds.h). The kernel's own kprobes
/// refuse the same (`populate_kprobe_blacklist`, `arch_populate_kprobe_blacklist`).
const FORBIDDEN: [(&str, &str, Why); 3] = [
    ("__entry_text_start", "__entry_text_end", Why::Entry),
    ("__noinstr_text_start", "__noinstr_text_end", Why::Noinstr),
    ("__kprobes_text_start", "__kprobes_text_end", Why::Blacklisted),
];

/// Largest table of run-time constants, in bytes; there is one for each constant, of 20 to 500 bytes.
const LARGEST_CONSTANT_TABLE: usize = 64 << 10;
/// Most entries that are kept of all tables together; 6.12 has some 300,000.
const MOST_RANGES: usize = 8 << 20;

/// What `asm_exc_int3` reaches for an int3 of the kernel (arch/x86/kernel/traps.c). The tables of 6.1 and 6.12 list
/// all of it; the names are for kernels whose tables are not found.
const BREAKPOINT_PATH: [&str; 12] = [
    "asm_exc_int3",
    "exc_int3",
    "do_int3",
    "do_int3_user",
    "poke_int3_handler",
    "smp_text_poke_int3_handler",
    "kprobe_int3_handler",
    "notify_die",
    "atomic_notifier_call_chain",
    "notifier_call_chain",
    "irqentry_nmi_enter",
    "irqentry_nmi_exit",
];

/// What a CPU that is started runs before `load_current_idt` has given it the kernel's handlers
/// (`secondary_startup_64` in arch/x86/kernel/head_64.S, `start_secondary` in arch/x86/kernel/smpboot.c): where KVM
/// does not intercept #BP, a breakpoint there is a triple fault. The kernel's own kprobes do not refuse them.
const STARTUP: [&str; 22] = [
    "secondary_startup_64",
    "secondary_startup_64_no_verify",
    "common_startup_64",
    "verify_cpu",
    "__startup_secondary_64",
    "sev_verify_cbit",
    "early_setup_idt",
    "set_bringup_idt_handler",
    "set_bringup_idt_handler.constprop.0",
    "startup_64_load_idt",
    "start_secondary",
    "cr4_init",
    "native_write_cr4",
    "cpu_init_secondary",
    "cpu_init_exception_handling",
    "native_write_gdt_entry",
    "native_load_tr_desc",
    "load_direct_gdt",
    "load_fixmap_gdt",
    "setup_ghcb",
    "cc_platform_has",
    "load_current_idt",
];

/// struct jump_entry {s32 code, s32 target, s64 key} (include/linux/jump_label.h), between these symbols.
const JUMP_LABELS: (&str, &str) = ("__start___jump_table", "__stop___jump_table");
const JUMP_LABEL: usize = 16;
/// struct exception_table_entry {s32 instruction, s32 fixup, s32 data} (arch/x86/include/asm/extable.h).
const EXCEPTIONS: &str = "__ex_table";
const EXCEPTION: usize = 12;

/// The calls inside ftrace's own trampolines that choose what it calls (arch/x86/kernel/ftrace_64.S).
const FTRACE_CALLS: [&str; 2] = ["ftrace_call", "ftrace_regs_call"];

/// Bytes at a link-time address.
struct Table<'a> {
    at: Gva,
    bytes: &'a [u8],
}

impl<'a> Table<'a> {
    /// Its entries of `size` bytes.
    fn entries(&self, size: usize) -> impl Iterator<Item = Table<'a>> + use<'a> {
        let at = self.at;
        let entry = move |(number, bytes)| Table { at: at.add((number * size) as u64), bytes };
        self.bytes.chunks_exact(size).enumerate().map(entry)
    }

    /// Those of the sizes that divide it.
    fn sizes<const N: usize>(&self, sizes: [usize; N]) -> impl Iterator<Item = usize> + use<N> {
        let len = self.bytes.len();
        sizes.into_iter().filter(move |size| len.is_multiple_of(*size))
    }

    /// What the distance at `field` points to.
    fn target(&self, field: usize) -> Option<Gva> {
        let distance = u32_at(self.bytes, field)? as i32;
        Some(self.at.add(field as u64).offset(distance.into()))
    }
}

/// Everything that the tables list.
pub(super) struct Tables<'a> {
    image: &'a Vmlinux,
    symbols: &'a SymbolTable,
    text: Vec<Range<Gva>>,
    pub(super) found: Vec<(Range<Gva>, Why)>,
    pub(super) fixups: Vec<Gva>,
    pub(super) missing: Vec<Why>,
}

impl<'a> Tables<'a> {
    fn new(image: &'a Vmlinux, symbols: &'a SymbolTable) -> Self {
        let text =
            image.sections().filter(|section| section.executable).map(|section| section.range).collect();
        Self { image, symbols, text, found: Vec::new(), fixups: Vec::new(), missing: Vec::new() }
    }

    pub(super) fn read(image: &'a Vmlinux, symbols: &'a SymbolTable) -> Self {
        let mut tables = Self::new(image, symbols);
        tables.forbidden_text();
        tables.blacklist();
        tables.named_functions();
        tables.bugs();
        tables.alternatives();
        tables.paravirt();
        tables.runtime_constants();
        tables.calls();
        tables.fixups();
        tables.rewritten_at_any_time();
        tables.possible_sites();
        tables.indirect_calls();
        tables.lock_prefixes();
        // s32 each, tools/objtool/check.c.
        for (section, why) in [
            (".retpoline_sites", Why::IndirectBranch),
            (".return_sites", Why::Return),
            (".ibt_endbr_seal", Why::Endbr),
        ] {
            if let Some(table) = tables.section(section) {
                tables.sites(&table, 4, None, why);
            }
        }
        tables
    }

    /// s32 each, to the prefix byte (LOCK_PREFIX in arch/x86/include/asm/alternative.h).
    fn lock_prefixes(&mut self) {
        if let Some(table) = self.section(".smp_locks") {
            self.sites(&table, 4, Some(1), Why::LockPrefix);
        }
    }

    fn rewritten_at_any_time(&mut self) {
        self.between_sites(JUMP_LABELS.0, JUMP_LABELS.1, JUMP_LABEL, Why::JumpLabel);
        // struct static_call_site {s32 addr, s32 key}, include/linux/static_call_types.h
        self.between_sites("__start_static_call_sites", "__stop_static_call_sites", 8, Why::StaticCall);
    }

    fn section(&self, name: &str) -> Option<Table<'a>> {
        let section = self.image.section(name)?;
        Some(Table { at: section.range.start, bytes: section.bytes })
    }

    /// The bytes between two symbols.
    fn between(&self, start: &str, end: &str) -> Option<Table<'a>> {
        let at = self.symbols.address_of(start)?;
        let len = self.symbols.address_of(end)?.offset_from(at)?;
        Some(Table { at, bytes: self.image.bytes_at(at, usize::try_from(len).ok()?)? })
    }

    fn is_text(&self, at: Gva) -> bool {
        self.text.iter().any(|range| at.is_in(range))
    }

    /// The instruction at `at`, as it is in the file.
    fn instruction(&self, at: Gva) -> Instruction {
        let bytes = self.image.bytes_from(at).unwrap_or_default();
        let bytes = bytes.get(..15).unwrap_or(bytes);
        Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).decode()
    }

    /// Notes `len` bytes of text, by default one instruction.
    fn push(&mut self, at: Gva, len: Option<u64>, why: Why) {
        if !self.is_text(at) || self.found.len() >= MOST_RANGES {
            return;
        }
        let len = len.unwrap_or_else(|| self.instruction(at).len().max(1) as u64);
        self.found.push((at..at.add(len), why));
    }

    /// Notes what a table points to by the first field of each entry.
    fn sites(&mut self, table: &Table<'_>, size: usize, len: Option<u64>, why: Why) {
        for site in table.entries(size).filter_map(|entry| entry.target(0)) {
            self.push(site, len, why);
        }
    }

    /// Notes the instructions that a table between two symbols points to.
    fn between_sites(&mut self, start: &str, end: &str, size: usize, why: Why) {
        match self.between(start, end) {
            Some(table) => self.sites(&table, size, None, why),
            None => self.missing.push(why),
        }
    }

    fn forbidden_text(&mut self) {
        for (start, end, why) in FORBIDDEN {
            match (self.symbols.address_of(start), self.symbols.address_of(end)) {
                (Some(start), Some(end)) => self.found.push((start..end, why)),
                _ => self.missing.push(why),
            }
        }
        if let Some(section) = self.image.section(".altinstr_replacement") {
            self.found.push((section.range, Why::Replacement));
        }
    }

    /// `_kprobe_blacklist`: the u64 address of a function each (include/asm-generic/kprobes.h).
    fn blacklist(&mut self) {
        let Some(table) = self.between("__start_kprobe_blacklist", "__stop_kprobe_blacklist") else {
            self.missing.push(Why::Blacklisted);
            return;
        };
        for at in table.entries(8).filter_map(|entry| u64_at(entry.bytes, 0)).take(MOST_RANGES) {
            if let Some(function) = self.symbols.function_at(Gva(at)) {
                self.found.push((function.range(), Why::Blacklisted));
            }
        }
    }

    fn named_functions(&mut self) {
        /// `jmp rel32`, or `ret` and its padding (`ARCH_DEFINE_STATIC_CALL_TRAMP`).
        const TRAMPOLINE: u64 = 5;
        let symbols = self.symbols;
        for symbol in symbols.text() {
            if symbol.name.starts_with("__SCT__") {
                self.push(symbol.at, Some(TRAMPOLINE), Why::StaticCall);
            } else if symbol.is_padding()
                && let Some(function) = symbols.function_at(symbol.at)
            {
                self.found.push((function.range(), Why::Padding));
            }
        }
        for at in FTRACE_CALLS.into_iter().filter_map(|name| symbols.address_of(name)) {
            self.push(at, None, Why::FtraceCall);
        }
        let breakpoint_path = BREAKPOINT_PATH.map(|name| (name, Why::BreakpointPath));
        let startup = STARTUP.map(|name| (name, Why::Startup));
        for (name, why) in breakpoint_path.into_iter().chain(startup) {
            for function in symbols.lookup(name).filter_map(|symbol| symbols.function_at(symbol.at)) {
                self.found.push((function.range(), why));
            }
        }
    }

    /// struct bug_entry {s32 address, s32 file, u16 line, u16 flags}; without CONFIG_DEBUG_BUGVERBOSE there is
    /// neither file nor line, and since 6.18 there is a format in addition (arch/x86/include/asm/bug.h). Only one
    /// size makes every entry point to text. A warning with arguments is a call since then: its entry points to an
    /// ordinary instruction before that, and is not found by the address.
    fn bugs(&mut self) {
        let sites = self.section("__bug_table").and_then(|table| {
            table.sizes([12, 16, 8]).find_map(|size| {
                let sites = table.entries(size).map(|entry| entry.target(0).filter(|at| self.is_text(*at)));
                sites.collect::<Option<Vec<Gva>>>()
            })
        });
        match sites {
            Some(sites) => {
                for at in sites {
                    if self.image.bytes_from(at).is_some_and(is_bug) {
                        self.push(at, None, Why::Bug);
                    }
                }
            }
            None => self.missing.push(Why::Bug),
        }
    }

    /// struct alt_instr {s32 instruction, s32 replacement, feature, u8 length, u8 replacement length}: the feature
    /// has 4 bytes since 6.3, 2 before (arch/x86/include/asm/alternative.h). Only one size makes the replacement of
    /// every entry text; what is replaced may be code in data, which is copied before it runs.
    fn alternatives(&mut self) {
        let sites = self.section(".altinstructions").and_then(|table| {
            table.sizes([14, 12]).find_map(|size| {
                let site = |entry: Table<'_>| {
                    let at = entry.target(0).filter(|at| self.image.bytes_from(*at).is_some())?;
                    entry.target(4).filter(|at| self.is_text(*at))?;
                    Some((at, u64::from(*entry.bytes.get(size - 2)?)))
                };
                table.entries(size).map(site).collect::<Option<Vec<_>>>()
            })
        });
        match sites {
            Some(sites) => sites.into_iter().for_each(|(at, len)| self.push(at, Some(len), Why::Alternative)),
            None => self.missing.push(Why::Alternative),
        }
    }

    /// struct paravirt_patch_site {u64 instruction, u8 type, u8 length}, aligned to 8
    /// (arch/x86/include/asm/paravirt_types.h).
    fn paravirt(&mut self) {
        let Some(table) = self.section(".parainstructions") else { return };
        for entry in table.entries(16) {
            if let (Some(at), Some(len)) = (u64_at(entry.bytes, 0), entry.bytes.get(9)) {
                self.push(Gva(at), Some((*len).into()), Why::Paravirt);
            }
        }
    }

    /// s32 each, to the constant inside an instruction: 8 bytes of a pointer, or 1 of a shift count
    /// (arch/x86/include/asm/runtime-const.h).
    fn runtime_constants(&mut self) {
        let image = self.image;
        for section in image.sections() {
            let len = if section.name.starts_with("runtime_ptr_") {
                8
            } else if section.name.starts_with("runtime_shift_") {
                1
            } else {
                continue;
            };
            let bytes = section.bytes.get(..LARGEST_CONSTANT_TABLE).unwrap_or(section.bytes);
            let table = Table { at: section.range.start, bytes };
            self.sites(&table, 4, Some(len), Why::RuntimeConstant);
        }
    }

    /// s32 each, to every direct call (tools/objtool/check.c). Those of `__fentry__` at the start of almost every
    /// function are among them, and do not count: ftrace has made nops of them before calls are patched, which
    /// skips what is no call any more.
    fn calls(&mut self) {
        let Some(table) = self.section(".call_sites") else { return };
        let fentry = self.symbols.address_of("__fentry__");
        for at in table.entries(4).filter_map(|entry| entry.target(0)) {
            let call = self.instruction(at);
            if Some(Gva(call.near_branch_target())) != fentry {
                self.push(at, Some(call.len().max(1) as u64), Why::Call);
            }
        }
    }

    fn fixups(&mut self) {
        if let Some(table) = self.section(EXCEPTIONS) {
            self.fixups = table.entries(EXCEPTION).filter_map(|entry| entry.target(0)).collect();
        }
    }
}

/// Whether these bytes begin with an instruction by which the kernel reports a bug: ud1, ud2, udb (0xd6), or a short
/// conditional jump with a lock prefix, behind other prefixes (`decode_bug`, arch/x86/kernel/traps.c).
pub(super) fn is_bug(bytes: &[u8]) -> bool {
    const MOST_PREFIXES: usize = 3;
    let is_prefix = |byte: &u8| matches!(byte, 0x67 | 0xf0 | 0x40..=0x4f);
    let prefixes = bytes.iter().take(MOST_PREFIXES).take_while(|byte| is_prefix(byte)).count();
    let (prefixes, rest) = bytes.split_at(prefixes);
    match rest {
        [0x0f, 0x0b | 0xb9, ..] | [0xd6, ..] => true,
        [0x70..=0x7f, ..] => prefixes.contains(&0xf0),
        _ => false,
    }
}

/// Where the guest goes on by its tables, without a branch in its text that says so: behind faults that are put
/// right (`__ex_table`), and where jump labels lead once they are enabled (`__jump_table`). In no order.
pub(crate) fn landings(image: &Vmlinux, symbols: &SymbolTable) -> Vec<Gva> {
    let tables = Tables::new(image, symbols);
    let exceptions = tables.section(EXCEPTIONS).into_iter().flat_map(|table| table.entries(EXCEPTION));
    let labels = tables.between(JUMP_LABELS.0, JUMP_LABELS.1);
    let labels = labels.into_iter().flat_map(|table| table.entries(JUMP_LABEL));
    exceptions.chain(labels).filter_map(|entry| entry.target(4)).take(MOST_RANGES).collect()
}

/// The jump labels: where each is, and where it leads once it is enabled. In no order.
pub(crate) fn jump_labels(image: &Vmlinux, symbols: &SymbolTable) -> Vec<(Gva, Gva)> {
    let labels = Tables::new(image, symbols).between(JUMP_LABELS.0, JUMP_LABELS.1);
    let entries = labels.into_iter().flat_map(|table| table.entries(JUMP_LABEL));
    entries.filter_map(|entry| Some((entry.target(0)?, entry.target(4)?))).take(MOST_RANGES).collect()
}

/// The instructions that the guest rewrites whenever it likes: also those in code that is left alone as a whole. In no order.
pub(crate) fn rewritten(image: &Vmlinux, symbols: &SymbolTable) -> Vec<(Range<Gva>, Why)> {
    let mut tables = Tables::new(image, symbols);
    tables.rewritten_at_any_time();
    tables.named_functions();
    tables.lock_prefixes();
    let is_rewritten =
        |why| matches!(why, Why::JumpLabel | Why::StaticCall | Why::FtraceCall | Why::LockPrefix);
    tables.found.into_iter().filter(|(_, why)| is_rewritten(*why)).collect()
}
