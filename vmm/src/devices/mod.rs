//! The few devices of the machine, and the port bus that they hang on.

pub mod console;
mod power;

use crate::boot::layout;
use console::Console;
pub use power::PowerEvent;
use power::PowerManagement;
pub(crate) use power::SLP_EN;

/// Everything that answers on an I/O port. Shared by all vCPU threads.
pub struct Devices {
    /// The serial console.
    pub console: Console,
    power: PowerManagement,
}

impl Devices {
    /// A machine with this console.
    #[must_use]
    pub fn new(console: Console) -> Self {
        Self { console, power: PowerManagement::default() }
    }

    /// The guest writes `data` to `port`. A change of power state is for the caller to carry out.
    pub fn write(&self, port: u16, data: &[u8]) -> Option<PowerEvent> {
        if let Some(offset) = offset(port, layout::COM1, 8) {
            // A string instruction (`rep outsb`) delivers many bytes for the one register.
            data.iter().for_each(|byte| self.console.write(offset, *byte));
            return None;
        }
        self.power.write(port, data)
    }

    /// The guest reads `port` into `data`. Ports without a device read as all ones.
    pub fn read(&self, port: u16, data: &mut [u8]) {
        if let Some(offset) = offset(port, layout::COM1, 8) {
            data.iter_mut().for_each(|byte| *byte = self.console.read(offset));
        } else if !self.power.read(port, data) {
            data.fill(0xff);
        }
    }
}

/// How far `port` lies in the `count` ports from `base`.
fn offset(port: u16, base: u16, count: u16) -> Option<u8> {
    let offset = port.checked_sub(base)?;
    (offset < count).then_some(offset as u8)
}
