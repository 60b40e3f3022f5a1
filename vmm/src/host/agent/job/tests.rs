use super::*;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What a command of these tests does: this test program runs itself with this set.
const ROLE: &str = "VMM_JOB_TEST";
/// Its first output, once more; unset when it has none.
const OUTPUT: &str = "VMM_JOB_TEST_OUTPUT";

#[test]
fn helper() {
    let output = || std::env::args().find(|arg| arg.starts_with("/dev/fd/")).unwrap();
    match std::env::var(ROLE).as_deref() {
        Ok("copy") => {
            let mut input = Vec::new();
            io::stdin().read_to_end(&mut input).unwrap();
            assert_eq!(std::env::var(OUTPUT).unwrap(), output());
            fs::write(output(), input).unwrap();
        }
        Ok("size") => {
            let size = WindowSize::of(io::stdin()).unwrap();
            println!("{}x{}", size.rows, size.columns);
            eprintln!("on stderr");
        }
        Ok("talk") => while io::stdout().write_all(&[b'x'; 1 << 16]).is_ok() {},
        Ok("sleep") => {
            println!("asleep");
            thread::sleep(Duration::from_secs(60));
        }
        _ => {}
    }
}

fn job(role: &str, outputs: usize, terminal: Option<CommandTerminal>) -> Job {
    let helper = concat!(module_path!(), "::helper").split_once("::").unwrap().1;
    let args = [helper, "--exact", "--nocapture"].map(|arg| Arg::Text(arg.into()));
    let args = args.into_iter().chain((0..outputs).map(Arg::Output)).collect();
    let env = [(ROLE, Arg::Text(role.into())), (OUTPUT, Arg::Output(0))];
    let env = env.into_iter().map(|(name, value)| (name.into(), value)).collect();
    Job {
        program: Program::ThisBinary,
        args,
        env,
        folder: None,
        files: vec![],
        outputs,
        keeps_files: false,
        terminal,
        time: 0,
        seed: None,
    }
}

/// Runs `job`, sends what `say` returns for each piece of standard output, and collects what comes out.
fn play(
    job: Job,
    first: &[ToAgent<'_>],
    mut say: impl FnMut(&str) -> Option<ToAgent<'static>>,
) -> (CommandExit, BTreeMap<&'static str, Vec<u8>>) {
    let (outside, inside) = UnixStream::pair().unwrap();
    let port = AgentPort::of(File::from(OwnedFd::from(inside)));
    let outbox = Arc::new(Outbox::new(port.try_clone().unwrap()));
    let frames = FrameReader::new(BufReader::new(port));
    let agent = thread::spawn(move || {
        let exit = run(&job, frames, &outbox).unwrap();
        outbox.send(&FromAgent::Exit(exit).encode().unwrap()).unwrap();
    });
    let send = |message: &ToAgent<'_>| (&outside).write_all(&message.encode().unwrap()).unwrap();
    let played = thread::scope(|scope| {
        scope.spawn(|| first.iter().for_each(send));
        let mut streams: BTreeMap<_, Vec<u8>> = BTreeMap::new();
        let mut frames = FrameReader::new(&outside);
        loop {
            let (name, bytes) = match FromAgent::decode(frames.next().unwrap()).unwrap() {
                FromAgent::Stdout(bytes) => ("stdout", bytes),
                FromAgent::Stderr(bytes) => ("stderr", bytes),
                FromAgent::Output(0, bytes) => ("output", bytes),
                FromAgent::StdinTaken => ("taken", &b"."[..]),
                FromAgent::Exit(exit) => break (exit, streams),
                other => panic!("{other:?}"),
            };
            if name == "stdout"
                && let Some(answer) = say(&String::from_utf8_lossy(bytes))
            {
                send(&answer);
            }
            streams.entry(name).or_default().extend(bytes);
        }
    });
    agent.join().unwrap();
    played
}

/// One test, because a pipe that one job is to inherit would be inherited by another's, too.
#[test]
fn a_job_has_its_streams_its_terminal_and_its_signals() {
    let input = vec![7; 3 * 4096];
    let mut first: Vec<_> = input.chunks(4096).map(ToAgent::Stdin).collect();
    first.push(ToAgent::StdinEnd);
    let (exit, streams) = play(job("copy", 1, None), &first, |_| None);
    assert_eq!(exit, CommandExit::Code(0));
    assert_eq!((&streams["output"], streams["taken"].len()), (&input, 3));

    let size = WindowSize { rows: 30, columns: 99 };
    let terminal = CommandTerminal { size, stdout: true, stderr: false };
    let (exit, streams) = play(job("size", 0, Some(terminal)), &[], |_| None);
    let printed = String::from_utf8_lossy(&streams["stdout"]);
    assert_eq!(exit, CommandExit::Code(0));
    assert!(printed.contains("30x99\r\n"), "{printed}");
    assert_eq!(streams["stderr"], b"on stderr\n");

    // Nobody reads: Rust's own programs are told by an error, and others by a signal.
    let mut asked = false;
    let (exit, _) = play(job("talk", 0, None), &[], |printed| {
        let is_first = printed.contains("xxx") && !std::mem::replace(&mut asked, true);
        is_first.then_some(ToAgent::StdoutClosed)
    });
    assert!(matches!(exit, CommandExit::Code(_)), "{exit:?}");

    let (exit, _) =
        play(job("sleep", 0, None), &[], |printed| printed.contains("asleep").then_some(ToAgent::Signal(15)));
    assert_eq!(exit, CommandExit::Signal(15));
}
