//! Functions of the guest's kernel that errands of ours call.

use probe_engine::addr::Gva;
use probe_engine::linux::symbols::SymbolTable;
use rustix::io::Errno;

/// The kernel has no such function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this kernel has no `{0}`")]
pub struct NoFunction(&'static str);

/// By the addresses at which they were linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Functions {
    pub(super) vmalloc: Gva,
    pub(super) vfree: Gva,
    pub(super) filp_open: Gva,
    pub(super) kernel_read: Gva,
    pub(super) fput: Gva,
    pub(super) call_usermodehelper: Gva,
}

impl Functions {
    /// Those of the kernel with these symbols.
    ///
    /// # Errors
    /// [`NoFunction`].
    pub fn find(symbols: &SymbolTable) -> Result<Self, NoFunction> {
        let find = |name: &'static str| symbols.address_of(name).ok_or(NoFunction(name));
        Ok(Self {
            // A macro where the kernel keeps book of memory.
            vmalloc: find("vmalloc_noprof").or_else(|_| find("vmalloc"))?,
            vfree: find("vfree")?,
            filp_open: find("filp_open")?,
            kernel_read: find("kernel_read")?,
            fput: find("fput")?,
            call_usermodehelper: find("call_usermodehelper")?,
        })
    }
}

/// The error that a function has returned in place of an address or a number (include/linux/err.h).
pub(super) fn error(returned: u64) -> Option<Errno> {
    const MOST: i64 = 4095;
    let number = returned.cast_signed();
    (-MOST..0).contains(&number).then(|| Errno::from_raw_os_error(-number as i32))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::errands) const FUNCTIONS: Functions = Functions {
        vmalloc: Gva(1),
        vfree: Gva(2),
        filp_open: Gva(3),
        kernel_read: Gva(4),
        fput: Gva(5),
        call_usermodehelper: Gva(6),
    };

    #[test]
    fn an_error_is_told_from_an_address() {
        assert_eq!(error(-2_i64 as u64), Some(Errno::NOENT));
        for value in [0, 4096, 0xffff_8880_0000_0000, -4096_i64 as u64] {
            assert_eq!(error(value), None);
        }
    }
}
