//! Tests of the placement of keys.
use fawn_types::ring_key::tag_of;
use fawn_types::{HashSecret, KeyHash, KeyRange, RingKey};

const SECRET: HashSecret = HashSecret([7; 16]);

#[test]
fn tags_follow_rediss_rule() {
    for (key, tag) in [
        ("user:{42}:name", "42"),
        ("{a}{b}", "a"),
        ("{}x", "{}x"),
        ("x{", "x{"),
        ("}x{y}", "y"),
        ("{{a}}", "{a"),
        ("plain", "plain"),
        ("", ""),
    ] {
        assert_eq!(tag_of(key.as_bytes()), tag.as_bytes(), "{key}");
    }
}

#[test]
fn a_tag_is_found_wherever_it_stands() {
    for len in 3..40 {
        for open in 0..len - 2 {
            let mut key = vec![b'k'; len];
            (key[open], key[len - 1]) = (b'{', b'}');
            assert_eq!(tag_of(&key), &key[open + 1..len - 1], "{}", key.escape_ascii());
            // A neighbour of `{`, or `{` with its highest bit set, must not match.
            for other in [b'z', b'|', b'{' | 0x80, b'{' ^ 0x01] {
                key[open] = other;
                assert_eq!(tag_of(&key), &key[..], "{}", key.escape_ascii());
            }
        }
    }
}

#[test]
fn one_tag_never_straddles_a_boundary() {
    let (a, b) = (RingKey::of(&SECRET, b"{t}1"), RingKey::of(&SECRET, b"{t}2"));
    assert_ne!(a, b, "two keys are two points");
    assert_eq!(a.boundary(), b.boundary(), "with one tag");
    let boundary = a.boundary();
    assert!(boundary.is_boundary() && !a.is_boundary());
    let below = KeyRange { start: RingKey::MIN, end: Some(boundary) };
    let above = KeyRange { start: boundary, end: None };
    for key in [a, b] {
        assert!(above.contains(&key) && !below.contains(&key));
        assert!(KeyRange::ALL.contains(&key));
    }
}

#[test]
fn hashes_depend_on_the_secret_and_spread() {
    let other = HashSecret([8; 16]);
    assert_ne!(KeyHash::of(&SECRET, b"k"), KeyHash::of(&other, b"k"));
    let mut high = [0_u32; 16];
    (0..16_000_u32).for_each(|i| high[(KeyHash::of(&SECRET, &i.to_le_bytes()).0 >> 60) as usize] += 1);
    // 1,000 expected in each: six standard deviations are 184.
    assert!(high.iter().all(|&count| (816..=1184).contains(&count)), "{high:?}");
}

#[test]
fn the_secret_is_not_printed() {
    assert_eq!(format!("{SECRET:?}"), "HashSecret(…)");
}
