//! The registers by which programs enter the kernel: a kernel sets them while it boots, and never to anything else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Such a register of a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryRegister {
    /// The segments that `syscall` sets.
    Star,
    /// Where `syscall` leads.
    Lstar,
    /// Where `syscall` leads in compatibility mode.
    Cstar,
    /// The flags that `syscall` clears.
    Mask,
    /// The segments that `sysenter` sets.
    SysenterCs,
    /// Where `sysenter` leads.
    SysenterEip,
    /// Where all events lead on a processor with FRED.
    Fred,
}

impl EntryRegister {
    /// All.
    pub const ALL: [Self; 7] =
        [Self::Star, Self::Lstar, Self::Cstar, Self::Mask, Self::SysenterCs, Self::SysenterEip, Self::Fred];

    /// Its number (Intel SDM volume 4, 2.1; Intel FRED, 9.1).
    #[must_use]
    pub fn index(self) -> u32 {
        match self {
            Self::Star => 0xc000_0081,
            Self::Lstar => 0xc000_0082,
            Self::Cstar => 0xc000_0083,
            Self::Mask => 0xc000_0084,
            Self::SysenterCs => 0x174,
            Self::SysenterEip => 0x176,
            Self::Fred => 0x1d4,
        }
    }

    /// The one of this number.
    #[must_use]
    pub fn of(index: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|register| register.index() == index)
    }
}

impl fmt::Display for EntryRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Star => "STAR",
            Self::Lstar => "LSTAR",
            Self::Cstar => "CSTAR",
            Self::Mask => "SFMASK",
            Self::SysenterCs => "SYSENTER_CS",
            Self::SysenterEip => "SYSENTER_EIP",
            Self::Fred => "FRED_CONFIG",
        })
    }
}

/// What processors had in these registers when the kernel had booted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelsEntries(BTreeMap<EntryRegister, BTreeSet<u64>>);

impl KernelsEntries {
    /// Whether the kernel itself sets this one to that. What was not known of a processor then is never set.
    #[must_use]
    pub fn permits(&self, register: EntryRegister, value: u64) -> bool {
        // An AMD processor keeps half of where `sysenter` leads, and the kernel writes all of it to one that comes.
        let is_half = |known: &u64| register == EntryRegister::SysenterEip && *known == value & 0xffff_ffff;
        self.0.get(&register).is_some_and(|values| values.contains(&value) || values.iter().any(is_half))
    }
}

impl FromIterator<(EntryRegister, u64)> for KernelsEntries {
    fn from_iter<I: IntoIterator<Item = (EntryRegister, u64)>>(all: I) -> Self {
        let mut known = Self::default();
        for (register, value) in all {
            known.0.entry(register).or_default().insert(value);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_comes_later_is_set_as_the_others() {
        let entry = 0xffff_ffff_8200_0000;
        let known: KernelsEntries =
            [(EntryRegister::Lstar, entry), (EntryRegister::Lstar, entry), (EntryRegister::Star, 0x23)]
                .into_iter()
                .collect();
        assert!(known.permits(EntryRegister::Lstar, entry));
        assert!(!known.permits(EntryRegister::Lstar, entry + 1));
        assert!(!known.permits(EntryRegister::Star, entry));
        assert!(!known.permits(EntryRegister::Fred, 0), "nothing is known of that");
        let half: KernelsEntries = [(EntryRegister::SysenterEip, entry & 0xffff_ffff)].into_iter().collect();
        assert!(half.permits(EntryRegister::SysenterEip, entry), "it was halved");
        assert!(!half.permits(EntryRegister::SysenterEip, entry + 1));
        assert!(!known.permits(EntryRegister::Lstar, entry & 0xffff_ffff));
    }

    #[test]
    fn a_register_is_found_by_its_number() {
        for register in EntryRegister::ALL {
            assert_eq!(EntryRegister::of(register.index()), Some(register));
        }
        assert_eq!(EntryRegister::of(0xc000_0080), None, "EFER");
    }
}
