//! Deleted keys whose older puts are in other segments: the deletes stay while they hide them, whatever the counts come from.
use crate::checkpoint_compared::spoil_checkpoints;
use crate::reclaiming::{delete, holders, put, write};
use crate::support::{TestNode, scanned, small};
use fawn_ds::internals::{Options, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64;
use fawn_types::{Durability, Now};

/// One put of a segment is dead. A checkpoint says so to the next opening, which keeps the delete for it.
#[test]
fn a_delete_hides_the_only_dead_put_of_a_segment_after_an_opening_from_a_checkpoint() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let open = |now| TestNode::open(&disk, small(Durability::Sync), now).unwrap();
    let mut node = open(Now::at(1_000_000));
    // The deleted value lies among records that stay, the delete among those that are overwritten.
    for first in (0..440).step_by(40) {
        write(&mut node, &(first..first + 40).map(|key| put(key, 256)).collect::<Vec<_>>());
    }
    let first = holders(&disk, 0).pop().unwrap();
    write(&mut node, &[delete(0)]);
    let of_delete = holders(&disk, 0).into_iter().find(|name| *name != first).unwrap();
    // No put before the delete is left in its segment: a copy of one would keep the delete.
    for key in (1..440).filter(|key| holders(&disk, *key).contains(&of_delete)).collect::<Vec<_>>() {
        write(&mut node, &[put(key, 256)]);
    }
    (1_000..1_300).for_each(|key| write(&mut node, &[put(key, 256)]));
    node.settle();
    let now = node.now;
    drop(node.engine.close().unwrap());
    let mut node = open(now);
    assert!(node.report.checkpoint_entries.is_some());
    let mut rng = SplitMix64::new(1);
    while disk.names().contains(&of_delete) {
        write(&mut node, &[put(1_000 + rng.below(300), 256)]);
        assert!(node.engine.stats().appended_records < 100_000, "{:?}", node.engine);
    }
    assert!(disk.names().contains(&first), "the deleted value is still there");
    node.settle();
    let now = node.now;
    disk.kill(1);
    spoil_checkpoints(&disk);
    assert_eq!(open(now).get(&put(0, 0).key, View::Committed).unwrap(), None);
}

/// A segment has nothing but a delete that hides a put of another one. Its copy is synced before the segment goes: no client
/// waits for survivors, and no other record moves with this one.
#[test]
fn a_copied_delete_is_synced_before_its_segment_goes() {
    for seed in 0..8 {
        let disk = SimDisk::new(SimOptions::instant(seed));
        let options = Options { space_amplification_max_percent: 0, ..scanned(Durability::Sync) };
        let mut node = TestNode::open(&disk, options, Now::at(1_000_000)).unwrap();
        (0..360).for_each(|key| write(&mut node, &[put(key, 1_000)]));
        // One key over and over: nothing of its segments lives for long.
        let overwrite = |node: &mut TestNode| {
            write(node, &[put(400, 1_000)]);
            assert!(
                node.engine.stats().appended_records < 2_000,
                "{:?} {:?}",
                node.engine.stats(),
                node.engine.segments_kept()
            );
        };
        (0..90).for_each(|_| overwrite(&mut node));
        let of_put = holders(&disk, 0);
        write(&mut node, &[delete(0)]);
        let of_delete = holders(&disk, 0).into_iter().find(|name| !of_put.contains(name)).unwrap();
        while disk.names().contains(&of_delete) {
            overwrite(&mut node);
        }
        let now = node.now;
        disk.crash(seed);
        let mut node = TestNode::open(&disk, scanned(Durability::Sync), now).unwrap();
        assert_eq!(node.get(&put(0, 0).key, View::Committed).unwrap(), None, "seed {seed}");
    }
}
