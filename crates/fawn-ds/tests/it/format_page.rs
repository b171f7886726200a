//! Worked example of the format page: must equal the encoder's output; `FAWN_BLESS=1` regenerates it.
use fawn_ds::internals::format::frame::{Chain, FrameHeader, HEADER_BYTES, encode_header};
use fawn_ds::internals::format::manifest::{ManifestEdit, ManifestHeader, encode_commit};
use fawn_ds::internals::format::record::{Envelope, RecordKind, RecordPlace, RecordRef, encode_into, encoded_len};
use fawn_ds::internals::format::run::RunRecord;
use fawn_ds::internals::format::run::page::PageBuilder;
use fawn_ds::internals::format::{FORMAT_VERSION, FRAMES_OFFSET, RangeNumber, SegmentUuid, StoreUuid, Watermark};
use fawn_ds::internals::index::PointerWidth;
use fawn_types::{ClientTag, Epoch, HashSecret, KeyRange, RangeId, Version};
use std::fmt::Write;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/fawn-ds.md");
const START: &str = "<!-- example: checked by crates/fawn-ds/tests/it/format_page.rs -->\n```text\n";

fn uuid(first: u8) -> [u8; 16] {
    std::array::from_fn(|i| first + i as u8)
}

fn hex(title: &str, bytes: &[u8], out: &mut String) {
    writeln!(out, "{title}").unwrap();
    for (line, bytes) in bytes.chunks(16).enumerate() {
        let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown = |&byte: &u8| if byte.is_ascii_graphic() { char::from(byte) } else { '.' };
        let text: String = bytes.iter().map(shown).collect();
        writeln!(out, "{:04x}  {:<47}  {text}", line * 16, hex.join(" ")).unwrap();
    }
}

/// The first frame of a segment: a put with every extension, and a tombstone.
fn frame_example() -> Vec<u8> {
    let segment = SegmentUuid(uuid(0x10));
    let version = |seq| Version::new(Epoch::new(1).unwrap(), seq).unwrap();
    let mut put = RecordRef::put(version(1), b"fawn", b"wimpy");
    put.expires_at_ms = 1_700_000_000_000;
    put.flags = 7;
    put.tag = ClientTag { session: 2, seq: 3 };
    put.result = b"+OK\r\n";
    let records = [put, RecordRef::bare(RecordKind::Tombstone, version(2), b"deer")];
    let (mut bytes, mut chain) = (vec![0; HEADER_BYTES], Chain::EMPTY);
    for (i, record) in records.iter().enumerate() {
        let at = bytes.len();
        bytes.resize(at + encoded_len(record), 0);
        let place = RecordPlace { segment_id: segment.fold(), offset: FRAMES_OFFSET + at as u32 };
        let envelope = Envelope { number: RangeNumber(9), continues: i == 0 };
        chain = chain.then(encode_into(record, envelope, place, &mut bytes[at..]));
    }
    let header = FrameHeader {
        uuid: segment,
        generation: 1,
        offset: FRAMES_OFFSET,
        frame_bytes: bytes.len() as u32,
        record_bytes: (bytes.len() - HEADER_BYTES) as u32,
        count: 2,
        synced: Watermark { sequence: 6, offset: 0x0300_0000 },
        chain,
    };
    encode_header(&header, &mut bytes);
    bytes
}

/// The first bytes of a record with a result longer than 65,535 bytes.
fn wide_example() -> Vec<u8> {
    let result = vec![b'r'; 65_536];
    let mut record = RecordRef::bare(RecordKind::Result, Version::from_u64(1 << 36 | 3), b"fawn");
    record.tag = ClientTag { session: 2, seq: 4 };
    record.result = &result;
    let mut bytes = vec![0; encoded_len(&record)];
    let place = RecordPlace { segment_id: SegmentUuid(uuid(0x10)).fold(), offset: FRAMES_OFFSET + 64 };
    encode_into(&record, Envelope { number: RangeNumber(9), continues: false }, place, &mut bytes);
    bytes.truncate(64);
    bytes
}

fn commit_example() -> Vec<u8> {
    let header = ManifestHeader { store: StoreUuid(uuid(0x40)), rewrite: 0 };
    let secret = HashSecret(uuid(0x60));
    let identity = ManifestEdit::Identity {
        store: header.store,
        format: FORMAT_VERSION,
        segment_bytes: 1 << 26,
        secret,
        pointers: PointerWidth::Bits40,
    };
    let mut bytes = Vec::new();
    encode_commit(&header, &[identity, ManifestEdit::Generation(1)], 512, 0, &mut bytes);
    bytes
}

/// A new range, and the number of its records.
fn range_example() -> Vec<u8> {
    let header = ManifestHeader { store: StoreUuid(uuid(0x40)), rewrite: 0 };
    let (range, number) = (RangeId(7), RangeNumber(9));
    let edits = [
        ManifestEdit::AddRange { range, keys: KeyRange::ALL },
        ManifestEdit::BeginRange { range, number, since: 6, base: Version::ZERO },
        ManifestEdit::RangeWhole { range },
    ];
    let mut bytes = Vec::new();
    encode_commit(&header, &edits, 1024, 1024, &mut bytes);
    bytes
}

/// The end of a sole epoch, and the beginning of another one.
fn sole_example() -> Vec<u8> {
    let header = ManifestHeader { store: StoreUuid(uuid(0x40)), rewrite: 0 };
    let (range, epoch) = (RangeId(9), Epoch::new(3).unwrap());
    let base = Version::new(Epoch::new(2).unwrap(), 5).unwrap();
    let mut bytes = Vec::new();
    let edits = [ManifestEdit::EndSoleEpoch { range, base }, ManifestEdit::BeginSoleEpoch { range, epoch, base }];
    encode_commit(&header, &edits, 4096, 4096, &mut bytes);
    bytes
}

/// The first bytes of a run's first page: a put with every extension in space 1, and a tombstone.
fn run_example() -> Vec<u8> {
    let version = |seq| Version::new(Epoch::new(1).unwrap(), seq).unwrap();
    let put = RunRecord {
        type_byte: 1,
        expires_at_ms: 1_700_000_000_000,
        flags: 7,
        ..RunRecord::put(RangeNumber(9), version(1), b"fawn", b"wimpy")
    };
    let tombstone = RunRecord { version: version(2), key: b"deer", ..put.to_tombstone() };
    let (mut builder, mut page) = (PageBuilder::default(), vec![0; 4096]);
    builder.push(&put);
    builder.push(&tombstone);
    builder.finish(SegmentUuid(uuid(0x20)), 0, &mut page);
    page.truncate(80);
    page
}

#[test]
fn the_worked_example_is_what_the_code_writes() {
    let mut example = String::new();
    hex("a frame at byte 4096 of a segment whose uuid is 10 11 12 … 1f", &frame_example(), &mut example);
    let title = "\nthe first 64 bytes of a result record at byte 4160 of the same segment, 65,536 times \"r\"";
    hex(title, &wide_example(), &mut example);
    hex("\nthe first commit of a manifest, at its byte 512, store uuid 40 41 42 … 4f", &commit_example(), &mut example);
    let title = "\na commit at byte 1024: range 7 is added, with records under number 9 from segment 6 on";
    hex(title, &range_example(), &mut example);
    let title = "\na commit at byte 4096: range 9 ends a sole epoch at 2.5 and begins the sole epoch 3";
    hex(title, &sole_example(), &mut example);
    let title = "\nthe first 80 bytes of the page at byte 4096 of a run whose uuid is 20 21 22 … 2f; zeros follow";
    hex(title, &run_example(), &mut example);
    let page = std::fs::read_to_string(PAGE).unwrap();
    let start = page.find(START).expect("the page has an example") + START.len();
    let end = start + page[start..].find("```").expect("the example ends");
    if std::env::var_os("FAWN_BLESS").is_some() {
        std::fs::write(PAGE, format!("{}{example}{}", &page[..start], &page[end..])).unwrap();
        return;
    }
    assert_eq!(page[start..end], example, "the format changed, or the page: bump the format, or FAWN_BLESS=1");
}
