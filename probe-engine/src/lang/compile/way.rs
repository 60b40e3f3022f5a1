//! How a value is come to, step by step.

use crate::capture::{Base, Fetch, Hop, Read};

/// A value on its way: where it begins, the pointers that it goes over, and what it is then.
pub(super) struct Way {
    pub(super) base: Base,
    pub(super) hops: Vec<Hop>,
    pub(super) end: WayEnd,
}

/// What a value is, at the end of its way.
#[derive(Clone, Copy)]
pub(super) enum WayEnd {
    /// What has been come to.
    Value,
    /// What lies where this leads.
    Memory(Hop),
    /// The address to which this leads.
    Address(Hop),
}

impl Way {
    pub(super) fn value(base: Base) -> Self {
        Self { base, hops: Vec::new(), end: WayEnd::Value }
    }

    /// What lies at an offset from the address that the value so far is.
    pub(super) fn at(mut self, offset: i64, user: bool) -> Self {
        let hop = Hop { user, ..Hop::at(offset) };
        self.end = WayEnd::Memory(match self.end {
            WayEnd::Value => hop,
            WayEnd::Memory(before) => {
                self.hops.push(before);
                hop
            }
            WayEnd::Address(before) => Hop { offset: before.offset.wrapping_add(offset), user, ..before },
        });
        self
    }

    /// The address of the CPU's own one of the per-CPU variable whose address the value so far is; or, of what lies at a
    /// symbol, the symbol's. `None` for what is such an address already.
    pub(super) fn per_cpu(mut self, of_symbol: bool) -> Option<Self> {
        let hop = match self.end {
            WayEnd::Value => Hop::at(0),
            WayEnd::Memory(symbol) if of_symbol => symbol,
            WayEnd::Memory(before) => {
                self.hops.push(before);
                Hop::at(0)
            }
            WayEnd::Address(_) => return None,
        };
        self.end = WayEnd::Address(Hop { per_cpu: true, ..hop });
        Some(self)
    }

    pub(super) fn read(self, read: Read) -> Fetch {
        Fetch { base: self.base, hops: self.hops, read }
    }
}
