//! The immutable table that a hit is looked up in: address -> site.

use super::hit::Verdict;
use crate::addr::Gva;
use crate::insn::plan::Plan;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Names one probe of a session: its place in the order of registration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProbeId(pub u32);

/// One trapped instruction and everything that hangs on it: one patch, however many probes.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// What users asked for, absent at a site that only we need.
    pub user: Option<UserProbes>,
    /// What we need ourselves.
    pub internal: Option<Internal>,
}

/// The probes at a site and the way past it.
#[derive(Clone, Debug)]
pub struct UserProbes {
    /// In order of registration.
    pub probes: Vec<ProbeId>,
    /// How the probed instruction is passed.
    pub plan: Plan,
}

/// Traps that the VMM plants for itself. Each is taken out when it was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Internal {
    /// The kernel is about to free its init text.
    FreeInitText,
    /// The kernel begins to panic.
    Panic,
}

/// All armed sites. A new set replaces the old one only while every vCPU is parked.
#[derive(Clone, Debug, Default)]
pub struct ProbeSet {
    sites: HashMap<Gva, Site, BuildHasherDefault<AddressHasher>>,
    /// Where we once had a trap byte: a vCPU may have met it just before it was taken out.
    removed: HashSet<Gva>,
}

impl ProbeSet {
    /// The site at `at`, made when it is not there yet.
    pub fn site_mut(&mut self, at: Gva) -> &mut Site {
        self.removed.remove(&at);
        self.sites.entry(at).or_default()
    }

    /// Takes the site at `at` out; hits on their way to us are then stale.
    pub fn remove(&mut self, at: Gva) -> Option<Site> {
        let site = self.sites.remove(&at)?;
        self.removed.insert(at);
        Some(site)
    }

    /// The site at `at`.
    #[must_use]
    pub fn get(&self, at: Gva) -> Option<&Site> {
        self.sites.get(&at)
    }

    /// All armed sites, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Gva, &Site)> {
        self.sites.iter().map(|(at, site)| (*at, site))
    }

    /// Whose breakpoint is the `int3` that was executed at `at`? `byte_now` reads what memory holds there, and
    /// is asked only when the answer depends on it.
    pub fn judge(&self, at: Gva, byte_now: impl FnOnce() -> Option<u8>) -> Verdict<'_> {
        if let Some(site) = self.sites.get(&at) {
            return Verdict::Ours(site);
        }
        if self.removed.contains(&at) && byte_now() != Some(super::hit::INT3) {
            return Verdict::Stale;
        }
        Verdict::Foreign
    }
}

/// Spreads addresses by one multiplication (Fibonacci hashing): no attacker chooses the keys, and a hit should
/// not pay for a keyed hash.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Gva = Gva(0xffff_ffff_8100_0000);

    fn judged(set: &ProbeSet, byte: Option<u8>) -> &'static str {
        match set.judge(AT, || byte) {
            Verdict::Ours(_) => "ours",
            Verdict::Stale => "stale",
            Verdict::Foreign => "foreign",
        }
    }

    #[test]
    fn an_int3_belongs_to_whoever_put_it_there() {
        let mut set = ProbeSet::default();
        assert_eq!(judged(&set, Some(0xcc)), "foreign");
        assert_eq!(judged(&set, Some(0x90)), "foreign", "int3 as two bytes, or taken out by the guest");
        set.site_mut(AT).internal = Some(Internal::Panic);
        assert_eq!(judged(&set, Some(0xcc)), "ours");
        set.remove(AT);
        assert_eq!(judged(&set, Some(0x55)), "stale", "the hit was on its way while the site was removed");
        assert_eq!(judged(&set, Some(0xcc)), "foreign", "the guest has put its own there since");
        assert_eq!(judged(&set, None), "stale");
        set.site_mut(AT);
        set.remove(AT.add(1));
        assert_eq!(judged(&set, Some(0xcc)), "ours");
    }

    #[test]
    fn addresses_that_differ_in_low_bits_spread_over_the_top_bits() {
        let top7 = |address: u64| {
            let mut hasher = AddressHasher::default();
            hasher.write_u64(address);
            hasher.finish() >> 57
        };
        let different: HashSet<u64> = (0..1000).map(|i| top7(AT.0 + i * 16)).collect();
        assert!(different.len() > 100, "{} of 128", different.len());
    }
}
