//! The devices of the machine, and the bus that they hang on.

mod bus;
pub mod console;
pub mod pci;
mod power;
pub mod virtio;

use crate::kvm::Space;
use crate::layout;
pub use bus::{Bus, Device, PowerEvent};
use console::SerialConsole;
pub(crate) use power::SLP_EN;
use power::{PowerManagement, ResetLine};
use std::sync::Arc;

/// What every machine has. Shared by all vCPU threads.
pub struct Devices {
    /// The serial console.
    pub console: Arc<SerialConsole>,
    /// What answers the guest's accesses.
    pub bus: Bus,
}

impl Devices {
    /// A machine with this console.
    #[must_use]
    pub fn new(console: SerialConsole) -> Self {
        let console = Arc::new(console);
        let mut bus = Bus::default();
        let mut at_ports = |start: u16, count: u16, device: Arc<dyn Device>| {
            bus.add(Space::Port, start.into()..(start + count).into(), device);
        };
        at_ports(layout::COM1, 8, console.clone());
        at_ports(layout::PM1A_EVENT, power::REGISTERS, Arc::new(PowerManagement::default()));
        at_ports(layout::I8042, 5, Arc::new(ResetLine));
        Self { console, bus }
    }
}
