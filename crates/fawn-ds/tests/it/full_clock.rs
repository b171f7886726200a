//! The expiry time of a store on a full device: how often it asks for the space of a commit.
use crate::manifest_order::{OTHER, fill_to, put_blobs};
use crate::support::{TestNode, scanned};
use fawn_ds::internals::format::manifest::decode_all;
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, KeyRange, Now};

/// Once the persisted time is a minute old, each poll would commit it. While the device has no space for that, a poll must not
/// cost a system call: a busy store polls a million times a second.
#[test]
fn an_old_expiry_time_seldom_asks_a_full_device_for_space() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(1_000_000)).unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    disk.set_full(true);
    put_blobs(&mut node);
    fill_to(&mut node, &disk, 1_000);
    let persisted_ms = || decode_all(&disk.contents("manifest").unwrap()).unwrap().state.clock.unwrap().0.0;
    node.now = node.now.plus_ms(61_000);
    node.turn();
    let (before, before_ms) = (disk.counted(OpKind::Allocate), persisted_ms());
    for _ in 0..1_000 {
        node.now = node.now.plus_ms(1);
        node.turn();
    }
    let asked = disk.counted(OpKind::Allocate) - before;
    assert_eq!(persisted_ms(), before_ms, "there is no space for it");
    assert!((1..=40).contains(&asked), "{asked} allocations in a second");
    disk.set_full(false);
    for _ in 0..10 {
        node.now = node.now.plus_ms(20);
        node.turn();
    }
    assert!(persisted_ms() >= 1_062_000, "{} ms", persisted_ms());
    assert_eq!(node.engine.poisoned(), None);
}
