//! Openings of nearly full stores: they defer only a small part of the log.
use crate::reclaiming::put;
use crate::support::{TestNode, scanned, small};
use fawn_ds::internals::{Options, View};
use fawn_flash::sim::Loss;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

const KEYS: u64 = 2_400;
/// The second opening overwrites one key in so many.
const OVERWRITTEN: usize = 20;

fn append(node: &mut TestNode, keys: impl Iterator<Item = u64>, len: usize) {
    for (count, key) in keys.enumerate() {
        node.append(&[put(key, len)]).unwrap();
        if count % 8 == 0 {
            node.turn();
        }
    }
    node.settle();
}

/// A store that was killed, with the number of its segments. Only the overwrites are behind its checkpoint, if it has one.
fn killed(has_checkpoint: bool) -> (SimDisk, u64) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = if has_checkpoint { small(Durability::Sync) } else { scanned(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    append(&mut node, 0..KEYS, 900);
    drop(node.engine.close().unwrap());
    let mut node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(1_000_000)).unwrap();
    assert_eq!(node.report.checkpoint_entries.is_some(), has_checkpoint);
    append(&mut node, (0..KEYS).step_by(OVERWRITTEN), 800);
    drop(node);
    disk.kill(1);
    let segments = disk.names().into_iter().filter(|name| name.starts_with("segment-")).count();
    (disk, segments as u64)
}

/// Keys that an opening defers which may have so many segments.
fn deferred(disk: &SimDisk, capacity_segments: u64) -> u64 {
    let options = Options { capacity_bytes: Some(capacity_segments * (64 << 10)), ..scanned(Durability::Sync) };
    let image = disk.image(Loss::Process, 1);
    let mut node = TestNode::open_in_chain(&image, options, Now::at(2_000_000)).unwrap();
    let deferred = node.engine.verifications_deferred() as u64;
    for (key, len) in [(0, 800), (1, 900), (KEYS - 1, 900)] {
        let found = node.get(&put(key, 0).key, View::Committed).unwrap();
        assert_eq!(found.map(|entry| entry.value.len()), Some(len), "{key}");
    }
    deferred
}

/// Segments with deferred records are not cleaned. A store that never runs for long enough to confirm them all would be filled
/// by its openings, if these deferred much of a log that is nearly as long as the capacity.
#[test]
fn the_opening_of_a_nearly_full_store_defers_nothing_of_a_long_log() {
    let overwritten = KEYS / OVERWRITTEN as u64;
    let (disk, segments) = killed(false);
    assert_eq!(deferred(&disk, segments + 3), 0, "hardly a segment is left");
    assert!(deferred(&disk, segments + 30) >= overwritten, "there is space");
    let (disk, segments) = killed(true);
    assert!(deferred(&disk, segments + 3) >= overwritten, "others than the scanned segments can be cleaned");
}
