//! Traps of our own, by which the guest tells us what it is about to do.

use super::registry::Registry;
use super::stage::BootPhase;
use probe_engine::addr::Gva;
use probe_engine::linux::landmarks::{HookAddresses, Landmarks};
use probe_engine::linux::tracepoints::TracepointCalls;
use probe_engine::probe::table::Internal;

/// What is known from the hooks that were reached.
pub(super) struct GuestHooks {
    addresses: HookAddresses,
    tracepoints: Option<TracepointCalls>,
    panic: Option<Gva>,
    free_init: Option<Gva>,
    init_freed: bool,
    /// Where the kernel has sealed itself, if that is of interest.
    sealed: Option<Gva>,
    /// Whether drivers are being started, or have been.
    has_drivers: bool,
    /// Whether tracepoints are switched on, or may be in a moment.
    has_tracepoints: bool,
    /// `begin_new_exec`
    exec: Option<Gva>,
    /// Whether it is of interest that a program is about to run.
    awaits_programs: bool,
    panicked: bool,
    /// Whether modules are followed that have no probes, too.
    all_modules: bool,
    /// Whether it is of interest when the kernel begins to report.
    before_splats: bool,
    /// Whether the guest may have to stand still at the end of a report.
    stops_at_splats: bool,
    /// Updates of ftrace's sites that have begun and not ended.
    updates: u32,
}

impl GuestHooks {
    pub(super) fn new(
        kernel: &Landmarks,
        sealed: Option<Gva>,
        all_modules: bool,
        (before_splats, stops_at_splats): (bool, bool),
    ) -> Self {
        Self {
            addresses: kernel.hooks,
            tracepoints: kernel.tracepoints.as_ref().ok().copied(),
            panic: kernel.panic,
            free_init: kernel.free_init,
            init_freed: false,
            sealed,
            has_drivers: false,
            has_tracepoints: false,
            exec: kernel.uprobes.as_ref().ok().map(|calls| calls.exec),
            awaits_programs: false,
            panicked: false,
            all_modules,
            before_splats,
            stops_at_splats,
            updates: 0,
        }
    }

    /// The functions to trap, at link-time addresses.
    pub(super) fn wanted(&self, phase: BootPhase, registry: &Registry) -> Vec<(Internal, Gva)> {
        let late = phase == BootPhase::Late;
        let probes = late && !registry.is_empty();
        let modules = late && (self.all_modules || registry.has_modules());
        let addresses = &self.addresses;
        let has_tracepoints = self.has_tracepoints || registry.has_tracepoints();
        let tracepoints = self.tracepoints.filter(|_| late && has_tracepoints);
        let drivers = tracepoints.and_then(|calls| calls.drivers);
        let all = [
            (Internal::Panic, self.panic, !self.panicked),
            (Internal::PanicTold, addresses.panic_told.map(|(function, _)| function), self.panicked),
            (Internal::Tainted, addresses.tainted, self.stops_at_splats),
            (Internal::FreeInitText, self.free_init, late && !self.init_freed),
            (Internal::Sealed, self.sealed, late),
            (Internal::ModuleReady, addresses.module_init, modules),
            (Internal::ModuleInitDone, addresses.init_free, modules),
            (Internal::ModuleGone, addresses.module_free, modules),
            (Internal::Drivers, drivers, !self.may_switch()),
            (Internal::Exec, self.exec, late && self.awaits_programs),
            (
                Internal::ModuleTracepoints,
                tracepoints.and_then(|calls| calls.module_notify),
                modules || self.has_tracepoints,
            ),
            // Also when there is no probe: the first one may come in the middle of an update.
            (Internal::PatchBegin, addresses.ftrace_begin, late && self.follows_ftrace()),
            (Internal::PatchEnd, addresses.ftrace_end, late && self.follows_ftrace()),
            (Internal::Fault, addresses.fault, probes),
            (Internal::PageFault, addresses.page_fault_oops, probes),
            (Internal::TaskGone, addresses.task_free, late && registry.returns().next().is_some()),
        ];
        let reports = addresses.reports.into_iter().map(|link| (Internal::Report, link, self.before_splats));
        all.into_iter()
            .chain(reports)
            .filter(|(.., wanted)| *wanted)
            .filter_map(|(i, link, _)| Some((i, link?)))
            .collect()
    }

    pub(super) fn reached(&mut self, internal: Internal) {
        match internal {
            Internal::FreeInitText => self.init_freed = true,
            Internal::Sealed => self.sealed = None,
            Internal::Drivers => self.has_drivers = true,
            Internal::Panic => self.panicked = true,
            Internal::PatchBegin => self.updates += 1,
            Internal::PatchEnd => self.updates = self.updates.saturating_sub(1),
            _ => {}
        }
    }

    /// Whether a call of notifiers that begins with `list` (GVA) is a panic's, in a kernel with this slide.
    pub(super) fn is_panic(&self, list: Gva, slide: u64) -> bool {
        self.addresses.panic_told.is_some_and(|(_, panics)| panics.add(slide) == list)
    }

    /// Whether tracepoints are switched on, or may be in a moment: modules are followed that have some.
    pub(super) fn follow_tracepoints(&mut self, has_tracepoints: bool) {
        self.has_tracepoints = has_tracepoints;
    }

    /// Whether it is of interest that a program is about to run.
    pub(super) fn follow_programs(&mut self, awaits_programs: bool) {
        self.awaits_programs = awaits_programs;
    }

    /// Whether the kernel has come so far that there are files.
    pub(super) fn has_files(&self) -> bool {
        self.init_freed
    }

    /// Whether the kernel has come so far that tracepoints can be switched.
    pub(super) fn may_switch(&self) -> bool {
        let waits = self.tracepoints.is_some_and(|calls| calls.drivers.is_some());
        self.has_drivers || self.init_freed || !waits
    }

    /// Whether this kernel tells when it works on ftrace's sites.
    pub(super) fn follows_ftrace(&self) -> bool {
        self.addresses.ftrace_begin.is_some() && self.addresses.ftrace_end.is_some()
    }

    /// Whether the guest may have to stand still at the end of a report.
    pub(super) fn stops_at_splats(&self) -> bool {
        self.stops_at_splats
    }

    /// Whether the text of `link` was freed.
    pub(super) fn is_freed(&self, kernel: &Landmarks, link: Gva) -> bool {
        self.init_freed && kernel.is_init_text(link)
    }

    /// Whether the guest works on ftrace's sites.
    pub(super) fn is_patching(&self) -> bool {
        self.updates > 0
    }
}
