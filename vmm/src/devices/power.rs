//! The two ways in which a guest ends itself: ACPI power off and the keyboard controller's reset line.

use super::offset;
use crate::boot::{acpi::SLEEP_TYPE_OFF, layout};
use std::sync::atomic::{AtomicU16, Ordering};

/// The guest asks for the end of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerEvent {
    /// ACPI S5.
    Off,
    /// A reset through the i8042.
    Reset,
}

/// ACPI's fixed hardware (ACPI specification 6.5, 4.8.3), without interrupts: no event is ever signalled.
#[derive(Default)]
pub(super) struct PowerManagement {
    enabled_events: AtomicU16,
}

/// PM1 control bit 0: the interrupt goes to the operating system, not to SMM.
const SCI_EN: u16 = 1;
pub(crate) const SLP_EN: u16 = 1 << 13;
const I8042_DATA: u16 = 0x60;
const I8042_COMMAND: u16 = 0x64;
const I8042_RESET: u8 = 0xfe;

impl PowerManagement {
    pub(super) fn write(&self, port: u16, data: &[u8]) -> Option<PowerEvent> {
        let value = match *data {
            [low] => u16::from(low),
            [low, high, ..] => u16::from_le_bytes([low, high]),
            [] => return None,
        };
        match port {
            I8042_COMMAND if value as u8 == I8042_RESET => Some(PowerEvent::Reset),
            layout::PM1A_CONTROL if value & SLP_EN != 0 && (value >> 10 & 7) as u8 == SLEEP_TYPE_OFF => {
                Some(PowerEvent::Off)
            }
            port if port == layout::PM1A_EVENT + 2 => {
                self.enabled_events.store(value, Ordering::Relaxed);
                None
            }
            _ => None,
        }
    }

    /// Fills `data` when `port` is one of ours.
    pub(super) fn read(&self, port: u16, data: &mut [u8]) -> bool {
        let enabled = self.enabled_events.load(Ordering::Relaxed).to_le_bytes();
        let control = SCI_EN.to_le_bytes();
        let registers = [0, 0, enabled[0], enabled[1], control[0], control[1]];
        if let Some(at) = offset(port, layout::PM1A_EVENT, registers.len() as u16) {
            let rest = registers.iter().skip(usize::from(at)).chain(std::iter::repeat(&0));
            data.iter_mut().zip(rest).for_each(|(byte, value)| *byte = *value);
            return true;
        }
        // The status register says that a command may be written.
        let is_keyboard_controller = matches!(port, I8042_DATA | I8042_COMMAND);
        if is_keyboard_controller {
            data.fill(0);
        }
        is_keyboard_controller
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_agreed_writes_end_the_machine() {
        let power = PowerManagement::default();
        let off = SLP_EN | u16::from(SLEEP_TYPE_OFF) << 10;
        assert_eq!(power.write(layout::PM1A_CONTROL, &off.to_le_bytes()), Some(PowerEvent::Off));
        assert_eq!(power.write(layout::PM1A_CONTROL, &SLP_EN.to_le_bytes()), None);
        assert_eq!(power.write(I8042_COMMAND, &[0xfe]), Some(PowerEvent::Reset));
        assert_eq!(power.write(I8042_COMMAND, &[0xd1]), None);
        assert_eq!(power.write(I8042_COMMAND, &[]), None);
    }

    #[test]
    fn the_machine_is_in_acpi_mode_and_remembers_the_enabled_events() {
        let power = PowerManagement::default();
        let mut control = [0; 2];
        assert!(power.read(layout::PM1A_CONTROL, &mut control));
        assert_eq!(control, [1, 0]);
        power.write(layout::PM1A_EVENT + 2, &[0x20, 0x01]);
        let mut event = [0; 4];
        assert!(power.read(layout::PM1A_EVENT, &mut event));
        assert_eq!(event, [0, 0, 0x20, 0x01]);
        assert!(!power.read(0x80, &mut event));
    }
}
