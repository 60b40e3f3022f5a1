//! A kernel's image on its way to memory: compressed, with a decompressor that runs in the guest, or unpacked, moved as the
//! decompressor would have moved it, and entered where the decompressor jumps to.

use super::{BootError, BootState, KernelPlace, kaslr};
use crate::layout;
use crate::memory::GuestRam;
use linux_loader::bootparam::setup_header;
use probe_engine::addr::Gpa;
use probe_engine::linux::boot::Boot;
use probe_engine::linux::bzimage::{BzImage, ENTRY_64};
use probe_engine::linux::relocations::relocate;
use probe_engine::linux::vmlinux::Vmlinux;
use probe_engine::memory::PhysMemory;
use std::borrow::Cow;
use std::ops::Range;
use vm_memory::ByteValued;

/// `xloadflags`: the kernel may be entered with page tables of five levels, and then uses five.
const XLF_5LEVEL: u16 = 1 << 5 | 1 << 6;
/// `loadflags`: the kernel was moved, and is to move its regions of memory as well.
const KASLR_FLAG: u8 = 1 << 1;

/// A kernel's image.
pub(super) struct Image<'a> {
    /// Its setup header, which goes to the zero page.
    pub(super) header: setup_header,
    /// What it takes of the memory where it was linked to be, until it reads the memory map.
    pub(super) memory: Range<Gpa>,
    body: Body<'a>,
}

enum Body<'a> {
    /// The protected-mode kernel of a bzImage is these bytes of it.
    Compressed(Cow<'a, [u8]>, Range<usize>),
    Unpacked(Vmlinux),
}

/// What the machine gives a kernel to run with.
#[derive(Clone, Copy)]
pub(super) struct LoadTarget<'a> {
    pub(super) ram: &'a GuestRam,
    /// What of the memory is taken already.
    pub(super) taken: &'a Range<Gpa>,
    pub(super) cmdline: &'a str,
    /// Whether its CPUs know page tables of five levels.
    pub(super) has_five_levels: bool,
}

impl<'a> Image<'a> {
    /// Reads the headers of `kernel`, which is booted as `boot` says.
    pub(super) fn read(kernel: Cow<'a, [u8]>, boot: &Boot) -> Result<Self, BootError> {
        match boot {
            Boot::Direct { setup } => {
                let image = Vmlinux::parse(kernel.into_owned())?;
                let start = image.segments().iter().map(|segment| segment.phys).min();
                let end = image.segments().iter().map(|segment| segment.phys_end()).max();
                let memory = start.unwrap_or(Gpa(0))..end.unwrap_or(Gpa(0));
                Ok(Self { header: header(setup), memory, body: Body::Unpacked(image) })
            }
            Boot::Decompressor(_) | Boot::Unknown => {
                let image = BzImage::parse(&kernel)?;
                let setup = image.setup();
                let memory = setup.pref_address..setup.pref_address.add(setup.init_size.into());
                let start = image.protected_offset();
                let protected = start..start + image.protected().len();
                let header = header(image.setup_bytes());
                Ok(Self { header, memory, body: Body::Compressed(kernel, protected) })
            }
        }
    }

    /// Puts it into memory, and says how it is entered.
    pub(super) fn load(mut self, machine: &LoadTarget<'_>) -> Result<(BootState, setup_header), BootError> {
        let load = self.memory.start;
        match self.body {
            Body::Compressed(file, protected) => {
                self.header.code32_start = load.0 as u32;
                let protected = file.get(protected).unwrap_or_default();
                machine.ram.write(load, protected).map_err(BootError::Tables)?;
                let state = BootState { entry: load.add(ENTRY_64), load, kernel: None, five_levels: false };
                Ok((state, self.header))
            }
            Body::Unpacked(mut image) => {
                let kernel = if !image.trailer().is_empty() && kaslr::is_wanted(machine.cmdline) {
                    self.header.loadflags |= KASLR_FLAG;
                    let place = place(&self.memory, &self.header, machine)?;
                    relocate(&mut image, place.slide)?;
                    place
                } else {
                    KernelPlace { moved: 0, slide: 0 }
                };
                for segment in image.segments() {
                    let at = segment.phys.add(kernel.moved);
                    machine.ram.write(at, image.segment_bytes(segment)).map_err(BootError::Tables)?;
                }
                let five_levels = machine.has_five_levels
                    && self.header.xloadflags & XLF_5LEVEL == XLF_5LEVEL
                    && !kaslr::words(machine.cmdline).any(|word| word == "no5lvl");
                let entry = image.entry().add(kernel.moved);
                let load = load.add(kernel.moved);
                Ok((BootState { entry, load, kernel: Some(kernel), five_levels }, self.header))
            }
        }
    }
}

/// Chooses where a kernel goes whose `memory` was linked to be there.
fn place(
    memory: &Range<Gpa>,
    header: &setup_header,
    machine: &LoadTarget<'_>,
) -> Result<KernelPlace, BootError> {
    let movable = kaslr::Movable {
        linked: memory.start.0,
        size: memory.end.0.saturating_sub(memory.start.0),
        alignment: u64::from(header.kernel_alignment).max(layout::LARGE_PAGE),
    };
    let mut random = [0; 8];
    let mut random = || {
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map(|_| u64::from_le_bytes(random))
            .map_err(|error| BootError::Random(error.into()))
    };
    let ram = machine.ram.ranges().into_iter().map(|range| range.start.0..range.end.0);
    let taken = machine.taken.start.0..machine.taken.end.0;
    let physical = match kaslr::free(ram, taken, machine.cmdline) {
        Some(free) => movable.physical(&free, random()?),
        None => movable.linked,
    };
    Ok(KernelPlace { moved: physical - movable.linked, slide: movable.slide(random()?) })
}

/// The setup header of these bytes, as far as they go; that of a kernel which came without one says what all understand.
fn header(bytes: &[u8]) -> setup_header {
    let mut header = setup_header {
        boot_flag: 0xaa55,
        header: 0x5372_6448,
        version: 0x20c,
        kernel_alignment: 0x100_0000,
        initrd_addr_max: 0x7fff_ffff,
        ..Default::default()
    };
    for (byte, is) in header.as_mut_slice().iter_mut().zip(bytes) {
        *byte = *is;
    }
    header
}
