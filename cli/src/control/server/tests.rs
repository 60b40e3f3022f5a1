use super::super::frame::{self, Asked, Change, Chosen, Request, Said};
use super::serving::MOST_CLIENTS;
use super::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What a session is asked, in order.
#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<Request>>,
    changed: Condvar,
}

impl Seen {
    fn add(&self, request: Request) {
        self.requests.lock().unwrap().push(request);
        self.changed.notify_all();
    }

    /// Waits until `request` has come so often.
    fn wait(&self, request: &Request, times: usize) {
        let requests = self.requests.lock().unwrap();
        let count = |all: &Vec<Request>| all.iter().filter(|own| *own == request).count();
        let limit = Duration::from_secs(20);
        let (requests, over) =
            self.changed.wait_timeout_while(requests, limit, |all| count(all) < times).unwrap();
        assert!(!over.timed_out(), "{request:?} has not come {times} times: {requests:?}");
    }
}

/// A server with a socket, and a session that answers at once.
struct Rig {
    folder: TempDir,
    server: Server,
    seen: Arc<Seen>,
}

/// A wrong definition, of which it takes a moment to know that.
const LATE: &str = "late";
/// So long is the list of probes, in bytes.
const LONG: usize = 8 << 20;

impl Rig {
    /// One without a session.
    fn unlinked() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = OwnSocket::open("--control", &folder.path().join("socket")).unwrap();
        let definer: Definer = Box::new(|definitions, tell| {
            for (number, texts) in definitions {
                if texts == [LATE] {
                    thread::sleep(Duration::from_millis(300));
                }
                let is_known = texts.iter().all(|text| text == "vfs_read");
                tell(number, if is_known { Ok(Vec::new()) } else { Err("no such function".to_owned()) });
            }
        });
        Self { folder, server: Server::start(Some(socket), definer).unwrap(), seen: Arc::default() }
    }

    fn new() -> Self {
        let rig = Self::unlinked();
        rig.link();
        rig
    }

    /// A session comes, whose CPU 7 takes no end, and whose end comes with quit. CPU 8 has much to say. Once it has shown CPU 9, it answers
    /// a pause no sooner than it is resumed.
    fn link(&self) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.server.link(theirs);
        let seen = self.seen.clone();
        thread::spawn(move || {
            let (mut answers, mut requests) = (ours.try_clone().unwrap(), ours);
            let (mut is_slow, mut late) = (false, None);
            while let Ok(Some(Asked { number, request, .. })) = frame::receive::<Asked>(&mut requests) {
                let result = match &request {
                    Request::Quit => return requests.shutdown(Shutdown::Both).unwrap(),
                    Request::Stack(Some(7)) => None,
                    Request::Stack(Some(8)) => Some(json!("x".repeat(LONG)).to_string()),
                    Request::Stack(vcpu) => Some(json!({ "vcpu": vcpu }).to_string()),
                    _ => Some("{}".to_owned()),
                };
                is_slow |= request == Request::Stack(Some(9));
                let (pauses, resumes) = (Request::Pause(true), Request::Pause(false));
                let (is_late, is_over) = (is_slow && request == pauses, request == resumes);
                let answer = result.map(|result| Answer { number, result: Ok(result) });
                let mut now: Vec<Answer> = answer.into_iter().collect();
                if is_late {
                    late = now.pop();
                }
                if is_over {
                    now.extend(late.take());
                }
                seen.add(request);
                for answer in now {
                    let _ = frame::send(&mut answers, &Said::Answer(answer));
                }
            }
        });
    }

    fn client(&self) -> TestClient {
        let stream = UnixStream::connect(self.folder.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        TestClient(BufReader::new(stream))
    }
}

struct TestClient(BufReader<UnixStream>);

impl TestClient {
    fn send(&mut self, line: &[u8]) {
        self.0.get_mut().write_all(&[line, b"\n"].concat()).unwrap();
    }

    fn send_call(&mut self, id: u64, method: &str, params: &Value) {
        self.send(
            json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string().as_bytes(),
        );
    }

    /// The next line, or null at the end.
    fn next(&mut self) -> Value {
        let mut line = String::new();
        match self.0.read_line(&mut line).unwrap() {
            0 => Value::Null,
            _ => serde_json::from_str(&line).unwrap(),
        }
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.send_call(1, method, &params);
        self.next()
    }

    #[track_caller]
    fn is_served(&mut self) {
        assert_eq!(self.call("stack", json!({ "vcpu": 3 }))["result"]["vcpu"], 3);
    }
}

/// As a front end of this very process does.
#[test]
fn whoever_joins_is_a_client_as_the_others_are() {
    let rig = Rig::new();
    let mut joined = rig.server.entrance().join().unwrap();
    joined.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pause\"}\n").unwrap();
    let mut line = String::new();
    BufReader::new(joined.try_clone().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("result"), "{line}");
    drop(joined);
    rig.seen.wait(&Request::LetGo, 1);
}

/// A session whose watches are numbered from 5 on, and are hit before they are answered. It steps only CPU 0, and says nothing of that.
fn debugged(rig: &Rig) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    rig.server.link(theirs);
    let seen = rig.seen.clone();
    thread::spawn(move || {
        let (mut said, mut requests) = (ours.try_clone().unwrap(), ours);
        let mut watches = 5..;
        while let Ok(Some(Asked { number, request, .. })) = frame::receive::<Asked>(&mut requests) {
            let result = match &request {
                Request::Change(Change::Watch { .. }) => {
                    let probe = watches.next().unwrap();
                    let how = json!({ "vcpu": 1 }).to_string();
                    frame::send(&mut said, &Said::Stopped(Stop { number: 1, probe: Some(probe), how }))
                        .unwrap();
                    Ok(json!({ "probes": [{ "id": probe }] }))
                }
                Request::Change(Change::Remove(_)) => Ok(json!({ "probes": [{ "id": 5 }] })),
                Request::Step(1) => Err("there is no such CPU".to_owned()),
                _ => Ok(json!({})),
            };
            let result = result.map(|result| result.to_string());
            frame::send(&mut said, &Said::Answer(Answer { number, result })).unwrap();
            seen.add(request);
        }
    });
}

fn watched() -> Value {
    json!({ "address": "0x1000", "length": 8, "access": "w" })
}

/// The notice may come before it is answered which probe that is.
#[test]
fn a_guest_that_stands_still_at_a_probe_is_its_clients_until_that_goes() {
    let rig = Rig::unlinked();
    debugged(&rig);
    let (mut other, mut client) = (rig.client(), rig.client());
    assert_eq!(other.call("list", Value::Null)["result"], json!({}));
    for probe in 5..8 {
        assert_eq!(client.call("watch", watched())["result"]["probes"][0]["id"], probe);
        let stopped = client.next();
        assert_eq!((&stopped["method"], &stopped["params"]["vcpu"]), (&json!("stopped"), &json!(1)));
    }
    client.call("remove", json!({ "probes": [5] }));
    drop(client);
    rig.seen.wait(&Request::LetGo, 1);
    let all = rig.seen.requests.lock().unwrap();
    let forgotten = all.iter().filter_map(|request| match request {
        Request::Change(Change::Forget(probes)) => Some(probes.iter().copied().collect::<BTreeSet<_>>()),
        _ => None,
    });
    assert_eq!(
        forgotten.collect::<Vec<_>>(),
        [BTreeSet::from([6, 7])],
        "in one request, what is there still"
    );
    drop(all);
    assert_eq!(other.call("list", Value::Null)["result"], json!({}), "nothing was said to others");
}

#[test]
fn one_step_at_a_time_is_under_way() {
    let rig = Rig::unlinked();
    debugged(&rig);
    let (mut first, mut second) = (rig.client(), rig.client());
    assert!(first.call("step", json!({ "vcpu": 1 }))["error"].is_object());
    assert_eq!(first.call("step", json!({ "vcpu": 0 }))["result"], json!({}), "one that is refused is none");
    let refused = second.call("step", json!({ "vcpu": 0 }));
    assert!(refused["error"]["message"].as_str().unwrap().contains("already"), "{refused}");
    assert_eq!(second.call("resume", Value::Null)["result"], json!({}));
    assert_eq!(second.call("step", json!({ "vcpu": 0 }))["result"], json!({}), "the first is over");
}

/// Nobody is there for the probe, and the definition that might have been of it is wrong.
#[test]
fn a_guest_does_not_stand_still_for_a_probe_that_nobody_gets() {
    let rig = Rig::unlinked();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    rig.server.link(theirs);
    let mut client = rig.client();
    client.send_call(1, "add", &json!({ "definitions": [LATE], "stop": true }));
    thread::sleep(Duration::from_millis(100));
    let stop = Stop { number: 4, probe: Some(1), how: json!({}).to_string() };
    frame::send(&mut &ours, &Said::Stopped(stop)).unwrap();
    assert!(client.next()["error"].is_object());
    let let_go = frame::receive::<Asked>(&mut &ours).unwrap().unwrap();
    assert_eq!((let_go.request, let_go.stop), (Request::LetGo, 4), "and for no later one");
}

#[test]
fn calls_are_answered() {
    let rig = Rig::new();
    let mut client = rig.client();
    assert_eq!(client.call("version", Value::Null)["result"]["protocol"], 1);
    assert_eq!(client.call("list", Value::Null)["result"], json!({}));
    assert_eq!(client.call("add", json!({ "definitions": ["vfs_read"] }))["result"], json!({}));
    rig.seen.wait(&Request::Change(Change::Add(Vec::new())), 1);
    let refused = client.call("add", json!({ "definitions": ["nowhere"] }));
    assert_eq!(refused["error"], json!({ "code": 1, "message": "no such function" }));
    client.call("remove", json!({ "probes": [1, "vfs_read"] }));
    let chosen = vec![Chosen::Number(1), Chosen::Name("vfs_read".to_owned())];
    rig.seen.wait(&Request::Change(Change::Remove(chosen)), 1);
    assert_eq!(client.call("reboot", Value::Null)["error"]["code"], -32601);
}

#[test]
fn garbage_harms_nobody() {
    let rig = Rig::new();
    let (mut bad, mut good) = (rig.client(), rig.client());
    for line in [&b"garbage"[..], b"\xff\x00\xfe", b"[]", b"{}", b"\"", b"{\"jsonrpc\":\"2.0\"}"] {
        bad.send(line);
        assert!(bad.next()["error"]["code"].as_i64().unwrap() < 0);
        good.is_served();
    }
    bad.send(b"");
    bad.is_served();
}

#[test]
fn an_endless_line_ends_its_client_alone() {
    let rig = Rig::new();
    let (mut endless, mut good) = (rig.client(), rig.client());
    let mut writer = endless.0.get_ref().try_clone().unwrap();
    let written = thread::spawn(move || while writer.write_all(&[b'x'; 1 << 16]).is_ok() {});
    good.is_served();
    assert_eq!(endless.next()["error"]["code"], -32600);
    // What it has sent and nobody has read makes the end an error.
    let _ = endless.0.read_to_end(&mut Vec::new());
    written.join().unwrap();
    good.is_served();
}

/// A client sends as much as it can and reads nothing, another one asks for much and reads nothing of it.
#[test]
fn a_client_that_never_reads_is_left_and_keeps_nobody_waiting() {
    let rig = Rig::new();
    let (mut silent, mut good) = (rig.client(), rig.client());
    silent.send_call(1, "stack", &json!({ "vcpu": 8 }));
    let begun = Instant::now();
    let mut writer = silent.0.get_ref().try_clone().unwrap();
    let flood = thread::spawn(move || {
        let line = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"list\"}\n".repeat(1000);
        while writer.write_all(&line).is_ok() {}
    });
    while !flood.is_finished() {
        let asked = Instant::now();
        good.is_served();
        assert!(asked.elapsed() < Duration::from_secs(5), "somebody else does not read");
        assert!(begun.elapsed() < Duration::from_secs(60), "it is still there");
        thread::sleep(Duration::from_millis(50));
    }
    flood.join().unwrap();
    let all = rig.seen.requests.lock().unwrap();
    let lists = all.iter().filter(|request| **request == Request::List).count();
    assert_eq!(lists, 0, "its next line is not read before it has taken the answer to the first");
}

#[test]
fn the_guest_goes_on_when_the_last_one_that_has_paused_is_gone() {
    let rig = Rig::new();
    let (mut first, mut second) = (rig.client(), rig.client());
    assert_eq!(first.call("pause", Value::Null)["result"], json!({}));
    assert_eq!(second.call("pause", Value::Null)["result"], json!({}));
    rig.seen.wait(&Request::Pause(true), 2);
    drop(first);
    second.is_served();
    assert!(!rig.seen.requests.lock().unwrap().contains(&Request::LetGo), "the second wants it still");
    drop(second);
    rig.seen.wait(&Request::LetGo, 1);
}

/// It dies while it waits for something that does not come as long as the guest stands still.
#[test]
fn one_that_has_paused_and_waits_for_the_guest_lets_it_go_when_it_dies() {
    let rig = Rig::new();
    let mut client = rig.client();
    client.call("pause", Value::Null);
    client.send_call(2, "stack", &json!({ "vcpu": 7 }));
    rig.seen.wait(&Request::Stack(Some(7)), 1);
    drop(client);
    rig.seen.wait(&Request::LetGo, 1);
}

#[test]
fn whoever_has_paused_is_told_of_a_resume() {
    let rig = Rig::new();
    let (mut first, mut second) = (rig.client(), rig.client());
    first.call("pause", Value::Null);
    assert_eq!(second.call("resume", Value::Null)["result"], json!({}));
    assert_eq!(first.next()["method"], "resumed");
    first.call("pause", Value::Null);
    assert_eq!(first.call("resume", Value::Null)["result"], json!({}));
    // It knows that.
    first.is_served();
    drop(first);
    second.is_served();
    let all = rig.seen.requests.lock().unwrap();
    assert_eq!(all.iter().filter(|request| **request == Request::Pause(false)).count(), 2);
    assert!(!all.contains(&Request::LetGo), "nobody wants any more that it stands still");
}

/// Somebody resumes before the one that pauses has its answer.
#[test]
fn that_a_guest_goes_on_is_told_behind_the_answer_that_it_stands_still() {
    let rig = Rig::new();
    let (mut first, mut second) = (rig.client(), rig.client());
    second.call("stack", json!({ "vcpu": 9 }));
    first.send_call(1, "pause", &Value::Null);
    rig.seen.wait(&Request::Pause(true), 1);
    assert_eq!(second.call("resume", Value::Null)["result"], json!({}));
    assert_eq!(first.next()["id"], 1);
    assert_eq!(first.next()["method"], "resumed");
}

#[test]
fn what_was_sent_before_the_end_is_carried_out() {
    let rig = Rig::new();
    for _ in 0..20 {
        let mut client = rig.client();
        client.send(b"{\"jsonrpc\":\"2.0\",\"method\":\"arm\"}");
        client.send(b"{\"jsonrpc\":\"2.0\",\"method\":\"disarm\"}");
    }
    rig.seen.wait(&Request::Change(Change::Arm(true)), 20);
    rig.seen.wait(&Request::Change(Change::Arm(false)), 20);
    // A last line without an end is one as well.
    let mut client = rig.client();
    client.0.get_mut().write_all(b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"list\"}").unwrap();
    client.0.get_mut().shutdown(Shutdown::Write).unwrap();
    assert_eq!((client.next()["id"].clone(), client.next()), (json!(5), Value::Null));
}

#[test]
fn many_clients_get_each_answer_once_and_in_order() {
    let rig = Rig::new();
    thread::scope(|scope| {
        for client in 0..50 {
            let rig = &rig;
            scope.spawn(move || {
                let mut client = (client, rig.client());
                for id in 0..100 {
                    client.1.send_call(id, "stack", &json!({ "vcpu": 1000 * client.0 + id + 10 }));
                }
                for id in 0..100 {
                    let answer = client.1.next();
                    assert_eq!(answer["id"], id);
                    assert_eq!(answer["result"]["vcpu"], 1000 * client.0 + id + 10);
                }
            });
        }
    });
}

#[test]
fn there_is_no_room_for_more_clients_than_a_few() {
    let rig = Rig::new();
    let mut clients: Vec<_> = (0..MOST_CLIENTS).map(|_| rig.client()).collect();
    clients.last_mut().unwrap().is_served();
    let mut more = rig.client();
    assert_eq!((more.next()["error"]["code"].clone(), more.next()), (json!(1), Value::Null));
    clients.pop();
    // That it has gone is seen in a moment.
    let begun = Instant::now();
    while rig.client().call("version", Value::Null).get("result").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn clients_wait_for_a_session_and_are_told_when_it_has_ended() {
    let rig = Rig::unlinked();
    let (mut waiting, mut quitting) = (rig.client(), rig.client());
    waiting.send_call(1, "list", &Value::Null);
    drop(rig.client());
    thread::sleep(Duration::from_millis(50));
    assert!(rig.seen.requests.lock().unwrap().is_empty());
    rig.link();
    assert_eq!(waiting.next()["result"], json!({}));
    waiting.send_call(2, "stack", &json!({ "vcpu": 7 }));
    rig.seen.wait(&Request::Stack(Some(7)), 1);
    assert_eq!(quitting.call("quit", Value::Null)["result"], json!({}), "it has ended, as was wanted");
    assert_eq!(waiting.next()["error"]["message"], "the guest has ended");
    // Another session takes its place.
    waiting.send_call(3, "list", &Value::Null);
    rig.link();
    assert_eq!(waiting.next()["result"], json!({}));
    let path = rig.folder.path().join("socket");
    drop(rig.server);
    assert_eq!((waiting.next(), quitting.next()), (Value::Null, Value::Null));
    assert!(!path.exists());
}
