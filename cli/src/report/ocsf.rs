//! What was found, as events of the Open Cybersecurity Schema Framework, one JSON object a line.

use super::{ReportError, detections};
use crate::detection::{Source, ocsf};
use crate::json::json;
use crate::record::Reader;
use std::io::{BufRead, Write};

/// Writes an event for each detection of `recording`. Whoever reads them has each one at once.
pub(super) fn write(
    recording: &mut Reader<impl BufRead>,
    mut out: &mut dyn Write,
) -> Result<(), ReportError> {
    let source = Source::from(recording.header());
    detections::each(recording, |found| {
        json(&mut out, &ocsf::event(&source, found))?;
        out.flush()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;
    use serde_json::{Value, json as object};

    type IsOfType = fn(&Value) -> bool;

    /// What the schema requires of a Detection Finding, and of the objects in it (events/findings/detection_finding.json and
    /// objects/*.json of OCSF 1.3.0), with the type of each.
    const REQUIRED: [(&str, IsOfType); 14] = [
        ("/activity_id", Value::is_u64),
        ("/category_uid", Value::is_u64),
        ("/class_uid", Value::is_u64),
        ("/finding_info/title", Value::is_string),
        ("/finding_info/uid", Value::is_string),
        ("/finding_info/attacks/0/technique/uid", Value::is_string),
        ("/metadata/product/vendor_name", Value::is_string),
        ("/metadata/version", Value::is_string),
        ("/severity_id", Value::is_u64),
        ("/status_id", Value::is_u64),
        ("/time", Value::is_u64),
        ("/type_uid", Value::is_u64),
        ("/evidences/0/data", Value::is_object),
        ("/resources/0/type", Value::is_string),
    ];

    fn events(recording: &str) -> Vec<Value> {
        let mut out = Vec::new();
        write(&mut Reader::open(recording.as_bytes()).unwrap(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn findings_are_events_of_the_schema() {
        let (guard, scan) = (example("jsonl finding"), example("jsonl scan"));
        let (finding, check) = scan.split_once('\n').unwrap();
        let check = check.replace("\"untold\":0", "\"untold\":2");
        let hostile = guard
            .replace("\"untold\":0", "\"untold\":7")
            .replace("\"comm\":\"insmod\"", "\"comm\":\"a\\u001b[2J\"")
            .replace("{\"type\":\"end\"", &format!("{finding}\n{check}{{\"type\":\"end\""));
        let events = events(&hostile);
        let kinds: Vec<_> =
            events.iter().map(|event| event["finding_info"]["types"][0].as_str().unwrap()).collect();
        assert_eq!(kinds, ["guard", "guard", "guard", "scan: modules", "scan"]);
        for event in &events {
            for (pointer, is_of_type) in REQUIRED {
                assert!(event.pointer(pointer).is_some_and(is_of_type), "{pointer}: {event}");
            }
            assert_eq!(event["type_uid"], 200_401);
        }
        let [write, device, untold, module, more] = &*events else { panic!("{events:?}") };
        assert_eq!(write["evidences"][0]["process"]["name"], "a\u{1b}[2J");
        assert_eq!(
            device["message"],
            "A write to the kernel's code or constants was denied: 4096 bytes to 0xffffffff81000000 _text+0x0/0x40: a device was \
             told to write there; denied"
        );
        assert_eq!((&device["evidences"][0]["process"], &device["severity_id"]), (&Value::Null, &4.into()));
        assert_eq!([untold, write, more].map(|event| event["count"].as_u64()), [7, 1, 2].map(Some));
        assert!(write["time"].as_u64() < device["time"].as_u64());
        assert!(module["time"].as_u64() > device["time"].as_u64());
        assert_eq!(more["time"], module["time"], "nothing is later");
        assert_eq!(module["finding_info"]["attacks"][0]["sub_technique"]["uid"], "T1547.006");
        let numbers: Vec<_> = events.iter().map(|event| event["finding_info"]["uid"].clone()).collect();
        assert!(numbers.iter().zip(numbers.iter().skip(1)).all(|(one, next)| one != next));
        assert!(self::events(example("json")).is_empty());
    }

    #[test]
    fn faults_and_the_death_of_the_guest_are_events_of_the_schema() {
        let recording = example("jsonl finding");
        let splat = object!({
            "type": "splat", "number": 1, "time_ns": 7, "guest_ns": 7, "kind": "oops", "title": "Oops: 0002", "fingerprint": "f",
            "task": null, "cpu": 0, "frames": [], "expired": false, "repeats": 0, "text": []
        });
        let mut allowed = splat.clone();
        allowed["allowed"] = "it is known".into();
        let died = recording
            .replace("\"end\":\"powered off\"", "\"end\":\"the kernel has panicked: Fatal exception\"")
            .replace("{\"type\":\"end\"", &format!("{allowed}\n{splat}\n{{\"type\":\"end\""));
        assert_ne!(died, recording);
        let events = events(&died);
        let of_kernel: Vec<_> =
            events.iter().filter(|event| event["finding_info"]["types"][0] == "kernel").collect();
        let messages: Vec<_> = of_kernel.iter().map(|event| event["message"].as_str().unwrap()).collect();
        assert_eq!(
            messages,
            [
                "The kernel has reported a fault: Oops: 0002",
                "The guest has died: the kernel has panicked: Fatal exception"
            ]
        );
        for (event, (pointer, is_of_type)) in
            of_kernel.iter().flat_map(|event| REQUIRED.map(|required| (event, required)))
        {
            assert!(event.pointer(pointer).is_some_and(is_of_type), "{pointer}: {event}");
        }
    }

    #[test]
    fn hits_of_rules_are_events_of_the_schema() {
        let recording = example("jsonl rule");
        let [event] = &events(recording)[..] else { panic!() };
        for (pointer, is_of_type) in REQUIRED {
            assert!(event.pointer(pointer).is_some_and(is_of_type), "{pointer}: {event}");
        }
        assert_eq!(event["message"], "a kernel module is loaded: do_init_module name=\"dummy\"");
        assert_eq!(event["finding_info"]["types"][0], "rule: module-load");
        assert_eq!((&event["severity_id"], &event["severity"]), (&4.into(), &"High".into()));
        let attack = &event["finding_info"]["attacks"][0];
        assert_eq!(
            (&attack["technique"]["uid"], &attack["sub_technique"]["uid"]),
            (&"T1547".into(), &"T1547.006".into())
        );
        let evidence = &event["evidences"][0];
        assert_eq!(
            (&evidence["process"]["name"], &evidence["data"]["fields"]["name"]),
            (&"insmod".into(), &"dummy".into())
        );
        // A rule need not say what it belongs to, nor in other words what it means.
        let bare = recording.replace(
            "\"message\":\"a kernel module is loaded\",\"tags\":[\"attack.T1547.006\",\"severity.high\"],",
            "",
        );
        let [event] = &events(&bare)[..] else { panic!() };
        assert_eq!(
            (&event["severity"], &event["finding_info"]["title"]),
            (&"Medium".into(), &"module-load".into())
        );
        assert_eq!(event["finding_info"]["attacks"], object!([]));
    }
}
