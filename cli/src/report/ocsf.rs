//! Findings as events of the Open Cybersecurity Schema Framework: its class Detection Finding (2004), one JSON object a line. Each has
//! the technique of MITRE ATT&CK that the finding is a trace of.

use super::ReportError;
use crate::json::json;
use crate::record::{FindingLine, FoundThing, FoundWrite, Header, Line, Reader, ScanFindingLine};
use probe_engine::linux::task::Task;
use serde::Serialize;
use serde_json::{Value, json as object};
use std::io::{BufRead, Write};

/// The version of the schema.
const SCHEMA: &str = "1.3.0";
/// The version of ATT&CK.
const ATTACK: &str = "15.1";
const NANOS_OF_MILLI: u64 = 1_000_000;

/// What an event says.
struct Detection {
    /// What has found it: the guard, or a check of a scan.
    kind: String,
    title: &'static str,
    /// All of it in one sentence.
    said: String,
    /// Whether it came to nothing.
    is_blocked: bool,
    technique: Technique,
    process: Option<Value>,
    /// The recording's own line.
    line: Value,
    /// For how many findings it stands.
    count: u64,
}

/// What an attacker does, in ATT&CK's words: its number and its name.
type Technique = (&'static str, &'static str);

const ROOTKIT: Technique = ("T1014", "Rootkit");
const MODULES: Technique = ("T1547.006", "Kernel Modules and Extensions");
const LOADING: Technique = ("T1620", "Reflective Code Loading");
const ESCALATION: Technique = ("T1068", "Exploitation for Privilege Escalation");

/// The title and the technique of what a check of a scan has found.
fn of_check(check: &str) -> (&'static str, Technique) {
    match check {
        "image" => ("The kernel's code or constants were changed", ROOTKIT),
        "page-tables" => ("The kernel's pages are mapped elsewhere", ROOTKIT),
        "executable" => ("Code in the kernel belongs to nobody", LOADING),
        "modules" => ("A kernel module is hidden", MODULES),
        "interrupts" => ("The interrupt table was changed", ROOTKIT),
        "hooks" => ("A function of the kernel is hooked", ROOTKIT),
        "pointers" => ("A function pointer of the kernel leads elsewhere", ROOTKIT),
        "credentials" => ("A process has the kernel's rights", ESCALATION),
        "processors" => ("A processor is not set as the kernel sets it", ROOTKIT),
        _ => ("The kernel's memory was changed", ROOTKIT),
    }
}

/// Writes an event for each finding of `recording`, and one for those that have no line.
pub(super) fn write(
    recording: &mut Reader<impl BufRead>,
    mut out: &mut dyn Write,
) -> Result<(), ReportError> {
    // What is found at the end has no time of its own: it has that of the last line which has one.
    let (mut last, mut number) = (0, 0);
    while let Some(line) = recording.next()? {
        let (nanos, detection) = match &line {
            Line::Hit(hit) => (hit.event.nanos, None),
            Line::Finding(finding) => (finding.nanos(), Some(Detection::of_write(finding))),
            Line::ScanFinding(finding) => (last, Some(Detection::of_scan(finding))),
            Line::Guard(guard) => (last, Detection::untold("guard", guard.untold(), guard)),
            Line::ScanCheck(check) => (last, Detection::untold("scan", check.untold(), check)),
            _ => (last, None),
        };
        last = last.max(nanos);
        if let Some(detection) = detection {
            number += 1;
            json(&mut out, &detection.event(recording.header(), nanos, number))?;
        }
    }
    Ok(())
}

impl Detection {
    fn of_write(finding: &FindingLine) -> Self {
        Self {
            kind: "guard".to_owned(),
            title: match finding.was_denied() {
                true => "A write to the kernel's code or constants was denied",
                false => "The kernel's code or constants were written to",
            },
            said: FoundWrite(finding).to_string(),
            is_blocked: finding.was_denied(),
            technique: ROOTKIT,
            process: finding.task().map(process),
            line: value(finding),
            count: 1,
        }
    }

    fn of_scan(finding: &ScanFindingLine) -> Self {
        let (title, technique) = of_check(finding.check());
        Self {
            kind: format!("scan: {}", finding.check()),
            title,
            said: FoundThing(finding).to_string(),
            is_blocked: false,
            technique,
            process: None,
            line: value(finding),
            count: 1,
        }
    }

    /// Of so many findings that have no line.
    fn untold(kind: &str, count: u64, line: &impl Serialize) -> Option<Self> {
        (count > 0).then(|| Self {
            kind: kind.to_owned(),
            title: "There were more findings than are told",
            said: format!("{count} more findings"),
            is_blocked: false,
            technique: ROOTKIT,
            process: None,
            line: value(line),
            count,
        })
    }

    /// The event, which is finding `number` of a recording, so many nanoseconds from its start.
    fn event(self, header: &Header, nanos: u64, number: u64) -> Value {
        let Self { kind, title, said, is_blocked, technique: (uid, name), process, line, count } = self;
        let time = header.wall_ns.saturating_add(nanos) / NANOS_OF_MILLI;
        let (severity_id, severity) = if is_blocked { (4, "High") } else { (5, "Critical") };
        // A technique with a `.` is one of another.
        let technique = match uid.split_once('.') {
            None => object!({ "version": ATTACK, "technique": { "uid": uid, "name": name } }),
            Some((of, _)) => object!({
                "version": ATTACK,
                "technique": { "uid": of },
                "sub_technique": { "uid": uid, "name": name },
            }),
        };
        let mut evidence = object!({ "data": line });
        if let (Some(process), Some(evidence)) = (process, evidence.as_object_mut()) {
            evidence.insert("process".to_owned(), process);
        }
        object!({
            "class_uid": 2004,
            "class_name": "Detection Finding",
            "category_uid": 2,
            "category_name": "Findings",
            "activity_id": 1,
            "activity_name": "Create",
            "type_uid": 200_401,
            "type_name": "Detection Finding: Create",
            "time": time,
            "severity_id": severity_id,
            "severity": severity,
            "status_id": 1,
            "status": "New",
            "count": count,
            "message": format!("{title}: {said}"),
            "metadata": {
                "version": SCHEMA,
                "product": { "name": "vmm", "vendor_name": "vmm", "version": header.vmm },
            },
            "finding_info": {
                "uid": format!("{}-{number}", header.wall_ns),
                "title": title,
                "desc": said,
                "types": [kind],
                "created_time": time,
                "attacks": [technique],
            },
            "evidences": [evidence],
            "resources": [{
                "type": "Linux kernel",
                "name": header.kernel.release,
                "uid": header.kernel.build_id,
            }],
        })
    }
}

/// A process object: what ran.
fn process(task: &Task) -> Value {
    let mut process = object!({
        "pid": task.tgid,
        "tid": task.pid,
        "name": String::from_utf8_lossy(task.comm()),
    });
    if let (Some(uid), Some(process)) = (task.uid, process.as_object_mut()) {
        process.insert("user".to_owned(), object!({ "uid": uid.to_string() }));
    }
    process
}

/// Lines have nothing that JSON does not.
fn value(line: &impl Serialize) -> Value {
    serde_json::to_value(line).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;

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
        assert_eq!(module["time"], device["time"], "nothing is later");
        assert_eq!(module["finding_info"]["attacks"][0]["sub_technique"]["uid"], "T1547.006");
        let numbers: Vec<_> = events.iter().map(|event| event["finding_info"]["uid"].clone()).collect();
        assert!(numbers.iter().zip(numbers.iter().skip(1)).all(|(one, next)| one != next));
        assert!(self::events(example("json")).is_empty());
    }
}
