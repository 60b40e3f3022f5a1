//! Numbers that people know by names: flags of system calls, modes, and what else a type alone does not tell.

use super::shape::{Flag, Shape};
use crate::linux::btf::{Btf, Kind};

/// How a number is shown whose typedef says what it is.
pub(super) fn of_typedef(btf: &Btf<'_>, typedef: &str) -> Option<Shape> {
    match typedef {
        "umode_t" | "mode_t" | "__kernel_mode_t" => Some(Shape::Octal),
        "gfp_t" => Some(allocation(btf).map_or(Shape::Hex, Shape::Flags)),
        "fmode_t" | "phys_addr_t" | "dma_addr_t" | "resource_size_t" | "vm_flags_t" | "slab_flags_t"
        | "pgprotval_t" | "blk_opf_t" | "dev_t" | "uintptr_t" | "__poll_t" => Some(Shape::Hex),
        _ => None,
    }
}

/// Whether a number is more likely to be looked at in hexadecimal.
pub(super) fn is_bit_pattern(name: &str, typedef: &str) -> bool {
    let is_named = ["addr", "flags", "mask"].iter().any(|part| name.contains(part));
    is_named || matches!(name, "ip" | "pc" | "start" | "end" | "error_code") && typedef.is_empty()
}

/// The names of the bits of a parameter or member called `name`, of the function or structure `owner`.
pub(super) fn of_member(owner: &str, name: &str) -> Option<Vec<Flag>> {
    let is_of = |part: &str| owner.contains(part);
    let table = match name {
        "flags" | "f_flags" | "open_flag" if is_of("open") || owner == "file" || is_of("pipe2") => OPEN,
        "f_flags" => OPEN,
        "prot" if is_of("mmap") || is_of("mprotect") => PROTECTION,
        "flags" if is_of("mmap") => MAP,
        "clone_flags" => CLONE,
        _ => return None,
    };
    let flag = |(mask, value, name): &(u64, u64, &str)| Flag {
        mask: *mask,
        value: *value,
        name: (*name).to_owned(),
    };
    Some(table.iter().map(flag).collect())
}

/// Flags of the kernel's allocations, where its types have them (since 6.9): `___GFP_DMA_BIT` and so on.
fn allocation(btf: &Btf<'_>) -> Option<Vec<Flag>> {
    let mut enumerations = btf.types().filter_map(|ty| match ty.kind {
        Kind::Enumeration(values) if ty.name().is_empty() => Some(values),
        _ => None,
    });
    let values = enumerations
        .find(|values| values.values().next().is_some_and(|(name, _)| name == "___GFP_DMA_BIT"))?;
    let flag = |(name, bit): (&str, i64)| {
        let name = name.strip_prefix("___")?.strip_suffix("_BIT")?;
        let bit = 1u64.checked_shl(u32::try_from(bit).ok()?)?;
        Some(Flag { mask: bit, value: bit, name: name.to_owned() })
    };
    Some(values.values().filter_map(flag).collect())
}

/// include/uapi/asm-generic/fcntl.h: bits, their value, and the name of that. Those of several bits come first.
const OPEN: &[(u64, u64, &str)] = &[
    (0o3, 0, "O_RDONLY"),
    (0o3, 1, "O_WRONLY"),
    (0o3, 2, "O_RDWR"),
    (0o4010000, 0o4010000, "O_SYNC"),
    (0o20200000, 0o20200000, "O_TMPFILE"),
    (0o100, 0o100, "O_CREAT"),
    (0o200, 0o200, "O_EXCL"),
    (0o400, 0o400, "O_NOCTTY"),
    (0o1000, 0o1000, "O_TRUNC"),
    (0o2000, 0o2000, "O_APPEND"),
    (0o4000, 0o4000, "O_NONBLOCK"),
    (0o10000, 0o10000, "O_DSYNC"),
    (0o20000, 0o20000, "FASYNC"),
    (0o40000, 0o40000, "O_DIRECT"),
    (0o100000, 0o100000, "O_LARGEFILE"),
    (0o200000, 0o200000, "O_DIRECTORY"),
    (0o400000, 0o400000, "O_NOFOLLOW"),
    (0o1000000, 0o1000000, "O_NOATIME"),
    (0o2000000, 0o2000000, "O_CLOEXEC"),
    (0o10000000, 0o10000000, "O_PATH"),
];

/// include/uapi/asm-generic/mman-common.h
const PROTECTION: &[(u64, u64, &str)] = &[
    (7, 0, "PROT_NONE"),
    (1, 1, "PROT_READ"),
    (2, 2, "PROT_WRITE"),
    (4, 4, "PROT_EXEC"),
    (0x0100_0000, 0x0100_0000, "PROT_GROWSDOWN"),
    (0x0200_0000, 0x0200_0000, "PROT_GROWSUP"),
];

/// include/uapi/linux/mman.h, asm-generic/mman-common.h and asm-generic/mman.h
const MAP: &[(u64, u64, &str)] = &[
    (0xf, 1, "MAP_SHARED"),
    (0xf, 2, "MAP_PRIVATE"),
    (0xf, 3, "MAP_SHARED_VALIDATE"),
    (0x10, 0x10, "MAP_FIXED"),
    (0x20, 0x20, "MAP_ANONYMOUS"),
    (0x40, 0x40, "MAP_32BIT"),
    (0x100, 0x100, "MAP_GROWSDOWN"),
    (0x800, 0x800, "MAP_DENYWRITE"),
    (0x1000, 0x1000, "MAP_EXECUTABLE"),
    (0x2000, 0x2000, "MAP_LOCKED"),
    (0x4000, 0x4000, "MAP_NORESERVE"),
    (0x8000, 0x8000, "MAP_POPULATE"),
    (0x1_0000, 0x1_0000, "MAP_NONBLOCK"),
    (0x2_0000, 0x2_0000, "MAP_STACK"),
    (0x4_0000, 0x4_0000, "MAP_HUGETLB"),
    (0x8_0000, 0x8_0000, "MAP_SYNC"),
    (0x10_0000, 0x10_0000, "MAP_FIXED_NOREPLACE"),
];

/// include/uapi/linux/sched.h
const CLONE: &[(u64, u64, &str)] = &[
    (0x100, 0x100, "CLONE_VM"),
    (0x200, 0x200, "CLONE_FS"),
    (0x400, 0x400, "CLONE_FILES"),
    (0x800, 0x800, "CLONE_SIGHAND"),
    (0x1000, 0x1000, "CLONE_PIDFD"),
    (0x2000, 0x2000, "CLONE_PTRACE"),
    (0x4000, 0x4000, "CLONE_VFORK"),
    (0x8000, 0x8000, "CLONE_PARENT"),
    (0x1_0000, 0x1_0000, "CLONE_THREAD"),
    (0x2_0000, 0x2_0000, "CLONE_NEWNS"),
    (0x4_0000, 0x4_0000, "CLONE_SYSVSEM"),
    (0x8_0000, 0x8_0000, "CLONE_SETTLS"),
    (0x10_0000, 0x10_0000, "CLONE_PARENT_SETTID"),
    (0x20_0000, 0x20_0000, "CLONE_CHILD_CLEARTID"),
    (0x80_0000, 0x80_0000, "CLONE_UNTRACED"),
    (0x100_0000, 0x100_0000, "CLONE_CHILD_SETTID"),
    (0x200_0000, 0x200_0000, "CLONE_NEWCGROUP"),
    (0x400_0000, 0x400_0000, "CLONE_NEWUTS"),
    (0x800_0000, 0x800_0000, "CLONE_NEWIPC"),
    (0x1000_0000, 0x1000_0000, "CLONE_NEWUSER"),
    (0x2000_0000, 0x2000_0000, "CLONE_NEWPID"),
    (0x4000_0000, 0x4000_0000, "CLONE_NEWNET"),
    (0x8000_0000, 0x8000_0000, "CLONE_IO"),
];
