//! A sync that failed: the pages it covered still read, but no later sync covers them. A later process may rely only on
//! bytes that it wrote again.
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::View;
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

const KEYS: u32 = 40;

fn put(key: u32) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![key as u8; 900]), expires_at_ms: 0 }
}

/// Images of a disk whose process was killed: completed writes are readable, but not all of them are synced.
fn killed(durability: Durability, seed: u64) -> Vec<SimDisk> {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let mut node = TestNode::open(&disk, small(durability), Now::at(1000)).unwrap();
    disk.capture(Capture::Every { stride: 7, loss: Loss::Process, seed });
    for key in 0..KEYS {
        node.append(&[put(key)]).unwrap();
        if key % 3 == 0 {
            node.turn();
            node.now = node.now.plus_ms(1);
        }
    }
    disk.capture(Capture::Never);
    disk.take_images().into_iter().map(|image| image.disk).collect()
}

/// Records that the first successful open after failed ones reads are still there after a power loss.
#[test]
fn an_open_after_a_failed_sync_relies_on_nothing_that_a_power_loss_takes() {
    let mut failed = 0;
    for (durability, seed) in [Durability::Sync, Durability::EverySecond, Durability::Memory]
        .into_iter()
        .flat_map(|mode| (0..3).map(move |seed| (mode, seed)))
    {
        for (at, disk) in killed(durability, seed).iter().enumerate() {
            let context = format!("{durability:?}, seed {seed}, image {at} (… --test it failed_sync::)");
            // A sync or a write of this open fails, and its process ends.
            for (kind, nth) in [(OpKind::Sync, 1), (OpKind::Sync, 2), (OpKind::Write, 1), (OpKind::Write, 2)] {
                disk.fail_nth(kind, nth, DeviceFault::Fail);
                failed += u32::from(TestNode::open(disk, small(durability), Now::at(5000)).is_err());
                disk.clear_faults();
                disk.kill(seed);
            }
            let mut node = TestNode::open(disk, small(durability), Now::at(6000)).unwrap();
            let found = node.keys();
            drop(node);
            for loss in 0..3 {
                let lost = disk.image(Loss::Power, loss);
                let opened = TestNode::open(&lost, small(durability), Now::at(7000));
                let mut node = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
                for key in &found {
                    assert!(
                        node.get(key, View::Committed).unwrap().is_some(),
                        "{context}: {key:?} was read, and is lost"
                    );
                }
            }
        }
    }
    assert!(failed > 100, "opens failed {failed} times");
}
