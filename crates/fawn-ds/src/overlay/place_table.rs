//! Places of the deferred records by key: a hash table with open addressing, in hash order.
//!
//! A slot has the first bits of the hash beside the place. So a lookup reads one cache line most often, which can be
//! prefetched as a whole, and the table grows without a look at the records.
use fawn_flash::{Blocks, prefetch};

/// A slot for a third more keys than there are at most.
const SLOTS_PER_KEY: (usize, usize) = (4, 3);
/// Length of a key's part of the table, bytes.
pub(crate) const PLACE_BYTES: usize = (size_of::<u64>() * SLOTS_PER_KEY.0).div_ceil(SLOTS_PER_KEY.1);
const SLOTS_MIN: usize = 64;
const LINE_SLOTS: usize = 8;

const fn slots_for(keys: usize) -> usize {
    keys.saturating_mul(SLOTS_PER_KEY.0).div_ceil(SLOTS_PER_KEY.1)
}

const fn tag_of(hash: u64) -> u64 {
    hash >> 32
}

/// The table. A slot is zero, or a tag in the high half and a place plus one in the low one.
#[derive(Debug, Default)]
pub(crate) struct PlaceTable {
    /// In huge pages if there are many: with small ones, most searches would miss the TLB.
    lines: Blocks<[u64; LINE_SLOTS]>,
    slots: usize,
    len: usize,
}

impl PlaceTable {
    /// An empty table with slots for so many keys, which takes its memory with the first insertion.
    pub(crate) fn with_capacity(keys: usize) -> Self {
        Self { slots: slots_for(keys), ..Self::default() }
    }

    /// Where the search for a tag begins.
    #[inline]
    const fn home_of(&self, tag: u64) -> usize {
        ((tag as u128 * self.slots as u128) >> 32) as usize
    }

    /// The slot that a search looks at after this one.
    #[inline]
    const fn behind(&self, at: usize) -> usize {
        if at + 1 == self.slots { 0 } else { at + 1 }
    }

    #[inline]
    fn slot(&self, at: usize) -> u64 {
        self.lines.get(at / LINE_SLOTS)[at % LINE_SLOTS]
    }

    /// The first place of this hash for which `is_it` holds, which may also be asked about places of other hashes.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let tag = tag_of(hash);
        let mut at = self.home_of(tag);
        // A quarter of the slots is vacant.
        loop {
            let slot = self.slot(at);
            if slot == 0 {
                return None;
            }
            let place = (slot as u32).wrapping_sub(1);
            if slot >> 32 == tag && is_it(place) {
                return Some(place);
            }
            at = self.behind(at);
        }
    }

    /// The places of all hashes from `from` to `to`, both included, in no order. Some others may be among them.
    pub(crate) fn between(&self, from: u64, to: u64) -> impl Iterator<Item = u32> {
        let (first, last) = (self.home_of(tag_of(from)), self.home_of(tag_of(to)));
        let slots = if self.len == 0 { 0 } else { self.slots };
        let found = (first..first + slots).map(move |at| (at, self.slot(if at < slots { at } else { at - slots })));
        // A place lies behind its home, and no vacant slot between them.
        let found = found.take_while(move |&(at, slot)| slot != 0 || at < last);
        found.filter(|&(_, slot)| slot != 0).map(|(_, slot)| (slot as u32).wrapping_sub(1))
    }

    /// Prefetches the slots at which the search for the hash begins.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        if self.len > 0 {
            let home = self.home_of(tag_of(hash));
            prefetch(self.lines.get(home / LINE_SLOTS));
            // A search of a full table passes over some slots.
            if home % LINE_SLOTS >= LINE_SLOTS / 2 && home + LINE_SLOTS < self.slots {
                prefetch(self.lines.get(home / LINE_SLOTS + 1));
            }
        }
    }

    /// Adds a place. The table has slots for at most `keys_max` keys, or for an eighth more than it has.
    pub(crate) fn insert(&mut self, hash: u64, place: u32, keys_max: usize) {
        if slots_for(self.len + 1) > self.slots {
            let slots_max = slots_for(keys_max.max(self.len + self.len / 8 + 1));
            let slots = (2 * self.slots).min(slots_max).max(slots_for(self.len + 1)).max(SLOTS_MIN);
            let old = core::mem::replace(self, Self { slots, len: self.len, ..Self::default() });
            self.take_lines();
            let used = (0..old.lines.len()).flat_map(|at| *old.lines.get(at)).filter(|&slot| slot != 0);
            used.for_each(|slot| self.fill(slot));
        } else if self.lines.is_empty() {
            self.take_lines();
        }
        self.len += 1;
        self.fill(tag_of(hash) << 32 | u64::from(place + 1));
    }

    fn take_lines(&mut self) {
        let lines = self.slots.div_ceil(LINE_SLOTS);
        self.lines.expect(lines);
        for _ in 0..lines {
            let at = self.lines.push();
            *self.lines.get_mut(at) = [0; LINE_SLOTS];
        }
    }

    fn fill(&mut self, slot: u64) {
        let mut at = self.home_of(slot >> 32);
        while self.slot(at) != 0 {
            at = self.behind(at);
        }
        self.lines.get_mut(at / LINE_SLOTS)[at % LINE_SLOTS] = slot;
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.lines.resident_bytes()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self { slots: self.slots, ..Self::default() };
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
            sizes.push(table.slots);
        }
        sizes.dedup();
        assert!(sizes.len() < 80, "{} sizes", sizes.len());
        assert!(table.slots <= slots_for(50_000 * 9 / 8 + 1));
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
            assert!(table.slots <= slots_for(hashes.len()), "at {place}");
        }
        for (place, &hash) in hashes.iter().enumerate() {
            assert_eq!(table.find(hash, |found| found == place as u32), Some(place as u32));
        }
        assert!((0..1000).all(|_| table.find(random.next(), |_| true).is_none()));
        table.clear();
        assert_eq!(table.find(5, |_| true), None);
        table.insert(5, 1, 0);
        assert_eq!((table.find(5, |_| true), table.find(6 << 32, |_| true)), (Some(1), None));
    }

    /// Each place lies behind its home, and the last ones are at the start of the table.
    #[test]
    fn the_places_between_two_hashes_are_found_wherever_they_overflow_to() {
        let mut random = SplitMix64::new(11);
        let mut hashes: Vec<u64> = (0..500).map(|_| random.next()).collect();
        hashes.extend((0..100).map(|i| u64::MAX - (i << 30)));
        hashes.extend([5; 20]);
        let mut table = PlaceTable::with_capacity(hashes.len());
        assert_eq!(table.between(0, u64::MAX).count(), 0);
        hashes.iter().zip(0..).for_each(|(&hash, place)| table.insert(hash, place, hashes.len()));
        let mut bounds = vec![0, 5, 6, u64::MAX - (50 << 30), u64::MAX];
        bounds.extend(hashes[..20].iter().copied());
        for &from in &bounds {
            for &to in bounds.iter().filter(|&&to| to >= from) {
                let is_between = |place: &u32| (from..=to).contains(&hashes[*place as usize]);
                let mut found: Vec<u32> = table.between(from, to).filter(is_between).collect();
                found.sort_unstable();
                let expected: Vec<u32> = (0..hashes.len() as u32).filter(is_between).collect();
                assert_eq!(found, expected, "{from:#x} to {to:#x}");
            }
        }
        let passed = |from, to| table.between(from, to).count();
        assert!(passed(1 << 63, (1 << 63) + 1) < 50, "a search of few hashes passes over few places");
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
