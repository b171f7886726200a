//! Owns the tests of the blocking store: many callers, conditions, batches, reopening.
use fawn_ds::Options;
use fawn_ds::embed::{BatchWrite, Store};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Condition, Durability, Store as _, TimeMs};

fn open(disk: &SimDisk, durability: Durability) -> Store<SimDevice> {
    let options = Options { segment_bytes: 256 << 10, memory_bytes: 8 << 20, durability, ..Options::default() };
    Store::open_on(SimDevice::attach(disk), options).unwrap()
}

const NOW: TimeMs = TimeMs(1);

#[test]
fn concurrent_writers_share_syncs_and_lose_nothing() {
    for durability in [Durability::Sync, Durability::EverySec, Durability::Memory] {
        let disk = SimDisk::new(SimOptions::default());
        let store = open(&disk, durability);
        std::thread::scope(|scope| {
            for thread in 0..8_u32 {
                let store = &store;
                scope.spawn(move || {
                    for i in 0..100_u32 {
                        let key = format!("{thread}-{i}");
                        store.put(key.as_bytes(), &vec![thread as u8; i as usize * 5], i, 0).unwrap();
                        let entry = store.get(key.as_bytes(), NOW).unwrap().unwrap();
                        assert_eq!((entry.value.len(), entry.flags), (i as usize * 5, i));
                    }
                });
            }
        });
        assert_eq!(store.len(), 800);
        store.close().unwrap();
        let store = open(&disk, durability);
        assert_eq!(store.len(), 800);
        let (mut cursor, mut keys) = (0, Vec::new());
        loop {
            let (next, found) = store.scan(cursor, 50, NOW).unwrap();
            keys.extend(found);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 800);
    }
}

#[test]
fn conditions_and_batches() {
    let disk = SimDisk::new(SimOptions::default());
    let store = open(&disk, Durability::Sync);
    let first = store.put_if(b"k", b"1", 0, Condition::Absent).unwrap().unwrap();
    assert_eq!(store.put_if(b"k", b"2", 0, Condition::Absent).unwrap(), None);
    let second = store.put_if(b"k", b"2", 0, Condition::VersionIs(first)).unwrap().unwrap();
    assert_eq!(store.put_if(b"k", b"3", 0, Condition::VersionIs(first)).unwrap(), None);
    assert!(second > first);
    assert_eq!(store.put_if(b"other", b"3", 0, Condition::Exists).unwrap(), None);
    let write = |key: &str, value: Option<&str>| BatchWrite {
        key: key.as_bytes().to_vec(),
        value: value.map(|value| value.as_bytes().to_vec()),
        expires_at_ms: 0,
    };
    store.batch(vec![write("k", None), write("a", Some("x")), write("b", Some("y"))]).unwrap();
    assert_eq!(store.get(b"k", NOW).unwrap(), None);
    assert_eq!(store.get(b"b", NOW).unwrap().unwrap().value, b"y");
    assert!(!store.delete(b"k", NOW).unwrap());
    assert!(store.delete(b"a", NOW).unwrap());
    assert_eq!(store.len(), 1);
}

#[test]
fn many_gets_answer_as_single_ones_in_the_keys_order() {
    let disk = SimDisk::new(SimOptions::default());
    let store = open(&disk, Durability::Sync);
    for i in 0..100_u32 {
        store.put(format!("{i}").as_bytes(), &vec![1; 300 + i as usize], i, if i == 7 { 5 } else { 0 }).unwrap();
    }
    store.close().unwrap();
    let store = open(&disk, Durability::Sync);
    // Cold, half of them absent, one expired, one asked for twice; then once more from memory.
    let keys: Vec<_> = (0..200_u32).rev().chain([3]).map(|i| format!("{i}").into_bytes()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for round in 0..2 {
        let many = store.get_many(&keys, TimeMs(9)).unwrap();
        let single: Vec<_> = keys.iter().map(|key| store.get(key, TimeMs(9)).unwrap()).collect();
        assert_eq!(many, single, "round {round}");
        assert_eq!(many.iter().flatten().count(), 100, "one expired, one twice");
    }
    assert_eq!(store.get_many(&[], NOW), Ok(Vec::new()));
    let too_long = vec![0; 1 << 17];
    let mixed = store.get_many(&[b"1", &too_long, b"2"], NOW);
    assert_eq!(mixed.is_err(), store.get(&too_long, NOW).is_err());
    assert!(store.get(b"2", NOW).unwrap().is_some(), "the store goes on");
}
