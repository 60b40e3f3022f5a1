//! What should stand where: each probe's place as the guest's text is at this moment, and the traps of our own.

use super::Arming;
use crate::session::registry::{RegisteredProbe, Registry};
use crate::session::report::ProbeState;
use crate::session::sites::WantedSites;
use crate::session::stage::BootPhase;
use crate::session::text::{BehindNop, GuestText, ProbedFunction};
use probe_engine::addr::Gva;
use probe_engine::insn::INT3;
use probe_engine::insn::plan::{StepPlan, skip_endbr};
use probe_engine::linux::ftrace_site::{FTRACE_SITE, ftrace_nop};
use probe_engine::probe::place::{Behind, Place};
use probe_engine::probe::table::{Anchor, Attached};

/// `call rel32`.
const CALL: u8 = 0xe8;
/// `jmp rel32`.
const JUMP: u8 = 0xe9;

/// Where a probe can stand at this moment.
enum Placement {
    At { at: Gva, function: ProbedFunction, anchor: Anchor, is_early: bool },
    Not(ProbeState),
}

/// Up to so many probes stand before the text is final. Each hit of theirs is an exit then, and each has to be planned twice.
const MOST_EARLY: usize = 1000;

impl Arming {
    /// All that should stand.
    pub(super) fn wanted(&self, registry: &mut Registry, text: &GuestText<'_>) -> WantedSites {
        let mut all = WantedSites::default();
        let armed = registry.is_armed();
        let detours = &self.sites.detours;
        let are_few = registry.len() <= MOST_EARLY && !detours.is_required();
        for entry in registry.iter_mut() {
            if entry.active.watching().is_some() || entry.active.is_broken() || is_settled(&entry.state) {
                continue;
            }
            if entry.active.is_spent() {
                if let ProbeState::Armed(at) = entry.state {
                    entry.state = ProbeState::Spent(at);
                }
                continue;
            }
            if (!entry.is_called() || entry.stands_for_others()) && entry.info.is_some() {
                entry.state = if entry.enabled && armed { ProbeState::Waiting } else { ProbeState::Disabled };
                continue;
            }
            let stand = self.stand(entry, are_few, text);
            match stand {
                Placement::Not(state @ (ProbeState::Waiting | ProbeState::Gone(_))) => entry.state = state,
                _ if !entry.enabled || !armed => entry.state = ProbeState::Disabled,
                Placement::Not(state) => {
                    let is_new = entry.state != state;
                    entry.yields += u64::from(is_new && matches!(state, ProbeState::DisplacedByFtrace(_)));
                    entry.state = state;
                }
                Placement::At { at, function, anchor, is_early } => match &self.reserved {
                    _ if let Some(reason) = detours.refuses(&entry.active) => {
                        entry.state = ProbeState::Refused(reason);
                    }
                    Err(reason) if entry.active.pool().is_some() => {
                        entry.state = ProbeState::Refused(reason.to_string());
                    }
                    _ => {
                        entry.moved_for_ftrace |= matches!(anchor, Anchor::Behind(_)) && !is_early;
                        entry.state = ProbeState::Armed(at);
                        entry.stood = Some(at);
                        let attached = Attached { probe: entry.active.clone(), anchor };
                        let wanted = all.at(at, function);
                        wanted.is_early |= is_early;
                        wanted.probes.push(attached);
                    }
                },
            }
        }
        for (internal, link) in self.hooks.wanted(self.phase, registry) {
            if let Some(at) = self.hook_place(text.running.map.gva(link), text) {
                // Only its entry is of interest, whatever the function's length.
                let function = ProbedFunction {
                    range: at..at.add(16),
                    fixup: false,
                    traced: false,
                    constraints: None,
                    next: None,
                };
                all.at(at, function).internal = Some(internal);
            }
        }
        all
    }

    /// Where the probe of `entry` can stand now.
    fn stand(&self, entry: &RegisteredProbe, are_few: bool, text: &GuestText<'_>) -> Placement {
        let Some(info) = &entry.info else { return Placement::Not(ProbeState::Waiting) };
        let is_kernel = matches!(entry.place, Place::Kernel { .. });
        let slide = if is_kernel { text.running.map.slide() } else { 0 };
        let asked = info.at.add(slide);
        if is_kernel && self.hooks.is_freed(&self.kernel, info.at) {
            return Placement::Not(ProbeState::Gone(asked));
        }
        let range = info.function.start.add(slide)..info.function.end.add(slide);
        let late = self.phase == BootPhase::Late;
        let function = |fixup| ProbedFunction {
            range: range.clone(),
            fixup,
            traced: info.traced,
            constraints: info.constraints.clone(),
            next: match info.ftrace {
                Some(Behind::Free { fixup: false, settled }) if settled || late => Some(BehindNop { late }),
                Some(Behind::Free { .. } | Behind::Guarded(_)) | None => None,
            },
        };
        let mut bytes = [0; 16];
        // A function's last instructions may be fewer bytes.
        let length = range.end.offset_from(asked).unwrap_or(0).min(16) as usize;
        let Some(head) = bytes.get_mut(..length) else { return Placement::Not(ProbeState::Waiting) };
        if let Err(error) = text.read(asked, head) {
            return Placement::Not(ProbeState::Refused(error.to_string()));
        }
        let at = if info.is_entry() { skip_endbr(head, asked) } else { asked };
        // Where the guest is to stand still, it does so where that was said.
        if at != asked && entry.active.stops_guest() {
            return match self.phase {
                BootPhase::Late => Placement::At {
                    at: asked,
                    function: function(false),
                    anchor: Anchor::Firm,
                    is_early: false,
                },
                _ => Placement::Not(ProbeState::Waiting),
            };
        }
        // Before the text is final, where nothing will change it and an exit is all that a hit takes.
        let early = |at, anchor, fixup, settled| {
            let function = function(fixup);
            let can = are_few
                && settled
                && !fixup
                && entry.active.pool().is_none()
                && !self.sites.accesses_device(at);
            match can.then(|| text.plan(&function, at, false)) {
                // There is no room for copies yet.
                Some(Ok(StepPlan::Emulate(emulation)))
                    if !(entry.active.stands() && emulation.has_memory()) =>
                {
                    Placement::At { at, function, anchor, is_early: true }
                }
                _ => Placement::Not(ProbeState::Waiting),
            }
        };
        let Some(behind) = &info.ftrace else {
            return match self.phase {
                BootPhase::Late => Placement::At {
                    at,
                    function: function(info.fixup),
                    anchor: Anchor::Firm,
                    is_early: false,
                },
                _ => early(at, Anchor::Firm, info.fixup, info.settled),
            };
        };
        let site = head.get(at.offset_from(asked).unwrap_or(0) as usize..).unwrap_or_default();
        let is_nop = ftrace_nop(site).is_some();
        let is_ftraces = matches!(site.first(), Some(&(CALL | JUMP | INT3)));
        let is_quiet = self.hooks.follows_ftrace() && !self.hooks.is_patching();
        match behind {
            // Once it has moved for ftrace, a probe does not come back where it can do without: a task may be on its way
            // from here, or from a tracer, to where the probe is now, and would be missed.
            _ if is_nop && is_quiet && !entry.moved_for_ftrace && self.phase > BootPhase::Start => {
                Placement::At { at, function: function(false), anchor: Anchor::Nop, is_early: false }
            }
            // ftrace verifies its sites when it makes nops of them. There is one task, and it is not among them whenever the
            // phase changes.
            Behind::Free { fixup, settled } if self.phase < BootPhase::Late && (is_nop || is_ftraces) => {
                early(at.add(FTRACE_SITE), Anchor::Behind(at), *fixup, *settled)
            }
            _ if self.phase < BootPhase::Late => Placement::Not(ProbeState::Waiting),
            // Neither ftrace's nop nor anything that it makes of it.
            _ if !is_nop && !is_ftraces => Placement::Not(ProbeState::Overwritten(at)),
            Behind::Free { fixup, .. } => {
                let behind = at.add(FTRACE_SITE);
                Placement::At {
                    at: behind,
                    function: function(*fixup),
                    anchor: Anchor::Behind(at),
                    is_early: false,
                }
            }
            Behind::Guarded(_) if self.hooks.follows_ftrace() => {
                Placement::Not(ProbeState::DisplacedByFtrace(at))
            }
            Behind::Guarded(reason) => {
                let reason =
                    format!("this kernel's ftrace cannot be followed, and behind its site: {reason}");
                Placement::Not(ProbeState::Refused(reason))
            }
        }
    }

    /// Where an internal trap stands in the function at `start`: not on what ftrace may want for itself, as soon
    /// as what is behind that is final.
    fn hook_place(&self, start: Gva, text: &GuestText<'_>) -> Option<Gva> {
        let head: [u8; 16] = text.first(start)?;
        let at = skip_endbr(&head, start);
        let offset = at.offset_from(start)? as usize;
        let head = head.get(offset..)?;
        // A tracer's call, or ftrace's own breakpoint while it makes one: the place must not depend on the moment.
        let is_used = self.phase == BootPhase::Late && matches!(head.first(), Some(&(CALL | INT3)));
        match (self.phase, is_used || ftrace_nop(head).is_some()) {
            (BootPhase::Unknown | BootPhase::Start, _) => None,
            (BootPhase::Late, true) => Some(at.add(FTRACE_SITE)),
            (BootPhase::Late, false) | (_, true) => Some(at),
            (_, false) => None,
        }
    }
}

/// Whether nothing changes a probe's state any more.
fn is_settled(state: &ProbeState) -> bool {
    matches!(
        state,
        ProbeState::Gone(_)
            | ProbeState::Overwritten(_)
            | ProbeState::Refused(_)
            | ProbeState::Spent(_)
            | ProbeState::Broken(_)
    )
}
