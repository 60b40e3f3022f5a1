//! A record of the log, wherever it was read.

/// Who has written a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PrintkCaller {
    /// A task, by its pid.
    Task(u32),
    /// An interrupt on this CPU.
    Cpu(u32),
}

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrintkRecord {
    /// Its number.
    pub sequence: u64,
    /// When it was, by the guest's clock.
    pub nanos: u64,
    /// 0 is the kernel: a process that writes to `/dev/kmsg` cannot claim to be it.
    pub facility: u8,
    /// Who has written it.
    pub caller: PrintkCaller,
    /// Lines.
    pub text: Vec<u8>,
}
