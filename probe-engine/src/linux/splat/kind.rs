//! What reports are about.

/// What a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SplatKind {
    /// `panic()`.
    Panic,
    /// A fault of kernel code, or `BUG()`.
    Oops,
    /// `WARN()`.
    Warning,
    /// Of lockdep, and suspicious use of RCU.
    Lockdep,
    /// RCU waits for a CPU or a task.
    RcuStall,
    /// A CPU schedules no more.
    SoftLockup,
    /// A CPU takes no interrupts any more.
    HardLockup,
    /// A task sleeps without end.
    HungTask,
    /// Of KASAN.
    Kasan,
    /// Of KFENCE.
    Kfence,
    /// Of KCSAN.
    Kcsan,
    /// Of KMSAN.
    Kmsan,
    /// Of UBSAN.
    Ubsan,
    /// Pages, slabs or lists are damaged.
    Memory,
    /// Something sleeps that must not, or runs where it must not.
    Atomic,
    /// A reference count is wrong.
    Refcount,
    /// A lock is damaged, or not used as locks are.
    Locks,
    /// Work that does not end.
    Workqueue,
    /// A network device that does not go.
    Netdevice,
    /// Another one that shows a stack.
    General,
}

impl SplatKind {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::Panic,
        Self::Oops,
        Self::Warning,
        Self::Lockdep,
        Self::RcuStall,
        Self::SoftLockup,
        Self::HardLockup,
        Self::HungTask,
        Self::Kasan,
        Self::Kfence,
        Self::Kcsan,
        Self::Kmsan,
        Self::Ubsan,
        Self::Memory,
        Self::Atomic,
        Self::Refcount,
        Self::Locks,
        Self::Workqueue,
        Self::Netdevice,
        Self::General,
    ];

    /// Its name in recordings and fingerprints.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Oops => "oops",
            Self::Warning => "warning",
            Self::Lockdep => "lockdep",
            Self::RcuStall => "rcu-stall",
            Self::SoftLockup => "soft-lockup",
            Self::HardLockup => "hard-lockup",
            Self::HungTask => "hung-task",
            Self::Kasan => "kasan",
            Self::Kfence => "kfence",
            Self::Kcsan => "kcsan",
            Self::Kmsan => "kmsan",
            Self::Ubsan => "ubsan",
            Self::Memory => "memory",
            Self::Atomic => "atomic",
            Self::Refcount => "refcount",
            Self::Locks => "locks",
            Self::Workqueue => "workqueue",
            Self::Netdevice => "netdevice",
            Self::General => "general",
        }
    }

    /// Whether a timer's interrupt has found it: the interrupt's own functions say nothing.
    pub(super) fn is_found_by_timer(self) -> bool {
        matches!(self, Self::RcuStall | Self::SoftLockup | Self::HardLockup)
    }
}
