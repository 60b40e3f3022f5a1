//! Tracepoints of real kernels: `VMM_TEST_KERNELS` lists boot images, separated by colons.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

use probe_engine::capture::typed::Expand;
use probe_engine::linux::debug_info::DebugInfo;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::tracepoints::{Callee, NO_SYSTEM, TAG, TracepointCalls};
use probe_engine::probe::place::Place;
use probe_engine::request::Definitions;

/// All can be probed, have arguments with names, and most are part of a system. Where a function is called for others as well, the
/// first argument tells whose call it is.
#[test]
fn all_tracepoints_can_be_probed() {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        return println!("skipped: VMM_TEST_KERNELS names no kernels");
    };
    for path in list.split(':') {
        let kernel = Kernel::read(&std::fs::read(path).unwrap(), None).unwrap();
        let (btf, debug) = (kernel.btf().unwrap(), DebugInfo::of(&kernel));
        let calls = TracepointCalls::of(&kernel).unwrap();
        let found = |definition: &str| {
            let mut definitions = Definitions::of(&kernel, Some(&btf), &debug, Expand::Small);
            definitions.read(definition).unwrap();
            definitions.finish()
        };
        let all = found("t *");
        assert!(all.probes.len() > 600 && all.refused.is_empty(), "{path}: {}", all.probes.len());
        for asked in &all.probes {
            let tracepoint = asked.plan.tracepoint.as_ref().unwrap();
            let Place::Kernel { info, .. } = &asked.place else { panic!("{path}: {}", asked.name()) };
            assert!(info.is_entry() && tracepoint.at.is_some(), "{path}: {}", asked.name());
            assert_eq!(asked.plan.capture.filter.is_some(), calls.callee == Callee::Own, "{path}");
            assert!(asked.plan.capture.fields.iter().all(|field| field.name != "__data"), "{path}");
        }
        let with_arguments = all.probes.iter().filter(|asked| !asked.plan.capture.fields.is_empty()).count();
        let of_none = all.probes.iter().filter(|asked| asked.name().starts_with(NO_SYSTEM)).count();
        println!("{path}: {}, {with_arguments} with arguments, {of_none} of no system", all.probes.len());
        assert!(with_arguments > 550 && of_none < 60, "{path}: {with_arguments}, {of_none}");
        let switch = found("t sched_switch to=next->pid first=$arg1:u8 if prev_state == 0").probes;
        let [switch] = switch.as_slice() else { panic!("{path}: {} of one name", switch.len()) };
        assert_eq!(switch.name(), "sched:sched_switch");
        let sources: Vec<_> = switch.plan.capture.fields.iter().map(|field| field.source(false)).collect();
        assert!(sources[0].ends_with("(%dx)") || sources[0].ends_with("(%cx)"), "{path}: {sources:?}");
        assert_eq!(sources[1], "%si", "{path}");
        assert_eq!(calls.callee.data().first(), Some(&TAG));
    }
}
