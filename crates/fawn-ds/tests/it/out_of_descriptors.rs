//! A system without free file descriptors or memory: nothing was written, so writes are rejected for a while and the
//! engine is not poisoned.
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::backup::{Sharing, copy_dir};
use fawn_ds::internals::{EngineError, Event, View};
use fawn_ds::{Builder, Store};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64;
use fawn_types::{Durability, Now};

fn put(key: u32) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![7; 900]), expires_at_ms: 0 }
}

#[test]
fn a_segment_that_cannot_be_created_is_tried_again() {
    for kind in [OpKind::Create, OpKind::Allocate] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
        node.append(&[put(0)]).unwrap();
        node.settle();
        disk.fail_every(kind, DeviceFault::Exhausted);
        let mut taken = 0;
        let refused = loop {
            taken += 1;
            match node.append(&[put(taken)]) {
                Ok(_) => node.turn(),
                Err(error) => break error,
            };
            assert!(taken < 1000, "{kind:?}: writes must be rejected without a new segment");
        };
        assert_eq!(refused, EngineError::StoreFull, "{kind:?}");
        assert_eq!(node.engine.poisoned(), None, "{kind:?}");
        for key in 0..taken {
            assert!(node.get(&key.to_be_bytes(), View::Committed).unwrap().is_some(), "{kind:?}: key {key}");
        }
        disk.clear_faults();
        node.now = node.now.plus_ms(100);
        let mut events = Vec::new();
        for _ in 0..10 {
            node.engine.submit(node.now);
            node.engine.wait(node.now, &mut events);
        }
        assert!(events.iter().any(|event| matches!(event, Event::SpaceBack)), "{kind:?}: {events:?}");
        for key in 0..500 {
            node.append(&[put(key)]).unwrap();
        }
        node.settle();
        drop(node.engine.close().unwrap());
        TestNode::open(&disk, small(Durability::Sync), Now::at(2)).unwrap();
    }
}

/// A full store on a disk that refuses what it reports as free, and its number of keys.
fn store_without_its_free_space() -> (SimDisk, TestNode, u32) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    disk.fail_every(OpKind::Allocate, DeviceFault::Full);
    let mut keys = 0;
    while node.append(&[put(keys)]).is_ok() {
        keys += 1;
        node.turn();
        assert!(keys < 1000, "writes must be rejected without a new segment");
    }
    (disk, node, keys)
}

/// A disk with a quota refuses what it reports as free: each attempt creates a file and unlinks it again.
#[test]
fn a_disk_that_refuses_its_free_space_is_asked_less_and_less_often() {
    let (disk, mut node, keys) = store_without_its_free_space();
    let created = disk.counted(OpKind::Create);
    for _ in 0..3000 {
        node.now = node.now.plus_ms(10);
        node.turn();
    }
    let created = disk.counted(OpKind::Create) - created;
    assert!((8..20).contains(&created), "{created} files within 30 s");
    disk.clear_faults();
    for _ in 0..400 {
        node.now = node.now.plus_ms(10);
        node.turn();
    }
    node.append(&[put(keys)]).unwrap();
    assert_eq!(node.engine.poisoned(), None);
}

/// Deletes do not wait for the next attempt of puts, but each attempt creates a file here.
#[test]
fn deletes_on_a_disk_that_refuses_its_free_space_share_an_attempt() {
    let (disk, mut node, keys) = store_without_its_free_space();
    let created = disk.counted(OpKind::Create);
    let mut deletes = 0;
    for round in 0..10 {
        for _ in 0..50 {
            deletes += u32::from(node.append(&[TestWrite { value: None, ..put(0) }]).is_ok());
            node.turn();
        }
        let attempts = disk.counted(OpKind::Create) - created;
        assert!(attempts <= round + 1, "{attempts} files for {deletes} deletes within {round} tenths of a second");
        node.now = node.now.plus_ms(100);
    }
    assert!(deletes > 50, "{deletes} deletes are taken");
    disk.clear_faults();
    for _ in 0..400 {
        node.now = node.now.plus_ms(10);
        node.turn();
    }
    node.append(&[put(keys)]).unwrap();
    assert_eq!(node.engine.poisoned(), None);
}

/// A dropped segment is space: writes that wait for it need no time to pass.
#[test]
fn a_full_device_is_tried_again_as_soon_as_a_segment_is_dropped() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    disk.set_capacity_bytes(Some(16 * (64 << 10)));
    let mut keys = 0;
    while node.append(&[put(keys)]).is_ok() {
        keys += 1;
        node.turn();
        assert!(keys < 1000, "the device does not become full");
    }
    let dropped = node.engine.stats().segments_dropped;
    for key in 0..keys {
        if node.append(&[TestWrite { value: None, ..put(key) }]).is_err() {
            break;
        }
        node.turn();
    }
    for _ in 0..20 {
        node.turn();
    }
    assert!(node.engine.stats().segments_dropped > dropped, "{:?}", node.engine.segments_kept());
    node.append(&[put(keys)]).unwrap();
}

/// The fault hits each operation of the engine in turn. Afterwards the engine continues, with all acked writes.
#[test]
fn a_refusal_at_any_moment_poisons_nothing() {
    for kind in [OpKind::Create, OpKind::Allocate, OpKind::Unlink] {
        for nth in 1..12 {
            let disk = SimDisk::new(SimOptions::instant(nth));
            let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
            disk.fail_nth(kind, nth, DeviceFault::Exhausted);
            for round in 0..12 {
                for key in 0..60 {
                    while let Err(error) = node.append(&[put(key)]) {
                        assert_eq!(error, EngineError::StoreFull, "{kind:?} {nth}");
                        node.now = node.now.plus_ms(100);
                        node.turn();
                    }
                    node.turn();
                }
                node.settle();
                assert_eq!(node.engine.poisoned(), None, "{kind:?} {nth} round {round}");
            }
            disk.clear_faults();
            drop(node.engine.close().unwrap());
            let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(2)).unwrap();
            assert_eq!(node.keys().len(), 60, "{kind:?} {nth}");
        }
    }
}

/// Half of all allocations are refused, those of the manifest's file included, over hundreds of segments.
#[test]
fn allocations_that_are_refused_now_and_then_poison_nothing() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    let (mut rng, mut refusals) = (SplitMix64::new(1), 0);
    for key in 0..3000_u32 {
        if rng.coin() {
            disk.fail_every(OpKind::Allocate, DeviceFault::Exhausted);
        }
        let write = TestWrite { value: Some(vec![7; 15_000]), ..put(key % 20) };
        while let Err(error) = node.append(core::slice::from_ref(&write)) {
            assert_eq!(error, EngineError::StoreFull, "key {key}");
            disk.clear_faults();
            node.now = node.now.plus_ms(100);
            node.turn();
            refusals += 1;
        }
        node.turn();
        disk.clear_faults();
        node.now = node.now.plus_ms(20);
        node.turn();
        assert_eq!(node.engine.poisoned(), None, "key {key}");
    }
    let segments = node.engine.log_report().segments;
    assert!(refusals > 10 && segments < 100, "{refusals} refusals");
    let open_files = disk.open_files() as u64;
    assert!(open_files < segments + 8, "{open_files} open files of {segments} segments");
    node.settle();
    drop(node.engine.close().unwrap());
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(2)).unwrap();
    assert_eq!(node.keys().len(), 20);
}

const CHILD: &str = "FAWN_TEST_FEW_DESCRIPTORS";

/// Many more segments than the process may open files, on a real device. Runs in a process with its own limit.
#[test]
fn a_store_has_more_segments_than_the_process_has_descriptors() {
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "out_of_descriptors::a_store_has_more_segments_than_the_process_has_descriptors";
        let output = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let maximum = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit { current: Some(64), maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let builder: Builder = Store::builder(dir.path()).memory(4 << 20).segment_size(64 << 10);
    let builder = builder.durability(Durability::Memory);
    let store = builder.clone().open().unwrap();
    const KEYS: u32 = 1500;
    for key in 0..KEYS {
        store.put(key.to_be_bytes(), [7; 8000]).unwrap();
    }
    assert!(store.stats().unwrap().segments > 150);
    store.close().unwrap();
    let store = builder.open().unwrap();
    for key in 0..KEYS {
        let key = (key * 997) % KEYS;
        assert!(store.contains_key(key.to_be_bytes()).unwrap(), "key {key}");
    }
    store.close().unwrap();
    let copy = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // The process itself has more than half of its descriptors. As to another file system.
    let taken: Vec<_> = (0..36).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
    let report = copy_dir(dir.path(), copy.path(), Sharing::Nothing, 1, &mut |_, _| {}).unwrap();
    assert!(report.segments > 150 && report.linked_files == 0, "{report:?}");
    drop(taken);
    let store = Store::builder(copy.path()).memory(4 << 20).open().unwrap();
    assert!((0..KEYS).all(|key| store.contains_key(key.to_be_bytes()).unwrap()));
    store.close().unwrap();
}
