//! What a scan finds.

use super::code::Owner;
use crate::addr::{Gpa, Gva};
use crate::guest_text::Escaped;
use crate::linux::names::Names;
use std::fmt;

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// Code and constants, against the kernel's file.
    Image,
    /// Where the page tables of the kernel and of all processes lead for the kernel's code.
    PageTables,
    /// Code that belongs to nobody.
    Executable,
    /// Whether all lists have the same modules.
    Modules,
    /// The interrupt table.
    Interrupts,
    /// Who is called at ftrace's places and at kprobes.
    Hooks,
    /// Pointers to functions in data.
    Pointers,
    /// Whose rights processes have.
    Credentials,
    /// Programs that the kernel starts by itself.
    Helpers,
    /// What processors are set to.
    Processors,
}

impl Check {
    /// All, in the order in which they are made.
    pub const ALL: [Self; 10] = [
        Self::Image,
        Self::PageTables,
        Self::Executable,
        Self::Modules,
        Self::Interrupts,
        Self::Hooks,
        Self::Pointers,
        Self::Credentials,
        Self::Helpers,
        Self::Processors,
    ];

    /// Its name, one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::PageTables => "page-tables",
            Self::Executable => "executable",
            Self::Modules => "modules",
            Self::Interrupts => "interrupts",
            Self::Hooks => "hooks",
            Self::Pointers => "pointers",
            Self::Credentials => "credentials",
            Self::Helpers => "helpers",
            Self::Processors => "processors",
        }
    }

    /// What it has looked at, in plural.
    #[must_use]
    pub fn things(self) -> &'static str {
        match self {
            Self::Image => "bytes of code and constants",
            Self::PageTables => "ways through page tables",
            Self::Executable => "executable pages",
            Self::Modules => "modules",
            Self::Interrupts => "gates",
            Self::Hooks => "hooks",
            Self::Pointers => "pointers",
            Self::Credentials => "processes",
            Self::Helpers => "names of programs",
            Self::Processors => "processors",
        }
    }
}

/// Something is not as the kernel would have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where (run-time GVA).
    pub at: Gva,
    /// What.
    pub what: What,
}

/// What is not as the kernel would have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Code or constants are not those of the file.
    Changed {
        /// What is there; the first bytes of it.
        is: Vec<u8>,
        /// What the file has there.
        was: Vec<u8>,
        /// How many bytes.
        length: u64,
        /// Why that is none of the kernel's own changes.
        why: &'static str,
    },
    /// A page of the kernel's image, or a sealed one of a module, is mapped to other memory.
    Remapped {
        /// Where it should lead.
        own: Gpa,
        /// Where it leads; nowhere if `None`.
        to: Option<Gpa>,
    },
    /// A process has page tables of its own for the kernel's image.
    OwnTables {
        /// Its number.
        pid: u32,
        /// Its name as the guest has it: any bytes.
        comm: Vec<u8>,
    },
    /// Code that belongs to nobody.
    Unowned {
        /// So many pages of 4 KiB from there on.
        pages: u64,
        /// Whether they can be written.
        is_writable: bool,
    },
    /// A module is missing in one of the kernel's lists.
    Hidden {
        /// Its name.
        name: String,
        /// Which lists do not have it.
        missing: Vec<&'static str>,
    },
    /// What a list of modules has is no module.
    Disguised,
    /// A module that the guard has sealed, and that was not freed, is in none of the kernel's lists.
    Unlisted,
    /// A module is loaded that the guard has not seen coming, or has seen going.
    NotSealed {
        /// Its name.
        name: String,
    },
    /// A gate of the interrupt table leads elsewhere.
    Gate {
        /// Its number.
        vector: u8,
        /// Where it leads.
        to: Gva,
    },
    /// A hook calls code that is not the kernel's own.
    Handler {
        /// What sort of hook.
        kind: HookKind,
        /// Whom it calls.
        to: Gva,
        /// Whose that is.
        owner: Option<Owner>,
    },
    /// A pointer to a function leads elsewhere.
    Pointer {
        /// Which pointer.
        of: String,
        /// Where it leads.
        to: Gva,
        /// Whose that is.
        owner: Option<Owner>,
    },
    /// A process has the credentials with which the kernel itself runs.
    KernelsRights {
        /// Its number.
        pid: u32,
        /// Its name as the guest has it: any bytes.
        comm: Vec<u8>,
    },
    /// The kernel starts a program that is in none of the system's folders.
    Helper {
        /// What names the program.
        of: &'static str,
        /// The name as the guest has it: any bytes.
        program: Vec<u8>,
    },
    /// A processor works without a protection that the kernel has switched on.
    Unprotected {
        /// Its number.
        processor: u32,
        /// The bit that is not set.
        bit: &'static str,
    },
    /// A processor has another interrupt table.
    InterruptTable {
        /// Its number.
        processor: u32,
    },
    /// System calls lead elsewhere.
    Entry {
        /// Which processor's.
        processor: u32,
        /// The register that says where they lead.
        register: &'static str,
    },
}

/// A hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookKind {
    /// At ftrace's places.
    Ftrace,
    /// A kprobe.
    Kprobe,
    /// At a tracepoint.
    Tracepoint,
}

impl HookKind {
    /// Its name, one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ftrace => "ftrace",
            Self::Kprobe => "kprobe",
            Self::Tracepoint => "tracepoint",
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("the kernel"),
            Self::Module(name) => write!(f, "module {name}"),
            Self::Bpf => f.write_str("BPF"),
            Self::Ftrace => f.write_str("ftrace"),
            Self::Kprobes => f.write_str("kprobes"),
            Self::RealMode => f.write_str("what a CPU runs that starts"),
            Self::Vsyscall => f.write_str("vsyscall"),
        }
    }
}

impl Finding {
    /// Whether this is the other one as well, or what has become of that since: bytes that go on changing where the other one is are the same
    /// finding, and a processor is the same wherever it stands.
    #[must_use]
    pub fn is_still(&self, other: &Self) -> bool {
        match (&self.what, &other.what) {
            (What::Changed { length, .. }, What::Changed { length: others, .. }) => {
                let (end, others) = (self.at.add(*length), other.at.add(*others));
                (other.at <= self.at && end <= others) || (self.at <= other.at && others <= end)
            }
            (What::Unprotected { processor, bit }, What::Unprotected { processor: other, bit: others }) => {
                (processor, bit) == (other, others)
            }
            (What::KernelsRights { pid, .. }, What::KernelsRights { pid: other, .. })
            | (What::OwnTables { pid, .. }, What::OwnTables { pid: other, .. }) => pid == other,
            (one, other_one) => self.at == other.at && one == other_one,
        }
    }

    /// What was found, in one sentence without its place.
    #[must_use]
    pub fn told(&self, names: &Names<'_>) -> String {
        let name = |at: Gva| names.symbol(at).map_or_else(|| at.to_string(), |name| name.to_string());
        match &self.what {
            What::Changed { is, was, length, why } => {
                format!("{length} bytes are {}, the kernel's file has {}: {why}", hex(is), hex(was))
            }
            What::Remapped { own, to: Some(to) } => {
                format!("the page is mapped to {to}, and lies at {own}")
            }
            What::Remapped { own, to: None } => {
                format!("the page is not mapped, and lies at {own}")
            }
            What::OwnTables { pid, comm } => {
                format!("process {pid} ({}) has page tables of its own for the kernel's image", Escaped(comm))
            }
            What::Unowned { pages, is_writable } => {
                let writable = if *is_writable { ", and can be written" } else { "" };
                match pages {
                    1 => format!("a page of code belongs to nobody{writable}"),
                    _ => format!("{pages} pages of code belong to nobody{writable}"),
                }
            }
            What::Hidden { name, missing } => {
                format!("module {name} is hidden: {} do not have it", missing.join(" and "))
            }
            What::Disguised => "a list of modules has what is no module".to_owned(),
            What::Unlisted => "a module that its guard has sealed is in no list of modules".to_owned(),
            What::NotSealed { name } => {
                format!("module {name} is loaded, and its guard has not seen it come, or has seen it go")
            }
            What::Gate { vector, to } => {
                format!(
                    "the gate of interrupt {vector} leads to {}, which is no entry of the kernel's",
                    name(*to)
                )
            }
            What::Handler { kind, to, owner } => match owner {
                Some(owner) => format!("{} calls {}, code of {owner}", kind.name(), name(*to)),
                None => format!("{} calls {}, which belongs to nobody", kind.name(), name(*to)),
            },
            What::Pointer { of, to, owner } => match owner {
                Some(owner) => format!("{of} leads to {}, code of {owner}", name(*to)),
                None => format!("{of} leads to {}, which is no known code", name(*to)),
            },
            What::KernelsRights { pid, comm } => format!(
                "process {pid} ({}) has the credentials of the kernel itself (init_cred)",
                Escaped(comm)
            ),
            What::Helper { of, program } => format!(
                "{of} names {}, which is in none of the system's folders, and which the kernel starts with all rights",
                Escaped(program)
            ),
            What::Unprotected { processor, bit } => {
                format!("processor {processor} works without {bit}, which the kernel has set")
            }
            What::InterruptTable { processor } => {
                format!("processor {processor} has another interrupt table than the kernel's")
            }
            What::Entry { processor, register } => format!(
                "system calls of processor {processor} lead to where the kernel has no entry for them ({register})"
            ),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_whose_bytes_go_on_changing_is_one() {
        let changed = |at, length, is| Finding {
            at: Gva(at),
            what: What::Changed { is: vec![is], was: vec![0], length, why: "" },
        };
        let rights = |at, pid, comm: &[u8]| Finding {
            at: Gva(at),
            what: What::KernelsRights { pid, comm: comm.to_vec() },
        };
        assert!(
            changed(8, 4, 1).is_still(&changed(10, 1, 2)) && changed(10, 1, 2).is_still(&changed(8, 4, 1))
        );
        assert!(!changed(8, 2, 1).is_still(&changed(10, 1, 1)));
        assert!(!changed(8, 4, 1).is_still(&changed(10, 4, 1)), "there is more of it");
        assert!(rights(8, 1, b"a").is_still(&rights(8, 1, b"b")));
        assert!(!rights(8, 1, b"a").is_still(&rights(8, 2, b"a")), "another process has its place");
        assert!(!rights(8, 1, b"a").is_still(&changed(8, 1, 1)));
    }

    #[test]
    fn a_processor_is_the_same_wherever_it_stands_and_another_program_is_another_finding() {
        let unprotected =
            |at, processor, bit| Finding { at: Gva(at), what: What::Unprotected { processor, bit } };
        assert!(unprotected(8, 0, "CR0.WP").is_still(&unprotected(16, 0, "CR0.WP")));
        assert!(!unprotected(8, 0, "CR0.WP").is_still(&unprotected(8, 1, "CR0.WP")));
        assert!(!unprotected(8, 0, "CR0.WP").is_still(&unprotected(8, 0, "CR4.SMEP")));
        let helper = |program: &[u8]| Finding {
            at: Gva(8),
            what: What::Helper { of: "core_pattern", program: program.to_vec() },
        };
        assert!(helper(b"|/a").is_still(&helper(b"|/a")) && !helper(b"|/a").is_still(&helper(b"|/b")));
    }
}
