//! What a Linux kernel's files say about its text: the boot image, the symbols inside it, and the code that must
//! be left alone; and, with the help of its types, what its memory says while it runs.
//!
//! The way of a file: [`bzimage::BzImage`] finds the payload, [`unpack::unpack`] makes the ELF image of it,
//! [`vmlinux::Vmlinux`] reads that, [`kallsyms::decode`] finds its symbols, [`patched::PatchedText`] says which
//! of its text is not to be probed. All addresses are those of linking; KASLR adds one slide to all of them, and
//! [`relocations`] say by which pointer it is found.
//!
//! [`orc::OrcTable`] knows how the stack lies at each instruction: by it [`unwind`] walks the stacks of a running guest,
//! and [`names`] says whose its frames are.
//!
//! [`btf::Btf`] knows the kernel's structures: by it [`modules`] and [`current`] read a running guest, whose addresses
//! are run-time addresses.

pub mod boot;
pub mod branches;
pub mod btf;
pub mod bzimage;
pub mod cgroup;
pub mod command_line;
pub mod current;
pub mod debug_info;
pub mod dwarf;
pub mod errands;
pub mod event_fields;
mod file_name;
pub mod ftrace;
pub mod ftrace_site;
pub mod glob;
pub(crate) mod in_scope;
pub mod injectable;
pub mod kallsyms;
pub mod kernel;
pub mod landmarks;
pub mod left_alone;
pub mod lines;
pub mod locks;
pub mod mappings;
pub mod module_btf;
pub mod module_layout;
mod module_tables;
pub mod modules;
pub mod names;
pub mod nearest;
pub mod nofault;
pub mod orc;
pub mod partial_file;
pub(crate) mod patch_tables;
pub mod patched;
pub mod path;
pub mod per_cpu;
pub mod printk;
pub mod program_file;
pub mod program_place;
pub(crate) mod read;
pub mod relocations;
pub mod running;
pub mod sched_clock;
pub mod scope;
pub mod sleepers;
pub mod splat;
pub mod symbol_file;
pub mod symbols;
pub mod symtab;
pub mod syscalls;
pub mod system_map;
pub mod targets;
pub mod task;
#[cfg(test)]
pub(crate) mod testing;
pub mod thunks;
pub mod tracepoints;
pub mod unpack;
pub mod unwind;
pub mod uprobes;
pub mod uretprobes;
pub mod usdt;
pub mod vmlinux;
