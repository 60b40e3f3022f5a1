//! Random numbers, the same ones every time.

/// xorshift64*; the state is never zero.
pub struct Rng(u64);

impl Rng {
    /// A generator whose numbers `seed` decides.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 64 bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Values near the ends of every width as often as any others.
    pub fn value(&mut self) -> u64 {
        const EDGES: [u64; 12] =
            [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 63];
        let edge = EDGES[self.below(12) as usize];
        match self.below(4) {
            0 => edge,
            1 => !edge,
            2 => edge | EDGES[self.below(12) as usize] << 8,
            _ => self.next(),
        }
    }
}
