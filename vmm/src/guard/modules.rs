//! The sealed pages of modules: a module's memory is in one piece for the guest, and its pages lie anywhere in guest-physical memory.
//!
//! What was sealed is remembered as it was then, so that the same pages are opened again, whatever the guest's memory says by then.

use crate::memory::GuestRam;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::guard::module::SealedModule;
use probe_engine::memory::PhysMemory;
use probe_engine::paging::Access;
use probe_engine::scan::seals::Seals;
use probe_engine::virt_memory::VirtMemory;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// So many pages are sealed at once: each may be a mapping of its own in the host, which has not many (`vm.max_map_count`). A desktop's
/// modules have 10,000.
const MOST_PAGES: usize = 1 << 14;
/// So many places are known where modules are rewritten.
const MOST_SITES: usize = 1 << 20;
/// So many modules are known; a desktop has 200.
const MOST_MODULES: usize = 1 << 12;
/// So long the kernel takes at most to free the text of a module or of its init, on a slow host: it waits for all CPUs before.
const FREED_WITHIN: Duration = Duration::from_secs(20);
/// So many such texts are known, the last ones.
const MOST_FREED: usize = 64;
/// The largest of them, in bytes.
const LARGEST_FREED: u64 = 16 << 20;

/// The modules that are sealed, by their `struct module`. All addresses are run-time addresses. No two of them have an address in common, and
/// what is made ready in the place of one that was not freed is not sealed: a kernel does not do that.
pub(super) struct SealedModules {
    modules: HashMap<Gva, Standing>,
    /// Those that are not sealed, as is told: they cannot be read, or there is no room for more.
    left_out: HashSet<Gva>,
    /// Where modules are.
    area: Range<Gva>,
    /// Texts that the kernel frees since then: of modules that go, and of inits that have run.
    freed: VecDeque<(Instant, Range<Gva>)>,
    /// How many pages are to be sealed once the inits of their modules have run.
    later: usize,
    /// Where each page of theirs lies, and whose it is.
    pages: HashMap<Gva, (Gpa, Gva)>,
    /// What each page in guest-physical memory is.
    places: HashMap<Gpa, Gva>,
    sites: usize,
}

/// A module that is sealed.
struct Standing {
    text: Range<Gva>,
    init_text: Range<Gva>,
    pages: Vec<Gva>,
    /// What is sealed once its init has run.
    after_init: Vec<Gva>,
    sites: usize,
}

impl SealedModules {
    /// None yet, of a kernel that has modules in this `area`.
    pub(super) fn new(area: Range<Gva>) -> Self {
        Self {
            modules: HashMap::new(),
            left_out: HashSet::new(),
            area,
            freed: VecDeque::new(),
            later: 0,
            pages: HashMap::new(),
            places: HashMap::new(),
            sites: 0,
        }
    }

    /// The module at `at` is not sealed.
    pub(super) fn leave_out(&mut self, at: Gva) {
        if self.left_out.len() < MOST_MODULES && !self.modules.contains_key(&at) {
            self.left_out.insert(at);
        }
    }

    /// What is known, to be compared with what the kernel says.
    pub(super) fn seals(&self) -> Seals {
        let mut pages: Vec<_> = self.pages.iter().map(|(page, (place, _))| (*page, *place)).collect();
        pages.sort_unstable();
        let freed = self.freed.iter().filter(|(since, _)| since.elapsed() < FREED_WITHIN);
        Seals {
            modules: self.modules.keys().copied().collect(),
            left_out: self.left_out.clone(),
            freed: freed.map(|(_, text)| text.clone()).collect(),
            pages,
        }
    }

    /// Whether `module` is where a module can be, and no other one stands.
    fn has_place(&self, at: Gva, module: &SealedModule) -> bool {
        let SealedModule { text, pages, after_init, .. } = module;
        let is_inside = |range: &Range<Gva>| self.area.start <= range.start && range.end <= self.area.end;
        let is_page_inside = |page: &Gva| is_inside(&(*page..page.add(PAGE)));
        let overlaps = |other: &Standing| text.start < other.text.end && other.text.start < text.end;
        !self.modules.contains_key(&at)
            && (text.is_empty() || is_inside(text))
            && pages.iter().chain(after_init).all(is_page_inside)
            && !self.modules.values().any(overlaps)
    }

    /// Seals `module`. Returns how many pages that are; `None` where it cannot be sealed.
    ///
    /// # Errors
    /// The host refuses.
    pub(super) fn seal(
        &mut self,
        at: Gva,
        module: &SealedModule,
        memory: &VirtMemory<'_, GuestRam>,
    ) -> io::Result<Option<u64>> {
        if !self.has_place(at, module) {
            return Ok(None);
        }
        let (sites, pages) = (module.sites.len(), module.pages.len() + module.after_init.len());
        if self.modules.len() == MOST_MODULES || self.sites + sites > MOST_SITES || !self.has_room(pages) {
            self.leave_out(at);
            return Ok(None);
        }
        let Some(placed) = self.placed(&module.pages, memory) else { return Ok(None) };
        let (text, after_init) = (module.text.clone(), module.after_init.clone());
        let init_text = module.init_text.clone();
        self.sites += sites;
        self.later += after_init.len();
        self.left_out.remove(&at);
        self.modules.insert(at, Standing { text, init_text, pages: Vec::new(), after_init, sites });
        self.add(at, &placed, memory.phys).map(Some)
    }

    /// Whether so many pages more may be sealed.
    fn has_room(&self, pages: usize) -> bool {
        self.pages.len() + self.later + pages <= MOST_PAGES
    }

    /// Seals what nobody writes any more of the module at `at`, whose init has run. Returns how many pages that are; `None` where they cannot
    /// be sealed.
    ///
    /// # Errors
    /// The host refuses.
    pub(super) fn init_done(
        &mut self,
        at: Gva,
        memory: &VirtMemory<'_, GuestRam>,
    ) -> io::Result<Option<u64>> {
        let Some(standing) = self.modules.get_mut(&at) else { return Ok(Some(0)) };
        let pages = std::mem::take(&mut standing.after_init);
        self.later -= pages.len();
        let freed = std::mem::replace(&mut standing.init_text, Gva(0)..Gva(0));
        self.is_freed(freed);
        match self.placed(&pages, memory) {
            Some(placed) => self.add(at, &placed, memory.phys).map(Some),
            None => Ok(None),
        }
    }

    /// Opens the module at `at`. Returns where its text was, if it was sealed.
    ///
    /// # Errors
    /// The host refuses.
    pub(super) fn open(&mut self, at: Gva, ram: &GuestRam) -> io::Result<Option<Range<Gva>>> {
        self.left_out.remove(&at);
        let Some(standing) = self.modules.remove(&at) else { return Ok(None) };
        let Standing { text, init_text, pages, after_init, sites } = standing;
        self.is_freed(text.clone());
        self.is_freed(init_text);
        self.sites -= sites;
        self.later -= after_init.len();
        let lay = pages.iter().filter_map(|page| self.pages.remove(page)).map(|(place, _)| place).collect();
        for range in ranges(lay) {
            ram.unseal(&range)?;
            (range.start.0..range.end.0).step_by(PAGE as usize).for_each(|place| {
                self.places.remove(&Gpa(place));
            });
        }
        Ok(Some(text))
    }

    /// The kernel is about to free this text.
    fn is_freed(&mut self, text: Range<Gva>) {
        if !text.is_empty() && text.end.0 - text.start.0 <= LARGEST_FREED {
            self.freed.truncate(MOST_FREED - 1);
            self.freed.push_front((Instant::now(), text));
        }
    }

    /// What lies at `at`, if that is sealed for a module.
    pub(super) fn at(&self, at: Gpa) -> Option<Gva> {
        let page = self.places.get(&Gpa(at.0 & !(PAGE - 1)))?;
        Some(page.add(at.0 % PAGE))
    }

    /// Where `at` lies, if that is sealed for a module.
    pub(super) fn place(&self, at: Gva) -> Option<Gpa> {
        let (place, _) = self.pages.get(&Gva(at.0 & !(PAGE - 1)))?;
        Some(place.add(at.0 % PAGE))
    }

    /// Where these pages lie, if each is a page of RAM that is nobody else's.
    fn placed(&self, pages: &[Gva], memory: &VirtMemory<'_, GuestRam>) -> Option<Vec<(Gva, Gpa)>> {
        let ram = memory.phys.ranges();
        let mut seen = HashSet::new();
        let placed = pages.iter().map(|page| {
            let place = memory.translate(*page, Access::Read).ok()?;
            let is_free = !memory.phys.is_sealed(place, 1) && seen.insert(place);
            let is_ram = ram.iter().any(|range| place.is_in(range));
            (is_free && is_ram && !self.pages.contains_key(page)).then_some((*page, place))
        });
        placed.collect()
    }

    fn add(&mut self, owner: Gva, placed: &[(Gva, Gpa)], ram: &GuestRam) -> io::Result<u64> {
        for (page, place) in placed {
            self.pages.insert(*page, (*place, owner));
            self.places.insert(*place, *page);
        }
        if let Some(standing) = self.modules.get_mut(&owner) {
            standing.pages.extend(placed.iter().map(|(page, _)| *page));
        }
        for range in ranges(placed.iter().map(|(_, place)| *place).collect()) {
            ram.seal(&range)?;
        }
        Ok(placed.len() as u64)
    }
}

/// Fills `buf` from `at` on, whose pages lie where `place` says. Returns whether all of it is there.
pub(super) fn read(ram: &GuestRam, at: Gva, buf: &mut [u8], place: impl Fn(Gva) -> Option<Gpa>) -> bool {
    let (mut at, mut rest) = (at, buf);
    while !rest.is_empty() {
        let inside = rest.len().min((PAGE - at.0 % PAGE) as usize);
        let (now, later) = rest.split_at_mut(inside);
        if place(at).is_none_or(|place| ram.read(place, now).is_err()) {
            return false;
        }
        (at, rest) = (at.add(inside as u64), later);
    }
    true
}

/// The ranges that these pages make.
fn ranges(mut pages: Vec<Gpa>) -> Vec<Range<Gpa>> {
    pages.sort_unstable();
    let mut ranges: Vec<Range<Gpa>> = Vec::new();
    for page in pages {
        match ranges.last_mut() {
            Some(last) if last.end == page => last.end = page.add(PAGE),
            _ => ranges.push(page..page.add(PAGE)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::paging::AddressSpace;

    const BASE: Gva = Gva(0xffff_ffff_c000_0000);
    const AT: Gva = Gva(0xffff_ffff_c100_0000);
    const AREA: Range<Gva> = BASE..Gva(0xffff_ffff_d000_0000);

    /// Sixteen pages from [`BASE`] on, whose places go down from the second MiB on, the last one in no memory.
    fn guest() -> (GuestRam, AddressSpace) {
        let ram = GuestRam::sealable(2 << 20).unwrap();
        let put = |at: u64, entry: u64| ram.write(Gpa(at), &entry.to_le_bytes()).unwrap();
        put(0x1000 + 511 * 8, 0x2003);
        put(0x2000 + 511 * 8, 0x3003);
        put(0x3000, 0x4003);
        (0..15)
            .for_each(|page| put(0x4000 + 8 * page, 0x10_0003 - 0x2000 * (page / 2) + 0x1000 * (page % 2)));
        put(0x4000 + 8 * 15, 0x4000_0003);
        (ram, AddressSpace::new(0x1000, 0))
    }

    fn pages(numbers: &[u64]) -> Vec<Gva> {
        numbers.iter().map(|number| BASE.add(PAGE * number)).collect()
    }

    fn module(text: Range<u64>, own: &[u64], after_init: &[u64]) -> SealedModule {
        let text = BASE.add(PAGE * text.start)..BASE.add(PAGE * text.end);
        let (pages, after_init) = (pages(own), pages(after_init));
        let init_text = BASE.add(0x80_0000)..BASE.add(0x80_1000);
        SealedModule { text, init_text, pages, after_init, sites: Vec::new(), kprobes: Vec::new() }
    }

    fn sealed(ram: &GuestRam, space: AddressSpace) -> Vec<u64> {
        let memory = VirtMemory::new(ram, space);
        let is_sealed = |page: &u64| {
            let place = memory.translate(BASE.add(PAGE * page), Access::Read).unwrap();
            ram.is_sealed(place, 1)
        };
        (0..15).filter(is_sealed).collect()
    }

    #[test]
    fn pages_are_sealed_from_load_to_free() {
        let (ram, space) = guest();
        let memory = VirtMemory::new(&ram, space);
        let mut modules = SealedModules::new(AREA);
        let one = module(1..4, &[1, 2, 3, 5], &[6]);
        assert_eq!(modules.seal(AT, &one, &memory).unwrap(), Some(4));
        assert_eq!(sealed(&ram, space), [1, 2, 3, 5]);
        let inside = BASE.add(3 * PAGE + 0x123);
        let place = memory.translate(inside, Access::Read).unwrap();
        assert_eq!((modules.place(inside), modules.at(place)), (Some(place), Some(inside)));
        assert_eq!(modules.place(BASE), None);
        assert_eq!(modules.seals().freed, []);
        assert_eq!(modules.init_done(AT, &memory).unwrap(), Some(1));
        assert_eq!(modules.init_done(AT, &memory).unwrap(), Some(0), "it is done");
        assert_eq!(modules.seals().freed, std::slice::from_ref(&one.init_text));
        assert_eq!(sealed(&ram, space), [1, 2, 3, 5, 6]);

        // The guest has other page tables by then.
        ram.write(Gpa(0x3000), &[0; 8]).unwrap();
        assert_eq!(modules.open(AT, &ram).unwrap(), Some(one.text.clone()));
        ram.write(Gpa(0x3000), &0x4003u64.to_le_bytes()).unwrap();
        assert!(sealed(&ram, space).is_empty());
        assert_eq!((modules.at(place), modules.place(inside), modules.pages.len()), (None, None, 0));
        assert_eq!(modules.open(AT, &ram).unwrap(), None);
        assert_eq!(modules.seal(AT, &one, &memory).unwrap(), Some(4), "it comes again");
    }

    #[test]
    fn what_is_somebody_elses_or_no_ram_is_not_sealed() {
        let (ram, space) = guest();
        let memory = VirtMemory::new(&ram, space);
        let mut modules = SealedModules::new(AREA);
        let kernels = memory.translate(BASE, Access::Read).unwrap();
        ram.seal(&(kernels..kernels.add(PAGE))).unwrap();
        let mut cannot = |own: &[u64]| modules.seal(AT, &module(0..1, own, &[]), &memory).unwrap();
        assert_eq!((cannot(&[1, 0]), cannot(&[1, 15]), cannot(&[1, 16])), (None, None, None));
        // Two of its pages are one.
        ram.write(Gpa(0x4000 + 8 * 7), &0x10_1003u64.to_le_bytes()).unwrap();
        assert_eq!(cannot(&[1, 7]), None);
        assert_eq!(cannot(&vec![1; MOST_PAGES + 1]), None);
        assert_eq!((sealed(&ram, space), modules.modules.len()), (vec![0], 0));
        assert_eq!(modules.seal(AT, &module(1..2, &[1], &[0]), &memory).unwrap(), Some(1));
        assert_eq!(modules.init_done(AT, &memory).unwrap(), None);
        modules.open(AT, &ram).unwrap();
        assert!(ram.is_sealed(kernels, 1), "that is the kernel's still");
    }

    /// As nobody but an attacker has it made ready: what stands stays sealed, and is still known.
    #[test]
    fn what_comes_in_the_place_of_another_one_is_not_sealed() {
        let (ram, space) = guest();
        let memory = VirtMemory::new(&ram, space);
        let mut modules = SealedModules::new(AREA);
        let other = AT.add(0x1000);
        modules.seal(AT, &module(1..3, &[1, 2], &[]), &memory).unwrap();
        let mut cannot =
            |at, module: SealedModule| assert_eq!(modules.seal(at, &module, &memory).unwrap(), None);
        cannot(AT, module(8..9, &[8], &[]));
        cannot(other, module(2..4, &[3], &[]));
        cannot(other, module(8..9, &[2], &[]));
        // Its text has no whole page.
        let text = BASE.add(PAGE + 8)..BASE.add(PAGE + 16);
        cannot(other, SealedModule { text, ..module(0..0, &[], &[]) });
        let kernels = Gva(0xffff_ffff_8100_0000);
        cannot(other, SealedModule { text: kernels..kernels.add(8), ..module(0..0, &[], &[]) });
        cannot(other, SealedModule { pages: vec![kernels], ..module(0..0, &[], &[]) });
        cannot(other, SealedModule { after_init: vec![AREA.end], ..module(0..0, &[], &[]) });
        assert_eq!(sealed(&ram, space), [1, 2]);
        let seals = modules.seals();
        assert_eq!((seals.modules, seals.pages.len()), ([AT].into(), 2));
    }

    #[test]
    fn there_is_no_room_for_modules_without_end() {
        let (ram, space) = guest();
        let memory = VirtMemory::new(&ram, space);
        let mut modules = SealedModules::new(AREA);
        let large = SealedModule {
            after_init: (0..MOST_PAGES as u64).map(|page| AREA.start.add(PAGE * page)).collect(),
            ..module(0..0, &[], &[])
        };
        assert_eq!(modules.seal(AT, &large, &memory).unwrap(), Some(0));
        assert_eq!(modules.seal(AT.add(8), &module(0..0, &[], &[1]), &memory).unwrap(), None);
        assert_eq!(modules.seals().left_out, [AT.add(8)].into(), "it is told");
        modules.open(AT, &ram).unwrap();
        for at in 0..2 * MOST_MODULES as u64 {
            modules.seal(AT.add(8 * at), &module(0..0, &[], &[]), &memory).unwrap();
        }
        assert_eq!((modules.modules.len(), modules.left_out.len()), (MOST_MODULES, MOST_MODULES));
    }

    #[test]
    fn text_is_read_page_by_page() {
        let (ram, space) = guest();
        let memory = VirtMemory::new(&ram, space);
        let mut modules = SealedModules::new(AREA);
        modules.seal(AT, &module(1..3, &[1, 2], &[]), &memory).unwrap();
        let end = BASE.add(2 * PAGE - 2);
        for (at, bytes) in [(end, [1, 2]), (end.add(2), [3, 4])] {
            ram.unsealed().write(memory.translate(at, Access::Read).unwrap(), &bytes).unwrap();
        }
        let mut found = [0; 4];
        assert!(read(&ram, end, &mut found, |at| modules.place(at)));
        assert_eq!(found, [1, 2, 3, 4]);
        assert!(!read(&ram, BASE.add(3 * PAGE - 2), &mut found, |at| modules.place(at)));
    }
}
