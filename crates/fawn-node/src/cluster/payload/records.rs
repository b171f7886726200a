//! Records on links: encoded as in a segment, but for place (0, 0); the receiver's log assigns the real place.
//!
//! A record's checksum covers the path from the sender's log buffer to the receiver's, in addition to the frame's.
use fawn_ds::internals::format::RangeNumber;
use fawn_ds::internals::format::record::{self, Envelope, RecordPlace};
use fawn_ds::internals::{RecordKind, RecordRef};
use fawn_types::RangeId;

const NOWHERE: RecordPlace = RecordPlace { segment_id: 0, offset: 0 };

/// Members number their ranges differently: on links the range's id identifies it.
const fn number_on_links(range: RangeId) -> RangeNumber {
    RangeNumber(range.0)
}

/// Appends an encoded record to `out`.
pub(crate) fn put_record(out: &mut Vec<u8>, range: RangeId, record: &RecordRef<'_>) {
    let start = out.len();
    out.resize(start + record::encoded_len(record), 0);
    let envelope = Envelope { number: number_on_links(range), continues: false };
    record::encode_into(record, envelope, NOWHERE, &mut out[start..]);
}

/// Iterates over the records of a frame; ends at the first that is corrupt, of another range, or not a write.
pub(crate) fn records_of(bytes: &[u8], range: RangeId) -> impl Iterator<Item = RecordRef<'_>> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let stored = record::decode(rest, NOWHERE).ok()?;
        let is_write = !matches!(stored.record.kind, RecordKind::CommitMark | RecordKind::Rollback);
        if !is_write || stored.envelope.number != number_on_links(range) {
            return None;
        }
        rest = &rest[stored.encoded_len..];
        Some(stored.record)
    })
}
