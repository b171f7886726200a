//! The embedded store under faults: failed conditions, many cold reads at once, and a panic in the leader.
use crate::panicking_device::PanickingDevice;
use crate::store_methods::{builder, open};
use fawn_ds::sim::{DeviceFault, OpKind, SimDevice, SimDisk, SimOptions};
use fawn_ds::{Durability, Error, PutOptions, Result, Store};
use fawn_flash::{DeviceKind, DeviceOptions, FileDevice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

fn is_poisoned<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::Poisoned { .. }))
}

/// The results of six threads that all do `operation` at the same time.
fn race<T: Send>(store: &Store, operation: impl Fn(&Store) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(6);
    std::thread::scope(|scope| {
        let one = || {
            barrier.wait();
            operation(store)
        };
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The result of `operation`, once it has ended.
fn in_thread<T: Send + 'static>(operation: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(operation()));
    receive
}

#[test]
fn a_failed_condition_reports_no_write_that_was_never_durable() {
    for seed in 0..50 {
        for durability in [Durability::Sync, Durability::EverySecond] {
            let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
            disk.fail_every(OpKind::Map, DeviceFault::Fail);
            let store = builder(durability).open_on(SimDevice::attach(&disk)).unwrap();
            disk.fail_nth(OpKind::Write, 1, DeviceFault::Fail);
            let results = race(&store, |store| store.put_with("k", "v", PutOptions::new().if_absent()));
            assert!(results.iter().all(is_poisoned), "seed {seed}: {results:?}");
        }
    }
}

#[test]
fn a_failed_delete_reports_no_delete_that_was_never_durable() {
    for seed in 0..50 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let store = builder(Durability::Sync).open_on(SimDevice::attach(&disk)).unwrap();
        let version = store.put("k", "v").unwrap();
        disk.fail_nth(OpKind::Write, 1, DeviceFault::Fail);
        let results = race(&store, |store| store.delete("k"));
        assert!(results.iter().all(is_poisoned), "seed {seed}: {results:?}");
        assert_eq!(store.get("k").unwrap().unwrap().version(), version, "reads go on");
    }
}

/// A program that drops its last handle while the disk hangs never ended.
#[test]
fn a_close_ends_in_time_although_the_device_hangs() {
    let disk = SimDisk::new(SimOptions { blocking_waits: true, ..SimOptions::default() });
    let open = || {
        let builder = builder(Durability::EverySecond).close_timeout(Duration::from_millis(20));
        builder.open_on(SimDevice::attach(&disk))
    };
    let store = open().unwrap();
    store.put("k", "v").unwrap();
    disk.hang(OpKind::Sync);
    let clone = store.clone();
    let closed = store.close();
    assert!(matches!(closed, Err(Error::StillClosing { .. })), "{closed:?}");
    let found = in_thread(move || clone.get("k")).recv_timeout(Duration::from_secs(20));
    assert!(matches!(found, Ok(Err(Error::Closed))), "another clone does not wait: {found:?}");
    assert!(open().is_err(), "its files are in use");
    disk.release_hung();
    let reopened = std::iter::repeat_with(open).find_map(Result::ok).unwrap();
    assert_eq!(&reopened.get("k").unwrap().unwrap()[..], b"v", "the thread has closed it");
}

/// They waited for the device for ever: a read with the close, a write alongside it.
#[test]
fn a_close_ends_the_operations_in_flight_although_the_device_hangs() {
    for (kind, durability) in [(OpKind::Read, Durability::EverySecond), (OpKind::Write, Durability::Sync)] {
        let disk = SimDisk::new(SimOptions { blocking_waits: true, ..SimOptions::default() });
        let open = || builder(durability).close_timeout(Duration::from_millis(20)).open_on(SimDevice::attach(&disk));
        let store = open().unwrap();
        (0..50_u8).for_each(|key| _ = store.put([key], [7; 4_000]).unwrap());
        store.close().unwrap();
        let store = open().unwrap();
        store.put("unsynced", "v").unwrap();
        disk.hang(kind);
        let clone = store.clone();
        let operation =
            move || if kind == OpKind::Read { clone.get([0]).map(drop) } else { clone.put("k", "v").map(drop) };
        let ended = in_thread(operation);
        while disk.hung() == 0 {
            std::thread::yield_now();
        }
        disk.hang(OpKind::Sync);
        let closed = store.close();
        assert!(matches!(closed, Err(Error::StillClosing { .. })), "{kind:?}: {closed:?}");
        let ended = ended.recv_timeout(Duration::from_secs(20));
        assert!(matches!(ended, Ok(Err(Error::Closed))), "{kind:?}: {ended:?}");
        disk.release_hung();
        let reopened = std::iter::repeat_with(open).find_map(Result::ok).unwrap();
        assert_eq!(&reopened.get("unsynced").unwrap().unwrap()[..], b"v", "the thread has closed it");
    }
}

#[test]
fn a_condition_refused_by_what_is_durable_needs_no_write() {
    let disk = SimDisk::new(SimOptions::default());
    let store = builder(Durability::Sync).open_on(SimDevice::attach(&disk)).unwrap();
    store.put("k", "v").unwrap();
    disk.fail_nth(OpKind::Write, 1, DeviceFault::Fail);
    assert!(is_poisoned(&store.put("other", "v")));
    assert_eq!(store.put_with("k", "w", PutOptions::new().if_absent()).unwrap(), None);
}

#[test]
fn more_cold_reads_than_a_device_takes_at_once() {
    let keys: Vec<[u8; 4]> = (0..66_000_u32).map(u32::to_be_bytes).collect();
    for kind in [DeviceKind::Auto, DeviceKind::Portable] {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let device = FileDevice::open(dir.path(), &DeviceOptions { kind, ..DeviceOptions::default() }).unwrap();
            builder(Durability::Memory).open_on(device).unwrap()
        };
        let store = open();
        for keys in keys.chunks(1000) {
            let mut batch = store.batch();
            for key in keys {
                batch.put(key, "");
            }
            batch.commit().unwrap();
        }
        store.close().unwrap();
        let store = open();
        let found = store.get_many(&keys).unwrap();
        assert_eq!(found.iter().flatten().count(), keys.len());
        store.close().unwrap();
    }
}

#[test]
fn a_panic_of_the_leader_fails_all_callers_and_every_later_operation() {
    let panics = Arc::new(AtomicBool::new(false));
    let inner = SimDevice::new(1, SimOptions::default());
    let device = PanickingDevice { inner, panics: Arc::clone(&panics) };
    let store = builder(Durability::Sync).open_on(device).unwrap();
    store.put("k", "v").unwrap();
    panics.store(true, Ordering::SeqCst);
    let (send, receive) = mpsc::channel();
    for i in 0..4_u8 {
        let (store, send) = (store.clone(), send.clone());
        std::thread::spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.put([i], "v")));
            drop(store);
            send.send(result).unwrap();
        });
    }
    let results: Vec<_> = (0..4).map(|_| receive.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
    // The leader may be the thread of the store itself, whose panic no caller sees.
    assert!(results.iter().filter(|result| result.is_err()).count() <= 1, "one leader panics");
    assert!(results.iter().flatten().all(is_poisoned), "{results:?}");
    panics.store(false, Ordering::SeqCst);
    assert!(is_poisoned(&store.get("k")));
    assert!(is_poisoned(&store.stats()));
    assert!(is_poisoned(&store.close()));
}

/// The engine kept the directory while any handle was left.
#[test]
fn a_close_after_a_panic_gives_the_directory_back() {
    for panics_at_close in [false, true] {
        let panics = Arc::new(AtomicBool::new(false));
        let disk = SimDisk::new(SimOptions::default());
        let device = PanickingDevice { inner: SimDevice::attach(&disk), panics: Arc::clone(&panics) };
        let store = builder(Durability::Sync).open_on(device).unwrap();
        store.put("k", "v").unwrap();
        let clone = store.clone();
        panics.store(true, Ordering::SeqCst);
        if !panics_at_close {
            let put = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.put("other", "v")));
            assert!(put.as_ref().map_or(true, is_poisoned), "{put:?}");
        }
        assert!(is_poisoned(&store.close()));
        let reopened = open(&disk, Durability::Sync);
        assert_eq!(&reopened.get("k").unwrap().unwrap()[..], b"v");
        assert!(is_poisoned(&clone.get("k")));
    }
}

/// Such a key could be overwritten, but not be deleted.
#[test]
fn a_key_whose_record_is_corrupt_is_deleted_and_one_that_is_unreadable_is_not() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let open = || builder(Durability::Sync).open_on(SimDevice::attach(&disk)).unwrap();
    let store = open();
    (0..50_u32).for_each(|key| _ = store.put(key.to_be_bytes(), [7; 4_000]).unwrap());
    store.close().unwrap();
    let store = open();
    let name = disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    disk.flip_bits(&name, 4096 * 11 + 200, 1);
    disk.make_unreadable(&name, 4096 * 31 + 512..4096 * 31 + 1024);
    let lost: Vec<u32> = (0_u32..50).filter(|key| store.get(key.to_be_bytes()).is_err()).collect();
    assert!((2..=4).contains(&lost.len()), "{lost:?}");
    let (corrupt, unreadable): (Vec<u32>, Vec<u32>) =
        lost.iter().partition(|key| matches!(store.get(key.to_be_bytes()), Err(Error::Corrupt { .. })));
    assert!(!corrupt.is_empty() && !unreadable.is_empty(), "{corrupt:?}, {unreadable:?}");
    for key in &unreadable {
        // It may be another key's record.
        store.delete(key.to_be_bytes()).unwrap_err();
    }
    for key in &corrupt {
        let key = key.to_be_bytes();
        let conditional = store.delete_if_version(key, fawn_ds::Version::ZERO);
        assert!(conditional.is_err(), "nobody knows its version: {conditional:?}");
        assert!(store.delete(key).unwrap(), "it may have had a value");
        assert!(store.get(key).unwrap().is_none() && !store.delete(key).unwrap());
    }
    assert_eq!(store.keys().filter(|key| key.is_ok()).count(), 50 - lost.len());
    store.put(corrupt[0].to_be_bytes(), "again").unwrap();
    assert_eq!(store.get(corrupt[0].to_be_bytes()).unwrap().unwrap(), b"again");
}
