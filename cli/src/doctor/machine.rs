//! What a machine says of itself that matters to guests on its KVM.

use probe_engine::guest_text::is_special;
use std::fs;
use std::path::Path;

/// The fields of `/proc/cpuinfo` that tell a processor, as they are written there.
const OF_CPU: [&str; 9] =
    ["vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags", "vmx flags", "bugs"];

/// One line each. `root`: where `/proc` and `/sys` are. What a machine does not say has no line.
pub(super) fn lines(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut push = |name: &str, value: String| lines.push(format!("{name}: {value}"));
    let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    for name in OF_CPU {
        if let Some(value) = field(&cpuinfo, name) {
            push(name, value.to_owned());
        }
    }
    push("processors", field_lines(&cpuinfo, "processor").count().to_string());
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    if let Some(total) = field(&meminfo, "MemTotal") {
        push("memory", total.to_owned());
    }
    for (name, path) in [
        ("kernel", "proc/sys/kernel/osrelease"),
        ("built", "proc/sys/kernel/version"),
        ("maker", "sys/class/dmi/id/sys_vendor"),
        ("product", "sys/class/dmi/id/product_name"),
        ("clock", "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ] {
        if let Some(value) = value(&root.join(path)) {
            push(name, value);
        }
    }
    for module in ["kvm", "kvm_intel", "kvm_amd"] {
        let module_dir = root.join("sys/module").join(module);
        let parameters = values(&module_dir.join("parameters"));
        if module_dir.is_dir() {
            let words: Vec<String> =
                parameters.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
            push(&format!("module {module}"), words.join(" "));
        }
    }
    for (name, state) in values(&root.join("sys/devices/system/cpu/vulnerabilities")) {
        push(&format!("vulnerability {name}"), state);
    }
    lines
}

/// The values of the lines `name : value`.
fn field_lines<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let named = move |line: &'a str| line.split_once(':').filter(|(left, _)| left.trim() == name);
    text.lines().filter_map(named).map(|(_, value)| value.trim())
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    field_lines(text, name).next()
}

/// The files of a folder and what is in them, by name.
fn values(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, value(&entry.path())?));
    let mut values: Vec<_> = entries.filter_map(named).collect();
    values.sort();
    values
}

/// What is in a file of one line.
fn value(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.trim();
    (!value.is_empty()).then(|| value.replace(is_special, " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_told_by_its_processor_its_kernel_and_its_kvm() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let cpu = "vendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Some CPU\nflags\t\t: fpu vmx\n";
        write("proc/cpuinfo", &format!("processor\t: 0\n{cpu}\nprocessor\t: 1\n{cpu}"));
        write("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n");
        write("proc/sys/kernel/osrelease", "6.12.0\n");
        write("sys/module/kvm/parameters/halt_poll_ns", "200000\n");
        write("sys/module/kvm_intel/parameters/nested", "Y\n");
        write("sys/module/kvm_intel/parameters/ept", "Y\n");
        write("sys/devices/system/cpu/vulnerabilities/spectre_v2", "Mitigation: IBRS\n");
        let expected = [
            "vendor_id: GenuineIntel",
            "model: 143",
            "model name: Some CPU",
            "flags: fpu vmx",
            "processors: 2",
            "memory: 16384 kB",
            "kernel: 6.12.0",
            "module kvm: halt_poll_ns=200000",
            "module kvm_intel: ept=Y nested=Y",
            "vulnerability spectre_v2: Mitigation: IBRS",
        ];
        assert_eq!(lines(root.path()), expected);
    }

    #[test]
    fn a_machine_that_says_nothing_has_no_processor() {
        assert_eq!(lines(Path::new("/nonexistent")), ["processors: 0"]);
    }
}
