//! Copies of stores that have holes where the originals have zeros, on disks without space for them.
use crate::support::{TestNode, TestWrite, scanned};
use fawn_ds::internals::{EngineError, OpenError, Options, View};
use fawn_flash::sim::Loss;
use fawn_flash::{Device, DeviceError, SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Now};

const KEYS: u32 = 12;

fn options(durability: Durability) -> Options {
    Options { segment_bytes: 1 << 20, memory_bytes: 8 << 20, ..scanned(durability) }
}

fn put(key: u32) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![0; 12_000]), expires_at_ms: 0 }
}

/// A copy of a store that was killed, with values of zeros, and the space that it takes.
fn sparse_copy(durability: Durability) -> (SimDisk, u64) {
    const LARGE: u64 = 1 << 40;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(durability), Now::at(1)).unwrap();
    for key in 0..KEYS {
        node.append(&[put(key)]).unwrap();
        node.settle();
    }
    drop(node);
    disk.kill(1);
    disk.make_sparse();
    disk.set_capacity_bytes(Some(LARGE));
    let used = LARGE - SimDevice::attach(&disk).free_bytes().unwrap();
    (disk, used)
}

/// The keys that the store has, on a disk with space.
fn keys_of(disk: &SimDisk, durability: Durability) -> Vec<u32> {
    disk.set_capacity_bytes(None);
    let mut node = TestNode::open(disk, options(durability), Now::at(3)).unwrap();
    let has = |node: &mut TestNode, key: u32| {
        let found = node.get(&key.to_be_bytes(), View::Committed).unwrap();
        found.is_some_and(|entry| Some(entry.value) == put(key).value)
    };
    (0..KEYS).filter(|key| has(&mut node, *key)).collect()
}

fn is_full<T>(result: Result<T, OpenError>) -> Option<T> {
    match result {
        Ok(opened) => Some(opened),
        Err(OpenError::Device(DeviceError::Full { .. }) | OpenError::Engine(EngineError::StoreFull)) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_sparse_copy_writes_to_no_hole_without_space() {
    let (mut opened, mut refused) = (0, 0);
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let (copy, used) = sparse_copy(durability);
        // The mode `memory` loses what it did not write.
        let kept = keys_of(&copy.image(Loss::Process, 0), durability);
        assert!(kept.len() > 8, "{durability:?}: {kept:?}");
        // Less and less than the files need, a segment's rest included.
        for pages in (0..40).chain((40..700).step_by(20)) {
            let context = format!("{durability:?}, {pages} pages free");
            let disk = copy.image(Loss::Process, 0);
            disk.set_capacity_bytes(Some(used + pages * 4096));
            match is_full(TestNode::open(&disk, options(durability), Now::at(2))) {
                Some(mut node) => {
                    opened += 1;
                    for _ in 0..60 {
                        // Either may be refused.
                        let _ = (node.engine.put_blob(1, &[1; 1_000]), node.append(&[put(KEYS)]));
                        node.settle();
                    }
                    assert_eq!(node.engine.poisoned(), None, "{context}");
                }
                None => refused += 1,
            }
            assert_eq!(disk.writes_without_space(), 0, "{context}");
            disk.kill(pages);
            assert_eq!(keys_of(&disk, durability), kept, "{context}");
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 20 && refused > 20, "{opened} opened, {refused} refused");
}
