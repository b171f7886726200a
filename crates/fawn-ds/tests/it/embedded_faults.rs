//! The blocking store under faults: failed conditions, many cold reads at once, and a panic in the leader.
use crate::panicking_device::PanickingDevice;
use fawn_ds::Options;
use fawn_ds::embed::{BatchWrite, Store};
use fawn_flash::sim::{Fault, OpKind};
use fawn_flash::{AnyDevice, Device, DeviceKind, DeviceOptions, SimDevice, SimDisk, SimOptions};
use fawn_types::{Condition, Durability, OperationError, Store as _, StoreError, TimeMs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

const NOW: TimeMs = TimeMs(1);
const POISONED: StoreError = StoreError::Operation(OperationError::Poisoned);

fn options(durability: Durability) -> Options {
    Options { segment_bytes: 256 << 10, memory_bytes: 4 << 20, durability, ..Options::default() }
}

/// What six threads get that all do `operation` at the same time.
fn race<D: Device + Send + 'static, T: Send>(store: &Store<D>, operation: impl Fn(&Store<D>) -> T + Sync) -> Vec<T> {
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

#[test]
fn a_failed_condition_reports_no_write_that_was_never_durable() {
    for seed in 0..50 {
        for durability in [Durability::Sync, Durability::EverySec] {
            let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
            let store = Store::open_on(SimDevice::attach(&disk), options(durability)).unwrap();
            disk.fail_nth(OpKind::Write, 1, Fault::Fail);
            let results = race(&store, |store| store.put_if(b"k", b"v", 0, Condition::Absent));
            assert!(results.iter().all(|result| result == &Err(POISONED)), "seed {seed}: {results:?}");
        }
    }
}

#[test]
fn a_failed_delete_reports_no_delete_that_was_never_durable() {
    for seed in 0..50 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let store = Store::open_on(SimDevice::attach(&disk), options(Durability::Sync)).unwrap();
        store.put(b"k", b"v", 0, 0).unwrap();
        let version = store.get(b"k", NOW).unwrap().unwrap().version;
        disk.fail_nth(OpKind::Write, 1, Fault::Fail);
        let results = race(&store, |store| store.delete(b"k", NOW));
        assert!(results.iter().all(|result| result == &Err(POISONED)), "seed {seed}: {results:?}");
        // A condition on what was durable before can still be refused, as reads go on.
        assert_eq!(store.get(b"k", NOW).unwrap().unwrap().version, version);
    }
}

#[test]
fn a_condition_refused_by_what_is_durable_needs_no_write() {
    let disk = SimDisk::new(SimOptions::default());
    let store = Store::open_on(SimDevice::attach(&disk), options(Durability::Sync)).unwrap();
    store.put(b"k", b"v", 0, 0).unwrap();
    disk.fail_nth(OpKind::Write, 1, Fault::Fail);
    assert_eq!(store.put(b"other", b"v", 0, 0), Err(POISONED));
    assert_eq!(store.put_if(b"k", b"w", 0, Condition::Absent), Ok(None));
}

#[test]
fn more_cold_reads_than_a_device_takes_at_once() {
    let keys: Vec<[u8; 4]> = (0..66_000_u32).map(u32::to_be_bytes).collect();
    for kind in [DeviceKind::Auto, DeviceKind::Portable] {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let device = AnyDevice::open(dir.path(), &DeviceOptions { kind, ..DeviceOptions::default() }).unwrap();
            Store::open_on(device, options(Durability::Memory)).unwrap()
        };
        let store = open();
        for keys in keys.chunks(1000) {
            let write = |key: &[u8; 4]| BatchWrite { key: key.to_vec(), value: Some(Vec::new()), expires_at_ms: 0 };
            store.batch(keys.iter().map(write).collect()).unwrap();
        }
        store.close().unwrap();
        let store = open();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let found = store.get_many(&keys, NOW).unwrap();
        assert_eq!(found.iter().flatten().count(), keys.len());
        store.close().unwrap();
    }
}

#[test]
fn a_panic_of_the_leader_fails_all_callers_and_every_later_operation() {
    let panics = Arc::new(AtomicBool::new(false));
    let inner = SimDevice::new(1, SimOptions::default());
    let device = PanickingDevice { inner, panics: Arc::clone(&panics) };
    let store = Arc::new(Store::open_on(device, options(Durability::Sync)).unwrap());
    store.put(b"k", b"v", 0, 0).unwrap();
    panics.store(true, Ordering::SeqCst);
    let (send, receive) = mpsc::channel();
    for i in 0..4_u8 {
        let (store, send) = (Arc::clone(&store), send.clone());
        std::thread::spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.put(&[i], b"v", 0, 0)));
            drop(store);
            send.send(result).unwrap();
        });
    }
    let results: Vec<_> = (0..4).map(|_| receive.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1, "one leader panics");
    assert!(results.iter().flatten().all(|result| result == &Err(POISONED)), "{results:?}");
    panics.store(false, Ordering::SeqCst);
    assert_eq!(store.get(b"k", NOW), Err(POISONED));
    assert_eq!(Arc::into_inner(store).map(Store::close), Some(Err(POISONED)));
}
