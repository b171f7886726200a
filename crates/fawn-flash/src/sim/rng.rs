//! Owns the simulator's randomness: SplitMix64, so that one seed gives one story on every platform and release.

/// A seeded stream of numbers. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, 0 when the bound is 0. The bias of the multiplication is below 2^-32 here: bounds are small.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// True `numerator` times out of 16.
    pub const fn sixteenths(&mut self, numerator: u64) -> bool {
        self.below(16) < numerator
    }

    /// True half of the time.
    pub const fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// A stream of its own, decided by this one's seed and `salt`, that leaves this one as it was.
    #[must_use]
    pub const fn fork(&self, salt: u64) -> Self {
        let mut fork = Self { state: self.state ^ salt.wrapping_mul(0xD6E8_FEB8_6659_FD93) };
        fork.next();
        fork
    }
}
