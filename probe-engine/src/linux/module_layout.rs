//! How the guest's modules are read: where the members of `struct module` lie, as the kernel's BTF tells.

use serde::{Deserialize, Serialize};

use super::btf::Btf;
use super::orc;
use super::symbols::SymbolTable;
use crate::addr::Gva;

/// `Elf64_Sym {u32 name, u8 info, u8 other, u16 section, u64 value, u64 size}`
pub(super) const SYMBOL_LEN: usize = 24;

/// A pointer in `struct module` and the number of what it points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedArray {
    /// Where the pointer lies, in bytes from the start of the structure.
    pub start: u32,
    /// Where the number lies, 4 bytes wide.
    pub count: u32,
    /// Bytes of one entry.
    pub entry: u32,
}

/// How to read a `struct module`: offsets in bytes from its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleLayout {
    /// The head of the list of modules (`modules`), a link-time address.
    pub head: Gva,
    /// `state`.
    pub state: u32,
    /// `list`.
    pub list: u32,
    /// `name`.
    pub name: u32,
    /// Text that stays.
    pub text: CountedArray,
    /// Text that is freed when the module's init has run.
    pub init_text: CountedArray,
    /// Data that nobody writes; absent where the kernel does not tell them from others.
    pub read_only: Option<ReadOnlyFields>,
    /// `kallsyms`, a pointer to `struct mod_kallsyms`.
    pub kallsyms: u32,
    /// `symtab` and `num_symtab`, in `struct mod_kallsyms`.
    pub symtab: CountedArray,
    /// `strtab`, there.
    pub strtab: u32,
    /// `typetab`, there.
    pub typetab: u32,
    /// Tables of text that is left alone; absent where the kernel was built without them.
    pub tables: ModuleTableFields,
    /// `tracepoints_ptrs`, where each is from where it lies; absent where the kernel has no tracepoints.
    pub tracepoints: Option<CountedArray>,
    /// Type information; absent where the kernel keeps none of modules.
    pub btf: Option<ModuleBtf>,
    /// Its ORC table; absent where the kernel was built with another unwinder.
    pub orc: Option<ModuleOrc>,
}

/// The data of a module that nobody writes. Until 6.3 the text lies before them in the same area, and is counted as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOnlyFields {
    /// From the start: `mem[MOD_RODATA]`; until 6.3 what `core_layout.ro_size` counts.
    pub constants: CountedArray,
    /// From when its init has run: `mem[MOD_RO_AFTER_INIT]`; until 6.3 what `core_layout.ro_after_init_size` counts, the constants
    /// included.
    pub after_init: CountedArray,
}

/// The two parts of a module's ORC table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleOrc {
    /// `arch.orc_unwind_ip`.
    pub ips: CountedArray,
    /// `arch.orc_unwind`.
    pub rows: CountedArray,
}

/// Tables in `struct module` of instructions and functions that are left alone, or never run from a copy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModuleTableFields {
    /// `extable`.
    pub fixups: Option<CountedArray>,
    /// `jump_entries`.
    pub jump_labels: Option<CountedArray>,
    /// `static_call_sites`.
    pub static_calls: Option<CountedArray>,
    /// `bug_table`.
    pub bugs: Option<CountedArray>,
    /// `kprobe_blacklist`.
    pub blacklist: Option<CountedArray>,
    /// `noinstr_text_start`.
    pub noinstr: Option<CountedArray>,
    /// `kprobes_text_start`.
    pub kprobes_text: Option<CountedArray>,
    /// `ftrace_callsites`.
    pub ftrace: Option<CountedArray>,
}

impl ModuleLayout {
    /// Finds it; `None` without modules, without kallsyms, or where `struct module` is not as it is known here.
    #[must_use]
    pub fn find(symbols: &SymbolTable, btf: &Btf<'_>) -> Option<Self> {
        let module = |path: &str| offset(btf, "module", path);
        let counted = |start: &str, count: &str| counted(btf, "module", start, count);
        let area = |kind: &str| {
            let index = btf.enum_value("mod_mem_type", kind)?;
            counted(&format!("mem[{index}].base"), &format!("mem[{index}].size"))
        };
        let text = area("MOD_TEXT").or_else(|| counted("core_layout.base", "core_layout.text_size"))?;
        let init_text =
            area("MOD_INIT_TEXT").or_else(|| counted("init_layout.base", "init_layout.text_size"))?;
        let read_only = |kind: &str, size: &str| area(kind).or_else(|| counted("core_layout.base", size));
        let constants = read_only("MOD_RODATA", "core_layout.ro_size");
        let after_init = read_only("MOD_RO_AFTER_INIT", "core_layout.ro_after_init_size");
        let read_only =
            constants.zip(after_init).map(|(constants, after_init)| ReadOnlyFields { constants, after_init });
        let kallsyms = |path: &str| offset(btf, "mod_kallsyms", path);
        Some(Self {
            head: symbols.address_of("modules")?,
            state: module("state")?,
            list: module("list")?,
            name: module("name")?,
            text,
            init_text,
            read_only,
            kallsyms: module("kallsyms")?,
            symtab: self::counted(btf, "mod_kallsyms", "symtab", "num_symtab")
                .filter(|symtab| symtab.entry as usize == SYMBOL_LEN)?,
            strtab: kallsyms("strtab")?,
            typetab: kallsyms("typetab")?,
            tables: ModuleTableFields {
                fixups: counted("extable", "num_exentries"),
                jump_labels: counted("jump_entries", "num_jump_entries"),
                static_calls: counted("static_call_sites", "num_static_call_sites"),
                bugs: counted("bug_table", "num_bugs"),
                blacklist: counted("kprobe_blacklist", "num_kprobe_blacklist"),
                noinstr: counted("noinstr_text_start", "noinstr_text_size"),
                kprobes_text: counted("kprobes_text_start", "kprobes_text_size"),
                ftrace: counted("ftrace_callsites", "num_ftrace_callsites"),
            },
            tracepoints: counted("tracepoints_ptrs", "num_tracepoints")
                .filter(|pointers| pointers.entry == 4),
            btf: ModuleBtf::find(symbols, btf),
            orc: ModuleOrc::find(btf),
        })
    }
}

impl ModuleOrc {
    fn find(btf: &Btf<'_>) -> Option<Self> {
        let part = |start, entry| {
            counted(btf, "module", start, "arch.num_orcs").filter(|part| part.entry as usize == entry)
        };
        Some(Self {
            ips: part("arch.orc_unwind_ip", orc::IP_LEN)?,
            rows: part("arch.orc_unwind", orc::ROW_LEN)?,
        })
    }
}

/// Where a member lies, in bytes.
fn offset(btf: &Btf<'_>, structure: &str, path: &str) -> Option<u32> {
    btf.member(structure, path)?.offset()?.try_into().ok()
}

/// A pointer, and a number of 4 bytes. What a `void *` points to counts as one byte.
fn counted(btf: &Btf<'_>, structure: &str, start: &str, count: &str) -> Option<CountedArray> {
    let pointee = btf.pointee(btf.member(structure, start)?.ty)?;
    let entry = btf.size(pointee).unwrap_or(1).try_into().ok()?;
    let width = btf.size(btf.member(structure, count)?.ty)?;
    let (start, count) = (offset(btf, structure, start)?, offset(btf, structure, count)?);
    (width == 4).then_some(CountedArray { start, count, entry })
}

/// How to find a module's type information: offsets in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleBtf {
    /// The head of the list (`btf_modules`), a link-time address.
    pub head: Gva,
    /// `list` in `struct btf_module`.
    pub list: u32,
    /// `module` there, a pointer to `struct module`.
    pub module: u32,
    /// `btf` there, a pointer to `struct btf`.
    pub btf: u32,
    /// `data` and `data_size`, in `struct btf`.
    pub data: CountedArray,
}

impl ModuleBtf {
    /// Finds it; `None` where the kernel keeps none (no CONFIG_DEBUG_INFO_BTF_MODULES).
    fn find(symbols: &SymbolTable, btf: &Btf<'_>) -> Option<Self> {
        Some(Self {
            head: symbols.address_of("btf_modules")?,
            list: offset(btf, "btf_module", "list")?,
            module: offset(btf, "btf_module", "module")?,
            btf: offset(btf, "btf_module", "btf")?,
            data: counted(btf, "btf", "data", "data_size")?,
        })
    }
}
