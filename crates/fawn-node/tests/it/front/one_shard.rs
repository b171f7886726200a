//! Faults of one shard's disk, while the other shards of its node are well.
use super::harness::{ClusterHarness, MEMBERS};
use crate::harness::resp;
use crate::member;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_node::ClientService;
use fawn_node::cluster::NodeError;
use fawn_types::{MemberId, NodeId, ShardId};
use fawn_wire::Protocol;

const SHARDS: u16 = 2;
/// Everything whole serves again within this time, ms [replication.md § 2.5].
const BOUND_MS: usize = 60_000;

const fn disk_of(node: u32, shard: u16) -> usize {
    ((node - 1) * SHARDS as u32 + shard as u32) as usize
}

fn all_shards() -> impl Iterator<Item = (u32, u16)> {
    (1..=MEMBERS).flat_map(|node| (0..SHARDS).map(move |shard| (node, shard)))
}

fn is_whole(harness: &ClusterHarness) -> bool {
    let status = harness.host.status().cluster.unwrap();
    status.is_serving() && !status.is_degraded()
}

/// Runs until every chain is complete; fails after the bound.
fn heal(harness: &mut ClusterHarness, what: &str) {
    for _ in 0..BOUND_MS / 100 {
        harness.run(100);
        if is_whole(harness) {
            return;
        }
    }
    panic!("{what}: {:#?}", harness.host.status().cluster);
}

/// Bytes of records that members sent each other.
fn records_sent_bytes(harness: &ClusterHarness) -> u64 {
    harness.statuses().map(|status| status.counters.records_sent_bytes).sum()
}

/// Writes keys of all ranges one after the other; returns how many were acknowledged within the time.
fn write_all(harness: &mut ClusterHarness, keys: u32, within_ms: usize, value: &str) -> usize {
    let ids: Vec<_> = (0..keys).map(|_| harness.connect(Protocol::Resp)).collect();
    for (key, id) in ids.iter().enumerate() {
        harness.send(*id, &resp(&format!("SET k{key} {value}")));
    }
    harness.run(within_ms);
    let acked = ids.iter().filter(|id| harness.clients[id].received == b"+OK\r\n").count();
    for id in ids {
        harness.host.close_session(id);
        harness.clients.remove(&id);
    }
    acked
}

#[test]
fn a_disk_that_hangs_takes_its_shard_out_of_its_chains() {
    for (node, shard) in all_shards() {
        let mut harness = ClusterHarness::with_shards(SHARDS);
        assert_eq!(write_all(&mut harness, 60, 500, "before"), 60);
        let disk = harness.disks[disk_of(node, shard)].clone();
        for kind in [OpKind::Write, OpKind::Sync] {
            disk.fail_every(kind, DeviceFault::Hang);
        }
        write_all(&mut harness, 60, 15_000, "hanging");
        for round in 0..3 {
            assert_eq!(write_all(&mut harness, 60, 500, "during"), 60, "{node}.{shard}, round {round}");
            harness.run(5_000);
        }
        for kind in [OpKind::Write, OpKind::Sync] {
            disk.end_faults(kind);
        }
        disk.release_hung();
        heal(&mut harness, &format!("{node}.{shard} hung"));
        assert_eq!(write_all(&mut harness, 60, 500, "after"), 60);
        assert_eq!(harness.assert_three_equal_copies(), 60, "{node}.{shard}");
    }
}

#[test]
fn a_disk_that_is_full_delays_writes_until_it_has_space() {
    for (node, shard) in all_shards() {
        let mut harness = ClusterHarness::with_shards(SHARDS);
        assert_eq!(write_all(&mut harness, 60, 500, "before"), 60);
        let disk = harness.disks[disk_of(node, shard)].clone();
        disk.set_full(true);
        let before = records_sent_bytes(&harness);
        write_all(&mut harness, 60, 5_000, &"x".repeat(50_000));
        // Records that a full log rejects are not sent again at the speed of the link.
        let sent_bytes = records_sent_bytes(&harness) - before;
        assert!(sent_bytes < 32 << 20, "{node}.{shard}: {sent_bytes} bytes for 3 MB of values");
        disk.set_full(false);
        heal(&mut harness, &format!("{node}.{shard} was full"));
        assert_eq!(write_all(&mut harness, 60, 1_000, "after"), 60, "{node}.{shard}");
        assert_eq!(harness.assert_three_equal_copies(), 60, "{node}.{shard}");
    }
}

/// A log that hangs accepts no more records; those that it rejects are requested again at growing intervals.
#[test]
fn a_disk_that_hangs_is_not_sent_the_same_records_all_the_time() {
    for (node, shard) in all_shards() {
        let mut harness = ClusterHarness::with_shards(SHARDS);
        assert_eq!(write_all(&mut harness, 60, 500, "before"), 60);
        let disk = harness.disks[disk_of(node, shard)].clone();
        disk.fail_every(OpKind::Write, DeviceFault::Hang);
        let before = records_sent_bytes(&harness);
        write_all(&mut harness, 300, 3_000, &"x".repeat(50_000));
        let sent_bytes = records_sent_bytes(&harness) - before;
        // Each request fetches up to 4 MiB; at a fixed interval of 10 ms they fetched up to 1.6 GB.
        assert!(sent_bytes < 192 << 20, "{node}.{shard}: {sent_bytes} bytes for 15 MB of values");
        disk.end_faults(OpKind::Write);
        disk.release_hung();
        heal(&mut harness, &format!("{node}.{shard} hung"));
        assert_eq!(harness.assert_three_equal_copies(), 300, "{node}.{shard}");
    }
}

/// The pause before rejected records are requested again grows with the age of the hang. A completed write ends it.
#[test]
fn a_log_that_has_buffers_again_requests_the_rejected_records_at_once() {
    let mut harness = ClusterHarness::new(true);
    assert_eq!(write_all(&mut harness, 60, 500, "before"), 60);
    let rejected =
        |harness: &ClusterHarness, node| harness.host.shard(member(node)).unwrap().node_status().counters.frames_cut;
    let phase = |node| harness.host.shard(member(node)).unwrap().node_status().members[0].phase;
    let after_the_head: Vec<u32> = (1..=MEMBERS).filter(|node| phase(*node) != "head").collect();
    for node in after_the_head {
        let disk = harness.disks[node as usize - 1].clone();
        disk.fail_every(OpKind::Write, DeviceFault::Hang);
        let ids: Vec<_> = (0..120).map(|_| harness.connect(Protocol::Resp)).collect();
        for (key, id) in ids.iter().enumerate() {
            harness.send(*id, &resp(&format!("SET k{key} {}", "x".repeat(50_000))));
        }
        harness.run(500);
        // The pause that begins with this rejection is as long as the hang until now.
        let before = rejected(&harness, node);
        let is_rejected = (0..450).any(|_| {
            harness.run(1);
            rejected(&harness, node) > before
        });
        assert!(is_rejected, "node {node} requested no records after half a second");
        disk.end_faults(OpKind::Write);
        disk.release_hung();
        harness.run(200);
        let acked = ids.iter().filter(|id| harness.clients[id].received == b"+OK\r\n").count();
        assert_eq!(acked, 120, "node {node}: {:#?}", harness.statuses().collect::<Vec<_>>());
        assert!(is_whole(&harness), "node {node} left its chain");
        for id in ids {
            harness.host.close_session(id);
            harness.clients.remove(&id);
        }
    }
}

#[test]
fn a_disk_that_fails_takes_its_shard_out_of_its_chains() {
    for (node, shard) in all_shards() {
        let mut harness = ClusterHarness::with_shards(SHARDS);
        assert_eq!(write_all(&mut harness, 60, 500, "before"), 60);
        harness.disks[disk_of(node, shard)].fail_nth(OpKind::Write, 1, DeviceFault::Fail);
        write_all(&mut harness, 60, 2_000, "failing");
        assert_eq!(write_all(&mut harness, 60, 500, "during"), 60, "{node}.{shard}");
        harness.disks.iter().for_each(SimDisk::clear_faults);
        let mut harness = harness.crash(7);
        heal(&mut harness, &format!("{node}.{shard} failed"));
        assert_eq!(write_all(&mut harness, 60, 500, "after"), 60);
        assert_eq!(harness.assert_three_equal_copies(), 60, "{node}.{shard}");
    }
}

#[test]
fn a_disk_of_one_shard_is_replaced_or_refused_as_restored() {
    for (node, shard) in all_shards() {
        let mut harness = ClusterHarness::with_shards(SHARDS);
        assert_eq!(write_all(&mut harness, 60, 500, "before"), 60);
        let past = harness.disks[disk_of(node, shard)].image(fawn_flash::sim::Loss::Process, 1);
        harness = harness.stop();
        heal(&mut harness, "a restart");
        let disk = SimDisk::new(SimOptions::instant(100));
        harness = harness.replace(disk_of(node, shard) as u32 + 1, disk).unwrap();
        heal(&mut harness, &format!("{node}.{shard} was replaced"));
        assert_eq!(harness.assert_three_equal_copies(), 60, "{node}.{shard}");
        harness = harness.stop();
        heal(&mut harness, "a restart");
        let refused = harness.replace(disk_of(node, shard) as u32 + 1, past).map(|_| ()).unwrap_err();
        let expected = MemberId::new(NodeId(node), ShardId(shard));
        assert!(matches!(refused, NodeError::Restored { id, .. } if id == expected), "{refused}");
    }
}

/// Each would pass for a copy of its new chains.
#[test]
fn stores_that_changed_places_are_refused() {
    let disks: Vec<usize> = all_shards().map(|(node, shard)| disk_of(node, shard)).collect();
    for (one, other) in disks.iter().flat_map(|one| disks[one + 1..].iter().map(move |other| (*one, *other))) {
        let mut harness = ClusterHarness::with_shards(SHARDS);
        assert_eq!(write_all(&mut harness, 12, 500, "before"), 12);
        harness.disks.swap(one, other);
        let moved = harness.disks[one].clone();
        let refused = harness.replace(one as u32 + 1, moved).map(|_| ()).unwrap_err();
        assert!(matches!(refused, NodeError::OtherMember { .. }), "{one} and {other}: {refused}");
        assert!(refused.to_string().contains("put the directories back"), "{refused}");
    }
}

/// A range with members on two running nodes continues although the disk of another shard of one of them failed before:
/// each of these nodes has a store for the map.
#[test]
fn a_node_dies_after_a_disk_of_another_one_failed() {
    let server = ClusterHarness::with_shards(SHARDS).host.server().id().node();
    let others: Vec<u32> = (1..=MEMBERS).filter(|node| NodeId(*node) != server).collect();
    for (node, shard) in all_shards().filter(|(node, _)| others.contains(node)) {
        let victim = others.iter().copied().find(|other| *other != node).unwrap();
        let mut harness = ClusterHarness::with_shards(SHARDS);
        assert_eq!(write_all(&mut harness, 60, 500, "before"), 60);
        harness.disks[disk_of(node, shard)].fail_nth(OpKind::Write, 1, DeviceFault::Fail);
        write_all(&mut harness, 60, 2_000, "failing");
        assert_eq!(write_all(&mut harness, 60, 500, "during"), 60, "{node}.{shard}");
        harness.kill(victim, 7);
        write_all(&mut harness, 60, 10_000, "dying");
        let acked = write_all(&mut harness, 60, 1_000, "after");
        assert!(
            (1..60).contains(&acked),
            "{node}.{shard}: {acked} of 60 writes, some in ranges with two members that run"
        );
    }
}

/// Logs whose buffers are full reject records for a moment. Their predecessors send few of them twice.
#[test]
fn a_burst_that_exceeds_all_buffers_is_sent_about_once() {
    const VALUES: usize = 400;
    const VALUE_BYTES: usize = 50_000;
    let mut harness = ClusterHarness::with_shards(SHARDS);
    let ids: Vec<_> = (0..VALUES).map(|_| harness.connect(Protocol::Resp)).collect();
    for (key, id) in ids.iter().enumerate() {
        harness.send(*id, &resp(&format!("SET k{key} {}", "x".repeat(VALUE_BYTES))));
    }
    harness.run(1_000);
    assert!(ids.iter().all(|id| harness.clients[id].received == b"+OK\r\n"), "{:#?}", harness.host.status());
    let rejected: u64 = harness.statuses().map(|status| status.counters.frames_cut).sum();
    assert!(rejected > 0, "the buffers were never full");
    let (sent_bytes, once_bytes) = (records_sent_bytes(&harness), (2 * VALUES * VALUE_BYTES) as u64);
    assert!(sent_bytes < once_bytes * 3 / 2, "{sent_bytes} bytes over links, {once_bytes} of values");
}
