//! Segment scan: chunks, torn ends, corruption below a watermark, generations, seals.
use crate::rng::Rng;
use crate::segment_image::{SEGMENT_BYTES, SegmentImage, UUID};
use fawn_ds::internals::format::frame::HEADER_BYTES;
use fawn_ds::internals::format::record::Stored;
use fawn_ds::internals::format::scan::{ScanInput, ScanReport, Scanner, SegmentVerdict, SyncedLog};
use fawn_ds::internals::format::{FRAMES_OFFSET, Watermark};

const INPUT: ScanInput = ScanInput { uuid: UUID, sequence: 5, segment_bytes: SEGMENT_BYTES, sealed_len: None };

fn at(offset: u32) -> Watermark {
    Watermark { sequence: INPUT.sequence, offset }
}

fn scan_in_chunks(input: ScanInput, bytes: &[u8], chunk_bytes: usize) -> (ScanReport, Vec<(u32, Vec<u8>)>) {
    let mut scanner = Scanner::new(input);
    let mut found = Vec::new();
    let mut visitor = |offset: u32, stored: &Stored<'_>| found.push((offset, stored.record.value.to_vec()));
    bytes[FRAMES_OFFSET as usize..].chunks(chunk_bytes).for_each(|chunk| scanner.push(chunk, &mut visitor));
    (scanner.finish(), found)
}

/// The verdict without any other segment.
fn judge_alone(report: &ScanReport) -> SegmentVerdict {
    let mut known = SyncedLog::default();
    known.add(report);
    report.validate(&known, None)
}

fn scan(bytes: &[u8]) -> ScanReport {
    scan_in_chunks(INPUT, bytes, 4096).0
}

/// Five frames of two records; each certifies that the frames up to two before it were synced.
fn image() -> SegmentImage {
    let mut image = SegmentImage::new();
    for i in 0..5u8 {
        let synced = image.frames.len().checked_sub(2).map_or(Watermark::NONE, |i| at(image.frames[i + 1]));
        let value = vec![i; 40 + 70 * usize::from(i)];
        image.frame(3, synced, &[(b"key", &value), (b"other", b"x")]);
    }
    image
}

#[test]
fn chunks_of_any_size_yield_the_same() {
    let image = image();
    let (whole, records) = scan_in_chunks(INPUT, &image.bytes, usize::MAX);
    assert_eq!((whole.valid_len, whole.frames, whole.records, whole.damage), (image.end, 5, 10, None));
    assert_eq!((whole.generation, whole.watermark), (3, at(image.frames[3])));
    assert_eq!(judge_alone(&whole), SegmentVerdict::Clean);
    assert_eq!(records.len(), 10);
    for chunk_bytes in (1..200).chain([511, 512, 513, 4096, 65_536]) {
        assert_eq!(scan_in_chunks(INPUT, &image.bytes, chunk_bytes), (whole.clone(), records.clone()), "{chunk_bytes}");
    }
}

#[test]
fn every_flipped_bit_is_judged_by_the_watermark() {
    let image = image();
    // The last watermark covers three frames: damage below it is corruption, above it the torn end of the log.
    let synced = image.frames[3];
    for byte in FRAMES_OFFSET..image.end {
        let mut corrupt = image.bytes.clone();
        corrupt[byte as usize] ^= 1 << (byte % 8);
        let offset = image.frames.iter().copied().rfind(|&start| start <= byte).unwrap();
        let report = scan(&corrupt);
        assert_eq!(report.valid_len, offset, "byte {byte}");
        // The last frame's header contains the watermark; without that header the one before it counts.
        let certified = if (image.frames[4]..image.frames[4] + HEADER_BYTES as u32).contains(&byte) {
            image.frames[2]
        } else {
            synced
        };
        let expected = if offset < certified {
            SegmentVerdict::CorruptAt { offset, watermark: at(certified) }
        } else {
            SegmentVerdict::TornAt { offset }
        };
        assert_eq!(judge_alone(&report), expected, "byte {byte}");
    }
}

#[test]
fn lost_sectors_are_found_in_any_chunks() {
    let image = image();
    let mut rng = Rng::new("format_scan::lost_sectors_are_found_in_any_chunks");
    for _ in 0..300 {
        let mut corrupt = image.bytes.clone();
        let first = FRAMES_OFFSET as usize / 512 + rng.below((image.end - FRAMES_OFFSET) as usize / 512);
        corrupt[first * 512..(first + 1) * 512].fill(0);
        let whole = scan_in_chunks(INPUT, &corrupt, usize::MAX);
        assert_ne!(judge_alone(&whole.0), SegmentVerdict::Clean);
        assert_eq!(scan_in_chunks(INPUT, &corrupt, 1 + rng.below(700)), whole);
    }
}

#[test]
fn zeros_below_the_watermark_are_corruption() {
    let mut image = image();
    image.bytes[image.frames[2] as usize..].fill(0);
    let report = scan(&image.bytes);
    let offset = image.frames[2];
    assert_eq!(judge_alone(&report), SegmentVerdict::Clean, "this segment alone shows nothing");
    let known = at(offset + 16);
    assert_eq!(
        report.validate(&SyncedLog::new(known), None),
        SegmentVerdict::CorruptAt { offset, watermark: known },
        "a frame of a later segment shows it"
    );
}

#[test]
fn a_later_segments_watermark_makes_damage_corruption() {
    let mut image = image();
    image.bytes[image.frames[4] as usize + HEADER_BYTES] ^= 1;
    let report = scan(&image.bytes);
    let offset = image.frames[4];
    assert_eq!(judge_alone(&report), SegmentVerdict::TornAt { offset });
    let known = Watermark { sequence: INPUT.sequence + 1, offset: FRAMES_OFFSET };
    assert_eq!(report.validate(&SyncedLog::new(known), None), SegmentVerdict::CorruptAt { offset, watermark: known });
}

/// The first frame of a segment is encoded only when everything before it is synced, regardless of its watermark.
#[test]
fn any_frame_of_a_later_segment_makes_damage_corruption() {
    let mut earlier = image();
    earlier.bytes[earlier.frames[4] as usize + HEADER_BYTES] ^= 1;
    let report = scan(&earlier.bytes);
    let input = ScanInput { sequence: INPUT.sequence + 2, ..INPUT };
    let mut later = SegmentImage::new();
    later.frame(3, Watermark::NONE, &[(b"key", b"value")]);
    // Its records may be corrupt: the header alone is enough proof.
    later.bytes[FRAMES_OFFSET as usize + HEADER_BYTES] ^= 1;
    let later = scan_in_chunks(input, &later.bytes, 4096).0;
    assert_eq!((later.frames, later.has_frame()), (0, true));
    let mut known = SyncedLog::default();
    known.add(&report);
    assert_eq!(report.validate(&known, None), SegmentVerdict::TornAt { offset: earlier.frames[4] });
    known.add(&later);
    let watermark = Watermark { sequence: input.sequence, offset: FRAMES_OFFSET };
    assert_eq!(report.validate(&known, None), SegmentVerdict::CorruptAt { offset: earlier.frames[4], watermark });
}

/// The first frame's watermark is the end of the previous segment, even if a later watermark is known too.
#[test]
fn zeros_where_the_next_segment_says_that_frames_were_are_corruption() {
    let segment_bytes = SEGMENT_BYTES;
    for (end, first) in [(image().end, at(image().end)), (segment_bytes, Watermark { sequence: 6, offset: 0 })] {
        let mut earlier = image();
        earlier.bytes[earlier.frames[4] as usize..].fill(0);
        let report = scan(&earlier.bytes);
        let mut later = SegmentImage::new();
        later.frame(3, first, &[(b"key", b"value")]);
        later.frame(3, Watermark { sequence: 6, offset: later.end }, &[(b"key", b"value")]);
        let later = scan_in_chunks(ScanInput { sequence: 6, ..INPUT }, &later.bytes, 4096).0;
        let mut known = SyncedLog::default();
        [&report, &later].into_iter().for_each(|report| known.add(report));
        assert_eq!(
            report.validate(&known, None),
            SegmentVerdict::CorruptAt { offset: earlier.frames[4], watermark: at(end) }
        );
        let whole = scan(&image().bytes);
        let is_whole = whole.validate(&known, None) == SegmentVerdict::Clean;
        assert_eq!(is_whole, end == image().end, "the segment ended exactly there");
    }
}

#[test]
fn a_sealed_segment_is_whole_or_corrupt() {
    let mut image = image();
    let input = ScanInput { sealed_len: Some(image.end), ..INPUT };
    image.bytes[image.end as usize..].fill(0xAB);
    let report = scan_in_chunks(input, &image.bytes, 1000).0;
    assert_eq!((judge_alone(&report), report.damage), (SegmentVerdict::Clean, None), "nothing after the end is read");
    image.bytes[image.frames[4] as usize..].fill(0);
    let report = scan_in_chunks(input, &image.bytes, 1000).0;
    let expected = SegmentVerdict::CorruptAt { offset: image.frames[4], watermark: at(image.end) };
    assert_eq!(judge_alone(&report), expected);
}

#[test]
fn generations_never_fall_within_a_segment() {
    let mut image = SegmentImage::new();
    for generation in [1, 2, 2, 1] {
        image.frame(generation, Watermark::NONE, &[(b"key", b"value")]);
    }
    let report = scan(&image.bytes);
    assert_eq!((report.valid_len, report.generation), (image.frames[3], 2));
    assert_eq!(judge_alone(&report), SegmentVerdict::TornAt { offset: image.frames[3] });
}

#[test]
fn a_cut_file_is_torn() {
    let image = image();
    for end in (image.frames[3]..image.end).step_by(16) {
        let report = scan(&image.bytes[..end as usize]);
        let offset = image.frames.iter().copied().rfind(|&start| start <= end && start >= image.frames[3]).unwrap();
        let verdict = if end == offset { SegmentVerdict::Clean } else { SegmentVerdict::TornAt { offset } };
        assert_eq!(judge_alone(&report), verdict, "cut at {end}");
    }
}

#[test]
fn arbitrary_bytes_never_panic() {
    let mut rng = Rng::new("format_scan::arbitrary_bytes_never_panic");
    for _ in 0..3_000 {
        let mut data = vec![rng.next() as u8];
        data.extend_from_slice(&image().bytes[FRAMES_OFFSET as usize..FRAMES_OFFSET as usize + 3000]);
        for _ in 0..rng.below(4) {
            let (place, len) = (rng.below(data.len()), rng.below(64));
            data.iter_mut().skip(place).take(len).for_each(|byte| *byte = rng.next() as u8);
        }
        fawn_ds::fuzz::scan(&data);
        fawn_ds::fuzz::scan(&rng.bytes(300));
    }
}
