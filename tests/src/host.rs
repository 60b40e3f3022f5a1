//! The KVM of the machine that the tests run on.

use std::path::Path;
use std::sync::OnceLock;
use vmm::kvm::Hypervisor;
use vmm::selftest::{self, BreakpointDelivery};

/// A KVM that can run guests with probes.
pub struct Fit {
    /// The open device.
    pub hypervisor: Hypervisor,
    /// How breakpoints come on it.
    pub delivery: BreakpointDelivery,
}

/// This machine's KVM when guests with probes run on it. Otherwise the test is skipped, with one line that says
/// why, unless `VMM_CONTRACT_REQUIRED=1` makes it fail.
pub fn fit() -> Option<&'static Fit> {
    static FIT: OnceLock<Result<Fit, String>> = OnceLock::new();
    match FIT.get_or_init(open) {
        Ok(fit) => Some(fit),
        Err(verdict) if std::env::var("VMM_CONTRACT_REQUIRED").is_ok_and(|v| v == "1") => panic!("{verdict}"),
        Err(verdict) => {
            println!("skipped: {verdict}");
            None
        }
    }
}

fn open() -> Result<Fit, String> {
    let hypervisor = Hypervisor::open(Path::new("/dev/kvm")).map_err(|e| e.to_string())?;
    let contract = selftest::run(&hypervisor).map_err(|e| e.to_string())?;
    contract.verdict().map_err(|e| e.to_string())?;
    let delivery = contract.delivery().ok_or("no breakpoints")?;
    Ok(Fit { hypervisor, delivery })
}
