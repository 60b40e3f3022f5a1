//! What a Linux kernel's files say about its text: the boot image, the symbols inside it, and the code that must
//! be left alone.
//!
//! The way of a file: [`bzimage::BzImage`] finds the payload, [`unpack::unpack`] makes the ELF image of it,
//! [`vmlinux::Vmlinux`] reads that, [`kallsyms::decode`] finds its symbols, [`patched::PatchedText`] says which
//! of its text is not to be probed. All addresses are those of linking; KASLR adds one slide to all of them.

pub mod bzimage;
pub mod glob;
pub mod kallsyms;
pub mod kernel;
pub mod landmarks;
mod nearest;
mod patch_tables;
pub mod patched;
mod read;
pub mod symbols;
pub mod symtab;
pub mod system_map;
#[cfg(test)]
mod testing;
pub mod unpack;
pub mod vmlinux;
