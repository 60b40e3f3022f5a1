//! Detections as events of the Open Cybersecurity Schema Framework: its class Detection Finding (2004).

use super::{Detection, Found, Source};
use crate::attack;
use probe_engine::linux::task::Task;
use serde_json::{Value, json as object};

/// The version of the schema.
pub(crate) const SCHEMA: &str = "1.3.0";
/// The class Detection Finding, its category, what is done (Create), and both in one number.
pub(crate) const CLASS: u32 = 2004;
pub(crate) const CATEGORY: u32 = 2;
pub(crate) const ACTIVITY: u32 = 1;
pub(crate) const TYPE: u32 = CLASS * 100 + ACTIVITY;

const NANOS_OF_MILLI: u64 = 1_000_000;

/// The event that tells what was found.
pub(crate) fn event(source: &Source, found: &Found) -> Value {
    let Detection { origin, title, said, severity, techniques, task, line, count } = &found.detection;
    let time = found.wall_ns / NANOS_OF_MILLI;
    let techniques: Vec<Value> = techniques.iter().map(|uid| technique(uid)).collect();
    let mut evidence = object!({ "data": line });
    if let (Some(task), Some(evidence)) = (task, evidence.as_object_mut()) {
        evidence.insert("process".to_owned(), process(task));
    }
    object!({
        "class_uid": CLASS,
        "class_name": "Detection Finding",
        "category_uid": CATEGORY,
        "category_name": "Findings",
        "activity_id": ACTIVITY,
        "activity_name": "Create",
        "type_uid": TYPE,
        "type_name": "Detection Finding: Create",
        "time": time,
        "severity_id": *severity as u8,
        "severity": format!("{severity:?}"),
        "status_id": 1,
        "status": "New",
        "count": count,
        "message": found.detection.message(),
        "metadata": {
            "version": SCHEMA,
            "product": { "name": "vmm", "vendor_name": "vmm", "version": source.vmm },
        },
        "finding_info": {
            "uid": found.uid,
            "title": title,
            "desc": said,
            "types": [origin.to_string()],
            "created_time": time,
            "attacks": techniques,
        },
        "evidences": [evidence],
        "resources": [{
            "type": "Linux kernel",
            "name": source.kernel.release,
            "uid": source.kernel.build_id,
        }],
    })
}

/// An attack object. A technique with a `.` is one of another.
fn technique(uid: &str) -> Value {
    let own = object!({ "uid": uid, "name": attack::name(uid) });
    match uid.split_once('.') {
        None => object!({ "version": attack::VERSION, "technique": own }),
        Some((of, _)) => {
            object!({ "version": attack::VERSION, "technique": { "uid": of }, "sub_technique": own })
        }
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
