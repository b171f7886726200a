//! Frame and segment header: encoding, and rejection of corrupt bytes.
use crate::rng::Rng;
use crate::segment_image::{SEGMENT_BYTES, SegmentImage, UUID};
use fawn_ds::internals::format::frame::{self, FrameError, HEADER_BYTES};
use fawn_ds::internals::format::segment::{self, SegmentHeader, StreamKind};
use fawn_ds::internals::format::{FRAMES_OFFSET, HeaderError, SegmentUuid, StoreUuid, Watermark};
use fawn_types::checksum::checksum64;

/// Validates `bytes` as recovery does: the whole frame or nothing.
fn accept(bytes: &[u8]) -> Result<usize, FrameError> {
    let header = frame::decode_header(bytes, UUID, FRAMES_OFFSET, SEGMENT_BYTES)?;
    frame::verify(&header, bytes)?;
    Ok(frame::records(&header, bytes).count())
}

fn one_frame(padding: u32) -> Vec<u8> {
    let mut image = SegmentImage::new();
    let records: [(&[u8], &[u8]); 3] = [(b"alpha", b"1"), (b"beta", b"two"), (b"gamma", b"a longer value, 3")];
    image.frame_padded(1, Watermark { sequence: 1, offset: FRAMES_OFFSET }, &records, padding);
    image.bytes[FRAMES_OFFSET as usize..image.end as usize].to_vec()
}

#[test]
fn round_trips() {
    for padding in [0, 16, 4096] {
        assert_eq!(accept(&one_frame(padding)), Ok(3), "padding {padding}");
    }
}

#[test]
fn every_flipped_bit_is_found() {
    for padding in [0, 32] {
        let bytes = one_frame(padding);
        for bit in 0..bytes.len() * 8 {
            let mut corrupt = bytes.clone();
            corrupt[bit / 8] ^= 1 << (bit % 8);
            assert!(accept(&corrupt).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn records_left_over_from_another_attempt_break_the_chain() {
    // Segment, offset, lengths and checksums all match; only the checksum chain reveals the leftover record.
    let frame = |value: &[u8]| {
        let mut image = SegmentImage::new();
        image.frame(1, Watermark::NONE, &[(b"key", value)]);
        image.bytes[FRAMES_OFFSET as usize..image.end as usize].to_vec()
    };
    let (mut first, second) = (frame(b"first."), frame(b"second"));
    first[HEADER_BYTES..].copy_from_slice(&second[HEADER_BYTES..]);
    assert!(matches!(accept(&first), Err(FrameError::Field { field: "chain of record checksums", .. })));
}

#[test]
fn arbitrary_bytes_never_panic() {
    let mut rng = Rng::new("format_frame::arbitrary_bytes_never_panic");
    for _ in 0..50_000 {
        fawn_ds::fuzz::frame(&rng.bytes(400));
    }
}

fn segment_header() -> SegmentHeader {
    let stream = StreamKind::Survivors;
    SegmentHeader { uuid: UUID, store: StoreUuid([9; 16]), slot: 3, sequence: 17, segment_bytes: SEGMENT_BYTES, stream }
}

#[test]
fn segment_headers_round_trip_and_every_flipped_bit_is_found() {
    let mut bytes = vec![0xEE; segment::HEADER_BYTES];
    segment::encode(&segment_header(), &mut bytes);
    assert_eq!(segment::decode(&bytes), Ok(segment_header()));
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(segment::decode(&bytes).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_newer_or_older_segment_says_so() {
    let mut bytes = vec![0; segment::HEADER_BYTES];
    segment::encode(&segment_header(), &mut bytes);
    let mut decoded = |format: u8| {
        bytes[8] = format;
        let checksum = checksum64(&bytes[..504]);
        bytes[504..512].copy_from_slice(&checksum.to_le_bytes());
        segment::decode(&bytes).unwrap_err()
    };
    let error = decoded(3);
    assert!(matches!(error, HeaderError::Newer { found: 3, supported: 2, .. }));
    assert!(error.to_string().contains("newer fawn") && error.to_string().contains("upgrade"), "{error}");
    let error = decoded(1);
    assert!(matches!(error, HeaderError::Older { found: 1, oldest: 2, .. }));
    assert!(error.to_string().contains("create a new store"), "{error}");
}

#[test]
fn file_names_are_recognised() {
    let name = segment::file_name(7, UUID);
    assert!(segment::is_file_name(&name), "{name}");
    for other in ["segment-000007.fawn", "manifest", "segment-0000x7-0123456789abcdef.fawn", ""] {
        assert!(!segment::is_file_name(other), "{other}");
    }
    assert_ne!(name, segment::file_name(7, SegmentUuid([8; 16])));
}
