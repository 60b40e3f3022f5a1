//! Where a kernel goes that may be moved, chosen as its own decompressor chooses (arch/x86/boot/compressed/kaslr.c): the place
//! in physical memory and the slide of its virtual addresses are independent of each other.

use std::ops::Range;

/// How much of the virtual address space the kernel's image moves in (KERNEL_IMAGE_SIZE with CONFIG_RANDOMIZE_BASE).
const WINDOW: u64 = 1 << 30;

/// What is placed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Movable {
    /// Where it was linked to run, physically: nothing below is used.
    pub(super) linked: u64,
    /// How much memory it takes, in bytes.
    pub(super) size: u64,
    /// What both addresses are multiples of, in bytes.
    pub(super) alignment: u64,
}

impl Movable {
    /// A random place in the memory `free`, by `random`. It stays where it was linked when there is none.
    pub(super) fn physical(&self, free: &[Range<u64>], random: u64) -> u64 {
        let slots = free.iter().map(|range| {
            let first = range.start.max(self.linked).next_multiple_of(self.alignment);
            let room = range.end.saturating_sub(first).checked_sub(self.size);
            (first, room.map_or(0, |room| room / self.alignment + 1))
        });
        let count: u64 = slots.clone().map(|(_, count)| count).sum();
        let Some(mut chosen) = random.checked_rem(count) else { return self.linked };
        for (first, count) in slots {
            if chosen < count {
                return first + chosen * self.alignment;
            }
            chosen -= count;
        }
        self.linked
    }

    /// A random distance from the virtual addresses that it was linked at, by `random`.
    pub(super) fn slide(&self, random: u64) -> u64 {
        let room = WINDOW.saturating_sub(self.linked).saturating_sub(self.size);
        random % (room / self.alignment + 1) * self.alignment
    }
}

/// Whether a kernel with this command line is moved.
pub(super) fn is_wanted(cmdline: &str) -> bool {
    !words(cmdline).any(|word| word == "nokaslr")
}

/// What of the memory `ram` may be taken by a kernel with this command line, beside what is `taken`. `None` where the command
/// line wants pages of 1 GiB, which a kernel in the middle of one would cost.
pub(super) fn free(
    ram: impl IntoIterator<Item = Range<u64>>,
    taken: Range<u64>,
    cmdline: &str,
) -> Option<Vec<Range<u64>>> {
    if words(cmdline).any(|word| word.starts_with("hugepages=")) && cmdline.contains("hugepagesz=1G") {
        return None;
    }
    let (mut limit, mut avoided) = (u64::MAX, vec![taken]);
    for word in words(cmdline) {
        if let Some((size, "")) = word.strip_prefix("mem=").and_then(size) {
            limit = limit.min(if size == 0 { u64::MAX } else { size });
        }
        for part in word.strip_prefix("memmap=").unwrap_or_default().split(',') {
            match size(part) {
                Some((size, "")) if size > 0 => limit = limit.min(size),
                Some((length, rest)) if rest.starts_with(['#', '$', '!']) => {
                    if let Some((start, "")) = rest.get(1..).and_then(size) {
                        avoided.push(start..start.saturating_add(length));
                    }
                }
                _ => {}
            }
        }
    }
    let mut free: Vec<_> = ram.into_iter().map(|range| range.start..range.end.min(limit)).collect();
    for gone in avoided {
        let around = |range: Range<u64>| {
            [range.start..range.end.min(gone.start), range.start.max(gone.end)..range.end]
        };
        free = free.into_iter().flat_map(around).filter(|range| range.start < range.end).collect();
    }
    Some(free)
}

/// The words of a command line that are the kernel's.
pub(super) fn words(cmdline: &str) -> impl Iterator<Item = &str> {
    cmdline.split_ascii_whitespace().take_while(|word| *word != "--")
}

/// A number at the beginning of `text`, which may have a unit (lib/cmdline.c, `memparse`), and what follows it.
fn size(text: &str) -> Option<(u64, &str)> {
    let (digits, radix) = match text.get(..2) {
        Some("0x" | "0X") => (text.get(2..)?, 16),
        Some(_) if text.starts_with('0') => (text, 8),
        _ => (text, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let (number, rest) = digits.split_at_checked(end)?;
    let number = u64::from_str_radix(number, radix).ok()?;
    let unit = rest.chars().next().and_then(|unit| "KMGTPE".find(unit.to_ascii_uppercase()));
    match unit {
        Some(unit) => Some((number.checked_shl(10 * (unit as u32 + 1))?, rest.get(1..)?)),
        None => Some((number, rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const KERNEL: Movable = Movable { linked: 16 * MIB, size: 60 * MIB, alignment: 2 * MIB };

    #[test]
    fn each_slot_of_each_range_is_chosen() {
        let free = [MIB..79 * MIB, 200 * MIB..210 * MIB, 1000 * MIB..1062 * MIB];
        let places: Vec<_> = (0..5).map(|random| KERNEL.physical(&free, random) / MIB).collect();
        assert_eq!(places, [16, 18, 1000, 1002, 16]);
        let too_small = MIB..70 * MIB;
        assert_eq!(
            KERNEL.physical(&[too_small.clone(), too_small], 5),
            16 * MIB,
            "it stays where there is no room"
        );
        assert_eq!(KERNEL.physical(&[], 5), 16 * MIB);
    }

    #[test]
    fn the_slide_keeps_the_image_in_its_window() {
        let slots = (1024 - 16 - 60) / 2 + 1;
        assert_eq!(KERNEL.slide(0), 0);
        assert_eq!(KERNEL.slide(slots - 1), (1024 - 16 - 60) * MIB);
        assert_eq!(KERNEL.slide(slots), 0);
    }

    #[test]
    fn the_command_line_says_what_is_not_free() {
        let free = |cmdline| {
            let free = super::free([MIB..1024 * MIB, 4096 * MIB..5120 * MIB], 900 * MIB..910 * MIB, cmdline);
            free.map(|free| free.iter().map(|range| (range.start / MIB, range.end / MIB)).collect::<Vec<_>>())
        };
        let plain = vec![(1, 900), (910, 1024), (4096, 5120)];
        assert_eq!(free("quiet"), Some(plain.clone()));
        assert_eq!(free("quiet -- mem=64M"), Some(plain.clone()));
        assert_eq!(free("mem=nopentium memmap=exactmap mem=0"), Some(plain.clone()));
        assert_eq!(free("memmap=16M@1M"), Some(plain));
        assert_eq!(free("mem=800M"), Some(vec![(1, 800)]));
        assert_eq!(free("mem=0x4000000"), Some(vec![(1, 64)]));
        assert_eq!(free("memmap=800M"), Some(vec![(1, 800)]));
        assert_eq!(free("memmap=1G$4G,16M!0x2000000"), Some(vec![(1, 32), (48, 900), (910, 1024)]));
        assert_eq!(free("hugepagesz=1G hugepages=2"), None);
        assert!(is_wanted("quiet -- nokaslr") && !is_wanted("quiet nokaslr"));
    }

    proptest! {
        #[test]
        fn no_kernel_is_put_where_it_may_not_be(
            words in "(mem|memmap)=[0-9]{1,4}[kKMG]?([$#!@][0-9]{1,4}[MG])?",
            random in any::<u64>(),
            memory in 100u64..6000,
        ) {
            let free = super::free(Some(MIB..memory * MIB), 90 * MIB..100 * MIB, &words).unwrap();
            let at = KERNEL.physical(&free, random);
            let is_free = free.iter().any(|range| range.start <= at && at + KERNEL.size <= range.end);
            prop_assert!(at == KERNEL.linked || is_free && at.is_multiple_of(KERNEL.alignment));
        }

        #[test]
        fn no_command_line_panics(words in "((mem|memmap|hugepages)=.{0,20} ?){0,4}") {
            let _ = super::free(Some(MIB..900 * MIB), MIB..2 * MIB, &words);
        }
    }
}
