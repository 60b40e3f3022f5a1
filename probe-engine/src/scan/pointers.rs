//! Pointers to functions in data that the kernel changes: an attacker who swaps one is called in a function's stead.

use super::code::{Code, Owner};
use super::finding::{Finding, What};
use super::subject::Subject;
use super::walk::{Unreadable, chain};
use crate::linux::btf::Kind;
use crate::memory::PhysMemory;

/// Where such pointers are. Names are the kernel's own; what a kernel does not have is left out.
enum Row {
    /// In the structure at a symbol, and to the kernel's own functions alone.
    Own { symbol: &'static str, structure: &'static str },
    /// In structures that a list has, or so many lists in a row. Modules may have more.
    Listed { symbol: &'static str, lists: u64, structure: &'static str, node: &'static str },
    /// In structures that point to the next one.
    Chained { symbol: &'static str, head: &'static str, structure: &'static str, next: &'static str },
    /// In structures to which an array of so many pointers leads.
    Pointed { symbol: &'static str, count: u64, structure: &'static str },
}

const fn own(symbol: &'static str, structure: &'static str) -> Row {
    Row::Own { symbol, structure }
}

const fn notifiers(symbol: &'static str, head: &'static str) -> Row {
    Row::Chained { symbol, head, structure: "notifier_block", next: "next" }
}

/// What is looked at.
const ROWS: [Row; 24] = [
    own("tcp_prot", "proto"),
    own("udp_prot", "proto"),
    own("raw_prot", "proto"),
    own("ping_prot", "proto"),
    own("tcpv6_prot", "proto"),
    own("udpv6_prot", "proto"),
    own("rawv6_prot", "proto"),
    own("unix_stream_proto", "proto"),
    own("unix_dgram_proto", "proto"),
    Row::Listed { symbol: "formats", lists: 1, structure: "linux_binfmt", node: "lh" },
    Row::Listed { symbol: "ptype_base", lists: 16, structure: "packet_type", node: "list" },
    Row::Chained { symbol: "file_systems", head: "", structure: "file_system_type", next: "next" },
    Row::Pointed { symbol: "tty_ldiscs", count: 30, structure: "tty_ldisc_ops" },
    notifiers("keyboard_notifier_list", "atomic_notifier_head"),
    notifiers("die_chain", "atomic_notifier_head"),
    notifiers("panic_notifier_list", "atomic_notifier_head"),
    notifiers("vt_notifier_list", "atomic_notifier_head"),
    notifiers("restart_handler_list", "atomic_notifier_head"),
    notifiers("reboot_notifier_list", "blocking_notifier_head"),
    notifiers("module_notify_list", "blocking_notifier_head"),
    notifiers("inetaddr_chain", "blocking_notifier_head"),
    notifiers("oom_notify_list", "blocking_notifier_head"),
    notifiers("pm_chain_head", "blocking_notifier_head"),
    notifiers("netdev_chain", "raw_notifier_head"),
];

/// What is needed to look.
pub(super) struct Census<'a, M: PhysMemory + ?Sized> {
    pub(super) subject: &'a Subject<'a, M>,
    pub(super) code: &'a Code,
}

impl<M: PhysMemory + ?Sized> Census<'_, M> {
    /// Calls `tell` with each pointer that leads elsewhere, and says how many there are.
    pub(super) fn check(&self, tell: &mut dyn FnMut(Finding)) -> Result<u64, Unreadable> {
        let mut looked_at = 0;
        for row in &ROWS {
            looked_at += self.row(row, tell)?.unwrap_or(0);
        }
        Ok(looked_at)
    }

    /// The pointers of one row; `None` where the kernel does not have it.
    fn row(&self, row: &Row, tell: &mut dyn FnMut(Finding)) -> Result<Option<u64>, Unreadable> {
        let Self { subject, code } = self;
        let symbol = |name| subject.symbol(name);
        let offset = |structure, path| subject.offset(structure, path);
        let (name, structure, is_own, found) = match *row {
            Row::Own { symbol: name, structure } => {
                let Some(at) = symbol(name) else { return Ok(None) };
                (name, structure, true, vec![at])
            }
            Row::Listed { symbol: name, lists, structure, node } => {
                let Some((head, node)) = symbol(name).zip(offset(structure, node)) else { return Ok(None) };
                let mut found = Vec::new();
                for number in 0..lists {
                    // struct list_head {next, prev}
                    found.extend(subject.listed(head.add(16 * number), node)?);
                }
                (name, structure, false, found)
            }
            Row::Chained { symbol: name, head, structure, next } => {
                let inside = if head.is_empty() { Some(0) } else { offset(head, "head") };
                let Some(((at, inside), next)) = symbol(name).zip(inside).zip(offset(structure, next)) else {
                    return Ok(None);
                };
                let found = chain(&subject.memory, at.add(inside), |at| at.0 == 0, next)?;
                (name, structure, false, found)
            }
            Row::Pointed { symbol: name, count, structure } => {
                let Some(at) = symbol(name) else { return Ok(None) };
                let mut found = Vec::new();
                for number in 0..count {
                    found.extend(Some(subject.pointer(at.add(8 * number))?).filter(|at| at.0 != 0));
                }
                (name, structure, false, found)
            }
        };
        let members = self.functions(structure);
        for at in &found {
            for (member, offset) in &members {
                let to = subject.pointer(at.add(*offset))?;
                let owner = code.owner(to);
                let is_right = match owner {
                    _ if to.0 == 0 => true,
                    Some(Owner::Kernel) => true,
                    Some(Owner::Module(_)) => !is_own,
                    Some(_) | None => false,
                };
                if !is_right {
                    let what = What::Pointer { of: format!("{name}: {member}"), to, owner: owner.cloned() };
                    tell(Finding { at: at.add(*offset), what });
                }
            }
        }
        Ok(Some((found.len() * members.len()) as u64))
    }

    /// The members of a structure that are pointers to functions, and where these are.
    fn functions(&self, structure: &str) -> Vec<(&str, u64)> {
        let btf = self.subject.btf;
        let members = btf.structure(structure).into_iter().flat_map(|structure| structure.members());
        let is_function = |ty| {
            let to = btf.pointee(ty).and_then(|to| btf.plain(to));
            to.is_some_and(|to| matches!(to.kind, Kind::Prototype(_)))
        };
        members.filter(|member| is_function(member.ty)).filter_map(|m| Some((m.name, m.offset()?))).collect()
    }
}
