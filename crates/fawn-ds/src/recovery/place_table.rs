//! Places of the deferred records by key: a hash table with open addressing, in hash order.
//!
//! A slot has the first bits of the hash beside the place. So a lookup reads one cache line most often, which can be
//! prefetched as a whole, and the table grows without a look at the records.
use fawn_flash::{prefer_huge_pages, prefetch};

/// A slot for a third more keys than there are at most.
const SLOTS_PER_KEY: (usize, usize) = (4, 3);
/// Length of a key's part of the table, bytes.
pub(super) const PLACE_BYTES: usize = (size_of::<u64>() * SLOTS_PER_KEY.0).div_ceil(SLOTS_PER_KEY.1);
const SLOTS_MIN: usize = 64;

const fn slots_for(keys: usize) -> usize {
    keys.saturating_mul(SLOTS_PER_KEY.0).div_ceil(SLOTS_PER_KEY.1)
}

/// Vacant slots. A search meets one TLB miss fewer in huge pages.
fn vacant(slots: usize) -> Vec<u64> {
    let slots = vec![0; slots];
    prefer_huge_pages(&slots);
    slots
}

const fn tag_of(hash: u64) -> u64 {
    hash >> 32
}

/// The table. A slot is zero, or a tag in the high half and a place plus one in the low one.
#[derive(Debug, Default)]
pub(super) struct PlaceTable {
    slots: Vec<u64>,
    len: usize,
}

impl PlaceTable {
    /// An empty table with slots for so many keys.
    pub(super) fn with_capacity(keys: usize) -> Self {
        Self { slots: vacant(slots_for(keys)), len: 0 }
    }

    /// Where the search for a tag begins.
    #[inline]
    const fn home_of(&self, tag: u64) -> usize {
        ((tag as u128 * self.slots.len() as u128) >> 32) as usize
    }

    /// The first place of this hash for which `is_it` holds, which may also be asked about places of other hashes.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let home = self.home_of(tag_of(hash));
        let (before, after) = self.slots.split_at(home);
        let used = after.iter().chain(before).take_while(|slot| **slot != 0);
        let mut places = used.filter(|slot| **slot >> 32 == tag_of(hash)).map(|slot| *slot as u32 - 1);
        places.find(|&place| is_it(place))
    }

    /// Prefetches the slot at which the search for the hash begins.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        self.slots.get(self.home_of(tag_of(hash))).into_iter().for_each(|slot| prefetch(core::slice::from_ref(slot)));
    }

    /// Adds a place. The table has slots for at most `keys_max` keys, or for an eighth more than it has.
    pub(super) fn insert(&mut self, hash: u64, place: u32, keys_max: usize) {
        if slots_for(self.len + 1) > self.slots.len() {
            let slots_max = slots_for(keys_max.max(self.len + self.len / 8 + 1));
            let slots = (2 * self.slots.len()).min(slots_max).max(slots_for(self.len + 1)).max(SLOTS_MIN);
            let old = core::mem::replace(&mut self.slots, vacant(slots));
            old.into_iter().filter(|&slot| slot != 0).for_each(|slot| self.fill(slot));
        }
        self.len += 1;
        self.fill(tag_of(hash) << 32 | u64::from(place + 1));
    }

    fn fill(&mut self, slot: u64) {
        let home = self.home_of(slot >> 32);
        let (before, after) = self.slots.split_at_mut(home);
        match after.iter_mut().chain(before).find(|vacant| **vacant == 0) {
            Some(vacant) => *vacant = slot,
            None => unreachable!("a quarter of the slots is vacant"),
        }
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(0);
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::random::SplitMix64;

    /// Records that cannot be compared are deferred beyond the bound: an insertion must not fill the whole table again.
    #[test]
    fn a_table_beyond_its_bound_grows_by_an_eighth() {
        let (mut random, mut table, mut sizes) = (SplitMix64::new(7), PlaceTable::default(), Vec::new());
        for place in 0..50_000 {
            table.insert(random.next(), place, 0);
            sizes.push(table.slots.len());
        }
        sizes.dedup();
        assert!(sizes.len() < 80, "{} sizes", sizes.len());
        assert!(table.slots.len() <= slots_for(50_000 * 9 / 8 + 1));
    }

    #[test]
    fn all_places_are_found_while_the_table_grows_up_to_its_bound() {
        let mut random = SplitMix64::new(7);
        // The last slots overflow to the first ones, and some keys share the first bits of their hashes, or all.
        let mut hashes: Vec<u64> = (0..1000).map(|_| random.next()).collect();
        hashes.extend((0..100).map(|i| u64::MAX - (i << 30)));
        hashes.extend([5; 20]);
        let mut table = PlaceTable::with_capacity(10);
        assert_eq!(table.find(5, |_| true), None);
        for (place, &hash) in hashes.iter().enumerate() {
            table.insert(hash, place as u32, hashes.len());
            assert!(table.slots.len() <= slots_for(hashes.len()), "at {place}");
        }
        for (place, &hash) in hashes.iter().enumerate() {
            assert_eq!(table.find(hash, |found| found == place as u32), Some(place as u32));
        }
        assert!((0..1000).all(|_| table.find(random.next(), |_| true).is_none()));
        table.clear();
        assert_eq!(table.find(5, |_| true), None);
    }

    #[test]
    fn an_empty_table_has_no_place() {
        let mut table = PlaceTable::default();
        table.prefetch(u64::MAX);
        assert_eq!(table.find(u64::MAX, |_| true), None);
        table.insert(u64::MAX, 3, 0);
        assert_eq!(table.find(u64::MAX, |_| true), Some(3));
    }
}
