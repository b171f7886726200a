//! Records that expired, in flight or under a time that fell since: they continue to hide the older records of their keys.
use crate::reclaiming::{holders, put, write};
use crate::support::{RANGE, TestNode, TestWrite, scanned};
use fawn_ds::internals::{Options, RecordLayout, View};
use fawn_flash::sim::{Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64;
use fawn_types::{Durability, Now, TimeMs};

const OTHERS: std::ops::Range<u64> = 1_000..1_400;

fn options() -> Options {
    Options { capacity_bytes: Some(24 * (64 << 10)), ..scanned(Durability::Sync) }
}

/// An old value lies among records that stay, the expiring one among those that are overwritten. Returns after so many
/// writes, or once the segment of the expiring value is gone, with the number of writes.
fn overwrite(disk: &SimDisk, expires_at_ms: u64, chain_time: Option<TimeMs>, writes: usize) -> (TestNode, usize) {
    let mut node = TestNode::open(disk, options(), Now::at(1_000_000)).unwrap();
    chain_time.into_iter().for_each(|time| node.engine.set_chain_time(RANGE, time));
    // In one frame: nothing of it is worth cleaning.
    (0..190).for_each(|key| _ = node.append(&[put(key, 256)]).unwrap());
    node.settle();
    (190..240).for_each(|key| write(&mut node, &[put(key, 256)]));
    let old = holders(disk, 0);
    write(&mut node, &[TestWrite { expires_at_ms, ..put(0, 256) }]);
    let expiring = holders(disk, 0).into_iter().find(|name| !old.contains(name)).unwrap();
    let mut rng = SplitMix64::new(1);
    for i in 0..writes {
        if !disk.names().contains(&expiring) {
            return (node, i);
        }
        write(&mut node, &[put(OTHERS.start + rng.below(OTHERS.end - OTHERS.start), 256)]);
    }
    (node, writes)
}

#[test]
fn a_record_that_expires_while_its_copy_is_written_hides_its_older_value() {
    let expires_at_ms = 50_000_000;
    // The writes after which the segment is gone: its copies are written shortly before.
    let (_, writes) = overwrite(&SimDisk::new(SimOptions::instant(1)), expires_at_ms, None, 10_000);
    assert!(writes < 10_000, "the segment is cleaned");
    let mut in_flight = 0;
    for back in 1..10 {
        let disk = SimDisk::new(SimOptions::instant(1));
        let (mut node, _) = overwrite(&disk, expires_at_ms, None, writes - back);
        disk.hang(OpKind::Write);
        (0..8).for_each(|_| _ = node.turn());
        disk.end_faults(OpKind::Write);
        in_flight += u32::from(disk.hung() > 0);
        node.now.wall = TimeMs(expires_at_ms + 1_000);
        node.engine.set_chain_time(RANGE, TimeMs(expires_at_ms + 60_000_000));
        assert_eq!(node.get(&put(0, 0).key, View::Committed).unwrap(), None);
        disk.release_hung();
        (0..8).for_each(|_| _ = node.turn());
        // The chain's head has failed: its time falls, and cleaning does not take the record for expired.
        node.engine.set_chain_time(RANGE, TimeMs(expires_at_ms - 1));
        let mut rng = SplitMix64::new(2);
        for _ in 0..1_500 {
            write(&mut node, &[put(OTHERS.start + rng.below(OTHERS.end - OTHERS.start), 256)]);
        }
        node.settle();
        let now = node.now;
        disk.kill(1);
        let mut node = TestNode::open(&disk, options(), now).unwrap();
        assert_eq!(node.get(&put(0, 0).key, View::Committed).unwrap(), None, "{back} writes before");
    }
    assert!(in_flight > 0);
}

/// Cleaning has written the tombstone of an expired record, whose segment is still there after a kill. By the time of the
/// opening the record has not expired: the tombstone counts all the same.
#[test]
fn the_tombstone_of_an_expired_record_counts_beside_the_record() {
    let expires_at_ms = 50_000_000;
    let chain_time = Some(TimeMs(2 * expires_at_ms));
    let (_, writes) = overwrite(&SimDisk::new(SimOptions::instant(1)), expires_at_ms, chain_time, 10_000);
    assert!(writes < 10_000, "the segment is cleaned");
    let mut beside = 0;
    for back in 1..10 {
        let disk = SimDisk::new(SimOptions::instant(1));
        let (node, _) = overwrite(&disk, expires_at_ms, chain_time, writes - back);
        let now = node.now;
        drop(node);
        disk.kill(1);
        // The old value, the expired record, and the tombstone.
        if holders(&disk, 0).len() == 3 {
            beside += 1;
            let mut node = TestNode::open(&disk, options(), now).unwrap();
            assert_eq!(node.get(&put(0, 0).key, View::Committed).unwrap(), None, "{back} writes before");
        }
    }
    assert!(beside > 0, "the tombstone is written before the segment goes");
}

/// A lookup removes expired values by the store's clock. Then the time of a chain counts, by which they have not expired, and
/// the store begins to sort: a filter or a sort does not rule out that a run has copies of them.
#[test]
fn values_removed_by_a_clock_ahead_of_the_chain_hide_their_older_values_in_a_store_with_runs() {
    const KEYS: u64 = 60;
    let expires_at_ms = 2_000_000;
    let options = Options {
        layout: RecordLayout::Auto,
        sort_bytes: 192 << 10,
        memory_bytes: 1 << 20,
        ..scanned(Durability::Sync)
    };
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
    // Values that are too long for runs, so that their segments are never sorted.
    (0..2 * KEYS).for_each(|key| write(&mut node, &[put(key, 3_000)]));
    (0..KEYS).for_each(|key| write(&mut node, &[TestWrite { expires_at_ms, ..put(key, 900) }]));
    (0..80).for_each(|_| write(&mut node, &[put(OTHERS.start, 900)]));
    node.settle();
    node.now = node.now.plus_ms(expires_at_ms);
    node.turn();
    for key in 0..KEYS {
        assert_eq!(node.get(&put(key, 0).key, View::Committed).unwrap(), None);
    }
    assert_eq!(node.engine.stats().expired, KEYS);
    node.engine.set_chain_time(RANGE, TimeMs(expires_at_ms - 1_000));
    // In the middle of a sort, their segment is the first one that is worth cleaning.
    let mut since_cleaned = 0;
    for number in 0..90_000 {
        write_small(&mut node, number);
        since_cleaned += u64::from(node.engine.stats().segments_cleaned > 0);
        if since_cleaned > 200 {
            break;
        }
    }
    assert!(since_cleaned > 200 && node.engine.runs() > 0, "{:?}", node.engine);
    let is_visible = |node: &mut TestNode, key| node.get(&put(key, 0).key, View::Committed).unwrap().is_some();
    let image = disk.image(Loss::Process, 1);
    let mut opened = TestNode::open(&image, options.clone(), node.now).unwrap();
    let visible: Vec<u64> = (0..KEYS).filter(|&key| is_visible(&mut opened, key)).collect();
    assert_eq!(visible, [], "older values");
    // Their segment is not cleaned again and again.
    (0..2_000).for_each(|number| write_small(&mut node, number));
    let cleaned = node.engine.stats().segments_cleaned;
    assert!(cleaned <= 3, "{cleaned} segments cleaned");
    // The wait ends: by then they have expired.
    node.engine.set_chain_time(RANGE, TimeMs(expires_at_ms + 1_000));
    for number in 0..20_000 {
        write_small(&mut node, number);
        node.now = node.now.plus_ms(1);
    }
    node.settle();
    assert!((0..KEYS).all(|key| holders(&disk, key).is_empty()), "their segments are cleaned");
}

fn write_small(node: &mut TestNode, number: u64) {
    let write =
        TestWrite { key: format!("small-{number:06}").into_bytes(), value: Some(vec![7; 20]), expires_at_ms: 0 };
    node.append(&[write]).unwrap();
    if number.is_multiple_of(64) {
        node.turn();
    }
}
