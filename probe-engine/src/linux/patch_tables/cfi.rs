//! What clang makes of indirect calls and of the functions that they come to (kCFI), which the kernel rewrites while it boots.

use super::{Tables, Why};
use iced_x86::Mnemonic;

/// Bytes of what clang (kCFI) puts before an indirect call: `mov $-hash,%r10d; add -15(%r11),%r10d; je .+2; ud2`
/// (arch/x86/kernel/alternative.c).
const CALL_CHECK: u64 = 14;
/// How it begins.
const LOADS_HASH: [u8; 2] = [0x41, 0xba];

impl Tables<'_> {
    /// What clang (kCFI) makes of indirect calls, which the kernel rewrites at boot: it changes the numbers, or makes FineIBT of
    /// them (`__apply_fineibt`). `.cfi_sites`: s32 each, to the 16 bytes before a function that are named `__cfi_`, behind which
    /// the function's endbr goes; `.retpoline_sites`: see [`CALL_CHECK`].
    pub(super) fn indirect_calls(&mut self) {
        const PREAMBLE: u64 = 16;
        const ENDBR: u64 = 4;
        if let Some(table) = self.section(".cfi_sites") {
            for entry in table.entries(4).filter_map(|entry| entry.target(0)).map(|at| at.add(PREAMBLE)) {
                if self.instruction(entry).mnemonic() == Mnemonic::Endbr64 {
                    self.push(entry, Some(ENDBR), Why::Endbr);
                }
            }
        }
        let Some(table) = self.section(".retpoline_sites") else { return };
        for site in table.entries(4).filter_map(|entry| entry.target(0)) {
            let check = site.offset(-(CALL_CHECK as i64));
            if self.image.bytes_from(check).is_some_and(|bytes| bytes.starts_with(&LOADS_HASH)) {
                self.push(check, Some(CALL_CHECK), Why::CallCheck);
            }
        }
    }
}
