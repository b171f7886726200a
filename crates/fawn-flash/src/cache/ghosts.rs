//! Ghost entries of recently evicted pages or records: a fingerprint and the eviction number, two per bucket.

#[derive(Clone, Copy, Default)]
struct Ghost {
    fingerprint: u32,
    /// Eviction counter at the eviction; 0 if the entry is empty.
    evicted_at: u32,
}

/// Approximate set of recently evicted keys, by their hashes. A false match only keeps an entry of a cache longer.
pub struct Ghosts {
    places: Vec<Ghost>,
    evictions: u32,
}

/// Memory of one entry, bytes.
pub const GHOST_BYTES: usize = size_of::<Ghost>();

impl Ghosts {
    /// Sizes the table for a cache of `entries`.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self { places: vec![Ghost::default(); Self::places_for(entries)], evictions: 0 }
    }

    /// Number of ghosts of a cache of `entries`.
    #[must_use]
    pub fn places_for(entries: usize) -> usize {
        // Rounded down to a power of two: half to all of the entries, 4 to 8 bytes each.
        1 << entries.max(64).ilog2()
    }

    /// Number of ghosts.
    #[must_use]
    pub const fn places(&self) -> usize {
        self.places.len()
    }

    fn bucket(&self, hash: u64) -> usize {
        (hash as usize & (self.places.len() - 1)) & !1
    }

    /// Adds a key that is evicted now; the older of its bucket's two ghosts leaves.
    pub fn insert(&mut self, hash: u64) {
        self.evictions = self.evictions.wrapping_add(1).max(1);
        let ghost = Ghost { fingerprint: (hash >> 32) as u32, evicted_at: self.evictions };
        let bucket = self.bucket(hash);
        let age = |place: &Ghost| {
            if place.evicted_at == 0 { u32::MAX } else { ghost.evicted_at.wrapping_sub(place.evicted_at) }
        };
        let older = usize::from(age(&self.places[bucket + 1]) > age(&self.places[bucket]));
        self.places[bucket + older] = ghost;
    }

    /// Evictions since the key's, if it was evicted recently: within as many evictions as there are ghosts. Removes its
    /// entry.
    pub fn take(&mut self, hash: u64) -> Option<u32> {
        let bucket = self.bucket(hash);
        let fingerprint = (hash >> 32) as u32;
        let window = self.places.len() as u32;
        for place in &mut self.places[bucket..bucket + 2] {
            if place.evicted_at != 0 && place.fingerprint == fingerprint {
                let age = self.evictions.wrapping_sub(place.evicted_at);
                *place = Ghost::default();
                return (age <= window).then_some(age);
            }
        }
        None
    }
}
