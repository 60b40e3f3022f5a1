//! Techniques of attackers by their numbers in MITRE ATT&CK, which findings and tags of rules name.

/// The version whose numbers and names these are.
pub(crate) const VERSION: &str = "15.1";

/// What a tag of a rule begins with that names a technique.
const TAG: &str = "attack.";

const NAMES: [(&str, &str); 28] = [
    ("T1003.007", "Proc Filesystem"),
    ("T1003.008", "/etc/passwd and /etc/shadow"),
    ("T1014", "Rootkit"),
    ("T1021", "Remote Services"),
    ("T1055", "Process Injection"),
    ("T1055.008", "Ptrace System Calls"),
    ("T1055.009", "Proc Memory"),
    ("T1059", "Command and Scripting Interpreter"),
    ("T1059.004", "Unix Shell"),
    ("T1068", "Exploitation for Privilege Escalation"),
    ("T1071", "Application Layer Protocol"),
    ("T1098", "Account Manipulation"),
    ("T1106", "Native API"),
    ("T1190", "Exploit Public-Facing Application"),
    ("T1205", "Traffic Signaling"),
    ("T1205.002", "Socket Filters"),
    ("T1499", "Endpoint Denial of Service"),
    ("T1499.004", "Application or System Exploitation"),
    ("T1543", "Create or Modify System Process"),
    ("T1547.006", "Kernel Modules and Extensions"),
    ("T1548", "Abuse Elevation Control Mechanism"),
    ("T1548.001", "Setuid and Setgid"),
    ("T1562.001", "Disable or Modify Tools"),
    ("T1564", "Hide Artifacts"),
    ("T1571", "Non-Standard Port"),
    ("T1610", "Deploy Container"),
    ("T1611", "Escape to Host"),
    ("T1620", "Reflective Code Loading"),
];

/// The name of a technique, if it is known here.
pub(crate) fn name(number: &str) -> Option<&'static str> {
    NAMES.iter().find(|(own, _)| *own == number).map(|(_, name)| *name)
}

/// The technique that a tag names, if it names one.
pub(crate) fn technique(tag: &str) -> Option<&str> {
    let number = tag.strip_prefix(TAG)?;
    number.strip_prefix('T').is_some_and(is_number).then_some(number)
}

/// Whether this tag is to name a technique by its number, and there is no such number.
pub(crate) fn is_misspelled(tag: &str) -> bool {
    let number = tag.strip_prefix(TAG).and_then(|said| said.strip_prefix('T'));
    number.is_some_and(|number| !is_number(number))
}

/// Whether this can be the number of a technique, or with `.` and three digits of a part of one.
fn is_number(number: &str) -> bool {
    let (technique, part) = number.split_once('.').unwrap_or((number, "000"));
    let are_digits = |text: &str, count| text.len() == count && text.bytes().all(|c| c.is_ascii_digit());
    are_digits(technique, 4) && are_digits(part, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_a_technique() {
        assert_eq!(technique("attack.T1547.006").and_then(name), Some("Kernel Modules and Extensions"));
        for tag in
            ["attack.", "attack.T", "attack.T1003.8", "attack.privileges", "T1014", "observability.process"]
        {
            assert_eq!(technique(tag), None, "{tag}");
            assert_eq!(is_misspelled(tag), tag.starts_with("attack.T"), "{tag}");
        }
        assert!(!is_misspelled("attack.T1547.006") && !is_misspelled("attack.T1547"));
        assert!(NAMES.is_sorted());
    }
}
