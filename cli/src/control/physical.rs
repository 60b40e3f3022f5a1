//! The guest's physical memory and what its kernel says for readers of it, as clients of a control socket see them.

use super::hex;
use crate::record::Address;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::linux::symbols::SymbolTable;
use serde::{Deserialize, Serialize};
use vmm::session::Handle;

/// What is wanted of the physical memory.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum PhysicalRequest {
    /// Where there is any.
    Ram,
    /// What is there.
    Read { at: Gpa, length: usize },
    /// What the kernel says for those who read its memory.
    Vmcoreinfo,
}

/// Where there is memory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ram {
    pub(crate) ranges: Vec<RamRange>,
}

/// A range of it, up to before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RamRange {
    pub(crate) start: Address,
    pub(crate) end: Address,
}

/// What is in memory: pages that are not in it are zeros.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryParts {
    pub(crate) parts: Vec<MemoryPart>,
}

/// What is at an address, as hexadecimal digits.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryPart {
    pub(crate) address: Address,
    pub(crate) bytes: String,
}

/// The text, if there is one, as hexadecimal digits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VmcoreinfoText {
    pub(crate) bytes: Option<String>,
}

/// What this has come to, as JSON.
pub(super) fn answer(
    asked: PhysicalRequest,
    handle: &Handle,
    vmcoreinfo: Option<&VmcoreinfoSymbols>,
) -> Result<serde_json::Value, String> {
    fn value(of: impl Serialize) -> Result<serde_json::Value, String> {
        serde_json::to_value(of).map_err(|error| error.to_string())
    }
    match asked {
        PhysicalRequest::Ram => {
            let ranges = handle.ram().map_err(|error| error.to_string())?;
            let range = |range: std::ops::Range<Gpa>| RamRange {
                start: Address(range.start.0),
                end: Address(range.end.0),
            };
            value(Ram { ranges: ranges.into_iter().map(range).collect() })
        }
        PhysicalRequest::Read { at, length } => {
            let bytes = handle.read_physical(at, length).map_err(|error| error.to_string())?;
            value(MemoryParts { parts: parts(at, &bytes) })
        }
        PhysicalRequest::Vmcoreinfo => {
            let text = vmcoreinfo.and_then(|symbols| symbols.read(handle));
            value(VmcoreinfoText { bytes: text.as_deref().map(hex::text) })
        }
    }
}

/// What of `bytes`, which are at `at`, is in pages with anything but zeros.
fn parts(at: Gpa, bytes: &[u8]) -> Vec<MemoryPart> {
    const PAGE: u64 = 4096;
    const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
    let mut parts: Vec<MemoryPart> = Vec::new();
    let (mut at, mut rest, mut is_open) = (at, bytes, false);
    while !rest.is_empty() {
        let length = (PAGE - at.0 % PAGE).min(rest.len() as u64);
        let (page, behind) = rest.split_at(length as usize);
        let is_zero = ZEROS.starts_with(page);
        match parts.last_mut().filter(|_| is_open) {
            _ if is_zero => {}
            Some(part) => part.bytes.push_str(&hex::text(page)),
            None => parts.push(MemoryPart { address: Address(at.0), bytes: hex::text(page) }),
        }
        (at, rest, is_open) = (at.add(length), behind, !is_zero);
    }
    parts
}

/// Where the kernel has its text for those who read its memory (kernel/vmcore_info.c), at link-time addresses.
pub(super) struct VmcoreinfoSymbols {
    /// `unsigned char *vmcoreinfo_data`
    data: Gva,
    /// `size_t vmcoreinfo_size`
    size: Gva,
}

impl VmcoreinfoSymbols {
    /// Those of `symbols`, if the kernel has such a text.
    pub(super) fn of(symbols: &SymbolTable) -> Option<Self> {
        let at = |name| symbols.address_of(name);
        Some(Self { data: at("vmcoreinfo_data")?, size: at("vmcoreinfo_size")? })
    }

    /// The text, once the kernel has written it.
    fn read(&self, handle: &Handle) -> Option<Vec<u8>> {
        /// The kernel gives it a page.
        const LONGEST: usize = 4096;
        let slide = handle.standing().ok()?.slide?;
        let word = |at: Gva| {
            let bytes = handle.read(at.add(slide), 8, None).ok()?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let (data, size) = (word(self.data)?, word(self.size)?);
        let size = usize::try_from(size).ok().filter(|size| (1..=LONGEST).contains(size))?;
        handle.read(Gva(data), size, None).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeros_are_left_out() {
        let mut bytes = vec![0; 0x4000];
        bytes[0x10] = 0x1f;
        bytes[0x1010] = 1;
        bytes[0x3fff] = 2;
        let found = parts(Gpa(0x10_0000), &bytes);
        let places: Vec<_> = found.iter().map(|part| (part.address.0, part.bytes.len())).collect();
        assert_eq!(places, [(0x10_0000, 0x4000), (0x10_3000, 0x2000)]);
        assert!(found[0].bytes[0x20..].starts_with("1f00") && found[1].bytes.ends_with("02"));
        // It begins and ends in the middle of pages.
        let found = parts(Gpa(0x1ffe), &[1, 2, 3]);
        assert_eq!(found, [MemoryPart { address: Address(0x1ffe), bytes: "010203".to_owned() }]);
        let found = parts(Gpa(0x1ffe), &[0, 0, 3]);
        assert_eq!(found, [MemoryPart { address: Address(0x2000), bytes: "03".to_owned() }]);
        assert!(parts(Gpa(0), &[]).is_empty() && parts(Gpa(5), &[0; 10_000]).is_empty());
    }
}
