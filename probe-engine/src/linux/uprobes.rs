//! The kernel's own probes in programs (kernel/events/uprobes.c), by which it calls a function whenever a process comes to a place of
//! a file.
//!
//! A *consumer* (include/linux/uprobes.h) names the functions that are called. Ours is [`NO_OP`], a function of the kernel's own that
//! does nothing and returns 0, which lets the probe be. The kernel calls it as `handler(consumer, registers)`, and where returns are
//! wanted as `ret_handler(consumer, entry, registers)`: at the entry of that function stand the probes of all consumers, each of
//! which counts those calls alone that are made for its own.

use super::btf::Btf;
use super::kernel::Kernel;
use crate::addr::Gva;
use serde::{Deserialize, Serialize};

/// `int noop_fsync(file, start, end, datasync)`, which returns 0 (fs/libfs.c).
pub const NO_OP: &str = "noop_fsync";
/// Bytes that a consumer has room for.
pub const CONSUMER: u64 = 64;
/// Offset of `handler`, and of `ret_handler` behind it.
const HANDLER: u64 = 0;

/// What registering in programs takes, at link-time addresses and in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UprobeCalls {
    /// [`NO_OP`]
    pub no_op: Gva,
    /// How a consumer is registered.
    pub register: Registration,
    /// `kern_path(name, flags, path)`
    pub kern_path: Gva,
    /// `path_get(path)`
    pub path_get: Gva,
    /// `path_put(path)`
    pub path_put: Gva,
    /// `dentry_open(path, flags, cred)`
    pub dentry_open: Gva,
    /// `kernel_read(file, buffer, count, position)`
    pub kernel_read: Gva,
    /// `fput(file)`
    pub fput: Gva,
    /// `vmalloc(size)`
    pub vmalloc: Gva,
    /// `vfree(address)`
    pub vfree: Gva,
    /// `init_cred`
    pub cred: Gva,
    /// `begin_new_exec(program)`, to which every program comes before it runs.
    pub exec: Gva,
    /// `msleep(milliseconds)`
    pub sleep: Gva,
    /// `fault_in_readable(address, size)`
    pub fault_in: Option<Gva>,
    /// Offset of `path.dentry`.
    pub path_dentry: u64,
    /// Offset of `dentry.d_inode`.
    pub dentry_inode: u64,
    /// Offset of `dentry.d_op`.
    pub dentry_operations: u64,
    /// Offset of `dentry_operations.d_real`.
    pub real: u64,
    /// Offset of `inode.i_mode`, a u16.
    pub inode_mode: u64,
    /// Offset of `inode.i_size`.
    pub inode_size: u64,
}

/// How a consumer comes and goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Registration {
    /// Until 6.10: by the file and the place.
    ByPlace {
        /// `int uprobe_register_refctr(inode, offset, counter, consumer)`
        register: Gva,
        /// `uprobe_unregister(inode, offset, consumer)`
        unregister: Gva,
    },
    /// Since then: by what registering returns.
    ByUprobe {
        /// `struct uprobe *uprobe_register(inode, offset, counter, consumer)`
        register: Gva,
        /// `uprobe_unregister_nosync(uprobe, consumer)`
        unregister: Gva,
        /// `uprobe_unregister_sync()`
        sync: Gva,
    },
}

/// Why there are no probes in the programs of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NoUprobes {
    /// It has none of its own.
    #[error("the kernel has no probes in programs (CONFIG_UPROBES)")]
    None,
    /// It has no such function, or several.
    #[error("the kernel has no `{0}` that is one of its kind")]
    NoFunction(String),
    /// A structure is not described, or is another one than is known.
    #[error("the kernel's type information has no `{0}` as it is known (CONFIG_DEBUG_INFO_BTF)")]
    Structure(String),
    /// Each indirect call looks whom it calls.
    #[error("the kernel's indirect calls look at whom they call (CONFIG_CFI_CLANG, CONFIG_CFI)")]
    Cfi,
}

impl UprobeCalls {
    /// Finds what `kernel` has.
    ///
    /// # Errors
    /// [`NoUprobes`].
    pub fn of(kernel: &Kernel) -> Result<Self, NoUprobes> {
        let symbols = kernel.symbols();
        let has = |name: &str| symbols.lookup(name).any(|symbol| symbol.is_text());
        if !has("uprobe_register") {
            return Err(NoUprobes::None);
        }
        if kernel.image().section(".kcfi_traps").is_some() {
            return Err(NoUprobes::Cfi);
        }
        let function = |name: &str| {
            let found = symbols.find(name, |symbol| symbol.is_text());
            found.map(|symbol| symbol.at).map_err(|_| NoUprobes::NoFunction(name.to_owned()))
        };
        let btf = kernel.btf().map_err(|_| NoUprobes::Structure("struct uprobe_consumer".to_owned()))?;
        check_consumer(&btf)?;
        let offset = |structure: &str, member: &str| {
            let found = btf.member(structure, member).and_then(|member| member.offset());
            found.ok_or_else(|| NoUprobes::Structure(format!("{structure}.{member}")))
        };
        let cred = symbols.address_of("init_cred");
        Ok(Self {
            no_op: function(NO_OP)?,
            register: match has("uprobe_unregister_nosync") {
                true => Registration::ByUprobe {
                    register: function("uprobe_register")?,
                    unregister: function("uprobe_unregister_nosync")?,
                    sync: function("uprobe_unregister_sync")?,
                },
                false => Registration::ByPlace {
                    register: function("uprobe_register_refctr")?,
                    unregister: function("uprobe_unregister")?,
                },
            },
            kern_path: function("kern_path")?,
            path_get: function("path_get")?,
            path_put: function("path_put")?,
            dentry_open: function("dentry_open")?,
            kernel_read: function("kernel_read")?,
            fput: function("fput")?,
            // A macro where the kernel keeps book of memory.
            vmalloc: function("vmalloc_noprof").or_else(|_| function("vmalloc"))?,
            vfree: function("vfree")?,
            cred: cred.ok_or_else(|| NoUprobes::NoFunction("init_cred".to_owned()))?,
            exec: function("begin_new_exec")?,
            sleep: function("msleep")?,
            fault_in: function("fault_in_readable").ok(),
            path_dentry: offset("path", "dentry")?,
            dentry_inode: offset("dentry", "d_inode")?,
            dentry_operations: offset("dentry", "d_op")?,
            real: offset("dentry_operations", "d_real")?,
            inode_mode: offset("inode", "i_mode")?,
            inode_size: offset("inode", "i_size")?,
        })
    }

    /// The bytes of a consumer that has `no_op` called, where that is in the running kernel: at passes of its place, or at `returns`.
    #[must_use]
    pub fn consumer(no_op: Gva, returns: bool) -> [u8; CONSUMER as usize] {
        let mut bytes = [0; CONSUMER as usize];
        let place = bytes.iter_mut().skip((HANDLER + if returns { 8 } else { 0 }) as usize);
        place.zip(no_op.0.to_le_bytes()).for_each(|(to, from)| *to = from);
        bytes
    }
}

/// Checks that a consumer begins with both handlers, and has room.
fn check_consumer(btf: &Btf<'_>) -> Result<(), NoUprobes> {
    let at = |member| btf.member("uprobe_consumer", member).and_then(|member| member.offset());
    let has_room = btf.size_of("uprobe_consumer").is_some_and(|size| size <= CONSUMER);
    let has_handlers = (at("handler"), at("ret_handler")) == (Some(HANDLER), Some(HANDLER + 8));
    match has_room && has_handlers {
        true => Ok(()),
        false => Err(NoUprobes::Structure("struct uprobe_consumer".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::BtfBuilder;

    #[test]
    fn a_consumer_has_one_handler() {
        let no_op = Gva(0xffff_ffff_8123_4560);
        let words = |returns| -> Vec<u64> {
            let bytes = UprobeCalls::consumer(no_op, returns);
            bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
        };
        assert_eq!(words(false), [no_op.0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(words(true), [0, no_op.0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn another_structure_is_refused() {
        let checked = |size, handlers: [u32; 2]| {
            let mut btf = BtfBuilder::default();
            let long = btf.int("long", 8);
            let [first, second] = handlers;
            btf.structure(
                "uprobe_consumer",
                size,
                &[("handler", long, first), ("ret_handler", long, second)],
            );
            let section = btf.finish();
            check_consumer(&Btf::parse(&section).unwrap())
        };
        assert_eq!(checked(32, [0, 8]), Ok(()));
        assert_eq!(checked(48, [0, 8]), Ok(()));
        for (size, handlers) in [(72, [0, 8]), (48, [8, 16]), (48, [0, 16])] {
            assert!(matches!(checked(size, handlers), Err(NoUprobes::Structure(_))));
        }
    }
}
