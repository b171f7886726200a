//! Iteration over the embedded store: complete, without repetition, while writes go on, past values of any length.
use crate::store_methods::{builder, open, sorted_keys};
use fawn_ds::Durability;
use fawn_ds::sim::{SimDevice, SimDisk, SimOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn iteration_returns_every_key_once_with_its_value() {
    let disk = SimDisk::new(SimOptions::default());
    let store = open(&disk, Durability::Memory);
    let mut model = BTreeMap::new();
    for i in 0..3000_usize {
        // Short values come with the scan, longer ones by a lookup of their own.
        let value = vec![i as u8; if i % 100 == 0 { 20_000 } else { i % 300 }];
        store.put(i.to_string(), &value).unwrap();
        model.insert(i.to_string().into_bytes(), value);
    }
    store.close().unwrap();
    for round in 0..2 {
        // Cold, and with pages in memory.
        let store = open(&disk, Durability::Memory);
        let found: Vec<_> = store.iter().map(|entry| entry.unwrap()).collect();
        assert_eq!(found.len(), model.len(), "round {round}: every key once");
        let found: BTreeMap<_, _> = found.into_iter().map(|(k, v)| (k.into_vec(), v.into_vec())).collect();
        assert_eq!(found, model);
        assert_eq!(sorted_keys(&store), model.keys().cloned().collect::<Vec<_>>());
    }
}

#[test]
fn iteration_survives_concurrent_writes() {
    let disk = SimDisk::new(SimOptions::default());
    let store = open(&disk, Durability::Memory);
    let stays: BTreeSet<Vec<u8>> = (0..1000_u32).map(|i| format!("stays-{i}").into_bytes()).collect();
    for key in &stays {
        store.put(key, "old").unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in (0..1000_u32).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                // Overwrites, new keys and deletes, from the very first step of the iteration on.
                store.put(format!("stays-{i}"), "new").unwrap();
                store.put(format!("comes-{i}"), "new").unwrap();
                store.delete(format!("comes-{}", i / 2)).unwrap();
            }
        });
        for _ in 0..5 {
            let mut met = BTreeSet::new();
            for entry in &store {
                let (key, value) = entry.unwrap();
                assert!(value == "old" || value == "new");
                assert!(met.insert(key.clone().into_vec()), "{key:?} came twice");
            }
            assert!(met.is_superset(&stays));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_iterator_outlives_the_other_handles_and_the_store_can_be_changed_inside() {
    let disk = SimDisk::new(SimOptions::default());
    let store = open(&disk, Durability::Sync);
    for i in 0..200_u32 {
        store.put(i.to_be_bytes(), "v").unwrap();
    }
    for key in store.keys() {
        assert!(store.delete(key.unwrap()).unwrap());
    }
    assert!(store.is_empty().unwrap());
    store.put("k", "v").unwrap();
    let entries = store.iter();
    drop(store);
    assert_eq!(entries.count(), 1, "the iterator is a handle of its own");
    // It was the last one: the store is closed and opens again.
    drop(open(&disk, Durability::Sync));
}

#[test]
fn a_closed_store_ends_an_iteration_with_an_error() {
    let disk = SimDisk::new(SimOptions::default());
    let store = builder(Durability::Sync).open_on(SimDevice::attach(&disk)).unwrap();
    for i in 0..2000_u32 {
        store.put(i.to_be_bytes(), "v").unwrap();
    }
    let mut entries = store.iter();
    entries.next().unwrap().unwrap();
    store.close().unwrap();
    let rest: Vec<_> = entries.collect();
    assert!(matches!(rest.last(), Some(Err(fawn_ds::Error::Closed))));
    assert_eq!(rest.iter().filter(|entry| entry.is_err()).count(), 1);
}
