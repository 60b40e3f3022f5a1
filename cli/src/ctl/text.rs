//! What a control socket has answered, as text for people: in the shapes that the kernel's own files have.

use crate::control::{HeldTask, LiveProbe, VcpuLine};
use crate::record::{Address, Kind};
use crate::say::harmless;
use probe_engine::addr::Gva;
use std::fmt::Write as _;

/// A line as `/sys/kernel/debug/kprobes/list` has it, with the number and the name of the probe behind.
pub(crate) fn list_line(probe: &LiveProbe) -> String {
    let kind = match probe.kind {
        Kind::Instruction => 'k',
        Kind::Return => 'r',
        Kind::Watch => 'w',
    };
    let place = probe.probe.strip_suffix("%return").unwrap_or(&probe.probe);
    // The kernel has the module behind the symbol.
    let own = probe.module.as_ref().and_then(|module| place.strip_prefix(module.as_str())?.strip_prefix(':'));
    let place = own.unwrap_or(place);
    let offset = if place.contains("+0x") || probe.kind == Kind::Watch { "" } else { "+0x0" };
    let module = probe.module.as_deref().unwrap_or("");
    let mut flags = String::new();
    if !probe.enabled && probe.state != "disabled" {
        flags.push_str("[DISABLED]");
    }
    match &*probe.state {
        "armed" => {}
        // All are taken out: nobody has disabled this one.
        "disabled" if probe.enabled => flags.push_str("[DISARMED]"),
        state => {
            // Writing to a string cannot fail.
            let _ = write!(flags, "[{}]", state.to_uppercase());
        }
    }
    let event = probe.event.as_ref().map(|event| format!(" {event}")).unwrap_or_default();
    let line =
        format!("{:016x}  {kind}  {place}{offset}  {module}  {flags}  #{}{event}", probe.address.0, probe.id);
    format!("{}\n", harmless(&line))
}

/// A line as `/sys/kernel/tracing/kprobe_profile` has it: the name, hits, and misses.
pub(super) fn profile_line(probe: &LiveProbe) -> String {
    format!("  {:<44} {:>15} {:>15}\n", harmless(probe.name()), probe.hits, probe.missed)
}

/// The registers of a CPU.
pub(super) fn registers(line: &VcpuLine) -> String {
    const ROWS: [&[&str]; 5] = [
        &["rip", "rsp", "rflags"],
        &["rax", "rbx", "rcx", "rdx"],
        &["rsi", "rdi", "rbp", "r8"],
        &["r9", "r10", "r11", "r12"],
        &["r13", "r14", "r15"],
    ];
    let mut text = stack(line);
    if line.regs.is_empty() {
        text.push_str("  it has not started, or is in the middle of an access to a device\n");
        return text;
    }
    for row in ROWS {
        let own = row.iter().filter_map(|name| Some((name, line.regs.get(*name)?)));
        let cells: Vec<_> = own.map(|(name, Address(value))| format!("{name:<3} {value:016x}")).collect();
        let _ = writeln!(text, "  {}", cells.join("  "));
    }
    text
}

/// Where a CPU stands, and who has called whom.
pub(crate) fn stack(line: &VcpuLine) -> String {
    let said = format!("cpu{} {}", line.vcpu, line.stood);
    said.lines().map(|line| format!("{}\n", harmless(line))).collect()
}

/// A task that is held.
pub(super) fn held(held: &HeldTask) -> String {
    let task = held.task.as_ref().map(|task| format!("{} ", harmless(task))).unwrap_or_default();
    let milliseconds = held.waited_ns / 1_000_000;
    format!("hold {}: {task}on cpu{} at probe #{} for {milliseconds} ms\n", held.gate, held.vcpu, held.probe)
}

/// Bytes from `at` on, 16 a line, as `hexdump -C` has them.
pub(super) fn dump(at: Gva, bytes: &[u8]) -> String {
    let mut text = String::new();
    for (row, at) in bytes.chunks(16).zip((0..).map(|n| at.add(16 * n))) {
        let (first, second) = row.split_at(row.len().min(8));
        let hex = |half: &[u8]| half.iter().map(|byte| format!("{byte:02x} ")).collect::<String>();
        let seen = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
        let seen: String = row.iter().map(seen).collect();
        let _ = writeln!(text, "{:016x}  {:<24} {:<24} |{seen}|", at.0, hex(first), hex(second));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::hex;

    fn probe(probe: &str, kind: Kind, state: &str) -> LiveProbe {
        LiveProbe {
            id: 3,
            probe: probe.to_owned(),
            event: None,
            pattern: None,
            kind,
            module: None,
            address: Address(0xffff_ffff_8100_0040),
            enabled: true,
            hits: 12,
            outside: 0,
            missed: 1,
            state: state.to_owned(),
            reason: None,
        }
    }

    #[test]
    fn a_probe_is_listed_as_the_kernel_does() {
        let own = probe("vfs_read", Kind::Instruction, "optimized");
        assert_eq!(list_line(&own), "ffffffff81000040  k  vfs_read+0x0    [OPTIMIZED]  #3\n");
        let back = probe("dummy:dummy_xmit%return", Kind::Return, "armed");
        let event = Some("back\x1b[2J".to_owned());
        let back = LiveProbe { module: Some("dummy".to_owned()), event, ..back };
        assert_eq!(list_line(&back), "ffffffff81000040  r  dummy_xmit+0x0  dummy    #3 back?[2J\n");
        let inside = LiveProbe { enabled: false, ..probe("vfs_read+0x10", Kind::Instruction, "disabled") };
        assert_eq!(list_line(&inside), "ffffffff81000040  k  vfs_read+0x10    [DISABLED]  #3\n");
        let watch = probe("jiffies:8:w", Kind::Watch, "waiting");
        assert_eq!(list_line(&watch), "ffffffff81000040  w  jiffies:8:w    [WAITING]  #3\n");
        let line = format!("  {:<44} {:>15} {:>15}\n", "vfs_read", 12, 1);
        assert_eq!(profile_line(&own), line);
    }

    #[test]
    fn memory_is_dumped_as_hexdump_does() {
        let bytes = hex::bytes("7f454c46020101000000000000000000f30f").unwrap();
        assert_eq!(
            dump(Gva(0x1000), &bytes),
            "0000000000001000  7f 45 4c 46 02 01 01 00  00 00 00 00 00 00 00 00  |.ELF............|\n\
             0000000000001010  f3 0f                                             |..|\n"
        );
    }
}
