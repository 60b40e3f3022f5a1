//! The KVM of the machine that the tests run on.

use std::sync::OnceLock;
use vmm::guest::{Host, HostError};

/// This machine's KVM when guests with probes run on it. Otherwise the test is skipped, with one line that says
/// why, unless `VMM_CONTRACT_REQUIRED=1` makes it fail.
pub fn fit() -> Option<&'static Host> {
    static FIT: OnceLock<Result<Host, HostError>> = OnceLock::new();
    match FIT.get_or_init(Host::open) {
        Ok(fit) => Some(fit),
        Err(verdict) if std::env::var("VMM_CONTRACT_REQUIRED").is_ok_and(|v| v == "1") => panic!("{verdict}"),
        Err(verdict) => {
            println!("skipped: {verdict}");
            None
        }
    }
}
