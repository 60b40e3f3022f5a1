//! Calls of real kernels that are to fail: `VMM_TEST_KERNELS` lists boot images, separated by colons.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

use probe_engine::capture::filter::{Filter, Operand, Test};
use probe_engine::capture::typed::Expand;
use probe_engine::linux::debug_info::DebugInfo;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::inject::InjectionId;
use probe_engine::request::Definitions;

/// `__GFP_NOFAIL` of the kernels under test.
const NOFAIL: u64 = 0x8000;

/// The callers of an allocation that must not fail do not look at what they get: each allocator's calls are told apart by its flags.
#[test]
fn allocations_that_must_not_fail_are_spared() {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        return println!("skipped: VMM_TEST_KERNELS names no kernels");
    };
    for path in list.split(':') {
        let kernel = Kernel::read(&std::fs::read(path).unwrap(), None).unwrap();
        let (btf, debug) = (kernel.btf().unwrap(), DebugInfo::of(&kernel));
        let mut definitions = Definitions::of(&kernel, Some(&btf), &debug, Expand::Small);
        definitions.inject("kmem_cache_alloc*=NULL", InjectionId(0), false).unwrap();
        definitions.inject("__kmalloc*=NULL if cpu == 0", InjectionId(1), false).unwrap();
        let probes = definitions.finish().probes;
        assert!(probes.len() > 5, "{path}: {}", probes.len());
        for probe in &probes {
            let capture = &probe.plan.capture;
            let spared = match capture.filter.as_ref().unwrap() {
                Filter::All(tests) => tests.last().unwrap(),
                only => only,
            };
            let Filter::Not(test) = spared else { panic!("{path}: {}: {spared:?}", probe.place.name()) };
            let Filter::Test(Operand::Field(number), Test::Bits(bit)) = **test else { panic!("{test:?}") };
            let flags = capture.fields.iter().chain(&capture.hidden).nth(number.into()).unwrap();
            let is_named = ["flags", "gfpflags", "gfp_flags", "gfp"].contains(&flags.name.as_str());
            assert!(is_named && bit == NOFAIL, "{path}: {}: {flags:?}, {bit:#x}", probe.place.name());
        }
        println!("{path}: {} allocators", probes.len());
    }
}
