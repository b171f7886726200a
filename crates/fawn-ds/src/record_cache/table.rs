//! Hash table of the record cache: buckets of one cache line with eight entries each, so that a lookup reads one line.
//!
//! An entry is a position, a tag, which is the first bits of the key's hash, and a use count. The tag alone gives the
//! bucket, in proportion: a table can grow and shrink by any amount, in place, without reading records, and the buckets
//! are in hash order, as a scan's cells are.
use super::slabs::RecordPosition;
use fawn_flash::Blocks;
use fawn_types::KeyHash;

const ENTRIES: usize = 8;
const BUCKET_BYTES: usize = ENTRIES * size_of::<u64>();
const TAG_BITS: u32 = 30;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const USES_SHIFT: u32 = 32 + TAG_BITS;
const USES_MAX: u64 = 3;
const BUCKETS_MIN: usize = 64;
/// The table grows at this mean number of entries per four buckets: one bucket in ten is then full.
const LOAD_MAX: usize = 19;

type RecordBucket = [u64; ENTRIES];

/// An entry; zero is an empty one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PackedEntry(u64);

impl PackedEntry {
    const fn new(tag: u64, position: RecordPosition, uses: u64) -> Self {
        Self(uses << USES_SHIFT | tag << 32 | (position.0 as u64 + 1))
    }

    const fn tag(self) -> u64 {
        (self.0 >> 32) & TAG_MASK
    }

    const fn position(self) -> RecordPosition {
        RecordPosition((self.0 as u32) - 1)
    }

    const fn uses(self) -> u64 {
        self.0 >> USES_SHIFT
    }
}

const fn tag_of(hash: KeyHash) -> u64 {
    hash.0 >> (u64::BITS - TAG_BITS)
}

/// The place of an entry: bucket and position in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EntryPlace {
    bucket: u32,
    nth: u32,
}

#[derive(Debug, Default)]
pub(super) struct RecordTable {
    buckets: Blocks<RecordBucket>,
    len: usize,
}

impl RecordTable {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn resident_bytes(&self) -> usize {
        self.buckets.resident_bytes()
    }

    #[inline]
    fn bucket_of(&self, tag: u64) -> usize {
        (tag as usize * self.buckets.len()) >> TAG_BITS
    }

    /// The entry of `hash` for which `is_it` holds, among those with its tag.
    #[inline]
    pub(super) fn find(&self, hash: KeyHash, mut is_it: impl FnMut(RecordPosition) -> bool) -> Option<EntryPlace> {
        if self.len == 0 {
            return None;
        }
        let tag = tag_of(hash);
        let bucket = self.bucket_of(tag);
        for (nth, &word) in self.buckets.get(bucket).iter().enumerate() {
            let entry = PackedEntry(word);
            if word != 0 && entry.tag() == tag && is_it(entry.position()) {
                return Some(EntryPlace { bucket: bucket as u32, nth: nth as u32 });
            }
        }
        None
    }

    /// The first position with the tag of `hash`.
    #[inline]
    pub(super) fn guess(&self, hash: KeyHash) -> Option<RecordPosition> {
        self.find(hash, |_| true).map(|place| self.entry(place).position())
    }

    /// Number of buckets with the hashes `first..=last`.
    pub(super) fn buckets_between(&self, first: KeyHash, last: KeyHash) -> usize {
        self.bucket_of(tag_of(last)) - self.bucket_of(tag_of(first)) + 1
    }

    /// Positions of entries with the tags of `first..=last`. The table must have entries.
    pub(super) fn between(&self, first: KeyHash, last: KeyHash) -> impl Iterator<Item = RecordPosition> + '_ {
        let tags = tag_of(first)..=tag_of(last);
        let buckets = self.bucket_of(*tags.start())..=self.bucket_of(*tags.end());
        let words = buckets.flat_map(|bucket| self.buckets.get(bucket)).filter(|word| **word != 0);
        words.map(|&word| PackedEntry(word)).filter(move |entry| tags.contains(&entry.tag())).map(PackedEntry::position)
    }

    /// Prefetches the bucket of `hash`.
    #[inline]
    pub(super) fn prefetch(&self, hash: KeyHash) {
        if self.len > 0 {
            fawn_flash::prefetch(self.buckets.get(self.bucket_of(tag_of(hash))));
        }
    }

    #[inline]
    fn entry(&self, place: EntryPlace) -> PackedEntry {
        PackedEntry(self.buckets.get(place.bucket as usize)[place.nth as usize])
    }

    fn set(&mut self, place: EntryPlace, entry: PackedEntry) {
        self.buckets.get_mut(place.bucket as usize)[place.nth as usize] = entry.0;
    }

    #[inline]
    pub(super) fn position(&self, place: EntryPlace) -> RecordPosition {
        self.entry(place).position()
    }

    pub(super) fn uses(&self, place: EntryPlace) -> u64 {
        self.entry(place).uses()
    }

    /// Counts a use. Stores only if the count changes, so a hot bucket's cache line stays clean.
    #[inline]
    pub(super) fn touch(&mut self, place: EntryPlace) {
        let entry = self.entry(place);
        if entry.uses() < USES_MAX {
            self.set(place, PackedEntry(entry.0 + (1 << USES_SHIFT)));
        }
    }

    pub(super) fn set_position(&mut self, place: EntryPlace, position: RecordPosition, uses: u64) {
        let tag = self.entry(place).tag();
        self.set(place, PackedEntry::new(tag, position, uses));
    }

    pub(super) fn remove(&mut self, place: EntryPlace) {
        self.set(place, PackedEntry(0));
        self.len -= 1;
    }

    /// Whether the bucket of `hash` has an empty entry. Grows the table if it is loaded.
    pub(super) fn has_room(&mut self, hash: KeyHash) -> bool {
        if 4 * self.len >= LOAD_MAX * self.buckets.len() {
            self.resize((self.buckets.len() + self.buckets.len() / 8).max(BUCKETS_MIN));
        }
        self.buckets.get(self.bucket_of(tag_of(hash))).contains(&0)
    }

    /// Adds an entry, which must be absent, with no uses. The least used entry of a full bucket is dropped: its record can
    /// no longer be found, and its memory is freed in its turn.
    pub(super) fn insert(&mut self, hash: KeyHash, position: RecordPosition) {
        self.add(PackedEntry::new(tag_of(hash), position, 0));
    }

    fn add(&mut self, entry: PackedEntry) {
        let bucket = self.bucket_of(entry.tag());
        let words = self.buckets.get_mut(bucket);
        if let Some(empty) = words.iter_mut().find(|word| **word == 0) {
            *empty = entry.0;
            self.len += 1;
        } else if let Some(least) = words.iter_mut().min_by_key(|word| PackedEntry(**word).uses()) {
            *least = entry.0;
        }
    }

    /// Shrinks a table that is much larger than this many records need.
    pub(super) fn shrink(&mut self, records: usize) {
        let buckets = if records == 0 { 0 } else { (records.max(self.len) * 4 / LOAD_MAX).max(BUCKETS_MIN) };
        if buckets + buckets / 4 < self.buckets.len() {
            self.resize(buckets);
        }
    }

    /// Moves all entries to their buckets among `buckets`. An entry moves away from the table's start when it grows, so
    /// buckets are emptied from the end on; and the other way round.
    fn resize(&mut self, buckets: usize) {
        let before = self.buckets.len();
        self.len = 0;
        if buckets >= before {
            for _ in before..buckets {
                let at = self.buckets.push();
                *self.buckets.get_mut(at) = [0; ENTRIES];
            }
            (0..before).rev().for_each(|at| self.refile(at));
        } else {
            // The bucket of a tag is computed from the number of buckets, so they leave only once all are empty.
            let words = |table: &mut Self, at: usize| core::mem::replace(table.buckets.get_mut(at), [0; ENTRIES]);
            for at in 0..before {
                for word in words(self, at).into_iter().filter(|&word| word != 0) {
                    self.add_among(PackedEntry(word), buckets);
                }
            }
            (buckets..before).for_each(|_| self.buckets.pop());
        }
    }

    fn refile(&mut self, at: usize) {
        for word in core::mem::replace(self.buckets.get_mut(at), [0; ENTRIES]) {
            if word != 0 {
                self.add(PackedEntry(word));
            }
        }
    }

    fn add_among(&mut self, entry: PackedEntry, buckets: usize) {
        let bucket = (entry.tag() as usize * buckets) >> TAG_BITS;
        if let Some(empty) = self.buckets.get_mut(bucket).iter_mut().find(|word| **word == 0) {
            *empty = entry.0;
            self.len += 1;
        }
    }

    /// Memory of the table for this number of records, bytes.
    pub(super) const fn bytes_for(records: usize) -> usize {
        records * 4 * BUCKET_BYTES / LOAD_MAX + records / 2
    }
}
