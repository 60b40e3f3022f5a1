//! The contract with KVM, put to the test: what a host must do so that a guest with probes runs on it.
//!
//! KVM's capabilities say what an interface has, not what happens: some hosts announce guest debugging and never
//! deliver a breakpoint, others emulate a kernel's instructions and fail at the first that the emulator lacks. So
//! guests of a few instructions are run, and what comes back decides. It takes a few milliseconds; a guest that
//! does not come back is interrupted.

mod checks;
pub mod micro;
mod table;

/// How a guest's `int3` comes to us on a host.
pub use crate::trap::Delivery as BreakpointDelivery;
pub use table::{Row, Unfit};

use crate::kvm::Hypervisor;
use crate::signals;
use checks::{Bench, CheckFailure};
use micro::MicroError;
use serde::Serialize;
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// It is as it should be.
    pub ok: bool,
    /// What was seen, for people.
    pub saw: String,
}

/// What this KVM does. The field names are stable: `vmm doctor --json` prints them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Contract {
    /// A guest runs at all, and its port accesses come to us.
    pub port_exit: Finding,
    /// A port access is finished without running the guest, so that its registers are those of now.
    pub access_completion: Finding,
    /// Registers come and go with KVM_RUN itself.
    pub shared_registers: Finding,
    /// The value of KVM_CAP_SYNC_REGS: 1 general, 2 system registers, 4 events.
    pub shared_registers_capability: i32,
    /// The CPU executes the guest's kernel; no emulator does.
    pub native_execution: Finding,
    /// An `int3` in the guest's kernel comes to us.
    pub breakpoint: Finding,
    /// The way that it comes, if it does.
    pub delivery: Option<BreakpointDelivery>,
    /// The guest gets its own `int3`, once.
    pub give_back: Finding,
    /// A debug register stops before an instruction.
    pub execution_breakpoint: Finding,
    /// A debug register stops behind a store.
    pub data_breakpoint: Finding,
    /// One instruction at a time.
    pub single_step: Finding,
}

/// The test could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SelftestError {
    /// KVM made no machine for it.
    #[error(transparent)]
    Guest(#[from] MicroError),
    /// The host is out of descriptors or threads.
    #[error("the host refused {0}")]
    Host(&'static str, #[source] io::Error),
}

/// Makes all checks.
///
/// # Errors
/// [`SelftestError`] when there is nothing to check with. A check that fails is a finding.
pub fn run(hypervisor: &Hypervisor) -> Result<Contract, SelftestError> {
    /// How long all checks together may take. Emulated hosts need a tenth of it.
    const PATIENCE: Duration = Duration::from_secs(2);
    /// A signal that meets the thread outside KVM_RUN does nothing, so it is sent again.
    const AGAIN: Duration = Duration::from_millis(5);
    signals::make_kick_harmless().map_err(|e| SelftestError::Host("a signal handler", e.into()))?;
    let capability = hypervisor.kvm().check_extension_int(kvm_ioctls::Cap::SyncRegs);
    let mut bench = Bench::new(hypervisor)?;
    let (done, result) = mpsc::channel();
    let thread = thread::Builder::new()
        .name("selftest".to_owned())
        .spawn(move || {
            // The receiver waits for this.
            let _ = done.send(check(&mut bench, capability));
        })
        .map_err(|e| SelftestError::Host("a thread", e))?;
    let mut patience = PATIENCE;
    loop {
        match result.recv_timeout(patience) {
            Ok(contract) => return Ok(contract),
            Err(mpsc::RecvTimeoutError::Timeout) => signals::kick(&thread),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(SelftestError::Host("to finish the self-test", io::ErrorKind::Other.into()));
            }
        }
        patience = AGAIN;
    }
}

fn check(bench: &mut Bench, shared_registers_capability: i32) -> Contract {
    let port_exit = bench.port_exit();
    let access_completion = bench.access_completion();
    let shared_registers = bench.shared_registers();
    let native_execution = bench.native_execution();
    let breakpoint = bench.breakpoint();
    let give_back = match &breakpoint {
        Ok(delivery) => bench.give_back(*delivery),
        Err(_) => Err(CheckFailure::Saw("not tried: int3 does not come".to_owned())),
    };
    Contract {
        port_exit: Finding::new(port_exit, "works"),
        access_completion: Finding::new(access_completion, "works"),
        shared_registers: Finding::new(shared_registers, "works"),
        shared_registers_capability,
        native_execution: Finding::new(native_execution, "native"),
        delivery: breakpoint.as_ref().ok().copied(),
        breakpoint: match breakpoint {
            Ok(BreakpointDelivery::Intercepted) => Finding::new(Ok(()), "intercepted by KVM"),
            Ok(BreakpointDelivery::Reflected) => Finding::new(Ok(()), "caught on the guest's handler"),
            Err(miss) => Finding::new(Err(miss), ""),
        },
        give_back: Finding::new(give_back, "works, once"),
        execution_breakpoint: Finding::new(bench.execution_breakpoint(), "works"),
        data_breakpoint: Finding::new(bench.data_breakpoint(), "works"),
        single_step: Finding::new(bench.single_step(), "works"),
    }
}

impl Finding {
    fn new(result: Result<(), CheckFailure>, good: &str) -> Self {
        match result {
            Ok(()) => Self { ok: true, saw: good.to_owned() },
            Err(miss) => Self { ok: false, saw: miss.to_string() },
        }
    }
}
