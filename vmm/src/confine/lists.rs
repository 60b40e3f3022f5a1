//! The system calls of each kind of thread.
//!
//! The lists are generous with what can do no harm: a call that is rare and missing would end a user's run.

use super::Role;
use kvm_bindings::{KVMIO, kvm_msi};
use libc::*;
use seccompiler::{
    BackendError, SeccompCmpArgLen::Dword, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, SeccompCmpOp::MaskedEq,
    SeccompCmpOp::Ne, SeccompCondition, SeccompRule,
};
use std::collections::BTreeMap;
use vmm_sys_util::ioctl::{_IOC_WRITE, ioctl_expr};

/// System calls by their numbers, each with the conditions of which one has to hold. Without any, it always does.
type List = BTreeMap<i64, Vec<SeccompRule>>;

/// What every thread needs: memory, locks, time, its end, and the descriptors that it has.
const COMMON: [i64; 49] = [
    // Memory, beside mmap and mprotect.
    SYS_brk,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    // Locks, and waiting.
    SYS_futex,
    SYS_membarrier,
    SYS_sched_yield,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_restart_syscall,
    SYS_poll,
    SYS_ppoll,
    // Time.
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_time,
    // Signals: handlers return, and an abort takes its own back.
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    // What it is.
    SYS_getpid,
    SYS_gettid,
    SYS_getpgrp,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getcpu,
    SYS_sched_getaffinity,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrandom,
    SYS_rseq,
    SYS_set_robust_list,
    // Descriptors.
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_lseek,
    SYS_close,
    SYS_dup,
    SYS_fstat,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_sendto,
    SYS_sendmsg,
    SYS_shutdown,
    // The end.
    SYS_exit,
    SYS_exit_group,
];

/// What a vCPU's thread needs beside [`COMMON`]: it is interrupted by a timer of its own where the guest is sampled.
const VCPU: [i64; 3] = [SYS_timer_create, SYS_timer_settime, SYS_timer_delete];

/// What a thread needs beside that which attends to a guest, and ends the process after it.
const CONTROL: [i64; 20] = [
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_wait,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_pipe2,
    SYS_socketpair,
    SYS_accept4,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_getsockname,
    SYS_pread64,
    SYS_pwrite64,
    SYS_ftruncate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_copy_file_range,
    SYS_splice,
    SYS_dup3,
    SYS_wait4,
];

/// What a thread needs beside [`COMMON`] that reads files, by descriptors of its folders. Landlock has a say as well.
const READS: [i64; 16] = [
    SYS_stat,
    SYS_lstat,
    SYS_getcwd,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_readlink,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_pread64,
    SYS_preadv,
    SYS_preadv2,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_umask,
];

/// What it needs beside that where some of them may be changed.
const WRITES: [i64; 25] = [
    SYS_open,
    SYS_openat,
    SYS_pwrite64,
    SYS_pwritev,
    SYS_pwritev2,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_copy_file_range,
    SYS_mkdirat,
    SYS_mknodat,
    SYS_symlinkat,
    SYS_linkat,
    SYS_unlinkat,
    SYS_renameat,
    SYS_renameat2,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchmodat2,
    SYS_fchownat,
    SYS_utimensat,
    SYS_flock,
    // A file that is made belongs to the guest's user, where that may be.
    SYS_setresuid,
    SYS_setresgid,
];

/// What a thread needs beside [`COMMON`] that makes files in a folder that is open, and removes those that it has made in part.
const KEEPS: [i64; 3] = [SYS_openat, SYS_mkdirat, SYS_unlinkat];

/// Calls that are answered as by a kernel which has none.
pub(super) fn absent(role: Role) -> Result<List, BackendError> {
    // The C library makes threads by `clone` then, whose flags can be looked at, and guesses the number of CPUs. A panic has
    // no file's lines.
    let mut absent = List::from([(SYS_clone3, vec![])]);
    if !matches!(role, Role::Files { .. } | Role::Names) {
        let without_conditions = [
            SYS_open,
            SYS_openat,
            SYS_openat2,
            SYS_stat,
            SYS_newfstatat,
            SYS_statx,
            SYS_readlink,
            SYS_getcwd,
            SYS_access,
        ];
        absent.extend(without_conditions.map(|number| (number, vec![])));
    }
    if role == Role::Keeper {
        // A folder is opened as a place (O_PATH), and a file is made (O_CREAT with O_EXCL): nothing that is there is read or changed.
        let others = [masked(2, O_PATH | O_CREAT, 0)?, masked(2, O_PATH | O_EXCL, 0)?];
        absent.insert(SYS_openat, others.to_vec());
    }
    Ok(absent)
}

/// Calls that are made.
pub(super) fn allowed(role: Role) -> Result<List, BackendError> {
    let mut list = List::new();
    let mut always = |numbers: &[i64]| list.extend(numbers.iter().map(|number| (*number, vec![])));
    always(&COMMON);
    // The other filter answers them.
    always(&absent(role)?.into_keys().collect::<Vec<_>>());
    match role {
        Role::Vcpu => always(&VCPU),
        Role::Device => {}
        Role::Control => always(&CONTROL),
        Role::Keeper => always(&KEEPS),
        Role::Names => {
            always(&READS);
            // A path is looked up below a folder. That the file is not changed, Landlock sees to.
            always(&[SYS_openat2]);
        }
        Role::Files { writable } => {
            always(&READS);
            if writable {
                always(&WRITES);
            }
        }
    }
    // No code is made.
    for call in [SYS_mmap, SYS_mprotect] {
        list.insert(call, vec![masked(2, PROT_EXEC, 0)?]);
    }
    // Names of threads and, by newer C libraries, of their memory.
    const PR_SET_VMA: i32 = 0x5356_4d41;
    list.insert(SYS_prctl, any(0, &[PR_SET_NAME as u64, PR_GET_NAME as u64, PR_SET_VMA as u64])?);
    // Nobody is made to get signals by a descriptor's owner.
    list.insert(
        SYS_fcntl,
        any(1, &[F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC].map(|of| of as u64))?,
    );
    // Limits are read.
    list.insert(SYS_prlimit64, any(2, &[0])?);
    list.insert(SYS_getrlimit, vec![]);
    // Signals are sent to this process.
    let ours = u64::from(std::process::id());
    list.insert(SYS_tgkill, any(0, &[ours])?);
    match role {
        Role::Vcpu => drop(list.insert(SYS_ioctl, vcpu_requests()?)),
        Role::Device => drop(list.insert(SYS_ioctl, any(1, &device_requests())?)),
        Role::Control => {
            list.insert(SYS_ioctl, any(1, &control_requests())?);
            list.insert(SYS_kill, any(0, &[ours])?);
        }
        Role::Names | Role::Files { writable: false } => {
            // For nothing but reading.
            let changes = O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND;
            list.insert(SYS_open, vec![masked(1, changes, O_RDONLY)?]);
            list.insert(SYS_openat, vec![masked(2, changes, O_RDONLY)?]);
        }
        Role::Keeper | Role::Files { writable: true } => {}
    }
    if let Role::Control | Role::Keeper = role {
        list.insert(SYS_clone, vec![masked(0, CLONE_THREAD, CLONE_THREAD)?]);
    }
    Ok(list)
}

/// What no thread needs once a guest is there: calls by which somebody would get out of the process.
const OUTWARD: [i64; 54] = [
    // Programs.
    SYS_execve,
    SYS_execveat,
    SYS_fork,
    SYS_vfork,
    // Networks, and servers of this machine's.
    SYS_socket,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    // Other processes.
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    SYS_kcmp,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
    SYS_pidfd_send_signal,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_tkill,
    // What the machine is made of.
    SYS_mount,
    SYS_umount2,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_reboot,
    SYS_swapon,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_iopl,
    SYS_ioperm,
    // Code, beside mmap and mprotect.
    SYS_pkey_mprotect,
    SYS_personality,
    SYS_shmat,
    SYS_remap_file_pages,
];

/// Requests by which something is typed into a terminal, from where a shell takes it, or by which another process gets the
/// signals of a descriptor.
const TYPED_OR_SENT: [u64; 4] = [TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP];
/// Those of this table that libc does not know (include/uapi/asm-generic/sockios.h).
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;

/// Calls that no thread of the process makes any more.
pub(super) fn refused_to_all() -> Result<List, BackendError> {
    let mut list: List = OUTWARD.into_iter().map(|number| (number, vec![])).collect();
    list.insert(SYS_clone, vec![masked(0, CLONE_THREAD, 0)?]);
    for call in [SYS_mmap, SYS_mprotect] {
        list.insert(call, vec![masked(2, PROT_EXEC, PROT_EXEC)?]);
    }
    let others = SeccompCondition::new(0, Dword, Ne, u64::from(std::process::id()))?;
    for call in [SYS_kill, SYS_tgkill] {
        list.insert(call, vec![SeccompRule::new(vec![others.clone()])?]);
    }
    // A limit of another process ends it.
    let none = SeccompCondition::new(0, Dword, Ne, 0)?;
    list.insert(SYS_prlimit64, vec![SeccompRule::new(vec![none, others])?]);
    list.insert(SYS_fcntl, any(1, &[F_SETOWN as u64, F_SETOWN_EX])?);
    list.insert(SYS_ioctl, any(1, &TYPED_OR_SENT)?);
    Ok(list)
}

/// The bit by which a call is one of the x32 table, where the kernel has that: the same calls by other numbers, which a list of
/// what is refused would have to have as well.
pub(super) const X32: u32 = 0x4000_0000;

/// `F_SETOWN_EX` (include/uapi/asm-generic/fcntl.h).
const F_SETOWN_EX: u64 = 15;

/// Argument `number` is one of `values`.
fn any(number: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    let is = |value: &u64| {
        // The kernel takes 32 bits of it; a pointer has 64.
        let length = if *value == 0 { Qword } else { Dword };
        SeccompRule::new(vec![SeccompCondition::new(number, length, Eq, *value)?])
    };
    values.iter().map(is).collect()
}

/// Argument `number` has these `bits` of those of `mask`.
fn masked(number: u8, mask: i32, bits: i32) -> Result<SeccompRule, BackendError> {
    let condition = SeccompCondition::new(number, Dword, MaskedEq(mask as u64), bits as u64)?;
    SeccompRule::new(vec![condition])
}

/// The requests of a vCPU's descriptor (Documentation/virt/kvm/api.rst) and what a device's store needs. KVM numbers those of
/// vCPUs from 0x80 on, and below that those by which machines are made and get their memory.
fn vcpu_requests() -> Result<Vec<SeccompRule>, BackendError> {
    const TYPE_AND_HALF: u64 = 0xff80;
    const OF_VCPUS: u64 = (KVMIO as u64) << 8 | 0x80;
    let of_vcpus = SeccompCondition::new(1, Dword, MaskedEq(TYPE_AND_HALF), OF_VCPUS)?;
    Ok([vec![SeccompRule::new(vec![of_vcpus])?], any(1, &device_requests())?].concat())
}

/// Sending an interrupt (KVM_SIGNAL_MSI), asking whether something is a terminal, as a panic does, and bringing back a
/// terminal's mode, as the end of a process does.
fn device_requests() -> Vec<u64> {
    vec![ioctl_expr(_IOC_WRITE, KVMIO, 0xa5, size_of::<kvm_msi>() as u32) as u64, TCGETS, TCSETS, TCSETS2]
}

/// Modes and sizes of terminals, and whether a stream waits. Nothing is typed into a terminal.
fn control_requests() -> Vec<u64> {
    let modes = [TCGETS, TCGETS2, TCSETS, TCSETSW, TCSETSF, TCSETS2, TCSETSW2, TCSETSF2];
    [&modes[..], &[TIOCGWINSZ, FIONBIO, FIOCLEX, FIONREAD]].concat()
}
