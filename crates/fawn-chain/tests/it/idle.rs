//! Idle ranges over hundreds of epochs: their logs stay part of the history, and they serve again.
use crate::cluster::{Bug, TestCluster};
use crate::member;
use fawn_chain::RangeEntry;
use fawn_chain::map::{Activation, HISTORY_MAX};
use fawn_types::{Durability, Epoch, KeyRange, RangeId, Version};

/// Far more epochs than the history remembers activations.
const EPOCHS: u32 = 3 * HISTORY_MAX as u32;

/// A cluster of three that is idle after `writes` writes.
fn idle(writes: u32) -> TestCluster {
    let mut cluster = TestCluster::new(3, Durability::Sync, Bug::None);
    cluster.run(600);
    let head = cluster.head().expect("a new cluster has a head");
    (0..writes).for_each(|_| assert!(cluster.put(head).is_some()));
    cluster.run(100);
    cluster
}

fn assert_heals(cluster: &mut TestCluster, round: u32) {
    for _ in 0..20 {
        cluster.run(200);
        if cluster.healed() {
            return;
        }
    }
    let entry = &cluster.manager.as_ref().unwrap().map().ranges[0];
    let phases: Vec<_> = (1..=3).map(|id| cluster.phase(id)).collect();
    panic!("restart {round}: {phases:?}, {:?} {:?}", entry.epoch, entry.state);
}

#[test]
fn an_idle_range_outlives_hundreds_of_restarts_of_a_member() {
    for writes in [0, 1, 5] {
        let mut cluster = idle(writes);
        for round in 0..EPOCHS {
            cluster.close(1 + round % 3);
            cluster.restart(1 + round % 3);
            assert_heals(&mut cluster, round);
        }
        assert_eq!(cluster.copies, 0, "no record was missed, so no copy is made");
    }
}

#[test]
fn an_idle_range_outlives_hundreds_of_restarts_of_all_members() {
    let mut cluster = idle(3);
    for round in 0..EPOCHS {
        (1..=3).for_each(|id| cluster.crash(id, 0));
        (1..=3).for_each(|id| cluster.restart(id));
        assert_heals(&mut cluster, round);
    }
    assert_eq!(cluster.copies, 0);
}

fn version(epoch: u32, seq: u64) -> Version {
    Version::new(Epoch::new(epoch).unwrap(), seq).unwrap()
}

/// Once activations are forgotten, a log is forgotten if it ends below the epoch of the oldest remembered base.
#[test]
fn a_log_is_forgotten_below_the_oldest_remembered_base() {
    let mut entry = RangeEntry::new(RangeId(1), KeyRange::ALL, &[member(1)]);
    let remember = |entry: &mut RangeEntry, epoch, base| {
        entry.remember(Activation { epoch: Epoch::new(epoch).unwrap(), base });
    };
    remember(&mut entry, 1, Version::ZERO);
    (2..=EPOCHS).for_each(|epoch| remember(&mut entry, epoch, version(1, 5)));
    assert_eq!(entry.common_point(version(1, 5)), version(1, 5), "idle since");
    assert_eq!(entry.common_point(version(1, 4)), version(1, 4), "behind, on the same history");
    assert_eq!(entry.common_point(version(1, 7)), version(1, 5), "records above the base were never committed");
    assert_eq!(entry.common_point(version(EPOCHS - 1, 2)), version(1, 5), "an uncommitted write of a later epoch");
    // Epoch 200 writes; each activation after it forgets one more.
    remember(&mut entry, EPOCHS + 1, version(EPOCHS, 3));
    assert_eq!(entry.common_point(version(1, 7)), version(1, 5));
    (EPOCHS + 2..2 * EPOCHS).for_each(|epoch| remember(&mut entry, epoch, version(EPOCHS, 3)));
    assert_eq!(entry.common_point(version(1, 5)), Version::ZERO, "its next base is not remembered");
    assert_eq!(entry.common_point(version(EPOCHS, 9)), version(EPOCHS, 3));
}
