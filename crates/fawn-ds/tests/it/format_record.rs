//! Record: round trips over every extension, detection of every flipped bit and every truncation.
use crate::rng::Rng;
use fawn_ds::internals::format::RangeNumber;
use fawn_ds::internals::format::record::{
    Envelope, HEADER_BYTES, PEEK_BYTES, RESULT_BYTES_LIMIT, RecordError, RecordKind, RecordPlace, RecordRef, decode,
    decode_verified, encode_into, encoded_len, peek_len,
};
use fawn_types::{ClientTag, Epoch, Version};

const PLACE: RecordPlace = RecordPlace { segment_id: 0x1122_3344_5566_7788, offset: 4160 };

fn version(seq: u64) -> Version {
    Version::new(Epoch::new(3).unwrap(), seq).unwrap()
}

fn encode(record: &RecordRef<'_>, envelope: Envelope) -> Vec<u8> {
    let mut out = vec![0xEE; encoded_len(record)];
    encode_into(record, envelope, PLACE, &mut out);
    out
}

/// Every combination of extensions, short and long parts.
fn samples() -> Vec<(RecordRef<'static>, Envelope)> {
    let keys: [&[u8]; 4] = [b"", b"k", b"a key of some length", &[0xFF; 300]];
    let mut samples = Vec::new();
    for bits in 0..32u32 {
        for (i, key) in keys.into_iter().enumerate() {
            let mut record = RecordRef::put(version(u64::from(bits) + 1), key, keys[(i + 1) % 4]);
            record.expires_at_ms = if bits & 1 != 0 { 1_700_000_000_000 } else { 0 };
            record.flags = if bits & 2 != 0 { 0xDEAD_BEEF } else { 0 };
            record.tag = if bits & 4 != 0 { ClientTag { session: 9, seq: 8 } } else { ClientTag::NONE };
            record.result = if bits & 8 != 0 { b"+OK\r\n" } else { b"" };
            samples.push((record, Envelope { number: RangeNumber(bits), continues: bits & 16 != 0 }));
        }
    }
    samples
}

#[test]
fn round_trips() {
    for (record, envelope) in samples() {
        let bytes = encode(&record, envelope);
        assert!(bytes.len().is_multiple_of(16));
        assert_eq!(peek_len(&bytes[..bytes.len().min(PEEK_BYTES)]), Ok(bytes.len()));
        let stored = decode(&bytes, PLACE).unwrap();
        assert_eq!((stored.record, stored.envelope, stored.encoded_len), (record, envelope, bytes.len()));
    }
}

#[test]
fn round_trips_of_each_kind() {
    use RecordKind::{Clear, CommitMark, Result, Rollback, Tombstone};
    let envelope = Envelope { number: RangeNumber(1), continues: false };
    for (kind, key) in [(Tombstone, &b"gone"[..]), (Result, b"k"), (Clear, b""), (CommitMark, b""), (Rollback, b"")] {
        let record = RecordRef::bare(kind, version(5), key);
        assert_eq!(decode(&encode(&record, envelope), PLACE).unwrap().record, record);
        assert_eq!(RecordKind::from_u8(kind as u8), Some(kind));
    }
}

#[test]
fn the_longest_record_round_trips() {
    let (key, value) = (vec![b'k'; 65_535], vec![b'v'; (1 << 24) - 1]);
    let mut record = RecordRef::put(version(1), &key, &value);
    let result = vec![b'r'; RESULT_BYTES_LIMIT];
    record.result = &result;
    record.tag = ClientTag { session: 9, seq: 8 };
    (record.expires_at_ms, record.flags) = (1, 1);
    let bytes = encode(&record, Envelope { number: RangeNumber(0), continues: false });
    assert_eq!(decode(&bytes, PLACE).unwrap().record, record);
}

/// Results around the length at which the length field grows to 32 bits.
fn with_results() -> Vec<Vec<u8>> {
    let record = |len: usize| {
        let result = vec![b'r'; len];
        let mut record = RecordRef::put(version(1), b"key", b"value");
        record.tag = ClientTag { session: 9, seq: 8 };
        record.result = &result;
        let bytes = encode(&record, Envelope { number: RangeNumber(1), continues: false });
        let stored = decode(&bytes, PLACE).unwrap();
        assert_eq!((stored.record, stored.encoded_len), (record, bytes.len()));
        assert_eq!(peek_len(&bytes[..PEEK_BYTES]), Ok(bytes.len()));
        fawn_ds::fuzz::record(&bytes);
        bytes
    };
    [1, 65_534, 65_535, 65_536, 65_537, 200_000].map(record).to_vec()
}

#[test]
fn results_have_one_encoding_whatever_their_length() {
    for (i, bytes) in with_results().into_iter().enumerate() {
        assert_eq!(
            bytes[10] & 0b10_1000,
            if i < 3 { 0b1000 } else { 0b10_0000 },
            "bits 3 and 5 are mutually exclusive"
        );
        // The wrong length bit, both, or none: rejected even where the checksum does not detect it.
        for bits in [0b00_0100, 0b00_1100, 0b10_0100, 0b10_1100] {
            let mut other = bytes.clone();
            other[10] = bits;
            let is_same = bits == bytes[10];
            assert_eq!(decode_verified(&other, PLACE.offset).is_ok_and(|stored| stored.record.key == b"key"), is_same);
            fawn_ds::fuzz::record(&other);
        }
        for bit in 0..64 * 8 {
            let mut corrupt = bytes.clone();
            corrupt[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&corrupt, PLACE).is_err(), "bit {bit} of the {i}th");
            fawn_ds::fuzz::record(&corrupt);
        }
        for len in (0..100).chain([bytes.len() - 1]).filter(|&len| len < bytes.len()) {
            assert!(decode(&bytes[..len], PLACE).unwrap_err().is_truncated(), "cut at {len} of the {i}th");
        }
    }
}

#[test]
fn a_short_result_with_a_long_length_is_refused() {
    // Complete, but in an encoding that no encoder writes.
    let mut bytes = with_results().remove(3);
    let at = HEADER_BYTES + 16;
    bytes[at..at + 4].copy_from_slice(&65_535_u32.to_le_bytes());
    assert!(matches!(decode_verified(&bytes, 4096), Err(RecordError::Field { .. })));
    bytes[at..at + 4].copy_from_slice(&(RESULT_BYTES_LIMIT as u32 + 1).to_le_bytes());
    assert!(matches!(decode_verified(&bytes, 4096), Err(RecordError::Field { field: "result length", .. })));
    assert!(peek_len(&bytes).is_err(), "no record is that long");
}

#[test]
fn an_empty_extension_is_refused_by_every_way() {
    let mut record = RecordRef::put(version(1), b"key", b"value");
    (record.expires_at_ms, record.flags) = (77, 5);
    let bytes = encode(&record, Envelope { number: RangeNumber(1), continues: false });
    fawn_ds::fuzz::record(&bytes);
    for empty in [HEADER_BYTES..HEADER_BYTES + 8, HEADER_BYTES + 8..HEADER_BYTES + 12] {
        let mut other = bytes.clone();
        other[empty].fill(0);
        assert!(decode_verified(&other, PLACE.offset).is_err());
        fawn_ds::fuzz::record(&other);
    }
}

#[test]
fn every_flipped_bit_is_found() {
    for (record, envelope) in samples().into_iter().filter(|(record, _)| record.key.len() < 50) {
        let bytes = encode(&record, envelope);
        for bit in 0..bytes.len() * 8 {
            let mut corrupt = bytes.clone();
            corrupt[bit / 8] ^= 1 << (bit % 8);
            fawn_ds::fuzz::record(&corrupt);
            assert!(decode(&corrupt, PLACE).is_err(), "bit {bit} of {record:?}");
        }
    }
}

#[test]
fn elsewhere_it_is_refused() {
    let record = RecordRef::put(version(1), b"key", b"value");
    let bytes = encode(&record, Envelope { number: RangeNumber(0), continues: false });
    let elsewhere = [RecordPlace { offset: PLACE.offset + 16, ..PLACE }, RecordPlace { segment_id: 1, ..PLACE }];
    for place in elsewhere {
        assert!(matches!(decode(&bytes, place), Err(RecordError::Checksum { .. })), "{place:?}");
    }
}

#[test]
fn every_cut_asks_for_more() {
    for (record, envelope) in samples() {
        let bytes = encode(&record, envelope);
        for len in 0..bytes.len() {
            let error = decode(&bytes[..len], PLACE).unwrap_err();
            assert!(error.is_truncated(), "{len} of {}: {error}", bytes.len());
        }
    }
}

#[test]
fn arbitrary_bytes_never_panic() {
    let mut rng = Rng::new("format_record::arbitrary_bytes_never_panic");
    let mut accepted = 0;
    for _ in 0..200_000 {
        let mut data = rng.bytes(160);
        if let Some(header) = data.get_mut(..HEADER_BYTES) {
            // Mostly plausible headers, so that checks after the first one are reached.
            header[5..7].fill(0);
            header[4] &= 0x1F;
            header[7] %= 8;
            header[8] &= 0x1F;
            header[9] = 0;
            header[10] &= 0x3F;
            header[11] = 0;
        }
        fawn_ds::fuzz::record(&data);
        accepted += u32::from(fawn_ds::internals::format::record::decode_verified(&data, 4096).is_ok());
    }
    assert!(accepted > 100, "the generator must reach accepted records, {accepted} were");
}
