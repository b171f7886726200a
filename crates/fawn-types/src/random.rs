//! The seeded generator of tests, simulator and benchmarks: splitmix64. Not for secrets.

/// A small, fast generator; its output depends on the seed alone.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that starts from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        Self::mix(self.0)
    }

    /// A number uniform below `bound`, which must not be zero. The bias of the multiplication is below `bound` / 2⁶⁴.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// True with probability `part` / `of`.
    pub const fn chance(&mut self, part: u64, of: u64) -> bool {
        self.below(of) < part
    }

    /// True with probability 1/2.
    pub const fn coin(&mut self) -> bool {
        self.chance(1, 2)
    }

    /// An independent stream derived from the current state and `salt`; does not advance this generator.
    #[must_use]
    pub const fn fork(&self, salt: u64) -> Self {
        let mut fork = Self(self.0 ^ salt.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        fork.next();
        fork
    }

    /// The finaliser of splitmix64: a bijection in which every input bit affects every output bit.
    #[must_use]
    pub const fn mix(mut z: u64) -> u64 {
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
