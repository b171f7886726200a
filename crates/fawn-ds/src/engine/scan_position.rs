//! Positions of scans and transfers: first the log in the order of key hashes, then the runs in ring order.
//!
//! Each store sorts on its own: a record may be in the log of one member and in a run of another, or of the same member
//! after a resync. So the position of a store with runs is valid only there. It contains the *content ID* of the range, and
//! a scan or transfer that began with another content begins again. A position of a store without runs is valid everywhere:
//! all keys before it were visited.
use super::Engine;
use fawn_flash::Device;
use fawn_types::{KeyHash, KeyRange, RingKey};

/// Low bits of a scan's cursor that are always 0: the cluster's front-ends put a range's index there.
const FREE_BITS: u32 = 12;
/// Bits of a position in a cursor with a content ID.
const POSITION_BITS: u32 = CELL_BITS + SLICE_BITS;
/// Bits of a cursor for the content ID, of which 13 are random: the lowest is set.
const CONTENT_BITS: u32 = KIND_SHIFT - POSITION_BITS - FREE_BITS;
/// Bits of a transfer's pass for the content ID, of which 47 are random: the lowest is set. The others count restarts.
const PASS_CONTENT_BITS: u32 = 48;
/// The two highest bits: the kind of position.
const KIND_SHIFT: u32 = 62;
const KIND_LOG: u64 = 1;
const KIND_RUNS: u64 = 2;

/// Bits of a ring cell's number.
const CELL_BITS: u32 = 27;
/// Bits of the key hash that divide a ring cell.
pub(super) const SLICE_BITS: u32 = 9;

/// A position in the content of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScanPosition {
    /// The log, from this hash on, then all of the runs.
    Log(u64),
    /// The runs, from this position of their [`RingCells`] on.
    Runs(u64),
}

impl ScanPosition {
    pub(super) const START: Self = Self::Log(0);

    /// The position as a client's cursor; `content_id`: that of a store with runs. 0 is the start.
    pub(super) const fn to_cursor(self, content_id: Option<u64>) -> u64 {
        let (kind, position) = match (self, content_id) {
            (Self::Log(hash), None) => return hash >> (u64::BITS - KIND_SHIFT),
            (Self::Log(hash), Some(_)) => (KIND_LOG, hash >> (u64::BITS - POSITION_BITS)),
            (Self::Runs(position), _) => (KIND_RUNS, position),
        };
        let content_id = match content_id {
            Some(content_id) => content_id & ((1 << CONTENT_BITS) - 1),
            None => 0,
        };
        kind << KIND_SHIFT | content_id << (POSITION_BITS + FREE_BITS) | position << FREE_BITS
    }

    /// The position of a cursor that a store with this content received. A cursor of another content in runs is the start.
    /// Returns whether the cursor has the content's ID.
    pub(super) const fn of_cursor(cursor: u64, content_id: u64) -> (Self, bool) {
        let kind = cursor >> KIND_SHIFT;
        if kind == 0 {
            return (Self::Log(cursor << (u64::BITS - KIND_SHIFT)), false);
        }
        let named = (cursor >> (POSITION_BITS + FREE_BITS)) & ((1 << CONTENT_BITS) - 1);
        let position = (cursor >> FREE_BITS) & ((1 << POSITION_BITS) - 1);
        match kind {
            _ if named != content_id & ((1 << CONTENT_BITS) - 1) => (Self::START, false),
            KIND_LOG => (Self::Log(position << (u64::BITS - POSITION_BITS)), true),
            KIND_RUNS => (Self::Runs(position), true),
            _ => (Self::START, false),
        }
    }
}

/// A place in a transfer. It is ordered: later chunks have higher ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct TransferPlace {
    /// The content's ID, if the store has runs, and how often the transfer began again with another content.
    pub pass: u64,
    /// The position in the pass.
    pub position: u64,
}

impl TransferPlace {
    /// The start of a transfer.
    pub const START: Self = Self { pass: 0, position: 0 };

    /// Hash bits that a place does not have: keys that differ only there stay in one chunk.
    pub(super) const HASH_SHIFT: u32 = u64::BITS - KIND_SHIFT;

    const fn content_id(self) -> u64 {
        self.pass & ((1 << PASS_CONTENT_BITS) - 1)
    }

    pub(super) const fn has_content_id(self) -> bool {
        self.content_id() != 0
    }

    /// The pass and position from which a store with this content continues.
    pub(super) const fn resume_at(self, content_id: u64) -> (u64, ScanPosition) {
        let content_id = content_id & ((1 << PASS_CONTENT_BITS) - 1);
        let is_known =
            if self.has_content_id() { self.content_id() == content_id } else { self.position >> KIND_SHIFT == 0 };
        if !is_known {
            let restarts = (self.pass >> PASS_CONTENT_BITS).wrapping_add(1);
            return (restarts << PASS_CONTENT_BITS, ScanPosition::START);
        }
        let position = self.position & ((1 << KIND_SHIFT) - 1);
        match self.position >> KIND_SHIFT {
            0 | KIND_LOG => (self.pass, ScanPosition::Log(position << Self::HASH_SHIFT)),
            _ => (self.pass, ScanPosition::Runs(position)),
        }
    }

    /// A place of the pass; `content_id`: that of a store with runs.
    pub(super) const fn new(pass: u64, position: ScanPosition, content_id: Option<u64>) -> Self {
        let pass = match content_id {
            Some(content_id) => {
                pass >> PASS_CONTENT_BITS << PASS_CONTENT_BITS | content_id & ((1 << PASS_CONTENT_BITS) - 1)
            }
            None => pass,
        };
        let position = match position {
            ScanPosition::Log(hash) => hash >> Self::HASH_SHIFT,
            ScanPosition::Runs(position) => KIND_RUNS << KIND_SHIFT | position,
        };
        Self { pass, position }
    }
}

/// The order of a range's records in runs, in positions that fit a cursor: by cells of equal width of the range's part of
/// the ring, and within a cell by the highest bits of the key hash. A cell has a few keys at most, unless many of them share
/// a hash tag: then the hash divides them.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingCells {
    start: u64,
    shift: u32,
}

impl RingCells {
    pub(super) fn of(keys: &KeyRange) -> Self {
        let start = highest_bits(&keys.start);
        let last = keys.end.as_ref().map_or(u64::MAX, highest_bits);
        let width_bits = u64::BITS - last.saturating_sub(start).leading_zeros();
        Self { start, shift: width_bits.saturating_sub(CELL_BITS) }
    }

    /// The position of a ring key of the range, or behind it.
    pub(super) fn position(self, key: &RingKey) -> u64 {
        // A key behind the range, of a page that reaches beyond it, is in the cell behind the last one.
        let cell = (highest_bits(key).saturating_sub(self.start) >> self.shift).min(1 << CELL_BITS);
        cell << SLICE_BITS | hash_of(key) >> (u64::BITS - SLICE_BITS)
    }

    /// A ring key at or below all of the cell; `None` behind the ring's end.
    pub(super) fn cell_start(self, cell: u64) -> Option<RingKey> {
        let start = u128::from(self.start) + (u128::from(cell) << self.shift);
        let mut key = RingKey::MIN;
        key.0[..8].copy_from_slice(&u64::try_from(start).ok()?.to_be_bytes());
        Some(key)
    }
}

fn highest_bits(key: &RingKey) -> u64 {
    let mut bits = [0; 8];
    bits.copy_from_slice(&key.0[..8]);
    u64::from_be_bytes(bits)
}

/// The key hash in a ring key.
fn hash_of(key: &RingKey) -> u64 {
    let mut bits = [0; 8];
    bits.copy_from_slice(&key.0[12..]);
    u64::from_be_bytes(bits)
}

/// The first ring key of these keys' tag whose hash begins with the bits of `slice`, or of the next tag.
pub(super) fn in_tag(key: &RingKey, slice: u64) -> Option<RingKey> {
    if slice >= 1 << SLICE_BITS {
        return next_tag(key);
    }
    let mut found = key.boundary();
    found.0[12..].copy_from_slice(&(slice << (u64::BITS - SLICE_BITS)).to_be_bytes());
    Some(found)
}

/// The lowest ring key above all that have this one's tag; `None` at the ring's end.
pub(super) fn next_tag(key: &RingKey) -> Option<RingKey> {
    let mut next = key.boundary();
    for byte in next.0[..12].iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(next);
        }
    }
    None
}

impl<D: Device> Engine<D> {
    /// A number of the content that the range has had since it was split, merged, or filled by a transfer.
    pub(super) fn content_id(&self, at: usize) -> u64 {
        let mut name = [0; 20];
        name[..16].copy_from_slice(&self.store.0);
        name[16..].copy_from_slice(&self.ranges[at].number.0.to_le_bytes());
        // The lowest bit is set, so that no part of it is 0.
        KeyHash::of(&self.secret, &name).0 | 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_continues_at_its_position_and_begins_again_elsewhere() {
        let content_id = Some(0x1234_5679);
        for position in
            [ScanPosition::Log(0), ScanPosition::Log(5 << 40), ScanPosition::Runs(0), ScanPosition::Runs((1 << 36) - 1)]
        {
            let cursor = position.to_cursor(content_id);
            assert_eq!(cursor & 0xFFF, 0, "{position:?}: the bits of front-ends are free");
            assert_eq!(ScanPosition::of_cursor(cursor, 0x1234_5679), (position, true));
            assert_eq!(ScanPosition::of_cursor(cursor, 0x1234_567B), (ScanPosition::START, false), "{position:?}");
        }
        let without_runs = ScanPosition::Log(5 << 40).to_cursor(None);
        assert_eq!(ScanPosition::of_cursor(without_runs, 99), (ScanPosition::Log(5 << 40), false));
        assert_eq!(ScanPosition::of_cursor(0, 99), (ScanPosition::START, false));
        assert_eq!(ScanPosition::of_cursor(3 << KIND_SHIFT, 0), (ScanPosition::START, false), "no such kind");
    }

    #[test]
    fn places_of_a_transfer_grow_through_its_parts_and_with_each_content() {
        let (first, second) = (77, 99);
        let places = [
            TransferPlace::START,
            TransferPlace::new(0, ScanPosition::Log(1 << 60), None),
            TransferPlace::new(0, ScanPosition::Log(1 << 60), Some(first)),
            TransferPlace::new(0, ScanPosition::Runs(0), Some(first)),
            TransferPlace::new(0, ScanPosition::Runs(8), Some(first)),
        ];
        assert!(places.is_sorted() && places.windows(2).all(|two| two[0] != two[1]));
        assert_eq!(places[1].resume_at(second), (0, ScanPosition::Log(1 << 60)), "all before it was sent");
        assert_eq!(places[4].resume_at(first), (first, ScanPosition::Runs(8)));
        let (pass, position) = places[4].resume_at(second);
        assert_eq!((pass, position), (1 << PASS_CONTENT_BITS, ScanPosition::START));
        assert!(
            TransferPlace::new(pass, position, None) > places[4]
                && !TransferPlace::new(pass, position, None).has_content_id()
        );
        let malformed = TransferPlace { pass: 0, position: 2 << KIND_SHIFT };
        assert_eq!(malformed.resume_at(first).1, ScanPosition::START);
    }

    #[test]
    fn cells_divide_a_range_however_small_it_is() {
        let mut start = RingKey::MIN;
        start.0[..8].copy_from_slice(&(7u64 << 32).to_be_bytes());
        let mut end = start;
        end.0[3] = 8;
        for keys in [KeyRange::ALL, KeyRange { start, end: Some(end) }, KeyRange { start, end: None }] {
            let cells = RingCells::of(&keys);
            let mut last = keys.end.unwrap_or(RingKey([0xFF; 20]));
            if keys.end.is_some() {
                last.0[3] -= 1;
                last.0[4..].fill(0xFF);
            }
            assert_eq!(cells.position(&keys.start), 0);
            assert!(cells.position(&last) < 1 << POSITION_BITS && cells.position(&last) >= 1 << (POSITION_BITS - 2));
            let cell = cells.position(&last) >> SLICE_BITS;
            assert!(
                cells.cell_start(cell).unwrap() <= last && cells.cell_start(cell + 1).is_none_or(|next| next > last)
            );
        }
    }

    #[test]
    fn the_next_tag_follows_all_keys_of_a_tag() {
        let key = RingKey([0xFF; 20]);
        assert_eq!((next_tag(&key), in_tag(&key, 1 << SLICE_BITS)), (None, None));
        let mut key = RingKey([1; 20]);
        key.0[11] = 0xFF;
        let next = next_tag(&key).unwrap();
        assert!(next > key && next.is_boundary() && next.0[10..12] == [2, 0]);
        assert_eq!(in_tag(&key, 0), Some(key.boundary()));
    }
}
