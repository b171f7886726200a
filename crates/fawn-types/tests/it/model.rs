//! Tests of the model store, which is the oracle of other tests.
use fawn_types::model::ModelStore;
use fawn_types::operation::ValueCow;
use fawn_types::{Effect, HashSecret, TimeMs, Version};

fn put(value: &[u8], expires_at_ms: u64) -> Effect<'_> {
    Effect::Put { value: ValueCow::Borrowed(value), flags: 3, expires_at_ms }
}

#[test]
fn it_puts_expires_deletes_and_clears() {
    let mut model = ModelStore::new();
    model.apply(b"a", &put(b"1", 0), Version::from_u64(1));
    model.apply(b"b", &put(b"", 10), Version::from_u64(2));
    model.apply(b"a", &Effect::None, Version::from_u64(3));
    let entry = model.get(b"a", TimeMs(99)).unwrap();
    assert_eq!((entry.value, entry.flags, entry.version), (&b"1"[..], 3, Version::from_u64(1)));
    assert_eq!(model.get(b"b", TimeMs(9)).map(|entry| entry.value.len()), Some(0), "empty is not absent");
    assert!(model.get(b"b", TimeMs(10)).is_none());
    assert_eq!(model.iter(TimeMs(10)).count(), 1);
    model.apply(b"a", &Effect::Delete, Version::from_u64(4));
    assert!(model.get(b"a", TimeMs(0)).is_none());
    model.clear();
    assert_eq!(model.iter(TimeMs(0)).count(), 0);
}

#[test]
fn digests_tell_contents_apart_but_not_orders() {
    let secret = HashSecret([1; 16]);
    let build = |order: [(&[u8], &[u8]); 2]| {
        let mut model = ModelStore::new();
        for (version, (key, value)) in (1..).zip(order) {
            model.apply(key, &put(value, 0), Version::from_u64(version));
        }
        model.digest(&secret, TimeMs(0))
    };
    let digest = build([(b"a", b"1"), (b"b", b"2")]);
    assert_eq!(digest, build([(b"b", b"2"), (b"a", b"1")]));
    assert_ne!(digest, build([(b"a", b"2"), (b"b", b"1")]));
}

#[test]
#[should_panic(expected = "versions grow")]
fn it_refuses_a_version_that_does_not_grow() {
    let mut model = ModelStore::new();
    model.apply(b"a", &Effect::Delete, Version::from_u64(2));
    model.apply(b"a", &Effect::Delete, Version::from_u64(2));
}
