//! What a user of this program can do about an error of the library, which knows no options.

use crate::say::{Picture, plain};
use probe_engine::lang;
use probe_engine::linux::kernel::KernelError;
use probe_engine::linux::tracepoints::NoTracepoints;
use probe_engine::probe::resolve::ResolveError;
use probe_engine::probe::watch::WatchError;
use probe_engine::request::PlaceError;
use std::error::Error;
use std::fmt;
use vmm::boot::BootError;
use vmm::guest::HostError;
use vmm::kvm::HypervisorError;
use vmm::session::SessionError;

/// An error with its causes, as a person may [see](plain) them, and what to do about it.
pub(crate) struct Advised<'a>(pub(crate) &'a anyhow::Error);

impl fmt::Display for Advised<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        let mut between = "";
        for cause in error.chain() {
            f.write_str(between)?;
            match cause.downcast_ref() {
                Some(Picture(shown)) => f.write_str(shown)?,
                None => f.write_str(&plain(&cause))?,
            }
            between = ": ";
        }
        match of(error) {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

/// What to do about `error`, where that is an option or a command of this program.
pub(crate) fn of(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(about)
}

/// What to write instead of what is wrong in a definition.
pub(crate) fn hint(error: &lang::Error) -> Option<String> {
    let hint = error.hint()?;
    Some(match &error.mistake {
        lang::Mistake::NotAnEntry => format!("{hint}; --symbols names the vmlinux"),
        _ => hint,
    })
}

fn about(error: &(dyn Error + 'static)) -> Option<String> {
    let advice = match error.downcast_ref() {
        Some(KernelError::Symbols(_)) => Some("give them with --symbols"),
        Some(KernelError::BzImage(_)) => {
            Some("--kernel takes a bzImage or a vmlinux, the folder of a build, debian:6.12 or host")
        }
        _ => about_host(error).or_else(|| about_memory(error)),
    };
    advice.map(str::to_owned).or_else(|| about_place(error))
}

fn about_host(error: &(dyn Error + 'static)) -> Option<&'static str> {
    match error.downcast_ref()? {
        HostError::Hypervisor(HypervisorError::Open { .. }) => None,
        HostError::Hypervisor(_) => Some("or try --host emulated"),
        _ => None,
    }
}

fn about_memory(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let boot = match error.downcast_ref() {
        Some(SessionError::Memory(_)) => return Some("give it less with --memory"),
        Some(SessionError::Boot(boot)) => boot,
        _ => error.downcast_ref()?,
    };
    match boot {
        BootError::TooLittleMemory { .. } | BootError::Initrd { .. } => Some("give it more with --memory"),
        _ => None,
    }
}

fn about_place(error: &(dyn Error + 'static)) -> Option<String> {
    match error.downcast_ref() {
        Some(PlaceError::Injection(refused)) => {
            return refused.can_be_forced().then(|| "--force has its calls fail all the same".to_owned());
        }
        Some(PlaceError::NoTracepoints(NoTracepoints::NoData)) => {
            return Some("name the kernel's vmlinux with --symbols".to_owned());
        }
        _ => {}
    }
    let names = match (error.downcast_ref(), error.downcast_ref(), error.downcast_ref()) {
        (Some(WatchError::NotOne(names)), ..) => names,
        (_, Some(PlaceError::Resolve(place)), _) | (_, _, Some(place)) => match place {
            ResolveError::NotOne { which, .. } => which,
            ResolveError::NeedsSource(_) => {
                return Some("name the kernel's vmlinux with --symbols".to_owned());
            }
            _ => return None,
        },
        _ => return None,
    };
    names.is_cut().then(|| format!("`vmm list --all {}` lists functions", names.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::linux::symbols::named::NotOne;

    fn said(error: impl Into<anyhow::Error>) -> String {
        Advised(&error.into().context("outside")).to_string()
    }

    #[test]
    fn an_option_is_named_behind_the_causes() {
        let missing = HostError::from(HypervisorError::Missing("/dev/kvm".into()));
        assert!(said(missing).starts_with("outside: /dev/kvm does not exist"));
        let missing = HostError::from(HypervisorError::Missing("/dev/kvm".into()));
        assert!(said(missing).ends_with("; or try --host emulated"));
        let initrd = || BootError::Initrd { initrd_mib: 2, have_mib: 1 };
        assert!(said(initrd()).ends_with("; give it more with --memory"));
        assert!(said(SessionError::from(initrd())).ends_with("; give it more with --memory"));
        let line = || ResolveError::NeedsSource("fork.c:10".to_owned());
        assert!(said(line()).ends_with("; name the kernel's vmlinux with --symbols"));
        assert!(said(PlaceError::from(line())).ends_with("; name the kernel's vmlinux with --symbols"));
        assert_eq!(said(anyhow::anyhow!("anything")), "outside: anything");
    }

    #[test]
    fn what_was_read_acts_on_no_terminal_and_a_picture_stays_one() {
        let error = anyhow::anyhow!("\u{1b}[2J\n vmm: all is well");
        assert_eq!(said(error), "outside: ?[2J? vmm: all is well");
        assert_eq!(said(Picture("a\n  ^ \u{1b}[m".to_owned())), "outside: a\n  ^ \u{1b}[m");
    }

    #[test]
    fn names_that_are_not_all_shown_can_be_listed() {
        let names = |count: u64| NotOne {
            name: "show".to_owned(),
            has_ordinal: false,
            found: (0..count).map(Gva).collect(),
        };
        assert!(said(WatchError::NotOne(names(9))).ends_with("; `vmm list --all show` lists functions"));
        assert!(!said(WatchError::NotOne(names(8))).contains("vmm list"));
    }
}
