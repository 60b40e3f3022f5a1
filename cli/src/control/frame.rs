//! What the server and the session's attendant say to each other: numbered requests, and answers with the same numbers.
//!
//! A frame is the length of what follows (u32, little endian), and a value as postcard writes it.

use super::physical::PhysicalRequest;
use probe_engine::addr::Gva;
use probe_engine::probe::watch::{Condition, Length};
use probe_engine::regs::Register;
use probe_engine::request::ProbeRequest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};

/// No frame is longer, in bytes: a list of all functions of a kernel is a quarter of it.
const LONGEST: usize = 64 << 20;

/// What a session is asked.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) number: u64,
    /// The last time that the guest has come to stand still, as far as whoever asks knows.
    pub(super) stop: u64,
    pub(super) request: Request,
}

/// What is wanted of a session.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// All probes with what they have seen.
    List,
    /// Everything that is counted.
    Counters,
    /// The histogram of this name, or all, with so many lines of each at most.
    Histograms { name: Option<String>, most: usize },
    /// Others than there are.
    Change(Change),
    /// All CPUs stand still, or go on, unless the guest has come to stand still once more.
    Pause(bool),
    /// Whoever wanted all CPUs to stand still is gone: they go on unless that is so, or the session itself has stopped them.
    LetGo,
    /// The registers of this CPU, or of all.
    Regs(Option<usize>),
    /// The stack of this CPU, or of all.
    Stack(Option<usize>),
    /// So many bytes of memory, as this CPU or the kernel sees it.
    Read { at: Gva, length: usize, vcpu: Option<usize> },
    /// Whether all CPUs stand still, and why.
    Status,
    /// What is about physical memory.
    Physical(PhysicalRequest),
    /// The tasks that are held.
    Held,
    /// The one that is held there goes on, or all do.
    Release(Option<u32>),
    /// The end of the guest.
    Quit,
    /// Where the kernel is.
    Kernel,
    /// One instruction of this CPU.
    Step(usize),
    /// This CPU is to go on with these registers, which are named.
    SetRegs { vcpu: usize, regs: Vec<(Register, u64)> },
    /// Memory, as this CPU or the kernel sees it, is to be this.
    Write { at: Gva, bytes: Vec<u8>, vcpu: Option<usize> },
}

/// What is to become of probes. It may have to wait for the guest.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Change {
    /// These are added, all or none.
    Add(Vec<ProbeRequest>),
    /// These are not wanted any more.
    Remove(Vec<Chosen>),
    /// The same of those of these numbers that are there: whose they were is gone.
    Forget(Vec<u32>),
    /// These are enabled, or disabled.
    Enable(Vec<Chosen>, bool),
    /// All may stand, or none.
    Arm(bool),
    /// The guest stands still at accesses to so much memory there, in the guest that runs.
    Watch { at: Gva, length: Length, condition: Condition },
}

/// A probe that somebody means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Chosen {
    /// By its number.
    Number(u32),
    /// By a name, which several may have.
    Name(String),
}

/// What comes from a session.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Said {
    Answer(Answer),
    /// The guest has come to stand still.
    Stopped(Stop),
}

/// The guest has come to stand still.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stop {
    /// How many times there have been with this one.
    pub(super) number: u64,
    /// By a hit of this probe, or because a CPU has executed its one instruction.
    pub(super) probe: Option<u32>,
    /// How and where, which is JSON.
    pub(super) how: String,
}

/// What has come of a request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) number: u64,
    /// A result, which is JSON, or why there is none.
    pub(super) result: Result<String, String>,
}

/// Sends one frame.
///
/// # Errors
/// When it is too long, of which nothing is sent then, or cannot be written.
pub(super) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = frame.len() - 4;
    let Some(length) = u32::try_from(length).ok().filter(|_| length <= LONGEST) else {
        return Err(ErrorKind::FileTooLarge.into());
    };
    if let Some(head) = frame.first_chunk_mut() {
        *head = length.to_le_bytes();
    }
    to.write_all(&frame)?;
    to.flush()
}

/// The next frame; `None` where the stream has ended.
///
/// # Errors
/// When it cannot be read, or is none.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut head = [0; 4];
    match from.read_exact(&mut head) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(head);
    if length as usize > LONGEST {
        return Err(ErrorKind::FileTooLarge.into());
    }
    let mut frame = Vec::new();
    from.take(length.into()).read_to_end(&mut frame)?;
    postcard::from_bytes(&frame).map(Some).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_received() {
        let asked = |number, request| Asked { number, stop: 3, request };
        let sent = [
            asked(
                7,
                Request::Change(Change::Remove(vec![Chosen::Number(3), Chosen::Name("vfs_read".to_owned())])),
            ),
            asked(u64::MAX, Request::Read { at: Gva(0xffff_ffff_8100_0000), length: 16, vcpu: None }),
        ];
        let mut stream = Vec::new();
        sent.iter().for_each(|asked| send(&mut stream, asked).unwrap());
        let mut from = stream.as_slice();
        for asked in &sent {
            assert_eq!(receive::<Asked>(&mut from).unwrap().as_ref(), Some(asked));
        }
        assert_eq!(receive::<Asked>(&mut from).unwrap(), None);
    }

    #[test]
    fn what_is_no_frame_is_an_error_and_takes_no_memory() {
        for wrong in [&[0xff; 8][..], &[3, 0, 0, 0, 1], &[2, 0, 0, 0, 1, 99], &[0; 4]] {
            assert!(receive::<Asked>(&mut &*wrong).is_err(), "{wrong:?}");
        }
        let long = Answer { number: 1, result: Ok("x".repeat(LONGEST)) };
        let mut stream = Vec::new();
        assert!(send(&mut stream, &long).is_err() && stream.is_empty());
    }
}
