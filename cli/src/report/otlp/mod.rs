//! What was found, as logs of OpenTelemetry: as lines of a file, or sent to a receiver while the recording is written.

mod logs;
mod queue;
mod receiver;
mod sender;

pub(super) use queue::WhenFull;
pub(super) use sender::Delivery;

use self::logs::Envelope;
use self::queue::{Bounds, Queue};
use self::receiver::Receiver;
use self::sender::Sender;
use super::{ReportError, detections};
use crate::args::Endpoint;
use crate::detection::Source;
use crate::record::Reader;
use std::io::{self, BufRead, Write};
use std::thread;

/// Writes a request for each detection of `recording`. Whoever reads them has each one at once.
pub(super) fn write(recording: &mut Reader<impl BufRead>, out: &mut dyn Write) -> Result<(), ReportError> {
    let envelope = Envelope::of(&Source::from(recording.header()));
    detections::each(recording, |found| {
        writeln!(out, "{}", envelope.request(&[logs::record(found)]))?;
        out.flush()
    })
}

/// Sends a record for each detection of `recording` to `endpoint`. Says what has come of them, also where not all was read.
pub(super) fn send(
    recording: &mut Reader<impl BufRead>,
    endpoint: &Endpoint,
    when_full: WhenFull,
) -> (Result<(), ReportError>, Delivery) {
    send_within(recording, endpoint, when_full, Bounds::default())
}

fn send_within(
    recording: &mut Reader<impl BufRead>,
    endpoint: &Endpoint,
    when_full: WhenFull,
    bounds: Bounds,
) -> (Result<(), ReportError>, Delivery) {
    let envelope = Envelope::of(&Source::from(recording.header()));
    let queue = Queue::new(bounds);
    let sender = Sender::new(&queue, Receiver::at(endpoint), envelope);
    thread::scope(|scope| {
        let sender = match thread::Builder::new().spawn_scoped(scope, || sender.run()) {
            Ok(sender) => sender,
            Err(error) => return (Err(error.into()), Delivery::default()),
        };
        let read = detections::each(recording, |found| {
            queue.push(logs::record(found), when_full);
            Ok(())
        });
        queue.close();
        match sender.join() {
            Ok(delivery) => (read, delivery),
            Err(_) => (Err(io::Error::other("the thread that sends has ended").into()), Delivery::default()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;
    use serde_json::Value;
    use std::io::{BufReader, Read};
    use std::net::{TcpListener, TcpStream};
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    /// A second of this machine's may be long.
    const LONG: Duration = Duration::from_secs(30);

    fn quick() -> Bounds {
        let (linger, grace) = (Duration::from_millis(1), Duration::from_millis(500));
        Bounds { linger, grace, answer: LONG, ..Bounds::default() }
    }

    /// A request as it has come: its first line, and its body.
    type Request = (String, Value);

    fn read_request(stream: &mut BufReader<TcpStream>) -> Option<Request> {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            head.push(line.trim_end().to_ascii_lowercase());
        }
        assert!(head.contains(&"content-type: application/json".to_owned()), "{head:?}");
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        Some((head[0].clone(), serde_json::from_slice(&body).unwrap()))
    }

    /// A receiver that gives these answers, one after the other, and then none. The thread gives what it was asked.
    fn receiver(answers: &[&str]) -> (Endpoint, JoinHandle<Vec<Request>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
        let serving = thread::spawn(move || {
            let (mut requests, mut answers) = (Vec::new(), answers.into_iter().peekable());
            while answers.peek().is_some() {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                while answers.peek().is_some() {
                    let Some(request) = read_request(&mut stream) else { break };
                    requests.push(request);
                    let answer = answers.next().unwrap();
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                }
            }
            requests
        });
        (endpoint, serving)
    }

    fn answer(status: &str, headers: &str, body: &str) -> String {
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n{body}",
            body.len()
        )
    }

    /// Sends the findings of the docs, of which there are two.
    fn sent(endpoint: &Endpoint, bounds: Bounds) -> Delivery {
        let mut recording = Reader::open(example("jsonl finding").as_bytes()).unwrap();
        let (read, delivery) = send_within(&mut recording, endpoint, WhenFull::Lose, bounds);
        read.unwrap();
        delivery
    }

    /// The values of a member of all records that have come.
    fn values<'a>(requests: &'a [Request], pointer: &str) -> Vec<&'a str> {
        let records = requests
            .iter()
            .flat_map(|(_, body)| body["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().unwrap());
        records.filter_map(|record| record.pointer(pointer)?.as_str()).collect()
    }

    const GUARD: &str = "vmm.guard.finding";

    /// A remark of the receiver's is no loss.
    #[test]
    fn findings_are_sent() {
        let remark = answer("200 OK", "", "{\"partialSuccess\":{\"errorMessage\":\"an old version\"}}");
        let (endpoint, serving) = receiver(&[&remark]);
        assert_eq!(sent(&endpoint, quick()), Delivery { delivered: 2, lost: 0, why: None });
        let requests = serving.join().unwrap();
        assert_eq!(requests[0].0, "post /v1/logs http/1.1");
        assert_eq!(values(&requests, "/eventName"), [GUARD, GUARD]);
    }

    #[test]
    fn what_is_not_taken_now_is_sent_again() {
        let (endpoint, serving) = receiver(&[
            &answer("503 Service Unavailable", "retry-after: 0\r\n", "{\"message\":\"busy\"}"),
            &answer("429 Too Many Requests", "", ""),
            &answer("200 OK", "", ""),
        ]);
        let delivery = sent(&endpoint, Bounds { grace: LONG, ..quick() });
        assert_eq!((delivery.delivered, delivery.lost), (2, 0), "{delivery:?}");
        let requests = serving.join().unwrap();
        assert_eq!(requests[0].1, requests[2].1);
        assert_eq!(requests.len(), 3);
    }

    #[test]
    fn a_receiver_that_never_answers_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let begun = Instant::now();
        let delivery = sent(&endpoint, Bounds { answer: Duration::from_millis(200), ..quick() });
        assert_eq!((delivery.delivered, delivery.lost), (0, 2), "{delivery:?}");
        assert!(delivery.why.is_some_and(|why| why == "it does not answer"));
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn what_is_rejected_or_refused_is_lost_and_the_receiver_is_told() {
        let taken = answer("200 OK", "", "{}");
        for (refusal, lost, why) in [
            (
                answer(
                    "200 OK",
                    "",
                    "{\"partialSuccess\":{\"rejectedLogRecords\":\"1\",\"errorMessage\":\"too\\u001b old\"}}",
                ),
                1,
                "too? old",
            ),
            (
                answer("200 OK", "", "{\"partialSuccess\":{\"rejectedLogRecords\":7,\"errorMessage\":null}}"),
                2,
                "it rejects them",
            ),
            (answer("400 Bad Request", "", "{\"message\":\"no\"}"), 2, "it answers 400: no"),
            (answer("301 Moved", "location: http://127.0.0.1:1/\r\n", ""), 2, "it answers 301"),
        ] {
            let (endpoint, serving) = receiver(&[&refusal, &taken]);
            let delivery = sent(&endpoint, quick());
            assert_eq!(delivery, Delivery { delivered: 2 - lost, lost, why: Some(why.to_owned()) });
            let requests = serving.join().unwrap();
            assert_eq!(values(&requests, "/eventName"), [GUARD, GUARD, "vmm.events.lost"]);
            let told = values(&requests[1..], "/body/stringValue");
            assert_eq!(told, [format!("{lost} events were not delivered so far")]);
        }
    }

    #[test]
    fn a_finding_is_sent_while_the_recording_is_written() {
        let (endpoint, serving) = receiver(&[&answer("200 OK", "", "{}")]);
        let (reader, mut writer) = io::pipe().unwrap();
        let text = example("jsonl finding");
        let (begin, end) = text.split_at(text.match_indices('\n').nth(1).unwrap().0 + 1);
        let sending = thread::spawn(move || {
            let mut recording = Reader::open(BufReader::new(reader)).unwrap();
            send_within(&mut recording, &endpoint, WhenFull::Lose, quick()).1
        });
        writer.write_all(begin.as_bytes()).unwrap();
        // The rest is not there yet.
        assert_eq!(values(&serving.join().unwrap(), "/eventName"), [GUARD]);
        writer.write_all(end.as_bytes()).unwrap();
        drop(writer);
        let delivery = sending.join().unwrap();
        assert_eq!((delivery.delivered, delivery.lost), (1, 1), "nobody is there for the second one");
    }

    #[test]
    fn a_slow_receiver_keeps_nobody_waiting_and_is_told_what_it_has_missed() {
        let text = example("jsonl finding");
        let finding = text.lines().nth(1).unwrap();
        let many = text.replace(finding, &[finding; 1000].join("\n"));
        let taken = answer("200 OK", "", "{}");
        let (endpoint, serving) =
            receiver(&[&answer("503 Service Unavailable", "retry-after: 2\r\n", ""), &taken, &taken]);
        let bounds = Bounds { records: 10, batch_records: 10, grace: LONG, ..quick() };
        let mut recording = Reader::open(many.as_bytes()).unwrap();
        let (read, delivery) = send_within(&mut recording, &endpoint, WhenFull::Lose, bounds);
        read.unwrap();
        assert_eq!(delivery.delivered + delivery.lost, 1001);
        assert!((10..=20).contains(&delivery.delivered), "{delivery:?}");
        let requests = serving.join().unwrap();
        let told = values(&requests, "/body/stringValue");
        let told = told.last().unwrap();
        assert_eq!(*told, format!("{} events were not delivered so far", delivery.lost));
    }
}
