//! Owns the cache's hash table: open addressing over 32-bit words, a tag of 8 bits and a frame number of 24 in each.
//!
//! The tag spares the look at another page's key: a probe that passes over foreign entries stays in its cache line.
//! Keys are (file, page) pairs that the store chooses itself, so the hash needs no secret.

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
const FRAME_BITS: u32 = 24;
const FRAME_MASK: u32 = (1 << FRAME_BITS) - 1;
/// Frames that a word can name; zero means empty.
pub(super) const FRAMES_MAX: usize = FRAME_MASK as usize;

/// Where the hash of `key` sends it.
#[derive(Clone, Copy)]
struct Home {
    slot: usize,
    tag: u32,
}

/// Frame numbers by key; the keys themselves lie with the frames.
pub(super) struct Table {
    words: Vec<u32>,
    shift: u32,
}

impl Table {
    /// Room for `frames` at a load of at most two thirds.
    pub(super) fn new(frames: usize) -> Self {
        let slots = Self::slots_for(frames);
        // Zeroed by the system, so that it takes memory as it fills.
        Self { words: vec![0; slots], shift: 64 - slots.trailing_zeros() }
    }

    pub(super) fn slots_for(frames: usize) -> usize {
        (frames + frames / 2).next_power_of_two().max(64)
    }

    pub(super) const fn slots(&self) -> usize {
        self.words.len()
    }

    fn home(&self, key: u64) -> Home {
        let hash = (key ^ (key >> 29)).wrapping_mul(MULTIPLIER);
        let tag = (hash >> (self.shift - 8)) as u8;
        Home { slot: (hash >> self.shift) as usize, tag: u32::from(tag) << FRAME_BITS }
    }

    /// A 64-bit hash of `key`, independent enough of the slots to serve the ghosts.
    pub(super) const fn hash(key: u64) -> u64 {
        let mixed = (key ^ (key >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        mixed ^ (mixed >> 32)
    }

    /// The frame of `key`.
    pub(super) fn find(&self, key: u64, keys: &[u64]) -> Option<u32> {
        self.slot_of(key, keys).map(|slot| (self.words[slot] & FRAME_MASK) - 1)
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
            slot += 1;
        }
    }

    /// Adds `key`, which is not there.
    pub(super) fn insert(&mut self, key: u64, frame: u32) {
        let home = self.home(key);
        let mask = self.words.len() - 1;
        let mut slot = home.slot;
        while self.words[slot & mask] != 0 {
            slot += 1;
        }
        self.words[slot & mask] = home.tag | (frame + 1);
    }

    /// Lets `key`, which is there, name another frame.
    pub(super) fn rename(&mut self, key: u64, keys: &[u64], frame: u32) {
        if let Some(slot) = self.slot_of(key, keys) {
            self.words[slot] = (self.words[slot] & !FRAME_MASK) | (frame + 1);
        }
    }

    /// Removes `key` and closes the gap, so that no tombstones slow later misses.
    pub(super) fn remove(&mut self, key: u64, keys: &[u64]) {
        let Some(mut gap) = self.slot_of(key, keys) else { return };
        let mask = self.words.len() - 1;
        let mut slot = gap;
        loop {
            slot = (slot + 1) & mask;
            let word = self.words[slot];
            if word == 0 {
                break;
            }
            let home = self.home(keys[((word & FRAME_MASK) - 1) as usize]).slot;
            // The entry may move back to the gap unless its home lies after the gap, around the ring.
            if (slot.wrapping_sub(home) & mask) >= (slot.wrapping_sub(gap) & mask) {
                self.words[gap] = word;
                gap = slot;
            }
        }
        self.words[gap] = 0;
    }
}
