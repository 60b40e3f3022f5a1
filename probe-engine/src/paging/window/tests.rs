use super::*;
use crate::memory::NoMemory;
use crate::paging::Access;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Memory below 16 MiB, all zero but for these entries.
#[derive(Default)]
struct Tables(RefCell<BTreeMap<u64, u64>>);

impl PhysMemory for Tables {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        if at.0 >= 16 << 20 {
            return Err(NoMemory(at));
        }
        for (n, word) in (0..).zip(buf.chunks_exact_mut(8)) {
            let entry = self.0.borrow().get(&(at.0 + n * 8)).copied().unwrap_or(0);
            word.copy_from_slice(&entry.to_le_bytes());
        }
        Ok(())
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory> {
        self.0.borrow_mut().insert(at.0, u64::from_le_bytes(bytes.try_into().unwrap()));
        Ok(())
    }

    fn compare_exchange(&self, at: Gpa, _: u64, _: u64) -> Result<bool, NoMemory> {
        Err(NoMemory(at))
    }
}

impl Tables {
    fn set(&self, table: u64, index: usize, entry: u64) {
        self.0.borrow_mut().insert(table + index as u64 * 8, entry);
    }
}

const TABLE: u64 = 0x63;
const IMAGE_PAGE: u64 = 0x1e3;
const BASE: u64 = 0xffff_ffff_8000_0000;
const PML5: u64 = 0x1000;
const PML4: u64 = 0x2000;
const PDPT: u64 = 0x3000;
const DIRECTORY: u64 = 0x4000;

/// A kernel whose image is `image` in entries of its directory.
fn kernel(levels: u32, image: Range<usize>) -> (Tables, AddressSpace) {
    let tables = Tables::default();
    tables.set(PML5, 511, PML4 | TABLE);
    tables.set(PML4, 511, PDPT | TABLE);
    tables.set(PDPT, 510, DIRECTORY | TABLE);
    for index in image {
        tables.set(DIRECTORY, index, (index as u64 * PAGE) | IMAGE_PAGE);
    }
    let space = match levels {
        5 => AddressSpace::new(PML5, 1 << 12),
        _ => AddressSpace::new(PML4, 0),
    };
    (tables, space)
}

fn text(entries: Range<usize>) -> Range<Gva> {
    let at = |index: usize| Gva(BASE + index as u64 * PAGE);
    at(entries.start)..at(entries.end)
}

#[test]
fn a_place_is_found_wherever_the_image_is() {
    // The image, its text, and the entry that is found.
    let table = [
        (8..31, 8..16, Some(39)),
        (0..31, 0..16, Some(39)),
        (200..223, 200..210, Some(231)),
        // Above it there is no room.
        (230..253, 230..240, Some(205)),
        // Under KASLR it may be where modules could be otherwise.
        (300..323, 300..310, Some(231)),
        (489..512, 489..500, Some(231)),
        // It fills the half, or leaves less than the margins need.
        (0..256, 0..100, None),
        (0..224, 0..100, None),
        (0..223, 0..100, Some(231)),
    ];
    for levels in [4, 5] {
        for (image, code, expected) in table.clone() {
            let (tables, space) = kernel(levels, image.clone());
            let found = find(&tables, space, &text(code));
            let expected = expected.ok_or(NoWindow::Full).map(|index: u64| Windows {
                code_entry: Gpa(DIRECTORY + index * 8),
                code: Gva(BASE + index * PAGE),
                data_entry: Gpa(DIRECTORY + (index + 4) * 8),
                data: Gva(BASE + (index + 4) * PAGE),
            });
            assert_eq!(found, expected, "{levels} levels, image in {image:?}");
        }
    }
}

#[test]
fn an_entry_that_is_not_present_but_not_zero_is_not_free() {
    let (tables, space) = kernel(4, 8..31);
    tables.set(DIRECTORY, 40, 0x1e2);
    assert_eq!(find(&tables, space, &text(8..16)).map(|w| w.code), Ok(Gva(BASE + 49 * PAGE)));
}

#[test]
fn what_is_in_the_way_is_said() {
    let unmapped = NoWindow::NotMapped(Gva(BASE + 8 * PAGE));
    let table: [(u64, usize, u64, NoWindow); 9] = [
        (PML5, 511, 0, unmapped),
        (PML4, 511, 0, unmapped),
        (PDPT, 510, 0, unmapped),
        (DIRECTORY, 8, 0, unmapped),
        (DIRECTORY, 8, 2, unmapped),
        // A table outside memory.
        (PDPT, 510, 0x000f_ffff_ffff_f000 | TABLE, unmapped),
        (PDPT, 510, DIRECTORY | TABLE | LARGE, NoWindow::LargePage),
        (PML4, 511, PDPT | 1, NoWindow::Restricted),
        (PDPT, 510, DIRECTORY | TABLE | NO_EXECUTE, NoWindow::Restricted),
    ];
    for (at, index, entry, expected) in table {
        let (tables, space) = kernel(5, 8..31);
        tables.set(at, index, entry);
        assert_eq!(find(&tables, space, &text(8..16)), Err(expected), "entry {entry:#x} in table {at:#x}");
    }
}

#[test]
fn a_text_that_is_none_is_refused() {
    let (tables, space) = kernel(4, 8..31);
    let find = |start, end| find(&tables, space, &(Gva(start)..Gva(end)));
    assert_eq!(find(BASE, BASE), Err(NoWindow::TooWide));
    assert_eq!(find(BASE + 1, BASE), Err(NoWindow::TooWide));
    assert_eq!(find(BASE, BASE + (1 << 30) + 1), Err(NoWindow::TooWide));
    assert_eq!(find(u64::MAX, 0), Err(NoWindow::TooWide));
    let not_canonical = 0x8000_0000_0000;
    assert_eq!(find(not_canonical, not_canonical + 1), Err(NoWindow::NotMapped(Gva(not_canonical))));
}

#[test]
fn tables_that_contain_themselves_end_too() {
    let tables = Tables::default();
    for index in [510, 511] {
        tables.set(PML4, index, PML4 | TABLE);
    }
    let found = find(&tables, AddressSpace::new(PML4, 0), &text(511..512));
    assert_eq!(found.map(|w| w.code_entry), Ok(Gpa(PML4 + 231 * 8)));
}

#[test]
fn the_entries_translate_as_they_should() {
    let (tables, space) = kernel(4, 8..31);
    let windows = find(&tables, space, &text(8..16)).unwrap();
    let frame = Gpa(0xd000_0000);
    tables.write(windows.code_entry, &code_entry(frame).to_le_bytes()).unwrap();
    tables.write(windows.data_entry, &data_entry(frame.add(PAGE)).to_le_bytes()).unwrap();
    let translate = |at, access| space.translate(&tables, at, access).map_err(|fault| fault.code);
    assert_eq!(translate(windows.code.add(5), Access::Read), Ok(frame.add(5)));
    assert_eq!(translate(windows.code.add(5), Access::Write), Err(3));
    assert_eq!(translate(windows.data.add(PAGE - 1), Access::Write), Ok(frame.add(2 * PAGE - 1)));
    const GLOBAL: u64 = 1 << 8;
    const USER: u64 = 1 << 2;
    for (entry, no_execute) in [(code_entry(frame), 0), (data_entry(frame), NO_EXECUTE)] {
        assert_eq!(entry & (GLOBAL | USER | NO_EXECUTE), no_execute);
    }
    assert_eq!(code_entry(frame) & DIRTY, 0);
}
