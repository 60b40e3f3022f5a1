//! Why memory cannot be read.

use std::io;

/// Memory of a guest that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The file, or the process's memory, cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// Another kind of file.
    #[error("it is no file with memory")]
    NoFile,
    /// A format that is not read, and what to do.
    #[error("{0}")]
    Format(&'static str),
    /// Its headers do not hold.
    #[error("it is damaged: its headers do not hold")]
    Damaged,
    /// The file has been cut off.
    #[error("it has been cut off: its headers tell of {whole} bytes, and {length} are there")]
    Cut {
        /// How long the file is, in bytes.
        length: u64,
        /// How long the file was at least.
        whole: u64,
    },
    /// Its ranges are no guest's.
    #[error("its ranges of memory overlap, are too many, or go beyond 64 TiB")]
    Ranges,
    /// There is no memory in it.
    #[error("there is no memory in it")]
    Empty,
    /// The process's memory is not open to us.
    #[error("its memory is not open: that takes the rights of who traces it (CAP_SYS_PTRACE, or its user)")]
    Closed(#[source] io::Error),
    /// No process has this number.
    #[error("there is no such process")]
    NoProcess,
    /// It is no monitor.
    #[error("it has no memory that could be a guest's")]
    NoGuest,
}
