//! What the guard has found, and what it has seen in all.

use super::bounded::{name, some_name};
use super::moment::Time;
use super::{Address, Frame, StoodStack, task};
use probe_engine::addr::Gva;
use probe_engine::guard::judge::Patch;
use probe_engine::linux::task::Task;
use serde::{Deserialize, Serialize};
use std::fmt;
use vmm::guard::{Done, Finding, GuardReport, Suspicion, Writer};

/// Somebody has written to sealed memory, or has tried to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "finding")]
pub(crate) struct FindingLine {
    time_ns: u64,
    guest_ns: Option<u64>,
    /// None where a device was told to write.
    vcpu: Option<u32>,
    #[serde(with = "task::kept")]
    task: Option<Task>,
    /// Where, in the kernel's own mapping of itself.
    at: Option<Address>,
    #[serde(default, deserialize_with = "some_name")]
    symbol: Option<String>,
    /// The processor's register that was to be written, if it is one.
    #[serde(default, deserialize_with = "some_name")]
    register: Option<String>,
    length: u64,
    /// In hexadecimal, the first of them.
    #[serde(deserialize_with = "name")]
    bytes: String,
    /// The instruction that writes.
    rip: Option<Address>,
    #[serde(default, deserialize_with = "some_name")]
    writer: Option<String>,
    #[serde(deserialize_with = "name")]
    why: String,
    done: FindingDone,
    #[serde(flatten)]
    stack: StoodStack,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FindingDone {
    Written,
    Denied,
    Stopped,
}

/// What the guard has seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "guard")]
pub(crate) struct GuardLine {
    /// Of the kernel; None where that did not come so far.
    pub(crate) pages: Option<u64>,
    /// Of modules, one after the other.
    #[serde(default)]
    pub(crate) module_pages: u64,
    /// Modules that could not be sealed, or not as a whole.
    #[serde(default)]
    pub(crate) unsealed_modules: u64,
    pub(crate) jump_labels: u64,
    pub(crate) static_calls: u64,
    pub(crate) ftrace: u64,
    pub(crate) kprobes: u64,
    #[serde(default)]
    pub(crate) locks: u64,
    pub(crate) findings: u64,
    pub(crate) untold: u64,
    /// What a scan of the memory has found that the guest has left; None where there was none.
    #[serde(default)]
    pub(crate) scan_findings: Option<u64>,
    /// Whether the registers are guarded by which programs enter the kernel.
    #[serde(default)]
    pub(crate) guards_entries: bool,
    /// How often the memory was scanned while the guest ran.
    #[serde(default)]
    pub(crate) scans: u64,
    /// How long the guest stood still for the longest of these.
    #[serde(default)]
    pub(crate) longest_scan_ns: u64,
}

impl FindingLine {
    /// The line of `finding`, where addresses have these names and the stack is `stack`.
    pub(crate) fn of(finding: &Finding, symbol: impl Fn(Gva) -> Option<String>, stack: StoodStack) -> Self {
        let (vcpu, rip, task) = match &finding.writer {
            Writer::Vcpu { id, rip, task, .. } => (u32::try_from(*id).ok(), Some(*rip), *task),
            Writer::Device => (None, None, None),
        };
        Self {
            time_ns: finding.nanos,
            guest_ns: finding.guest_nanos,
            vcpu,
            task,
            at: finding.at.map(|at| Address(at.0)),
            symbol: finding.at.and_then(&symbol),
            register: match &finding.why {
                Suspicion::Entry(register, _) => Some(register.to_string()),
                _ => None,
            },
            length: finding.length as u64,
            bytes: finding.bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            rip: rip.map(|rip| Address(rip.0)),
            writer: rip.and_then(&symbol),
            why: finding.why.to_string(),
            done: match finding.done {
                Done::Written => FindingDone::Written,
                Done::Denied => FindingDone::Denied,
                Done::Stopped => FindingDone::Stopped,
            },
            stack,
        }
    }

    /// Nanoseconds since the guest was started.
    pub(crate) fn nanos(&self) -> u64 {
        self.time_ns
    }

    /// The same by the guest's own clock, where that is known.
    pub(crate) fn guest_nanos(&self) -> Option<u64> {
        self.guest_ns
    }

    /// The CPU that wrote; none where a device was told to write.
    pub(crate) fn vcpu(&self) -> Option<u32> {
        self.vcpu
    }

    /// Who had called, the innermost frame first.
    pub(crate) fn frames(&self) -> &[Frame] {
        self.stack.frames()
    }

    /// The task that wrote, if it can be told.
    pub(crate) fn task(&self) -> Option<&Task> {
        self.task.as_ref()
    }

    /// Whether it was a register of the processor.
    pub(crate) fn is_register(&self) -> bool {
        self.register.is_some()
    }

    /// Whether the write was not made, and the guest went on.
    pub(crate) fn was_denied(&self) -> bool {
        self.done == FindingDone::Denied
    }

    /// The same with bounds for what was read.
    pub(super) fn bounded(self) -> Self {
        Self { stack: self.stack.bounded(), ..self }
    }
}

impl GuardLine {
    /// How many findings came too fast to be told.
    pub(crate) fn untold(&self) -> u64 {
        self.untold
    }

    /// What was not guarded, or not told, a sentence each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        if self.pages.is_none() {
            return vec![self.to_string()];
        }
        let mut warnings = Vec::new();
        if self.unsealed_modules > 0 {
            warnings.push(format!("guard: {} modules could not be sealed", self.unsealed_modules));
        }
        if self.untold > 0 {
            warnings.push(format!("guard: {} findings came too fast to be told", self.untold));
        }
        if !self.guards_entries {
            warnings.push(format!("guard: {UNGUARDED_ENTRIES}"));
        }
        warnings
    }

    pub(crate) fn of(report: &GuardReport, scan_findings: Option<u64>) -> Self {
        let count = |patch| report.patches.get(&patch).copied().unwrap_or(0);
        Self {
            pages: report.pages,
            module_pages: report.module_pages,
            unsealed_modules: report.unsealed_modules,
            jump_labels: count(Patch::JumpLabel),
            static_calls: count(Patch::StaticCall),
            ftrace: count(Patch::Ftrace),
            kprobes: count(Patch::Kprobe),
            locks: count(Patch::LockPrefix),
            findings: report.findings,
            untold: report.untold,
            scan_findings,
            guards_entries: report.guards_entries,
            scans: report.scans,
            longest_scan_ns: u64::try_from(report.longest_scan.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// As lines of text, each with its end.
impl fmt::Display for FindingLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Time { nanos: self.time_ns, guest_nanos: self.guest_ns };
        match self.vcpu {
            Some(vcpu) => write!(f, "{time} cpu{vcpu} ")?,
            None => write!(f, "{time} ")?,
        }
        if let Some(task) = &self.task {
            write!(f, "{}-{} ", task.shown(), task.pid)?;
        }
        writeln!(f, "FINDING: {}", FoundWrite(self))?;
        self.stack.fmt(f)
    }
}

/// What was written, by whom, what is wrong with that, and what became of it.
pub(crate) struct FoundWrite<'a>(pub(crate) &'a FindingLine);

impl fmt::Display for FoundWrite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FindingLine { at, symbol, length, bytes, rip, writer, why, done, .. } = self.0;
        match at {
            None => f.write_str("a write")?,
            Some(at) => {
                write!(f, "{length} {}", if *length == 1 { "byte" } else { "bytes" })?;
                if !bytes.is_empty() {
                    write!(f, " ({bytes})")?;
                }
                write!(f, " to {at}")?;
            }
        }
        if let Some(symbol) = symbol {
            write!(f, " {symbol}")?;
        }
        if let Some(rip) = rip {
            write!(f, " by {rip}")?;
        }
        if let Some(writer) = writer {
            write!(f, " {writer}")?;
        }
        let done = match done {
            FindingDone::Written => "written",
            FindingDone::Denied => "denied",
            FindingDone::Stopped => "the guest was stopped",
        };
        write!(f, ": {why}; {done}")
    }
}

const UNGUARDED_ENTRIES: &str = "nobody asks where system calls lead: this KVM is from before Linux 5.10";

/// As a line of text.
impl fmt::Display for GuardLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pages,
            module_pages,
            unsealed_modules,
            jump_labels,
            static_calls,
            ftrace,
            kprobes,
            locks,
            findings,
            untold,
            scan_findings,
            guards_entries,
            scans,
            longest_scan_ns,
        } = self;
        let Some(pages) = pages else {
            return f.write_str("guard: nothing was sealed: the kernel did not come to its first program");
        };
        let written = jump_labels + static_calls + ftrace + kprobes + locks;
        write!(f, "guard: {pages} pages sealed")?;
        if *module_pages > 0 {
            write!(f, ", and {module_pages} of modules")?;
        }
        if *unsealed_modules > 0 {
            write!(f, "; {unsealed_modules} modules could not be sealed")?;
        }
        write!(f, "; {written} writes of the kernel's own (jump labels {jump_labels}, ")?;
        write!(
            f,
            "static calls {static_calls}, ftrace {ftrace}, kprobes {kprobes}, locks {locks}); {findings} findings"
        )?;
        if *untold > 0 {
            write!(f, ", {untold} of them came too fast to be told")?;
        }
        if !guards_entries {
            write!(f, "; {UNGUARDED_ENTRIES}")?;
        }
        if *scans > 0 {
            let millis = longest_scan_ns / 1_000_000;
            write!(f, "; the memory was scanned {scans} times while the guest ran, for {millis} ms at most")?;
        }
        scan_findings.iter().try_for_each(|found| write!(f, "; in the memory at the end {found} findings"))
    }
}

#[cfg(test)]
mod tests {
    use crate::record::{Line, Reader, example};
    use serde_json::Value;

    #[test]
    fn the_findings_of_the_docs_are_read() {
        let text = example("jsonl finding");
        let mut reader = Reader::open(text.as_bytes()).unwrap();
        let mut shown = String::new();
        while let Some(line) = reader.next().unwrap() {
            let again = match line {
                Line::Finding(finding) => {
                    shown += &finding.to_string();
                    serde_json::to_value(finding).unwrap()
                }
                Line::Guard(guard) => {
                    shown += &format!("{guard}\n");
                    serde_json::to_value(guard).unwrap()
                }
                _ => continue,
            };
            assert_eq!(serde_json::from_str::<Value>(reader.text()).unwrap(), again);
        }
        let expected = [
            "[    3.366815158] cpu1 insmod-135 FINDING: 1 byte (f4) to 0xffffffff814ff6a0 proc_pid_limits+0x0/0x190 \
             by 0xffffffffc020702e dummy_init_module+0x1e/0xe6 [codea]: it is not the kernel's patching code that \
             writes; denied",
            "  dummy_init_module+0x1e/0xe6 [codea]",
            "  ... and goes on: no code at 0x0",
            "[    3.387017178] FINDING: 4096 bytes to 0xffffffff81000000 _text+0x0/0x40: a device was told to write \
             there; denied",
            "guard: 6825 pages sealed, and 11 of modules; 1316 writes of the kernel's own (jump labels 318, static calls 488, ftrace 510, \
             kprobes 0, locks 0); 2 findings; the memory was scanned 12 times while the guest ran, for 31 ms at most; in \
             the memory at the end 0 findings",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
    }
}
