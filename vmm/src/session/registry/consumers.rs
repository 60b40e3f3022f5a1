//! The numbers of consumers, which say where each lies in the data window.

use probe_engine::detour::layout::MOST_CONSUMERS;

/// Which numbers are whose.
#[derive(Default)]
pub(super) struct ConsumerNumbers {
    /// None from here on was ever used.
    next: u32,
    pub(super) free: Vec<u32>,
    /// Those of probes that have gone, which the guest may still use.
    pub(super) left: Vec<u32>,
}

impl ConsumerNumbers {
    /// Whether any is a probe's that is registered.
    pub(super) fn are_used(&self) -> bool {
        self.free.len() + self.left.len() < self.next as usize
    }

    /// One that nobody has.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let number = self.next;
            (number < MOST_CONSUMERS).then(|| self.next += 1)?;
            Some(number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own() {
        let mut numbers = ConsumerNumbers::default();
        let all: Vec<_> = std::iter::from_fn(|| numbers.take()).collect();
        assert_eq!(all, (0..MOST_CONSUMERS).collect::<Vec<_>>());
        numbers.free.push(7);
        assert_eq!([numbers.take(), numbers.take()], [Some(7), None]);
        assert!(numbers.are_used() && !ConsumerNumbers::default().are_used());
        numbers.free.push(7);
        numbers.left.extend((0..MOST_CONSUMERS).filter(|number| *number != 7));
        assert!(!numbers.are_used());
    }
}
