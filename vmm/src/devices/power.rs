//! The two ways in which a guest ends itself: ACPI power off and the keyboard controller's reset line.

use super::bus::{Device, PowerEvent};
use crate::boot::acpi::SLEEP_TYPE_OFF;
use std::sync::atomic::{AtomicU16, Ordering};

/// ACPI's fixed hardware (ACPI specification 6.5, 4.8.3), without interrupts: no event is ever signalled. Its registers
/// are the event block and, behind that, the control block.
#[derive(Default)]
pub(super) struct PowerManagement {
    enabled_events: AtomicU16,
}

/// Ports that it takes: status, enabled events, control, two each.
pub(super) const REGISTERS: u16 = 6;
const ENABLED_EVENTS: u64 = 2;
const CONTROL: u64 = 4;
/// PM1 control bit 0: the interrupt goes to the operating system, not to SMM.
const SCI_EN: u16 = 1;
pub(crate) const SLP_EN: u16 = 1 << 13;

impl Device for PowerManagement {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let enabled = self.enabled_events.load(Ordering::Relaxed).to_le_bytes();
        let control = SCI_EN.to_le_bytes();
        let registers = [0, 0, enabled[0], enabled[1], control[0], control[1]];
        let rest = registers.iter().skip(offset as usize).chain(std::iter::repeat(&0));
        data.iter_mut().zip(rest).for_each(|(byte, value)| *byte = *value);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Option<PowerEvent> {
        let value = match *data {
            [low] => u16::from(low),
            [low, high, ..] => u16::from_le_bytes([low, high]),
            [] => return None,
        };
        match offset {
            CONTROL if value & SLP_EN != 0 && (value >> 10 & 7) as u8 == SLEEP_TYPE_OFF => {
                return Some(PowerEvent::Off);
            }
            ENABLED_EVENTS => self.enabled_events.store(value, Ordering::Relaxed),
            _ => {}
        }
        None
    }
}

/// The keyboard controller, in which only the reset line works.
pub(super) struct ResetLine;

/// The command port, behind the first one.
const COMMAND: u64 = 4;
const RESET: u8 = 0xfe;

impl Device for ResetLine {
    /// The status register says that a command may be written.
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(if matches!(offset, 0 | COMMAND) { 0 } else { 0xff });
    }

    fn write(&self, offset: u64, data: &[u8]) -> Option<PowerEvent> {
        (offset == COMMAND && data.first() == Some(&RESET)).then_some(PowerEvent::Reset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_agreed_writes_end_the_machine() {
        let power = PowerManagement::default();
        let off = SLP_EN | u16::from(SLEEP_TYPE_OFF) << 10;
        assert_eq!(power.write(CONTROL, &off.to_le_bytes()), Some(PowerEvent::Off));
        assert_eq!(power.write(CONTROL, &SLP_EN.to_le_bytes()), None);
        assert_eq!(power.write(CONTROL, &[]), None);
        assert_eq!(ResetLine.write(COMMAND, &[0xfe]), Some(PowerEvent::Reset));
        assert_eq!(ResetLine.write(COMMAND, &[0xd1]), None);
        assert_eq!(ResetLine.write(COMMAND, &[]), None);
        assert_eq!(ResetLine.write(0, &[0xfe]), None);
    }

    #[test]
    fn the_machine_is_in_acpi_mode_and_remembers_the_enabled_events() {
        let power = PowerManagement::default();
        let mut control = [0; 2];
        power.read(CONTROL, &mut control);
        assert_eq!(control, [1, 0]);
        power.write(ENABLED_EVENTS, &[0x20, 0x01]);
        let mut event = [0; 4];
        power.read(0, &mut event);
        assert_eq!(event, [0, 0, 0x20, 0x01]);
    }
}
