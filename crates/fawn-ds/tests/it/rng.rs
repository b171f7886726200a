//! Seeded random numbers for tests; the seed is printed with the command that repeats the run.

use fawn_types::random::SplitMix64;

pub(crate) struct Rng(SplitMix64);

impl Rng {
    /// Seeded by `FAWN_SEED` if set, else by a constant. Prints the command that repeats the test.
    pub(crate) fn new(test: &str) -> Self {
        let seed = std::env::var("FAWN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        println!("seed {seed}; repeat with: FAWN_SEED={seed} cargo test -p fawn-ds --test it {test}");
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }

    /// Random bytes, fewer than `bound`.
    pub(crate) fn bytes(&mut self, bound: usize) -> Vec<u8> {
        let len = self.below(bound);
        (0..len).map(|_| self.next() as u8).collect()
    }
}
