//! A program of the guest's, started by its own kernel as it starts its helpers: by the superuser, with no open files.

use super::functions::{Functions, error};
use super::{Next, Worker};
use probe_engine::addr::Gva;
use probe_engine::errand::Call;
use rustix::io::Errno;

/// `UMH_WAIT_PROC | UMH_KILLABLE`: the worker sleeps until the program has ended, and nobody takes it for hung.
const WAIT: u64 = 2 | 4;
/// The environment that the kernel gives its helpers.
const ENVIRONMENT: [&[u8]; 3] = [b"HOME=/", b"TERM=linux", b"PATH=/sbin:/bin:/usr/sbin:/usr/bin"];
/// Most bytes of all words and where they are.
const MOST: usize = 64 << 10;

/// How a program has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramEnd {
    /// By itself, with this exit code.
    Exit(u8),
    /// By the signal of this number.
    Signal(u8),
}

/// An errand that runs a program.
pub struct RunProgram {
    functions: Functions,
    words: Vec<Vec<u8>>,
    called: Called,
    buffer: Gva,
    ended: Result<ProgramEnd, Errno>,
}

/// What was called last.
#[derive(Clone, Copy)]
enum Called {
    Nothing,
    Vmalloc,
    Program,
    Vfree,
}

impl RunProgram {
    /// Runs `words`, of which the first is the program's path.
    ///
    /// # Errors
    /// No words, or too many, or a NUL in them.
    pub fn new(functions: Functions, words: Vec<Vec<u8>>) -> Result<Self, Errno> {
        let length: usize = words.iter().map(|word| word.len() + 16).sum();
        if words.is_empty() || words.iter().any(|word| word.contains(&0)) {
            return Err(Errno::INVAL);
        }
        if length > MOST / 2 {
            return Err(Errno::TOOBIG);
        }
        let ended = Err(Errno::FAULT);
        Ok(Self { functions, words, called: Called::Nothing, buffer: Gva(0), ended })
    }

    /// What is next, for [`Handle::errand`](crate::session::Handle::errand).
    pub fn next(&mut self, worker: &mut Worker<'_>) -> Next<Result<ProgramEnd, Errno>> {
        let returned = worker.returned.unwrap_or(0);
        let functions = self.functions;
        match self.called {
            Called::Nothing => self.call(Called::Vmalloc, functions.vmalloc, &[MOST as u64]),
            Called::Vmalloc if returned == 0 => Next::Done(Err(Errno::NOMEM)),
            Called::Vmalloc => {
                self.buffer = Gva(returned);
                let (bytes, [path, words, environment]) = self.laid_out();
                match worker.memory.write(self.buffer, &bytes) {
                    Ok(()) => {
                        let args = [path, words, environment, WAIT];
                        self.call(Called::Program, functions.call_usermodehelper, &args)
                    }
                    Err(_) => self.call(Called::Vfree, functions.vfree, &[returned]),
                }
            }
            Called::Program => {
                // It is an int.
                let status = returned as u32;
                self.ended = match error(i64::from(status.cast_signed()).cast_unsigned()) {
                    Some(error) => Err(error),
                    None => Ok(ended(status)),
                };
                self.call(Called::Vfree, functions.vfree, &[self.buffer.0])
            }
            Called::Vfree => Next::Done(self.ended),
        }
    }

    fn call<T>(&mut self, called: Called, function: Gva, args: &[u64]) -> Next<T> {
        self.called = called;
        Next::Call(Call::new(function, args))
    }

    /// What the buffer holds: both lists of addresses, each with a 0 at its end, and the strings behind them. And where the path,
    /// the words and the environment are.
    fn laid_out(&self) -> (Vec<u8>, [u64; 3]) {
        let words = self.words.iter().map(Vec::as_slice);
        let environment_at = 8 * (words.len() as u64 + 1);
        let mut at = environment_at + 8 * (ENVIRONMENT.len() as u64 + 1);
        let (mut lists, mut strings) = (Vec::new(), Vec::new());
        let mut list = |list: &mut dyn Iterator<Item = &[u8]>| {
            for string in list {
                lists.extend(self.buffer.add(at).0.to_le_bytes());
                strings.extend(string.iter().chain(&[0]));
                at += string.len() as u64 + 1;
            }
            lists.extend([0; 8]);
        };
        list(&mut words.clone());
        list(&mut ENVIRONMENT.into_iter());
        let path = lists.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        ([lists, strings].concat(), [path, self.buffer.0, self.buffer.add(environment_at).0])
    }
}

/// What a status says as `wait` gives it.
fn ended(status: u32) -> ProgramEnd {
    match status as u8 & 0x7f {
        0 => ProgramEnd::Exit((status >> 8) as u8),
        signal => ProgramEnd::Signal(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errands::functions::tests::FUNCTIONS;
    use crate::errands::tests::{mapped, memory};
    use probe_engine::memory::PhysMemory;
    use probe_engine::virt_memory::VirtMemory;

    const BUFFER: u64 = 0x1_0000;

    /// The strings of a list.
    fn list<M: PhysMemory>(memory: &VirtMemory<'_, M>, at: u64) -> Vec<String> {
        let strings = (0..).map(|n| memory.read_u64(Gva(at).add(8 * n)).unwrap()).take_while(|at| *at != 0);
        strings.map(|at| string(memory, at)).collect()
    }

    fn string<M: PhysMemory>(memory: &VirtMemory<'_, M>, at: u64) -> String {
        let byte = |n| {
            let mut byte = [0];
            memory.read(Gva(at).add(n), &mut byte).unwrap();
            byte[0]
        };
        (0..).map(byte).take_while(|byte| *byte != 0).map(char::from).collect()
    }

    #[test]
    fn a_program_gets_its_words_and_its_end_is_told() {
        for (status, expected) in [
            (0, Ok(ProgramEnd::Exit(0))),
            (3 << 8, Ok(ProgramEnd::Exit(3))),
            (9, Ok(ProgramEnd::Signal(9))),
            // An int in a register of 64 bits.
            (0xffff_fffe, Err(Errno::NOENT)),
        ] {
            let ram = mapped();
            let memory = memory(&ram);
            let words = [&b"/bin/sh"[..], b"-c", b""].map(<[u8]>::to_vec).to_vec();
            let mut errand = RunProgram::new(FUNCTIONS, words).unwrap();
            let (mut returned, mut calls) = (None, Vec::new());
            let result = loop {
                let call = match errand.next(&mut Worker { returned, memory }) {
                    Next::Call(call) => call,
                    Next::Done(result) => break result,
                };
                calls.push(call.function.0);
                returned = Some(match call.function.0 {
                    1 => BUFFER,
                    6 => {
                        let [path, words, environment, wait, ..] = call.args;
                        assert_eq!((string(&memory, path).as_str(), wait), ("/bin/sh", WAIT));
                        assert_eq!(list(&memory, words), ["/bin/sh", "-c", ""]);
                        assert_eq!(list(&memory, environment)[0], "HOME=/");
                        status
                    }
                    _ => 0,
                });
            };
            assert_eq!((result, calls), (expected, vec![1, 6, 2]));
        }
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let refused = |words: Vec<Vec<u8>>| RunProgram::new(FUNCTIONS, words).err();
        assert_eq!(refused(Vec::new()), Some(Errno::INVAL));
        assert_eq!(refused(vec![b"a\0".to_vec()]), Some(Errno::INVAL));
        assert_eq!(refused(vec![vec![b'a'; MOST]]), Some(Errno::TOOBIG));
    }
}
