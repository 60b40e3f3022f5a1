//! What a scan has found, as events for other programs.

use super::made::ScanLines;
use crate::detection::{Detection, Numbering, Source, ocsf};
use crate::json::json;
use std::io::{self, Write};

/// Writes an event of OCSF for each finding, and one for those of a check that have no line.
pub(super) fn write(mut out: &mut dyn Write, source: &Source, lines: &ScanLines) -> io::Result<()> {
    let findings = lines.findings.iter().map(Detection::of_scan);
    let untold = lines.checks.iter().filter_map(Detection::of_scan_check);
    let mut numbering = Numbering::of(source);
    findings
        .chain(untold)
        .try_for_each(|detection| json(&mut out, &ocsf::event(source, &numbering.found(detection, None))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{KernelIdentity, example};
    use serde_json::Value;

    #[test]
    fn a_scan_is_told_as_its_line_in_a_recording_would_be() {
        let (finding, check) = example("jsonl scan").split_once('\n').unwrap();
        let untold = check.replace("\"untold\":0", "\"untold\":2");
        let lines = ScanLines {
            findings: vec![serde_json::from_str(finding).unwrap()],
            checks: vec![serde_json::from_str(check).unwrap(), serde_json::from_str(&untold).unwrap()],
        };
        let kernel = KernelIdentity { release: Some("6.12.48".to_owned()), build_id: None };
        let source = Source { vmm: "0.1.0".to_owned(), kernel, wall_ns: 1_795_617_600_000_000_000 };
        let mut out = Vec::new();
        write(&mut out, &source, &lines).unwrap();
        let text = String::from_utf8(out).unwrap();
        let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [module, more] = &*events else { panic!("{text}") };
        assert_eq!((&module["class_uid"], &module["severity"]), (&2004.into(), &"Critical".into()));
        assert_eq!(module["finding_info"]["types"][0], "scan: modules");
        assert_eq!(module["finding_info"]["uid"], "1795617600000000000-1");
        assert_eq!(
            (&module["time"], &module["resources"][0]["name"]),
            (&1_795_617_600_000_u64.into(), &"6.12.48".into())
        );
        assert_eq!((&more["count"], &more["finding_info"]["types"][0]), (&2.into(), &"scan".into()));
    }
}
