//! `SCAN` over all ranges: whole index cells, one range after the other.
//!
//! A cursor is a place in the content of a range, whose low bits are zero, with the range's index in the ring in these
//! bits. It fits Redis's 64 bits and stays valid while ranges grow.
use fawn_wire::internal::{KeyspaceRequest, read_scan_page};
use fawn_wire::{KeyspaceCommand, glob, resp};

/// Low bits of a cursor, for the range: index pages never need these bits of the hash.
const RANGE_BITS: u32 = 12;
const RANGE_MASK: u64 = (1 << RANGE_BITS) - 1;
/// Lower bound of the records that a part meets, unless it reaches its range's end or fewer are left.
pub(crate) const PART_RECORDS_MIN: usize = 64;
/// Bytes of keys after which a step ends.
const BYTES_MAX: usize = 1 << 20;

/// A step in flight.
#[derive(Debug)]
pub(crate) struct ScanState {
    pattern: Option<Vec<u8>>,
    /// Whether its `TYPE` includes strings, the only type.
    wants_strings: bool,
    left: usize,
    cursor: u64,
    keys: Vec<Vec<u8>>,
    bytes: usize,
}

impl ScanState {
    /// Begins a step.
    pub(crate) fn new(keyspace: &KeyspaceCommand<'_>) -> Self {
        let KeyspaceCommand::Scan { cursor, pattern, count, .. } = *keyspace else { unreachable!("only scans scan") };
        Self {
            pattern: pattern.map(<[u8]>::to_vec),
            wants_strings: keyspace.wants_strings(),
            // The decoder has bounded it.
            left: count,
            cursor,
            keys: Vec::new(),
            bytes: 0,
        }
    }

    /// The next part and its index among the `ranges`; none for an invalid cursor.
    pub(crate) fn next_part(&self, ranges: usize) -> Option<(usize, KeyspaceRequest<'static>)> {
        let at = (self.cursor & RANGE_MASK) as usize;
        let count = u32::try_from(self.left).unwrap_or(u32::MAX);
        (at < ranges).then_some((at, KeyspaceRequest::Scan { cursor: self.cursor & !RANGE_MASK, count }))
    }

    /// Receives a reply; returns the next part unless the step is done.
    pub(super) fn take_page(&mut self, page: &[u8], ranges: usize) -> Option<(usize, KeyspaceRequest<'static>)> {
        let (position, keys) = read_scan_page(page)?;
        let mut met = 0;
        for key in keys {
            met += 1;
            let is_match = self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, key));
            if self.wants_strings && is_match {
                self.bytes += key.len();
                self.keys.push(key.to_vec());
            }
        }
        // A part that did not reach its range's end met its share of records, of which all may have expired.
        if position & !RANGE_MASK != 0 {
            met = met.max(PART_RECORDS_MIN);
        }
        self.left = self.left.saturating_sub(met);
        assert!(ranges as u64 <= RANGE_MASK, "a cursor distinguishes {RANGE_MASK} ranges");
        let at = self.cursor & RANGE_MASK;
        self.cursor = match position & !RANGE_MASK {
            0 if at + 1 < ranges as u64 => at + 1,
            0 => 0,
            position => position | at,
        };
        if self.cursor == 0 || self.left == 0 || self.bytes >= BYTES_MAX { None } else { self.next_part(ranges) }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        resp::encode::scan(self.cursor, &self.keys, out);
    }

    /// Reply to an invalid cursor: an empty step.
    pub(crate) fn encode_nothing(out: &mut Vec<u8>) {
        resp::encode::scan::<&[u8]>(0, &[], out);
    }
}
