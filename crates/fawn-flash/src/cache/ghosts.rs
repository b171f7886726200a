//! Ghost entries of recently evicted pages: a fingerprint and the eviction number, two per bucket.

#[derive(Clone, Copy, Default)]
struct Ghost {
    fingerprint: u32,
    /// Eviction counter at the page's eviction; 0 if the entry is empty.
    evicted_at: u32,
}

/// Approximate set of keys recently evicted from the small queue. A false match only keeps a page longer.
pub(super) struct Ghosts {
    places: Vec<Ghost>,
    evictions: u32,
}

pub(super) const GHOST_BYTES: usize = size_of::<Ghost>();

impl Ghosts {
    /// Sizes the table for a cache of `frames`.
    pub(super) fn new(frames: usize) -> Self {
        Self { places: vec![Ghost::default(); Self::places_for(frames)], evictions: 0 }
    }

    pub(super) fn places_for(frames: usize) -> usize {
        // Rounded down to a power of two: half to all of the frames, 4 to 8 bytes per page.
        1 << frames.max(64).ilog2()
    }

    pub(super) const fn places(&self) -> usize {
        self.places.len()
    }

    fn bucket(&self, hash: u64) -> usize {
        (hash as usize & (self.places.len() - 1)) & !1
    }

    pub(super) fn insert(&mut self, hash: u64) {
        self.evictions = self.evictions.wrapping_add(1).max(1);
        let ghost = Ghost { fingerprint: (hash >> 32) as u32, evicted_at: self.evictions };
        let bucket = self.bucket(hash);
        let age = |place: &Ghost| {
            if place.evicted_at == 0 { u32::MAX } else { ghost.evicted_at.wrapping_sub(place.evicted_at) }
        };
        let older = usize::from(age(&self.places[bucket + 1]) > age(&self.places[bucket]));
        self.places[bucket + older] = ghost;
    }

    /// Whether the key was evicted recently. Removes its entry.
    pub(super) fn take(&mut self, hash: u64) -> bool {
        let bucket = self.bucket(hash);
        let fingerprint = (hash >> 32) as u32;
        let window = self.places.len() as u32;
        for place in &mut self.places[bucket..bucket + 2] {
            if place.evicted_at != 0 && place.fingerprint == fingerprint {
                let age = self.evictions.wrapping_sub(place.evicted_at);
                *place = Ghost::default();
                return age <= window;
            }
        }
        false
    }
}
