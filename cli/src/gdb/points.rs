//! The breakpoints and watchpoints of gdb: probes at which the guest stands still.
//!
//! gdb takes its breakpoints out whenever the guest stands and puts them in again when the guest goes on. A breakpoint in text is kept
//! meanwhile, and disabled; a debug register is given back.

use super::guest::Guest;
use anyhow::{Result, bail};
use gdbstub::target::ext::breakpoints::WatchKind;
use std::collections::BTreeMap;

/// What gdb calls a breakpoint: the probe of it may be at another address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Point {
    /// An instruction.
    Break { at: u64 },
    /// The same, by a debug register.
    Hardware { at: u64 },
    /// An access to memory.
    Watch { at: u64, length: u64, access: Access },
}

/// What is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    Write,
    Read,
    ReadWrite,
}

impl From<WatchKind> for Access {
    fn from(kind: WatchKind) -> Self {
        match kind {
            WatchKind::Write => Self::Write,
            WatchKind::Read => Self::Read,
            WatchKind::ReadWrite => Self::ReadWrite,
        }
    }
}

impl Access {
    /// As the CPU watches: it does not watch for reads alone. gdb looks at what a read watchpoint has found whether it was one.
    fn watched(self) -> &'static str {
        match self {
            Self::Write => "w",
            Self::Read | Self::ReadWrite => "rw",
        }
    }

    pub(super) fn kind(self) -> WatchKind {
        match self {
            Self::Write => WatchKind::Write,
            Self::Read => WatchKind::Read,
            Self::ReadWrite => WatchKind::ReadWrite,
        }
    }
}

/// The probe of a point.
#[derive(Debug, Clone, Copy)]
struct Own {
    probe: u32,
    /// Whether it is a debug register.
    is_register: bool,
    is_in: bool,
}

/// All points of one gdb.
#[derive(Default)]
pub(super) struct Points {
    all: BTreeMap<Point, Own>,
    /// Why the last one was refused.
    pub(super) refused: Option<String>,
}

impl Points {
    /// Puts `point` in. Says whether it is.
    pub(super) fn insert(&mut self, point: Point, guest: &mut Guest) -> bool {
        match self.try_insert(point, guest) {
            Ok(()) => true,
            Err(error) => {
                self.refused = Some(format!("{error:#}"));
                false
            }
        }
    }

    fn try_insert(&mut self, point: Point, guest: &mut Guest) -> Result<()> {
        if let Some(own) = self.all.get_mut(&point) {
            if own.is_in {
                return Ok(());
            }
            let probe = guest.enable(own.probe, true)?;
            if matches!(probe.state.as_str(), "armed" | "waiting") {
                own.is_in = true;
                return Ok(());
            }
            // Its text is gone, or was changed: what is there now may be another one's.
            guest.remove(own.probe)?;
            self.all.remove(&point);
        }
        let own = match point {
            Point::Watch { at, length, access } => register(guest.watch(at, length, access.watched())?.id),
            Point::Hardware { at } => register(guest.watch(at, 1, "x")?.id),
            Point::Break { at } => {
                let kernel = guest.kernel()?;
                let known = kernel.text.zip(kernel.text_end).zip(kernel.slide);
                let link = known.and_then(|((text, end), slide)| {
                    let link = at.wrapping_sub(slide.0);
                    (kernel.is_final && (text.0..end.0).contains(&link)).then_some(link)
                });
                match link.map(|link| in_text(link, guest)) {
                    Some(Ok(own)) => own,
                    // No trap may stand there.
                    Some(Err(why)) => register(guest.watch(at, 1, "x").map_err(|_| why)?.id),
                    // Nothing can be written there yet, or nobody knows what is there.
                    None => register(guest.watch(at, 1, "x")?.id),
                }
            }
        };
        self.all.insert(point, own);
        Ok(())
    }

    /// Takes `point` out. Says whether it was in.
    pub(super) fn take_out(&mut self, point: Point, guest: &mut Guest) -> bool {
        let Some(own) = self.all.get_mut(&point).filter(|own| own.is_in) else { return false };
        own.is_in = false;
        if own.is_register {
            let probe = own.probe;
            self.all.remove(&point);
            return guest.remove(probe).is_ok();
        }
        guest.enable(own.probe, false).is_ok()
    }

    /// The point, which is in, whose probe this is.
    pub(super) fn of_probe(&self, probe: u32) -> Option<Point> {
        self.all.iter().find(|(_, own)| own.probe == probe && own.is_in).map(|(point, _)| *point)
    }

    /// gdb has gone: nothing of it is left.
    pub(super) fn remove_all(&mut self, guest: &mut Guest) {
        for (_, own) in std::mem::take(&mut self.all) {
            // The server removes what is left when we go.
            let _ = guest.remove(own.probe);
        }
    }
}

/// The probe of a breakpoint in the kernel's text, at what was linked there.
fn in_text(link: u64, guest: &mut Guest) -> Result<Own> {
    let probe = guest.add(&format!("p {link:#x}"))?;
    if !matches!(probe.state.as_str(), "armed" | "waiting") {
        guest.remove(probe.id)?;
        bail!("{}", probe.reason.unwrap_or(probe.state));
    }
    Ok(Own { probe: probe.id, is_register: false, is_in: true })
}

fn register(probe: u32) -> Own {
    Own { probe, is_register: true, is_in: true }
}
