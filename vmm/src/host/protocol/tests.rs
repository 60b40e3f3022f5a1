use super::*;
use crate::terminal::CommandTerminal;

fn job() -> Job {
    Job {
        program: Program::ThisBinary,
        args: vec![Arg::Text("run".into()), Arg::File(0), Arg::Output(1)],
        env: vec![("TERM".into(), Arg::Text("xterm".into())), ("KERNEL".into(), Arg::File(0))],
        files: vec![DiskFile { name: "bzImage".into(), mode: 0o644, offset: 4096, length: 7 }],
        folder: Some("/tmp".into()),
        outputs: 2,
        keeps_files: true,
        terminal: Some(CommandTerminal {
            size: WindowSize { rows: 24, columns: 80 },
            stdout: true,
            stderr: false,
        }),
        time: 1_790_000_000,
        seed: Some([7; 32]),
    }
}

fn inward() -> Vec<ToAgent<'static>> {
    let size = WindowSize { rows: 1, columns: 2 };
    vec![
        ToAgent::Hello,
        ToAgent::Run(Box::new(job())),
        ToAgent::Stdin(b"typed"),
        ToAgent::StdinEnd,
        ToAgent::Signal(15),
        ToAgent::WindowSize(size),
        ToAgent::StdoutClosed,
        ToAgent::StderrClosed,
    ]
}

fn outward() -> Vec<FromAgent<'static>> {
    vec![
        FromAgent::Ready,
        FromAgent::Stdout(b""),
        FromAgent::Stderr(b"e"),
        FromAgent::Output(3, b"hit"),
        FromAgent::StdinTaken,
        FromAgent::Exit(CommandExit::Signal(9)),
        FromAgent::Failed("no such file"),
    ]
}

fn decode_all(bytes: &[u8]) -> (usize, ProtocolError) {
    let mut reader = FrameReader::new(bytes);
    for good in 0.. {
        let message = reader.next().and_then(|f| match ToAgent::decode(f) {
            Err(ProtocolError::UnknownKind(_)) => FromAgent::decode(f).map(|_| ()),
            other => other.map(|_| ()),
        });
        if let Err(error) = message {
            return (good, error);
        }
    }
    unreachable!()
}

#[test]
fn messages_come_out_as_they_went_in() {
    for message in inward() {
        let bytes = message.encode().unwrap();
        assert_eq!(ToAgent::decode(FrameReader::new(&*bytes).next().unwrap()).unwrap(), message);
    }
    for message in outward() {
        let bytes = message.encode().unwrap();
        assert_eq!(FromAgent::decode(FrameReader::new(&*bytes).next().unwrap()).unwrap(), message);
    }
}

#[test]
fn no_signal_is_a_success() {
    let codes = [0, 7, 255, 256, -1].map(|code| CommandExit::Code(code).code());
    assert_eq!(codes, [0, 7, 255, 0, 255]);
    let signals = [1, 15, 127, 128, 256, -128].map(|signal| CommandExit::Signal(signal).code());
    assert_eq!(signals, [129, 143, 255, 128, 128, 128]);
}

#[test]
fn a_payload_over_the_limit_is_refused_at_both_ends() {
    let long = vec![0; MAX_PAYLOAD + 1];
    assert!(matches!(ToAgent::Stdin(&long).encode(), Err(ProtocolError::TooLong(_))));
    let header = [&[kind::STDIN][..], &u32::MAX.to_le_bytes()].concat();
    assert!(matches!(decode_all(&header), (0, ProtocolError::TooLong(_))));
}

#[test]
fn a_cut_stream_is_an_error_wherever_it_is_cut() {
    let all: Vec<Vec<u8>> = inward()
        .iter()
        .map(|m| m.encode())
        .chain(outward().iter().map(|m| m.encode()))
        .map(Result::unwrap)
        .collect();
    let stream = all.concat();
    assert!(matches!(decode_all(&stream), (15, ProtocolError::Closed)));
    for cut in 0..stream.len() {
        let (good, error) = decode_all(&stream[..cut]);
        let whole: usize = all[..good].iter().map(Vec::len).sum();
        assert_eq!(matches!(error, ProtocolError::Closed), whole == cut, "cut at {cut}: {error:?}");
    }
}

#[test]
fn corrupted_streams_end_in_an_error() {
    let stream: Vec<u8> = inward().iter().flat_map(|m| m.encode().unwrap()).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..20_000 {
        let mut bytes = stream.clone();
        for _ in 0..3 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = random as usize % bytes.len();
            bytes[at] = (random >> 32) as u8;
        }
        let (good, _) = decode_all(&bytes);
        assert!(good <= bytes.len() / HEADER);
    }
}
