//! Other ends that do what no agent does: a guest may be at the other end.

use super::super::command::Escape;
use super::super::protocol::Program;
use super::*;
use crate::printer::Printer;
use crate::signals::SENDING;
use crate::terminal::tests::terminal;
use crate::terminal::{CommandTerminal, WindowSize};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::PoisonError;

/// Nothing here takes longer, and what hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn job() -> Job {
    Job {
        program: Program::ThisBinary,
        args: vec![],
        env: vec![],
        folder: None,
        files: vec![],
        outputs: 0,
        keeps_files: false,
        terminal: None,
        time: 0,
        seed: None,
    }
}

/// A conversation with `agent`, which has the other end, about a command whose input is `stdin`.
fn talk(
    stdin: &File,
    terminal: Option<CommandTerminal>,
    signals: bool,
    agent: impl FnOnce(UnixStream) + Send,
) -> Conversation {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    let printer = Printer::of_what_fits(io::sink()).unwrap();
    let streams = Streams {
        stdin: Some(stdin.as_fd()),
        stdout: printer.clone().into(),
        stderr: printer.into(),
        terminal,
        signals,
        escape: Escape::Obeyed,
        left: None,
    };
    thread::scope(|scope| {
        scope.spawn(|| agent(theirs));
        converse(&ours, job(), vec![], streams).unwrap()
    })
}

/// Waits until nothing more comes in, without reading it, as the other end says that it takes everything.
fn take_nothing(theirs: &mut UnixStream) {
    let taken = FromAgent::StdinTaken.encode().unwrap();
    for _ in 0..1000 {
        theirs.write_all(&taken).unwrap();
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_user_can_end_what_takes_no_keys() {
    let (stdin, mut keys) = terminal();
    let size = WindowSize { rows: 24, columns: 80 };
    let terminal = CommandTerminal { size, stdout: true, stderr: true };
    let conversation = talk(&stdin, Some(terminal), false, |theirs| {
        let mut frames = FrameReader::new(&theirs);
        frames.next().unwrap();
        let mut typed: Vec<u8> = Vec::new();
        for key in 0..100 {
            keys.write_all(&[b'a' + key % 26]).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        // Some are taken at last: what was typed meanwhile comes behind them, and nothing twice.
        (&theirs).write_all(&FromAgent::StdinTaken.encode().unwrap()).unwrap();
        while typed.len() < 100 {
            let ToAgent::Stdin(bytes) = ToAgent::decode(frames.next().unwrap()).unwrap() else { panic!() };
            typed.extend(bytes);
        }
        assert!(typed.iter().zip(0..).all(|(key, n)| *key == b'a' + n % 26), "{typed:?}");
        for _ in 0..STDIN_WINDOW {
            keys.write_all(b"k").unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        keys.write_all(b"\x01x").unwrap();
        // The end of the stream, or nothing in time.
        while let Ok(frame) = frames.next() {
            assert!(matches!(ToAgent::decode(frame), Ok(ToAgent::Stdin(_))));
        }
    });
    assert!(conversation.was_asked && conversation.end.is_err());
}

/// Nobody catches the signal that tells of another size before the command is handed over, which takes seconds.
#[test]
fn a_command_gets_the_size_that_the_terminal_has_when_it_is_handed_over() {
    let (stdin, _keys) = terminal();
    let at_first = WindowSize { rows: 24, columns: 80 };
    tcsetwinsize(&stdin, Winsize { ws_row: 33, ws_col: 101, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let known = CommandTerminal { size: at_first, stdout: true, stderr: false };
    let conversation = talk(&stdin, Some(known), false, |mut theirs| {
        let ToAgent::Run(job) = ToAgent::decode(FrameReader::new(&theirs).next().unwrap()).unwrap() else {
            panic!()
        };
        let size = WindowSize { rows: 33, columns: 101 };
        assert_eq!(job.terminal, Some(CommandTerminal { size, ..known }));
        theirs.write_all(&FromAgent::Exit(CommandExit::Code(0)).encode().unwrap()).unwrap();
    });
    assert_eq!(conversation.end.ok(), Some(CommandExit::Code(0)));
}

#[test]
fn a_second_signal_ends_what_reads_nothing() {
    let _alone = SENDING.lock().unwrap_or_else(PoisonError::into_inner);
    let zeros = File::open("/dev/zero").unwrap();
    let conversation = talk(&zeros, None, true, |mut theirs| {
        take_nothing(&mut theirs);
        let began = Instant::now();
        kill_process(getpid(), Signal::HUP).unwrap();
        // Where the first one is handled late, the second one comes too soon after that, and the third one does not.
        let later = Duration::from_millis(700);
        theirs.set_read_timeout(Some(later)).unwrap();
        thread::sleep(later);
        kill_process(getpid(), Signal::HUP).unwrap();
        let mut rest = vec![0; 1 << 20];
        loop {
            match theirs.read(&mut rest) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && began.elapsed() < PATIENCE => {
                    kill_process(getpid(), Signal::HUP).unwrap();
                }
                Err(_) => break,
            }
        }
        assert!(began.elapsed() < PATIENCE);
    });
    assert_eq!(conversation.end.ok(), Some(CommandExit::Signal(1)));
}

#[test]
fn an_end_is_one_also_where_nobody_has_read_the_input() {
    let zeros = File::open("/dev/zero").unwrap();
    let conversation = talk(&zeros, None, false, |mut theirs| {
        take_nothing(&mut theirs);
        theirs.write_all(&FromAgent::Exit(CommandExit::Code(3)).encode().unwrap()).unwrap();
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let hung_up = poll(&mut [PollFd::new(&theirs, PollFlags::empty())], Some(&patience)).unwrap();
        assert_eq!(hung_up, 1, "it goes on");
    });
    assert_eq!(conversation.end.ok(), Some(CommandExit::Code(3)));
}

#[test]
fn an_agent_that_says_something_else_for_ever_is_silent() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let talker = thread::spawn(move || {
        let frame = FromAgent::Stdout(b"x").encode().unwrap();
        while frame.iter().all(|byte| theirs.write_all(&[*byte]).is_ok()) {
            thread::sleep(Duration::from_millis(5));
        }
    });
    let began = Instant::now();
    let greeted = greet(&ours, Some(Duration::from_millis(300)));
    assert!(matches!(greeted, Err(ProtocolError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock));
    assert!(began.elapsed() < PATIENCE);
    drop(ours);
    talker.join().unwrap();
}

#[test]
fn what_an_agent_says_stays_on_one_line() {
    let zeros = File::open("/dev/null").unwrap();
    let why = format!("no\n\u{258c} forged \x1b[2J{}", "x".repeat(5000));
    let conversation = talk(&zeros, None, false, |theirs| {
        // The job: who hangs up before has said nothing.
        FrameReader::new(&theirs).next().unwrap();
        (&theirs).write_all(&FromAgent::Failed(&why).encode().unwrap()).unwrap();
    });
    let Err(Broken::Agent(said)) = conversation.end else { panic!() };
    assert!(said.starts_with("no\\n") && said.contains("\\x1b[2J") && said.len() < 1100, "{said}");
}
