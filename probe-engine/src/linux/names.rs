//! Names for the addresses of a running kernel, written as the kernel writes them: `vfs_read+0x1a/0x300`, and
//! `ext4_file_read_iter+0x58/0x160 [ext4]` in a module (lib/vsprintf.c, `%pS` and `%pB`).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::symbols::{Function, SymbolTable};
use super::unwind::{Frame, FrameKind};
use crate::addr::Gva;

/// The symbols of a running kernel and its modules.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// The kernel's, at link-time addresses.
    pub kernel: &'a SymbolTable,
    /// What KASLR adds to link-time addresses.
    pub slide: u64,
    /// Its modules'.
    pub modules: &'a [Arc<ModuleNames>],
}

/// A module's symbols, at run-time addresses.
#[derive(Debug, Clone)]
pub struct ModuleNames {
    /// Its name.
    pub name: String,
    /// Its text.
    pub text: Range<Gva>,
    /// Its text that is freed when its init has run; empty once it is.
    pub init_text: Range<Gva>,
    /// Its functions.
    pub symbols: Arc<SymbolTable>,
}

/// An address, and the function that it is shown in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a> {
    /// The address, at run time.
    pub at: Gva,
    /// The function; absent where no symbol is near.
    pub function: Option<Function<'a>>,
    /// How far `at` lies behind its start, in bytes: its size for a return address behind a call that is its end.
    pub offset: u64,
    /// The module that it belongs to.
    pub module: Option<&'a str>,
}

impl ModuleNames {
    fn has(&self, at: Gva) -> bool {
        at.is_in(&self.text) || at.is_in(&self.init_text)
    }
}

impl<'a> Names<'a> {
    /// The name of a frame. A return address is shown in the function that has called, also where the call is the
    /// last of its instructions.
    #[must_use]
    pub fn frame(&self, frame: &Frame) -> Name<'a> {
        match frame.kind {
            FrameKind::Return => self.name(frame.at, 1),
            FrameKind::Start | FrameKind::Interrupted => self.name(frame.at, 0),
        }
    }

    /// The symbol at an address, as `%pS` has it: a function, or the kernel's own data. `None` where the kernel would
    /// print the number.
    #[must_use]
    pub fn symbol(&self, at: Gva) -> Option<Name<'a>> {
        let name = self.name(at, 0);
        if name.function.is_some() || name.module.is_some() {
            return Some(name).filter(|name| name.function.is_some());
        }
        let inside = Gva(at.0.wrapping_sub(self.slide));
        let found = self.kernel.symbol_at(inside)?;
        let offset = inside.offset_from(found.symbol.at)?;
        Some(Name { at, function: Some(found), offset, module: None })
    }

    /// The name of what is `before` bytes before `at`, and its distance to `at`.
    fn name(&self, at: Gva, before: u64) -> Name<'a> {
        let inside = Gva(at.0.wrapping_sub(before));
        let module = self.modules.iter().find(|module| module.has(inside));
        let (symbols, slide) = module.map_or((self.kernel, self.slide), |module| (&module.symbols, 0));
        let inside = Gva(inside.0.wrapping_sub(slide));
        let function = symbols.function_at(inside);
        let offset = function.and_then(|function| inside.offset_from(function.symbol.at));
        Name {
            at,
            function,
            offset: offset.map_or(0, |offset| offset.saturating_add(before)),
            module: module.map(|module| module.name.as_str()),
        }
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.function {
            Some(function) => {
                let size = function.end.offset_from(function.symbol.at).unwrap_or(0);
                write!(f, "{}+{:#x}/{size:#x}", function.symbol.name, self.offset)?;
            }
            None => write!(f, "{}", self.at)?,
        }
        match self.module {
            Some(module) => write!(f, " [{module}]"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::symbols::SymbolTableBuilder;

    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    const MODULE: u64 = 0xffff_ffff_c010_0000;
    const SLIDE: u64 = 0x1a00_0000;

    fn table(symbols: &[(u64, u8, &str)]) -> SymbolTable {
        let mut builder = SymbolTableBuilder::default();
        for (at, kind, name) in symbols {
            builder.push(Gva(*at), *kind, name).unwrap();
        }
        builder.finish()
    }

    #[test]
    fn frames_are_named_as_the_kernel_names_them() {
        let kernel = table(&[
            (KERNEL, b'T', "panic"),
            (KERNEL + 0x40, b'T', "vfs_read"),
            (KERNEL + 0x80, b'D', "jiffies"),
        ]);
        let text = Gva(MODULE)..Gva(MODULE + 0x1000);
        let symbols = table(&[(MODULE + 0x10, b't', "ext4_read"), (MODULE + 0x30, b'?', "")]).into();
        let module = ModuleNames { name: "ext4".into(), text, init_text: Gva(0)..Gva(0), symbols };
        let names = Names { kernel: &kernel, slide: SLIDE, modules: &[Arc::new(module)] };
        let vfs_read = KERNEL + 0x40 + SLIDE;
        use FrameKind::{Interrupted, Return, Start};
        for (at, kind, expected) in [
            (vfs_read, Start, "vfs_read+0x0/0x40"),
            (vfs_read + 8, Interrupted, "vfs_read+0x8/0x40"),
            (vfs_read + 8, Return, "vfs_read+0x8/0x40"),
            // Behind the last call of a function that does not return from it.
            (vfs_read, Return, "panic+0x40/0x40"),
            (vfs_read + 0x40, Return, "vfs_read+0x40/0x40"),
            (vfs_read + 0x40, Interrupted, "0xffffffff9b000080"),
            (MODULE + 0x18, Return, "ext4_read+0x8/0x20 [ext4]"),
            (MODULE + 0x38, Return, "0xffffffffc0100038 [ext4]"),
            (0, Start, "0x0"),
            (0, Return, "0x0"),
        ] {
            let frame = Frame { at: Gva(at), kind, is_reliable: true };
            assert_eq!(names.frame(&frame).to_string(), expected);
        }
    }

    #[test]
    fn symbols_are_named_as_the_kernel_names_them() {
        let kernel = table(&[
            (0x40, b'A', "cpu_info"),
            (KERNEL, b'T', "vfs_read"),
            (KERNEL + 0x40, b'D', "ext4_file_operations"),
            (KERNEL + 0x80, b'B', "_end"),
        ]);
        let text = Gva(MODULE)..Gva(MODULE + 0x1000);
        let symbols = table(&[(MODULE + 0x10, b't', "ext4_read"), (MODULE + 0x30, b'?', "")]).into();
        let module = ModuleNames { name: "ext4".into(), text, init_text: Gva(0)..Gva(0), symbols };
        let names = Names { kernel: &kernel, slide: SLIDE, modules: &[Arc::new(module)] };
        let symbol = |at| names.symbol(Gva(at)).map(|name| name.to_string());
        for (at, expected) in [
            (KERNEL + SLIDE, Some("vfs_read+0x0/0x40")),
            (KERNEL + SLIDE + 0x48, Some("ext4_file_operations+0x8/0x40")),
            (MODULE + 0x18, Some("ext4_read+0x8/0x20 [ext4]")),
            // In the module, but in none of its functions; behind the kernel; per-CPU; with the slide's wrap.
            (MODULE + 0x38, None),
            (KERNEL + SLIDE + 0x80, None),
            (0x40 + SLIDE, None),
            (0x48, None),
            (0, None),
        ] {
            assert_eq!(symbol(at).as_deref(), expected, "{at:#x}");
        }
    }
}
