//! Pointers to functions in data that the kernel changes: an attacker who swaps one is called in a function's stead.

use super::code::{Code, Owner};
use super::finding::{Finding, What};
use super::subject::{Subject, around};
use super::walk::{Unreadable, chain, chained};
use crate::addr::Gva;
use crate::linux::btf::Kind;
use crate::memory::PhysMemory;

/// So many structures are in an array at most.
const MOST_POINTED: u64 = 64;

/// Where such pointers are. Names are the kernel's own; what a kernel does not have is left out.
enum Row {
    /// In the structure at a symbol, and to the kernel's own functions alone.
    Own { symbol: &'static str, structure: &'static str },
    /// In structures that a list has, or so many lists in a row. Modules may have more.
    Listed { symbol: &'static str, lists: u64, within: Within, structure: &'static str, node: &'static str },
    /// In structures that point to the next one, by one of these members. At the second, each points to the next one's.
    Chained {
        symbol: &'static str,
        head: &'static str,
        structure: &'static str,
        next: &'static str,
        node: &'static str,
    },
    /// In structures to which an array of pointers leads.
    Pointed { symbol: &'static str, structure: &'static str },
}

/// The structure at a symbol that has the list in some kernels, and the member which that is; `None` where the list is at the symbol.
type Within = Option<(&'static str, &'static str)>;

const fn own(symbol: &'static str, structure: &'static str) -> Row {
    Row::Own { symbol, structure }
}

const fn notifiers(symbol: &'static str, head: &'static str) -> Row {
    Row::Chained { symbol, head, structure: "notifier_block", next: "next", node: "" }
}

const fn packets(symbol: &'static str, lists: u64, within: Within) -> Row {
    Row::Listed { symbol, lists, within, structure: "packet_type", node: "list" }
}

/// What is looked at.
const ROWS: [Row; 27] = [
    own("tcp_prot", "proto"),
    own("udp_prot", "proto"),
    own("raw_prot", "proto"),
    own("ping_prot", "proto"),
    own("tcpv6_prot", "proto"),
    own("udpv6_prot", "proto"),
    own("rawv6_prot", "proto"),
    own("unix_stream_proto", "proto"),
    own("unix_dgram_proto", "proto"),
    Row::Listed { symbol: "formats", lists: 1, within: None, structure: "linux_binfmt", node: "lh" },
    packets("ptype_base", 16, None),
    // Of all protocols: in 6.1, in 6.12, and in 7.2, where each network has such a list.
    packets("ptype_all", 1, None),
    packets("net_hotdata", 1, Some(("net_hotdata", "ptype_all"))),
    packets("init_net", 1, Some(("net", "ptype_all"))),
    Row::Chained {
        symbol: "file_systems",
        head: "",
        structure: "file_system_type",
        next: "next",
        // In 7.2.
        node: "list",
    },
    Row::Pointed { symbol: "tty_ldiscs", structure: "tty_ldisc_ops" },
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

    /// Where the symbol of a row is; `None` where the kernel does not have it. Constants of that name are others.
    fn symbol(&self, name: &'static str) -> Result<Option<Gva>, Unreadable> {
        let kernel = self.subject.kernel;
        let constants = kernel.symbol("__start_rodata").zip(kernel.symbol("__end_rodata"));
        let is_constant = |at: Gva| constants.is_some_and(|(start, end)| at.is_in(&(start..end)));
        let mut all = kernel.symbols().lookup(name).map(|symbol| symbol.at).filter(|at| !is_constant(*at));
        match (all.next(), all.next()) {
            (found, None) => Ok(found.map(|at| self.subject.running.map.gva(at))),
            (_, Some(_)) => Err(Unreadable::Unknown(name)),
        }
    }

    /// The pointers of one row; `None` where the kernel does not have it.
    fn row(&self, row: &Row, tell: &mut dyn FnMut(Finding)) -> Result<Option<u64>, Unreadable> {
        let Self { subject, code } = self;
        let offset = |structure, path| subject.offset(structure, path);
        let (name, structure, is_own, found) = match *row {
            Row::Own { symbol: name, structure } => {
                let Some(at) = self.symbol(name)? else { return Ok(None) };
                (name, structure, true, vec![at])
            }
            Row::Listed { symbol: name, lists, within, structure, node } => {
                let inside = within.map_or(Some(0), |(around, head)| offset(around, head));
                let Some((at, inside)) = self.symbol(name)?.zip(inside) else { return Ok(None) };
                let head = at.add(inside);
                let node = offset(structure, node).ok_or(Unreadable::Unknown(name))?;
                let mut found = Vec::new();
                for number in 0..lists {
                    // struct list_head {next, prev}
                    found.extend(subject.listed(head.add(16 * number), node)?);
                }
                (name, structure, false, found)
            }
            Row::Chained { symbol: name, head, structure, next, node } => {
                let Some(at) = self.symbol(name)? else { return Ok(None) };
                let inside = if head.is_empty() { Some(0) } else { offset(head, "head") };
                let at = at.add(inside.ok_or(Unreadable::Unknown(name))?);
                let found = match (offset(structure, next), offset(structure, node)) {
                    (Some(next), _) => chain(&subject.memory, at, |at| at.0 == 0, next)?,
                    (None, Some(node)) => {
                        let nodes = chained(&subject.memory, at)?;
                        nodes.into_iter().map(|found| around(found, node)).collect()
                    }
                    (None, None) => return Err(Unreadable::Unknown(name)),
                };
                (name, structure, false, found)
            }
            Row::Pointed { symbol: name, structure } => {
                let Some(at) = self.symbol(name)? else { return Ok(None) };
                let mut found = Vec::new();
                for number in 0..subject.pointers_at(at).min(MOST_POINTED) {
                    found.extend(Some(subject.pointer(at.add(8 * number))?).filter(|at| at.0 != 0));
                }
                (name, structure, false, found)
            }
        };
        let members = self.functions(structure);
        if members.is_empty() {
            return Err(Unreadable::Unknown(name));
        }
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
