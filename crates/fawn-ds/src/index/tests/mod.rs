//! Tests of the index: its size and selectivity by counting, its behaviour against a model, its bounds by force.
mod bounds;
mod model;
mod sizes;

/// A seeded stream of 64-bit values (splitmix64): the same hashes on every machine.
pub(super) struct Hashes(pub(super) u64);

impl Hashes {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
