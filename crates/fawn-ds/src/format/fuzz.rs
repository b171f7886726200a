//! Fuzz targets of the decoders: called by libFuzzer with arbitrary bytes and by a seeded driver.
//!
//! Each panics when a decoder accepts bytes that the encoder would not write.
use super::manifest::{ManifestVerdict, decode_all};
use super::record::{RecordKind, RecordPlace, RecordRef, Stored, encode_into, encoded_len};
use super::scan::{ScanInput, Scanner, SegmentVerdict, SyncedLog};
use super::{FRAMES_OFFSET, SEGMENT_BYTES_MIN, SegmentUuid, Watermark, frame, manifest, record, segment, tail};
use fawn_types::ClientTag;

const UUID: SegmentUuid = SegmentUuid([7; 16]);
const PLACE: RecordPlace = RecordPlace { segment_id: 0, offset: FRAMES_OFFSET };

/// If a record decodes, encoding its content again yields the same bytes.
pub fn record(data: &[u8]) {
    plain(data, None);
    plain(data, Some(PLACE));
    let peeked = record::peek_len(data);
    let Ok(stored) = record::decode_verified(data, PLACE.offset) else {
        // Arbitrary bytes almost never have a valid checksum, but the checked path must not panic on them either.
        assert!(record::decode(data, PLACE).is_err(), "the checksum makes no record of other bytes");
        return;
    };
    assert_eq!(peeked, Ok(stored.encoded_len), "the peeked length is the record's");
    assert_eq!(encoded_len(&stored.record), stored.encoded_len, "the encoder agrees on the length");
    let mut again = vec![0xA5; stored.encoded_len];
    encode_into(&stored.record, stored.envelope, PLACE, &mut again);
    assert_eq!(again[4..], data[4..stored.encoded_len], "one content, one encoding");
    assert_eq!(record::decode(&again, PLACE), Ok(stored), "what was encoded decodes");
}

/// The fast path accepts plain puts, and only those that the slow path accepts.
fn plain(data: &[u8], place: Option<RecordPlace>) {
    let decoded =
        place.map_or_else(|| record::decode_verified(data, PLACE.offset), |place| record::decode(data, place));
    // For rejected bytes: the keys that the record might have.
    let lengths = data.get(8..10).map_or(0, |len| usize::from(u16::from_le_bytes([len[0], len[1]])));
    let guessed = || (24..data.len()).filter_map(|at| data.get(at..at + lengths)).take(16);
    let expected = decoded.as_ref().ok().filter(|stored| {
        let RecordRef { kind, tag, result, .. } = stored.record;
        kind == RecordKind::Put && tag == ClientTag::NONE && result.is_empty()
    });
    let keys: Vec<&[u8]> = decoded.as_ref().map_or_else(|_| guessed().collect(), |stored| vec![stored.record.key]);
    for key in keys {
        let found = record::decode_plain(data, key, place);
        let found =
            found.map(|plain| (plain.value, plain.flags, plain.expires_at_ms, plain.version, plain.encoded_len));
        let expected = expected.map(|Stored { record, encoded_len, .. }| {
            (record.value, record.flags, record.expires_at_ms, record.version, *encoded_len as u32)
        });
        assert_eq!(found, expected, "the fast path takes plain puts and nothing else");
        let other: Vec<u8> = key.iter().map(|byte| byte ^ 1).collect();
        assert!(key.is_empty() || record::decode_plain(data, &other, place).is_none(), "another key's record");
    }
}

/// Decodes a frame's bytes. If they are long enough, the header is then replaced by a valid one, so that the records
/// are reached.
pub fn frame(data: &[u8]) {
    let _ = frame::decode_header(data, UUID, FRAMES_OFFSET, SEGMENT_BYTES_MIN);
    let Some(records) = data.get(frame::HEADER_BYTES..) else { return };
    let record_bytes = (records.len() / 16 * 16).min(SEGMENT_BYTES_MIN as usize / 2) as u32;
    let header = frame::FrameHeader {
        uuid: UUID,
        generation: 1,
        offset: FRAMES_OFFSET,
        frame_bytes: frame::HEADER_BYTES as u32 + record_bytes,
        record_bytes,
        count: u32::from(data[0]),
        synced: Watermark::NONE,
        chain: frame::Chain(u64::from(data[1])),
    };
    let mut bytes = data.to_vec();
    frame::encode_header(&header, &mut bytes);
    assert_eq!(frame::decode_header(&bytes, UUID, FRAMES_OFFSET, SEGMENT_BYTES_MIN), Ok(header));
    if frame::verify(&header, &bytes).is_ok() {
        assert_eq!(frame::records(&header, &bytes).count(), header.count as usize, "every record is yielded");
    }
    assert!(frame::records(&header, &bytes).count() <= bytes.len() / 32, "the iterator ends");
}

/// Finds frames in a tail file of these bytes: each is whole, and none overlaps another.
pub fn tail_frames(data: &[u8]) {
    let mut visited_bytes = 0;
    tail::frames(data, 0, SEGMENT_BYTES_MIN, |header, bytes| {
        assert_eq!(bytes.len(), header.frame_bytes as usize, "the bytes are the frame's");
        assert!(
            header.end() <= SEGMENT_BYTES_MIN && frame::verify(header, bytes).is_ok(),
            "a whole frame of a segment"
        );
        visited_bytes += bytes.len();
    });
    assert!(visited_bytes <= data.len(), "no byte is in two frames");
}

/// If a manifest decodes, writing it again yields the same state.
pub fn manifest(data: &[u8]) {
    let _ = segment::decode(data);
    let Ok(decoded) = decode_all(data) else { return };
    assert!(decoded.valid_len <= data.len() as u64, "nothing is read past the end");
    let again = manifest::encode_snapshot(&decoded.state, decoded.header.rewrite);
    let again = decode_all(&again).map(|again| (again.state, again.verdict));
    assert_eq!(again, Ok((decoded.state, ManifestVerdict::Clean)), "a rewritten manifest says the same");
}

/// Scans a segment's frames in chunks of a size chosen by the first byte: the chunk size must not change the result.
pub fn scan(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else { return };
    let input = ScanInput { uuid: UUID, sequence: 1, segment_bytes: SEGMENT_BYTES_MIN, sealed_len: None };
    let scan = |chunk_bytes: usize| {
        let mut scanner = Scanner::new(input);
        let mut yielded = 0;
        let mut visitor = |_: u32, _: &record::Stored<'_>| yielded += 1;
        data.chunks(chunk_bytes.max(1)).for_each(|chunk| scanner.push(chunk, &mut visitor));
        let report = scanner.finish();
        assert_eq!(report.records, yielded, "records are counted as they are yielded");
        report
    };
    let (whole, parts) = (scan(data.len()), scan(usize::from(first)));
    assert_eq!((whole.valid_len, whole.watermark), (parts.valid_len, parts.watermark), "chunks do not matter");
    assert_eq!(whole.damage.is_some(), parts.damage.is_some(), "chunks do not matter");
    if whole.validate(&SyncedLog::default(), None) == SegmentVerdict::Clean {
        assert!(whole.damage.is_none(), "clean is without damage");
    }
}
