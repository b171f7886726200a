//! Deferred records of an opening: the newest record of each key that the index may have an older version of.
//!
//! Only a read of that version tells whether it is the key's own, and there may be millions of them. The opening leaves these
//! reads to the engine, which makes them while it serves. Lookups find a deferred record meanwhile, so it must be newer than
//! what the index has of its key.
use crate::engine::Engine;
use crate::options::Options;
use crate::overlay::{KeyName, Written};
use fawn_flash::Device;
use fawn_types::Version;
use hashbrown::HashTable;

/// Maximum memory of a record in the table: it is at least 7/16 full, with one control byte per slot.
pub(crate) const DEFERRED_BYTES: usize = (size_of::<Deferred>() + 1) * 16 / 7;

/// Part of the memory budget that the filter of survivors takes.
const FILTER_SHARE: usize = 64;
const FILTER_WORDS_MIN: usize = 1 << 10;

#[derive(Clone, Copy, Debug)]
struct Deferred {
    range: usize,
    name: KeyName,
    written: Written,
}

/// The deferred records by key.
#[derive(Debug)]
pub(super) struct DeferredRecords {
    table: HashTable<Deferred>,
    keys_max: usize,
    /// Lowest sequence number of their segments.
    since: u64,
    /// A bit for the hashes of all survivors that were read, and the highest version of these.
    survivors: Vec<u64>,
    survivors_highest: Version,
    filter_words: usize,
}

/// Whether `written` replaces the known record of its key. Of equal versions one is the copy of the other. But a put that
/// was too long for a run was copied out of a segment that is sorted now, and the original there counts as a tombstone.
fn replaces(written: &Written, known: &Written) -> bool {
    known.version < written.version || (known.version == written.version && written.is_put && !known.is_put)
}

impl DeferredRecords {
    pub(super) fn new(options: &Options) -> Self {
        // A read-only engine may be read at once and without a poll.
        let keys_max = if options.read_only { 0 } else { options.deferred_keys_max() };
        let filter_words = (options.memory_bytes as usize / FILTER_SHARE / size_of::<u64>()).max(FILTER_WORDS_MIN);
        let (table, survivors, survivors_highest) = (HashTable::new(), Vec::new(), Version::ZERO);
        Self { table, keys_max, since: u64::MAX, survivors, survivors_highest, filter_words }
    }

    /// Notes a survivor that is not deferred.
    pub(super) fn add_survivor(&mut self, hash: u64, version: Version) {
        self.survivors.resize(self.filter_words, 0);
        self.survivors_highest = self.survivors_highest.max(version);
        let (word, bit) = self.bit_of(hash);
        self.survivors[word] |= bit;
    }

    /// Whether the key may have a survivor that is at least as new, and not deferred.
    pub(super) fn may_have_newer_survivor(&self, hash: u64, version: Version) -> bool {
        if version > self.survivors_highest {
            return false;
        }
        let (word, bit) = self.bit_of(hash);
        self.survivors[word] & bit != 0
    }

    const fn bit_of(&self, hash: u64) -> (usize, u64) {
        let place = (hash as u128 * (self.filter_words as u128 * 64)) >> 64;
        ((place / 64) as usize, 1 << (place % 64))
    }

    /// Whether memory for further keys is left.
    pub(super) fn has_room(&self) -> bool {
        self.table.len() < self.keys_max
    }

    fn find_mut(&mut self, range: usize, name: KeyName) -> Option<&mut Deferred> {
        self.table.find_mut(name.hash, |known| known.name == name && known.range == range)
    }

    /// Whether a deferred record of the key counts, and not `written`.
    pub(super) fn hides(&self, range: usize, name: KeyName, written: &Written) -> bool {
        let found = self.table.find(name.hash, |known| known.name == name && known.range == range);
        found.is_some_and(|known| !replaces(written, &known.written))
    }

    /// Takes a record of a key that has a deferred one; the newer of the two stays. Returns whether it has.
    pub(super) fn replace<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        range: usize,
        name: KeyName,
        written: Written,
    ) -> bool {
        let Some(known) = self.find_mut(range, name) else { return false };
        if replaces(&written, &known.written) {
            let old = core::mem::replace(&mut known.written, written);
            self.count(engine, range, &written);
            if old.is_put {
                engine.release_old(range, old.replaced(), written.version);
            }
        }
        true
    }

    /// Adds a record of a key that has none.
    pub(super) fn insert<D: Device>(&mut self, engine: &mut Engine<D>, range: usize, name: KeyName, written: Written) {
        self.table.insert_unique(name.hash, Deferred { range, name, written }, |known| known.name.hash);
        self.count(engine, range, &written);
    }

    /// A put is live until its verification says otherwise.
    fn count<D: Device>(&mut self, engine: &mut Engine<D>, range: usize, written: &Written) {
        let (slot, _) = engine.segments.slot_and_offset(written.pointer);
        let segment = engine.segments.expect_mut(slot);
        self.since = self.since.min(segment.sequence);
        if written.is_put {
            segment.add_live(range, written.len_bytes);
        }
    }

    pub(super) fn forget_range(&mut self, range: usize) {
        self.table.retain(|known| known.range != range);
    }

    /// Hands the records over to the overlay.
    pub(super) fn hand_over<D: Device>(&mut self, engine: &mut Engine<D>) {
        let records = core::mem::take(&mut self.table)
            .into_iter()
            .map(|Deferred { range, name, written }| (range, name, written));
        engine.overlay.defer(records, self.since);
    }
}
