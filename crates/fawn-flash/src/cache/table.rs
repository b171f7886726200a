//! Hash table of the cache: open addressing over 32-bit words, each an 8-bit tag and a 24-bit frame number.
//!
//! The tag avoids most key comparisons with other pages. Neighbouring pages of a file have neighbouring words, so a
//! sparse table touches few cache lines: at 300,000 pages in two million words, a tenth.
//! Keys are (file, page) pairs that the store chooses itself, so the hash needs no secret.
use crate::prefetch;

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
/// Log2 of the words per cache line, and so of the pages that share one.
const GROUP_BITS: u32 = 4;
/// Probe distance: to another cache line and another position in it, so that full lines do not cluster. Odd, so a probe
/// sequence reaches every word.
const STEP: usize = (1 << GROUP_BITS) + 1;
/// Inverse of `STEP` modulo any power of two up to 2^32: converts a distance to steps.
const STEP_INVERSE: usize = 0xF0F0_F0F1;
const _: () = assert!(STEP.wrapping_mul(STEP_INVERSE) as u32 == 1);
const FRAME_BITS: u32 = 24;
const FRAME_MASK: u32 = (1 << FRAME_BITS) - 1;
/// Number of frames that a word can hold; zero means empty.
pub(super) const FRAMES_MAX: usize = FRAME_MASK as usize;

/// The first slot and the tag of a key.
#[derive(Clone, Copy)]
struct HomeSlot {
    slot: usize,
    tag: u32,
}

/// Frame numbers by key; the caller stores the keys, by frame.
pub(super) struct FrameTable {
    words: Vec<u32>,
    shift: u32,
}

impl FrameTable {
    /// A table for `frames` at a load of at most two thirds.
    pub(super) fn new(frames: usize) -> Self {
        let slots = Self::slots_for(frames);
        // The system provides zeroed pages on first use, so the table takes memory as it fills.
        Self { words: vec![0; slots], shift: 64 - (slots.trailing_zeros() - GROUP_BITS) }
    }

    pub(super) fn slots_for(frames: usize) -> usize {
        (frames + frames / 2).next_power_of_two().max(64)
    }

    pub(super) const fn slots(&self) -> usize {
        self.words.len()
    }

    #[inline]
    fn home(&self, key: u64) -> HomeSlot {
        let group = key >> GROUP_BITS;
        let hash = (group ^ (group >> 29)).wrapping_mul(MULTIPLIER);
        let below = hash >> (self.shift - 8);
        // Vary the position within the line: a store may read only every sixteenth page.
        let place = (key ^ (below >> 4)) & ((1 << GROUP_BITS) - 1);
        let tag = (below ^ (key << 3)) as u8;
        HomeSlot { slot: ((hash >> self.shift) << GROUP_BITS | place) as usize, tag: u32::from(tag) << FRAME_BITS }
    }

    /// Prefetches the cache line of `key`'s first slot.
    #[inline]
    pub(super) fn fetch(&self, key: u64) {
        prefetch(std::slice::from_ref(&self.words[self.home(key).slot]));
    }

    /// A 64-bit hash of `key`, independent enough of the slots to be used for the ghosts.
    pub(super) const fn hash(key: u64) -> u64 {
        let mixed = (key ^ (key >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        mixed ^ (mixed >> 32)
    }

    /// The frame of `key`, if present.
    pub(super) fn find(&self, key: u64, keys: &[u64]) -> Option<u32> {
        self.slot_of(key, keys).map(|slot| (self.words[slot] & FRAME_MASK) - 1)
    }

    /// The first frame whose tag matches `key`, without comparing keys.
    #[inline]
    pub(super) fn guess(&self, key: u64) -> Option<u32> {
        let home = self.home(key);
        let mask = self.words.len() - 1;
        let mut slot = home.slot;
        loop {
            let word = self.words[slot & mask];
            if word == 0 {
                return None;
            }
            if word & !FRAME_MASK == home.tag {
                return Some((word & FRAME_MASK) - 1);
            }
            slot += STEP;
        }
    }

    fn slot_of(&self, key: u64, keys: &[u64]) -> Option<usize> {
        let home = self.home(key);
        let mask = self.words.len() - 1;
        let mut slot = home.slot;
        loop {
            let word = self.words[slot & mask];
            if word == 0 {
                return None;
            }
            if word & !FRAME_MASK == home.tag && keys[((word & FRAME_MASK) - 1) as usize] == key {
                return Some(slot & mask);
            }
            slot += STEP;
        }
    }

    /// Adds `key`, which must be absent.
    pub(super) fn insert(&mut self, key: u64, frame: u32) {
        let home = self.home(key);
        let mask = self.words.len() - 1;
        let mut slot = home.slot;
        while self.words[slot & mask] != 0 {
            slot += STEP;
        }
        self.words[slot & mask] = home.tag | (frame + 1);
    }

    /// Changes the frame of `key`, which must be present.
    pub(super) fn rename(&mut self, key: u64, keys: &[u64], frame: u32) {
        if let Some(slot) = self.slot_of(key, keys) {
            self.words[slot] = (self.words[slot] & !FRAME_MASK) | (frame + 1);
        }
    }

    /// Removes `key` and closes the gap, so that no tombstones slow down later misses.
    pub(super) fn remove(&mut self, key: u64, keys: &[u64]) {
        let Some(mut gap) = self.slot_of(key, keys) else { return };
        let mask = self.words.len() - 1;
        let mut slot = gap;
        loop {
            slot = (slot + STEP) & mask;
            let word = self.words[slot];
            if word == 0 {
                break;
            }
            let home = self.home(keys[((word & FRAME_MASK) - 1) as usize]).slot;
            let steps_from = |other: usize| slot.wrapping_sub(other).wrapping_mul(STEP_INVERSE) & mask;
            // The entry may move back to the gap unless its home is after the gap, cyclically.
            if steps_from(home) >= steps_from(gap) {
                self.words[gap] = word;
                gap = slot;
            }
        }
        self.words[gap] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::random::SplitMix64;

    /// At maximum load, under random inserts and removals: present keys are found, and no others.
    #[test]
    fn every_key_stays_findable() {
        // In the small table, probe sequences wrap around.
        for (seed, stride, frames) in [(1, 1, 680), (2, 16, 680), (3, 1, 42), (4, 16, 42)] {
            let mut rng = SplitMix64::new(seed);
            let (mut table, mut keys) = (FrameTable::new(frames), vec![u64::MAX; frames]);
            assert_eq!(table.slots(), FrameTable::slots_for(frames - 1), "the maximum load");
            for step in 0..20_000 {
                let frame = rng.below(frames as u64) as usize;
                if keys[frame] != u64::MAX {
                    table.remove(keys[frame], &keys);
                    keys[frame] = u64::MAX;
                }
                let key = (rng.below(3) << 32) | (rng.below(2 * frames as u64) * stride);
                if step % 8 != 0 && table.find(key, &keys).is_none() {
                    table.insert(key, frame as u32);
                    keys[frame] = key;
                }
                if step % 16 == 0 {
                    for (frame, &key) in keys.iter().enumerate().filter(|&(_, &key)| key != u64::MAX) {
                        assert_eq!(table.find(key, &keys), Some(frame as u32), "seed {seed} step {step} key {key:#x}");
                    }
                    let used = keys.iter().filter(|&&key| key != u64::MAX).count();
                    assert_eq!(table.words.iter().filter(|&&word| word != 0).count(), used, "seed {seed} step {step}");
                }
            }
            assert!(
                keys.iter().filter(|&&key| key != u64::MAX).count() > frames * 2 / 3,
                "seed {seed}: too few keys to test the maximum load"
            );
        }
    }
}
