//! Owns the tests' random numbers: seeded, the seed printed with the command that repeats the run.

/// splitmix64.
pub(crate) struct Rng(u64);

impl Rng {
    /// Seeded by `FAWN_SEED` if that is set, else by a constant; prints how to repeat the test when it fails.
    pub(crate) fn new(test: &str) -> Self {
        let seed = std::env::var("FAWN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        println!("seed {seed}; repeat with: FAWN_SEED={seed} cargo test -p fawn-ds --test it {test}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Fewer than `bound` bytes.
    pub(crate) fn bytes(&mut self, bound: usize) -> Vec<u8> {
        let len = self.below(bound);
        (0..len).map(|_| self.next() as u8).collect()
    }
}
