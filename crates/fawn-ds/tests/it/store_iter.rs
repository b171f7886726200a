//! Iteration over the embedded store: complete, without repetition, while writes go on, past values of any length.
use crate::store_methods::{builder, open, sorted_keys};
use fawn_ds::sim::{DeviceFault, OpKind, SimDevice, SimDisk, SimOptions};
use fawn_ds::{Durability, Error};
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
        // The long values come by lookups of their own, which end it just so.
        let value = vec![7; if i.is_multiple_of(2) { 1 } else { 5000 }];
        store.put(i.to_be_bytes(), value).unwrap();
    }
    let mut entries = store.iter();
    entries.next().unwrap().unwrap();
    store.close().unwrap();
    let rest: Vec<_> = entries.collect();
    assert!(matches!(rest.last(), Some(Err(Error::Closed))));
    assert_eq!(rest.iter().filter(|entry| entry.is_err()).count(), 1);
}

/// A read that is refused for now is no damage: its error is the last item, and the next iteration has every key.
#[test]
fn a_lack_of_descriptors_ends_an_iteration() {
    let disk = SimDisk::new(SimOptions::default());
    let open = || builder(Durability::Sync).memory(1 << 20).open_on(SimDevice::attach(&disk)).unwrap();
    let store = open();
    for key in 0..60_u32 {
        // The long values come by lookups of their own, and do not fit into memory.
        store.put(key.to_be_bytes(), vec![7; 60_000]).unwrap();
    }
    store.close().unwrap();
    for taken in [1, 5, 30] {
        let store = open();
        let mut entries = store.iter();
        assert_eq!(entries.by_ref().take(taken).filter(Result::is_ok).count(), taken);
        disk.fail_every(OpKind::Read, DeviceFault::Exhausted);
        let rest: Vec<_> = entries.collect();
        assert!(rest.len() < 60 - taken, "{} items", rest.len());
        assert!(matches!(rest.last(), Some(Err(Error::Device { .. }))), "{:?}", rest.last());
        assert_eq!(rest.iter().filter(|entry| entry.is_err()).count(), 1);
        disk.clear_faults();
        assert_eq!(store.iter().filter(Result::is_ok).count(), 60);
    }
}

/// `keys` values, some of them corrupt or unreadable after the store was opened. With few keys, one cell of the index
/// reaches into many of the stretches that an iteration is divided into.
fn iterate_over_damage(keys: u32, value_bytes: usize) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let store = open(&disk, Durability::Memory);
    for key in 0..keys {
        store.put(key.to_be_bytes(), vec![7; value_bytes]).unwrap();
    }
    store.close().unwrap();
    let store = open(&disk, Durability::Memory);
    let name = disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    disk.flip_bits(&name, 4096 * 11 + 200, 1);
    disk.make_unreadable(&name, 4096 * 31 + 512..4096 * 31 + 1024);
    let is_readable = |key: &u32| store.get(key.to_be_bytes()).is_ok();
    let (sound, lost): (BTreeSet<u32>, BTreeSet<u32>) = (0..keys).partition(is_readable);
    assert!(lost.len() >= 2, "{keys} keys: {lost:?}");
    for is_with_values in [false, true] {
        let entries: Vec<Result<Vec<u8>, Error>> = if is_with_values {
            store.iter().map(|entry| entry.map(|(key, _)| key.into_vec())).collect()
        } else {
            store.keys().map(|key| key.map(Vec::from)).collect()
        };
        let (found, errors): (Vec<_>, Vec<_>) = entries.into_iter().partition(Result::is_ok);
        let found: Vec<u32> =
            found.into_iter().map(|key| u32::from_be_bytes(key.unwrap()[..].try_into().unwrap())).collect();
        assert_eq!(found.len(), sound.len(), "{keys} keys: every sound one once");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), sound);
        assert_eq!(errors.len(), lost.len(), "{keys} keys: every corrupt record once: {errors:?}");
        for error in errors {
            let Err(Error::Corrupt { file, offset_bytes, .. }) = &error else { panic!("{error:?}") };
            assert!(*file == name && *offset_bytes < 4096 * 32, "{error:?}");
        }
    }
    let Some(lost) = lost.first() else { unreachable!("checked above") };
    let error = store.get(lost.to_be_bytes()).unwrap_err();
    assert!(std::error::Error::source(&error).is_some(), "{error}");
}

#[test]
fn an_iteration_passes_damaged_records_and_returns_each_as_an_error_once() {
    // Random secrets spread the keys differently each time; the assertions hold for every secret.
    iterate_over_damage(25, 6000);
    iterate_over_damage(100, 2500);
    iterate_over_damage(2500, 60);
}

/// The log's part has passed a key of a run before it is overwritten, and the runs' part finds it in the log.
#[test]
fn an_iteration_of_a_store_with_runs_meets_keys_that_are_overwritten_meanwhile() {
    let disk = SimDisk::new(SimOptions::default());
    let layout = fawn_ds::RecordLayout::Sorted;
    let store = builder(Durability::Memory).layout(layout).open_on(SimDevice::attach(&disk)).unwrap();
    let put = |i: u32| _ = store.put(i.to_be_bytes(), [7; 200]).unwrap();
    let mut keys = 0;
    while keys < 20_000 || !disk.names().iter().any(|name| name.starts_with("run-")) {
        put(keys);
        keys += 1;
    }
    let mut met = std::collections::BTreeSet::new();
    for (nth, key) in store.keys().enumerate() {
        if nth == 0 {
            (0..keys).for_each(put);
        }
        met.insert(key.unwrap().into_vec());
    }
    assert_eq!(met.len(), keys as usize);
}
