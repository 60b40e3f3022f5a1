//! Tracepoints of real kernels: `VMM_TEST_KERNELS` lists boot images, separated by colons.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

use probe_engine::capture::shape::Shape;
use probe_engine::capture::typed::Expand;
use probe_engine::linux::debug_info::DebugInfo;
use probe_engine::linux::event_fields::event_fields;
use probe_engine::linux::glob::Glob;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::tracepoints::{Callee, NO_SYSTEM, TAG, TracepointCalls, Tracepoints};
use probe_engine::probe::place::Place;
use probe_engine::request::Definitions;
use std::collections::{BTreeMap, BTreeSet};

/// Most fields of events are what an argument is or leads to, and the others are refused with the reason.
#[test]
fn most_fields_of_events_can_be_read() {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        return println!("skipped: VMM_TEST_KERNELS names no kernels");
    };
    for path in list.split(':') {
        let kernel = Kernel::read(&std::fs::read(path).unwrap(), None).unwrap();
        let btf = kernel.btf().unwrap();
        let all = Tracepoints::of(&kernel, Some(&btf)).unwrap();
        let any = Glob::new("*").unwrap();
        let classes: BTreeSet<_> = all.matching(None, &any).filter_map(|own| own.class.clone()).collect();
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for class in &classes {
            for field in event_fields(&kernel, &btf, class) {
                let reason =
                    field.source.map_or_else(|reason| reason.to_string(), |_| "can be read".to_owned());
                *reasons.entry(reason).or_default() += 1;
            }
        }
        println!("{path}: {} classes of events, {reasons:?}", classes.len());
        let fields: usize = reasons.values().sum();
        assert!(reasons["can be read"] * 10 > fields * 6, "{path}: {reasons:?}");
    }
}

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
        let fields = found("t sched_switch prev_pid next_comm prio=next_prio if next_pid == 1").probes;
        let sources: Vec<_> = fields
            .iter()
            .flat_map(|asked| &asked.plan.capture.fields)
            .map(|field| field.source(false))
            .collect();
        assert!(sources[0].ends_with("(%dx)") && sources[1].ends_with("(%cx)"), "{path}: {sources:?}");
        assert_eq!(fields[0].plan.capture.fields[1].shape, Shape::Text);
        let refused = |definition: &str| {
            let mut definitions = Definitions::of(&kernel, Some(&btf), &debug, Expand::Small);
            definitions.read(definition).unwrap_err().to_string()
        };
        let computed = refused("t sched_switch prev_state=prev_state prev_foo");
        assert!(computed.contains("prev_foo"), "{path}: {computed}");
        let computed = refused("t mm_page_alloc pfn");
        assert!(computed.contains("`pfn` cannot be read: the guest computes it"), "{path}: {computed}");
        let dynamic = refused("t sched_process_exec __data_loc_filename");
        assert!(dynamic.contains("copies it behind the event"), "{path}: {dynamic}");
    }
}
