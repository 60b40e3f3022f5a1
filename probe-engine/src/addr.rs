//! Addresses, told apart by the space they belong to.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// A guest-virtual address: what the guest's own instructions use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gva(pub u64);

/// A guest-physical address: what the guest's page tables point to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gpa(pub u64);

macro_rules! address {
    ($name:ident) => {
        impl $name {
            /// The address `bytes` further on, wrapping as the CPU's own address arithmetic does.
            #[must_use]
            #[allow(clippy::should_implement_trait, reason = "an operator would hide that it wraps")]
            pub fn add(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }

            /// The address `bytes` further on, or back when negative.
            #[must_use]
            pub fn offset(self, bytes: i64) -> Self {
                Self(self.0.wrapping_add_signed(bytes))
            }

            /// How far this address lies behind `start`, in bytes; `None` when it lies before it.
            #[must_use]
            pub fn offset_from(self, start: Self) -> Option<u64> {
                self.0.checked_sub(start.0)
            }

            /// Whether the address lies in the half-open `range`.
            #[must_use]
            pub fn is_in(self, range: &Range<Self>) -> bool {
                range.contains(&self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

impl Gva {
    /// Whether the address is in the half that is the kernel's.
    #[must_use]
    pub fn is_kernels(self) -> bool {
        self.0 >> 63 != 0
    }
}

address!(Gva);
address!(Gpa);
