//! The memory that a monitor of virtual machines has for its guest: QEMU, or any other that maps RAM in one piece, or in one on each
//! side of the gap below 4 GiB.

use super::{Dump, DumpError, Part};
use probe_engine::addr::Gpa;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Range;

/// No guest has less memory, in bytes.
const LEAST: u64 = 16 << 20;
/// So many mappings are tried.
const MOST_TRIED: usize = 16;
/// Where RAM above the gap begins.
const ABOVE: u64 = 4 << 30;
/// Where the gap may begin: in QEMU's `pc` and `q35`, in Cloud Hypervisor and in Firecracker.
const GAPS: [u64; 6] = [0xc000_0000, 0x8000_0000, 0xb000_0000, 0xe000_0000, 0xd000_0000, 0xe800_0000];

/// The ways in which memory of process `pid` may be a guest's, the likeliest first.
///
/// # Errors
/// [`DumpError`], a sentence's end.
pub fn layouts(pid: u32) -> Result<Vec<Dump>, DumpError> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(closed)?;
    let memory = File::open(format!("/proc/{pid}/mem")).map_err(closed)?;
    let mut mapped = mapped(&maps);
    mapped.truncate(MOST_TRIED);
    let mut found = Vec::new();
    for parts in mapped.iter().flat_map(|range| ways(range, &mapped)) {
        found.push(Dump::new(memory.try_clone()?, parts)?);
    }
    if found.is_empty() { Err(DumpError::NoGuest) } else { Ok(found) }
}

fn closed(error: std::io::Error) -> DumpError {
    match error.kind() {
        ErrorKind::PermissionDenied => DumpError::Closed(error),
        ErrorKind::NotFound => DumpError::NoProcess,
        _ => error.into(),
    }
}

/// Where RAM may begin, and how far it may go (HVA): what can be written, from the start of each mapping to where no other
/// follows. The largest mapping comes first.
fn mapped(maps: &str) -> Vec<Range<u64>> {
    let parse = |line: &str| {
        let mut words = line.split(' ');
        let (start, end) = words.next()?.split_once('-')?;
        let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
        words.next().is_some_and(|access| access.starts_with("rw")).then_some(range)
    };
    let all: Vec<Range<u64>> = maps.lines().filter_map(parse).collect();
    let mut found = Vec::new();
    let mut end = 0;
    for (number, range) in all.iter().enumerate().rev() {
        let next = all.get(number + 1).map(|next| next.start);
        if next != Some(range.end) {
            end = range.end;
        }
        found.push((range.end.saturating_sub(range.start), range.start..end));
    }
    found.retain(|(_, range)| range.end.saturating_sub(range.start) >= LEAST);
    found.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
    found.into_iter().map(|(_, range)| range).collect()
}

/// How `range` may be all RAM, or that below the gap.
fn ways(range: &Range<u64>, all: &[Range<u64>]) -> Vec<Vec<Part>> {
    let size = range.end - range.start;
    let part = |start: u64, size, offset| Part { memory: Gpa(start)..Gpa(start + size), offset };
    let split = GAPS
        .into_iter()
        .filter(|gap| *gap < size)
        .map(|gap| vec![part(0, gap, range.start), part(ABOVE, size - gap, range.start + gap)]);
    let others = all.iter().filter(|other| *other != range && GAPS.contains(&size));
    let beside = others
        .map(|other| vec![part(0, size, range.start), part(ABOVE, other.end - other.start, other.start)]);
    split.chain(beside).chain([vec![part(0, size, range.start)]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_ram_is_found_and_the_gap_is_left_out() {
        let maps = "\
5600000000-5600100000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0140000000 rw-p 00000000 00:00 0
7f0200000000-7f0201000000 r--p 00000000 00:00 0
7f0300000000-7f0300800000 rw-s 00000000 00:01 5 /memfd:ram
7f0300800000-7f0302000000 rw-s 00800000 00:01 5 /memfd:ram
what is that
";
        let (large, small) = (0x7f00_0000_0000..0x7f01_4000_0000, 0x7f03_0000_0000..0x7f03_0200_0000);
        let behind = 0x7f03_0080_0000..small.end;
        assert_eq!(mapped(maps), [large.clone(), behind, small.clone()]);
        let all = [large.clone(), small.clone()];
        let [first, .., last] = &*ways(&large, &all) else { panic!("no ways") };
        let part = |memory: Range<u64>, offset| Part { memory: Gpa(memory.start)..Gpa(memory.end), offset };
        assert_eq!(
            *first,
            [part(0..0xc000_0000, large.start), part(ABOVE..ABOVE + 0x8000_0000, large.start + 0xc000_0000)]
        );
        assert_eq!(*last, [part(0..0x1_4000_0000, large.start)]);
        assert_eq!(ways(&small, &all), [[part(0..0x200_0000, small.start)]]);
        // As Firecracker has it.
        let below = 0..0xd000_0000;
        let all = [below.clone(), small.clone()];
        let beside = [part(0..0xd000_0000, 0), part(ABOVE..ABOVE + 0x200_0000, small.start)];
        assert!(ways(&below, &all).iter().any(|way| *way == beside));
    }
}
