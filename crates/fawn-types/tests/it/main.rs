//! Tests of the shared types: order of versions, limits, frozen hashes, and the model store itself.

mod clock;
mod model;
mod random;
mod ring;

use fawn_types::checksum::{checksum32, checksum64, salt};
use fawn_types::{EntryRef, Epoch, TimeMs, Version};

#[test]
fn versions_order_by_epoch_then_sequence() {
    let version = |epoch, seq| Version::new(Epoch::new(epoch).unwrap(), seq).unwrap();
    assert!(version(1, Version::SEQ_MAX) < version(2, 0));
    assert_eq!(version(3, 7).next(), Some(version(3, 8)));
    assert_eq!(version(3, Version::SEQ_MAX).next(), None, "a full epoch does not run into the next");
    assert_eq!(Version::new(Epoch::MAX, Version::SEQ_MAX + 1), None);
    assert_eq!((Epoch::new(1 << 28), Epoch::MAX.next()), (None, None));
    let raw = version(5, 9).as_u64();
    assert_eq!((Version::from_u64(raw).epoch().get(), Version::from_u64(raw).seq()), (5, 9));
}

#[test]
fn checksums_are_frozen() {
    // XXH3-64 of the empty input and of "abc", as published by its reference: another function breaks every store.
    assert_eq!(checksum64(b""), 0x2d06_8005_38d3_94c2);
    assert_eq!(checksum64(b"abc"), 0x78af_5f94_892f_3950);
    // Each length class has its own code, and long inputs one variant per CPU feature. Computed with two
    // implementations.
    let bytes: Vec<u8> = (0..70_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (len, hash) in [
        (8, 0xcd1c_7f88_482f_caef),
        (16, 0x81e9_eb86_3446_0bb9),
        (128, 0x75ec_a5c5_d559_4884),
        (129, 0xa05d_a42e_7a4e_4667),
        (240, 0x5eb2_467c_8c9e_3969),
        (241, 0x2d43_1e98_4c44_1f15),
        (1024, 0xe99d_ef11_45f1_2936),
        (1025, 0x83cb_a9b3_71e4_e7f4),
        (65541, 0xc88f_b997_ab24_10c1),
    ] {
        assert_eq!(checksum64(&bytes[..len]), hash, "{len} bytes");
        assert_eq!(checksum64(&[&[0], &bytes[..len]].concat()[1..]), hash, "{len} bytes at an odd address");
    }
}

#[test]
fn a_record_elsewhere_does_not_pass() {
    let here = checksum32(b"record", salt(1, 4096));
    assert_ne!(here, checksum32(b"record", salt(1, 4112)), "another offset");
    assert_ne!(here, checksum32(b"record", salt(2, 4096)), "another segment");
    assert_ne!(here, checksum32(b"recorD", salt(1, 4096)), "another byte");
    let distinct: std::collections::BTreeSet<u64> = (0..4096).map(|i| salt(7, i * 16)).collect();
    assert_eq!(distinct.len(), 4096, "salts of one segment do not repeat");
}

#[test]
fn an_entry_expires_at_its_time() {
    let at = |expires_at_ms| EntryRef { value: b"", flags: 0, expires_at_ms, version: Version::ZERO };
    assert!(!at(0).is_expired(TimeMs(u64::MAX)), "0 is never");
    assert!(!at(5).is_expired(TimeMs(4)) && at(5).is_expired(TimeMs(5)));
}
