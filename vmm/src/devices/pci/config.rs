//! A function's configuration space (PCI Local Bus Specification 3.0, chapter 6): bytes, and which of their bits the guest
//! may write.

/// What a function says of itself.
pub struct Identity {
    /// The vendor of the function.
    pub vendor: u16,
    /// Which of the vendor's.
    pub device: u16,
    /// Class, subclass and programming interface.
    pub class: [u8; 3],
    /// Its revision.
    pub revision: u8,
    /// Vendor and number of the subsystem.
    pub subsystem: (u16, u16),
}

/// A type 0 configuration space.
pub struct ConfigSpace {
    bytes: [u8; SIZE],
    writable: [u8; SIZE],
    /// Where the next capability begins, and where the last one says that it is.
    free: usize,
    link: usize,
}

const SIZE: usize = 256;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR0: usize = 0x10;
const CAPABILITIES: usize = 0x34;
const FIRST_CAPABILITY: usize = 0x40;

impl ConfigSpace {
    /// One without base addresses and capabilities.
    #[must_use]
    pub fn new(identity: &Identity) -> Self {
        /// Memory accesses are answered, the function accesses memory, and its interrupt line is silent.
        const COMMANDS: u16 = 1 << 1 | 1 << 2 | 1 << 10;
        let mut space =
            Self { bytes: [0; SIZE], writable: [0; SIZE], free: FIRST_CAPABILITY, link: CAPABILITIES };
        let [class, subclass, interface] = identity.class;
        space.put(0x00, &identity.vendor.to_le_bytes());
        space.put(0x02, &identity.device.to_le_bytes());
        space.put(0x08, &[identity.revision, interface, subclass, class]);
        space.put(0x2c, &identity.subsystem.0.to_le_bytes());
        space.put(0x2e, &identity.subsystem.1.to_le_bytes());
        space.allow(COMMAND, &COMMANDS.to_le_bytes());
        space
    }

    /// Makes base address register 0 one of `size` bytes of memory at `at` (GPA), below 4 GiB. The guest finds the size out
    /// by writing to it; where the memory is does not change.
    pub fn set_base_address(&mut self, at: u32, size: u32) {
        self.put(BAR0, &at.to_le_bytes());
        self.allow(BAR0, &(!(size - 1)).to_le_bytes());
    }

    /// Adds the capability `id` with what follows its two first bytes, of which the guest may write the bits of `writable`.
    /// Returns where it begins. One that has no room is left out.
    pub fn add_capability(&mut self, id: u8, body: &[u8], writable: &[u8]) -> usize {
        /// There is a list of capabilities.
        const HAS_CAPABILITIES: u8 = 1 << 4;
        let at = self.free;
        let end = (at + 2 + body.len()).next_multiple_of(4);
        if end > SIZE {
            return SIZE;
        }
        self.put(STATUS, &[HAS_CAPABILITIES]);
        self.put(self.link, &[at as u8]);
        self.put(at, &[id]);
        self.put(at + 2, body);
        self.allow(at + 2, writable);
        (self.link, self.free) = (at + 1, end);
        at
    }

    /// The `N` bytes at `at`; zero beyond the end.
    pub fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let bytes = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        bytes.copied().unwrap_or([0; N])
    }

    /// The guest reads `data` from `at` on.
    pub fn read(&self, at: u8, data: &mut [u8]) {
        let bytes = self.bytes.iter().skip(at.into()).chain(std::iter::repeat(&0xff));
        data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }

    /// The guest writes `data` to `at`.
    pub fn write(&mut self, at: u8, data: &[u8]) {
        let bytes = self.bytes.iter_mut().zip(&self.writable).skip(at.into());
        bytes.zip(data).for_each(|((byte, mask), new)| *byte = *byte & !mask | new & mask);
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
    }

    fn allow(&mut self, at: usize, bits: &[u8]) {
        self.writable.iter_mut().skip(at).zip(bits).for_each(|(to, from)| *to |= from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity =
        Identity { vendor: 0x1af4, device: 0x105a, class: [1, 2, 3], revision: 4, subsystem: (5, 6) };

    #[test]
    fn the_guest_finds_out_a_base_address_and_its_size() {
        let mut space = ConfigSpace::new(&IDENTITY);
        space.set_base_address(0xc000_8000, 0x8000);
        assert_eq!(u32::from_le_bytes(space.get(BAR0)), 0xc000_8000);
        space.write(BAR0 as u8, &[0xff; 4]);
        assert_eq!(u32::from_le_bytes(space.get(BAR0)), 0xffff_8000);
        space.write(BAR0 as u8, &0xc000_8000_u32.to_le_bytes());
        assert_eq!(u32::from_le_bytes(space.get(BAR0)), 0xc000_8000);
    }

    #[test]
    fn capabilities_are_a_list_and_only_what_may_change_does() {
        let mut space = ConfigSpace::new(&IDENTITY);
        let first = space.add_capability(9, &[1, 2, 3], &[]);
        let second = space.add_capability(0x11, &[0xff, 0x07], &[0x00, 0xc0]);
        assert_eq!(space.get::<1>(STATUS), [0x10]);
        assert_eq!(space.get::<1>(CAPABILITIES), [first as u8]);
        assert_eq!(space.get::<5>(first), [9, second as u8, 1, 2, 3]);
        assert_eq!(space.get::<4>(second), [0x11, 0, 0xff, 0x07]);
        (0..=255).for_each(|at| space.write(at, &[0xff]));
        assert_eq!(space.get::<4>(second), [0x11, 0, 0xff, 0xc7]);
        assert_eq!(space.get::<4>(0), [0xf4, 0x1a, 0x5a, 0x10]);
        assert_eq!(space.get::<2>(COMMAND), [0x06, 0x04]);
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let mut space = ConfigSpace::new(&IDENTITY);
        let added: Vec<_> = (0..20).map(|_| space.add_capability(9, &[0; 14], &[])).collect();
        assert_eq!(added.iter().filter(|at| **at < SIZE).count(), 12);
        let mut data = [0; 8];
        space.read(252, &mut data);
        assert_eq!(data[4..], [0xff; 4]);
    }
}
