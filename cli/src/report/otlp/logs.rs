//! Detections as logs of OpenTelemetry: `ExportLogsServiceRequest` in the JSON encoding of OTLP (opentelemetry/proto/logs/v1/logs.proto).
//! Numbers of 64 bits are texts there.

use crate::detection::{Detection, Found, Origin, Severity, Source, ocsf};
use crate::json::json;
use crate::record::{MOST_OF_A_HIT, write_bounded};
use rustix::system::uname;
use serde_json::{Value, json as object};

/// What all records of one source have around them.
pub(super) struct Envelope {
    resource: String,
    scope: String,
}

impl Envelope {
    pub(super) fn of(source: &Source) -> Self {
        let mut about = vec![
            text("service.name", "vmm"),
            text("service.version", &source.vmm),
            text("service.instance.id", &source.wall_ns.to_string()),
            text("host.name", &uname().nodename().to_string_lossy()),
        ];
        let kernel = &source.kernel;
        about.extend(kernel.release.as_ref().map(|release| text("vmm.guest.kernel.release", release)));
        about.extend(kernel.build_id.as_ref().map(|id| text("vmm.guest.kernel.build_id", id)));
        Self {
            resource: line(&object!({ "attributes": about })),
            scope: line(&object!({ "name": "vmm", "version": env!("CARGO_PKG_VERSION") })),
        }
    }

    /// The request with these records, on one line without its end.
    pub(super) fn request(&self, records: &[String]) -> String {
        let Self { resource, scope } = self;
        let records = records.join(",");
        format!(
            "{{\"resourceLogs\":[{{\"resource\":{resource},\"scopeLogs\":[{{\"scope\":{scope},\"logRecords\":[{records}]}}]}}]}}"
        )
    }
}

/// The record that tells what was found.
pub(super) fn record(found: &Found) -> String {
    let Detection { origin, title, severity, techniques, task, line, count, .. } = &found.detection;
    let event = match origin {
        Origin::Guard => "vmm.guard.finding",
        Origin::Scan(_) => "vmm.scan.finding",
        Origin::Rule(_) => "vmm.rule.hit",
        Origin::Kernel => "vmm.kernel.fault",
    };
    let mut original = String::new();
    // Writing to a string cannot fail.
    let _ = write_bounded(&mut original, MOST_OF_A_HIT, line);
    let mut attributes = vec![
        text("log.record.uid", &found.uid),
        text("log.record.original", &original),
        text("ocsf.metadata.version", ocsf::SCHEMA),
        number("ocsf.category_uid", ocsf::CATEGORY.into()),
        number("ocsf.class_uid", ocsf::CLASS.into()),
        number("ocsf.activity_id", ocsf::ACTIVITY.into()),
        number("ocsf.type_uid", ocsf::TYPE.into()),
        number("ocsf.severity_id", (*severity as u8).into()),
        number("ocsf.count", *count),
        text("ocsf.finding_info.title", title),
        texts("ocsf.finding_info.types", &[origin.to_string()]),
        texts("ocsf.finding_info.attacks", techniques),
    ];
    if let Some(task) = task {
        attributes.push(number("process.pid", task.tgid.into()));
        attributes.push(number("thread.id", task.pid.into()));
        attributes.push(text("thread.name", &String::from_utf8_lossy(task.comm())));
        attributes.extend(task.uid.map(|uid| text("user.id", &uid.to_string())));
    }
    log(found.wall_ns, *severity, event, &found.detection.message(), attributes)
}

/// The record that tells how many others were lost so far, at this time.
pub(super) fn loss(wall_ns: u64, lost: u64) -> String {
    let message = format!("{lost} events were not delivered so far");
    log(wall_ns, Severity::High, "vmm.events.lost", &message, vec![number("vmm.events.lost", lost)])
}

/// `vmm` is who has seen it: when it was, and when it was observed, are one time.
fn log(wall_ns: u64, severity: Severity, event: &str, message: &str, attributes: Vec<Value>) -> String {
    line(&object!({
        "timeUnixNano": wall_ns.to_string(),
        "observedTimeUnixNano": wall_ns.to_string(),
        "severityNumber": severity_number(severity),
        "severityText": format!("{severity:?}"),
        "eventName": event,
        "body": { "stringValue": message },
        "attributes": attributes,
    }))
}

/// The first of the numbers of INFO, WARN, ERROR and FATAL; what is low is more than informational.
fn severity_number(severity: Severity) -> u8 {
    match severity {
        Severity::Informational => 9,
        Severity::Low => 10,
        Severity::Medium => 13,
        Severity::High => 17,
        Severity::Critical => 21,
    }
}

fn text(key: &str, value: &str) -> Value {
    object!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: u64) -> Value {
    object!({ "key": key, "value": { "intValue": value.to_string() } })
}

fn texts(key: &str, values: &[String]) -> Value {
    let values: Vec<Value> = values.iter().map(|value| object!({ "stringValue": value })).collect();
    object!({ "key": key, "value": { "arrayValue": { "values": values } } })
}

/// `value` on one line that a terminal may show, without its end.
fn line(value: &Value) -> String {
    let mut bytes = Vec::new();
    // Writing to memory cannot fail, and what is written is text.
    let _ = json(&mut bytes, value);
    let mut line = String::from_utf8(bytes).unwrap_or_default();
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detection::Numbering;
    use crate::record::{KernelIdentity, Line, Reader, example};
    use probe_engine::guest_text::is_special;
    use std::collections::BTreeMap;

    type IsOfType = fn(&Value) -> bool;

    fn is_u64_as_text(value: &Value) -> bool {
        value.as_str().is_some_and(|text| text.parse::<u64>().is_ok_and(|number| number > 0))
    }

    /// What a record has by `logs.proto`, with the type that its JSON encoding gives to each.
    const REQUIRED: [(&str, IsOfType); 7] = [
        ("/timeUnixNano", is_u64_as_text),
        ("/observedTimeUnixNano", is_u64_as_text),
        ("/severityNumber", |value| value.as_u64().is_some_and(|number| (1..=24).contains(&number))),
        ("/severityText", Value::is_string),
        ("/eventName", Value::is_string),
        ("/body/stringValue", Value::is_string),
        ("/attributes/0/key", Value::is_string),
    ];

    /// The value of each attribute; each has one, of one type, and no key is there twice.
    fn attributes(of: &Value) -> BTreeMap<String, Value> {
        let mut found = BTreeMap::new();
        for attribute in of["attributes"].as_array().unwrap() {
            let value = attribute["value"].as_object().unwrap();
            let [(kind, value)] = value.iter().collect::<Vec<_>>()[..] else { panic!("{attribute}") };
            match kind.as_str() {
                "stringValue" => assert!(value.is_string()),
                "intValue" => assert!(value.as_str().unwrap().parse::<i64>().is_ok()),
                "arrayValue" => {
                    assert!(
                        value["values"].as_array().unwrap().iter().all(|one| one["stringValue"].is_string())
                    );
                }
                _ => panic!("{attribute}"),
            }
            let key = attribute["key"].as_str().unwrap().to_owned();
            assert_eq!(found.insert(key, value.clone()), None, "{attribute}");
        }
        found
    }

    fn source() -> Source {
        let kernel = KernelIdentity { release: Some("6.12.48".to_owned()), build_id: None };
        Source { vmm: "0.1.0".to_owned(), kernel, wall_ns: 1_795_617_600_000_000_000 }
    }

    #[test]
    fn a_request_has_what_the_protocol_wants() {
        let request = Envelope::of(&source()).request(&[loss(1, 2), loss(3, 4)]);
        let request: Value = serde_json::from_str(&request).unwrap();
        let [logs] = &request["resourceLogs"].as_array().unwrap()[..] else { panic!("{request}") };
        let about = attributes(&logs["resource"]);
        assert_eq!(
            (&about["service.name"], &about["service.version"], &about["service.instance.id"]),
            (&"vmm".into(), &"0.1.0".into(), &"1795617600000000000".into())
        );
        assert_eq!(about["vmm.guest.kernel.release"], "6.12.48");
        assert!(
            !about["host.name"].as_str().unwrap().is_empty()
                && !about.contains_key("vmm.guest.kernel.build_id")
        );
        let [logs] = &logs["scopeLogs"].as_array().unwrap()[..] else { panic!("{request}") };
        assert_eq!(logs["scope"], object!({ "name": "vmm", "version": env!("CARGO_PKG_VERSION") }));
        let records = logs["logRecords"].as_array().unwrap();
        assert_eq!(records.len(), 2);
        for record in records {
            for (pointer, is_of_type) in REQUIRED {
                assert!(record.pointer(pointer).is_some_and(is_of_type), "{pointer}: {record}");
            }
        }
        assert_eq!(attributes(&records[1])["vmm.events.lost"], "4");
    }

    #[test]
    fn a_finding_is_a_record_in_which_nothing_acts_on_a_terminal() {
        let hostile =
            example("jsonl finding").replace("\"comm\":\"insmod\"", "\"comm\":\"a\\u001b[2J\u{202e}\"");
        let mut reader = Reader::open(hostile.as_bytes()).unwrap();
        let Some(Line::Finding(finding)) = reader.next().unwrap() else { panic!() };
        let found = Numbering::of(&source()).found(Detection::of_write(&finding), Some(finding.nanos()));
        let record = record(&found);
        assert!(!record.chars().any(is_special), "{record}");
        let record: Value = serde_json::from_str(&record).unwrap();
        for (pointer, is_of_type) in REQUIRED {
            assert!(record.pointer(pointer).is_some_and(is_of_type), "{pointer}: {record}");
        }
        assert_eq!(
            (&record["timeUnixNano"], &record["severityNumber"]),
            (&"1795617603469881356".into(), &17.into())
        );
        assert_eq!(
            (&record["eventName"], &record["severityText"]),
            (&"vmm.guard.finding".into(), &"High".into())
        );
        assert!(
            record["body"]["stringValue"]
                .as_str()
                .unwrap()
                .starts_with("A write to the kernel's code or constants was denied: 1 byte (f4) to 0x")
        );
        let attributes = attributes(&record);
        for (key, value) in [
            ("log.record.uid", "1795617600000000000-1"),
            ("ocsf.metadata.version", "1.3.0"),
            ("ocsf.category_uid", "2"),
            ("ocsf.class_uid", "2004"),
            ("ocsf.activity_id", "1"),
            ("ocsf.type_uid", "200401"),
            ("ocsf.severity_id", "4"),
            ("ocsf.count", "1"),
            ("process.pid", "135"),
            ("thread.id", "135"),
            ("thread.name", "a\u{1b}[2J\u{202e}"),
            ("user.id", "0"),
        ] {
            assert_eq!(attributes[key], value, "{key}");
        }
        assert_eq!(attributes["ocsf.finding_info.types"]["values"][0]["stringValue"], "guard");
        assert_eq!(attributes["ocsf.finding_info.attacks"]["values"][0]["stringValue"], "T1014");
        let original: Value =
            serde_json::from_str(attributes["log.record.original"].as_str().unwrap()).unwrap();
        assert_eq!(original, serde_json::from_str::<Value>(reader.text()).unwrap());
    }

    #[test]
    fn severities_are_in_the_ranges_of_the_data_model() {
        let all =
            [Severity::Informational, Severity::Low, Severity::Medium, Severity::High, Severity::Critical];
        assert_eq!(all.map(severity_number), [9, 10, 13, 17, 21]);
    }
}
