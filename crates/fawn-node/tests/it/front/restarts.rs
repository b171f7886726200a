//! Starts of a whole cluster: interrupted first starts, and what the status reports until the chains serve.
use super::harness::{ClusterHarness, MEMBERS, open};
use crate::harness::resp;
use crate::test_harness::START;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_node::cluster::NodeError;
use fawn_node::{ClientService, LocalCluster, LocalOptions, ServerInfo};
use fawn_types::NodeId;
use fawn_wire::Protocol;

/// Everything whole serves again within this time, ms [replication.md § 2.5].
const BOUND_MS: usize = 60_000;

fn options(shards: u16) -> LocalOptions {
    let mut options = LocalOptions { shards, is_one_range: shards == 1, ..LocalOptions::default() };
    options.shard.value_bytes_max = 200 << 10;
    options
}

fn is_serving(harness: &ClusterHarness) -> bool {
    harness.host.status().cluster.unwrap().is_serving()
}

/// Runs until every chain serves; then every key is taken at once.
fn serve(harness: &mut ClusterHarness, what: &str) {
    let has_served = (0..BOUND_MS).any(|_| {
        harness.run_once();
        is_serving(harness)
    });
    assert!(has_served, "{what}: {:#?}", harness.host.status().cluster);
    let id = harness.connect(Protocol::Resp);
    for key in 0..12 {
        assert_eq!(harness.redis(id, &format!("SET k{key} v")), "+OK", "{what}");
    }
}

/// A power failure ends the first start after any of its milliseconds.
#[test]
fn a_first_start_may_end_at_any_time() {
    for shards in [1, 2] {
        for ms in 0..24 {
            let mut harness = ClusterHarness::with_options(options(shards), ms * 10 + 1);
            harness.run(ms as usize);
            let mut harness = harness.crash(ms);
            serve(&mut harness, &format!("{shards} shards, {ms} ms"));
            assert_eq!(harness.assert_three_equal_copies(), 12, "{shards} shards, {ms} ms");
        }
    }
}

/// Chains of the interrupted start would serve no keys in the new cluster.
#[test]
fn an_interrupted_first_start_is_not_continued_with_other_shards() {
    for (created, started) in [(2, 1), (1, 2)] {
        let refused = (0..40_u64).filter(|ms| {
            let mut harness = ClusterHarness::with_options(options(created), ms * 10 + 1);
            harness.run(*ms as usize);
            let ClusterHarness { disks, .. } = harness;
            disks.iter().for_each(|disk| disk.crash(*ms));
            let place = |node: u32, shard: u16| (node * u32::from(created) + u32::from(shard)) as usize;
            let ids = (0..MEMBERS).flat_map(|node| (0..started).map(move |shard| (node, shard)));
            let stores = ids.map(|(node, shard)| {
                let new = || SimDisk::new(SimOptions::instant(100 + u64::from(node)));
                let disk = if shard < created { disks[place(node, shard)].clone() } else { new() };
                open(&disk, &options(started), 8 << 20, START.plus_ms(1_000))
            });
            let started = LocalCluster::start(stores.collect(), options(started), ServerInfo::default(), START);
            let error = started.map(|_| ()).unwrap_err();
            assert!(matches!(error, NodeError::OtherRanges { .. } | NodeError::ShardCount { .. }), "{ms} ms: {error}");
            matches!(error, NodeError::OtherRanges { .. })
        });
        assert!(refused.count() > 0, "no start was interrupted before the first map");
    }
}

/// Stores are created one after the other, and then record their members one after the other.
#[test]
fn a_first_start_may_end_between_any_two_stores() {
    for shards in [1, 2] {
        let stores = usize::from(shards) * MEMBERS as usize;
        for (created, recorded) in (0..=stores).flat_map(|created| (0..=created).map(move |some| (created, some))) {
            let ClusterHarness { mut disks, options, .. } = ClusterHarness::with_options(options(shards), 1);
            for (at, disk) in disks.iter_mut().enumerate().skip(recorded) {
                *disk = SimDisk::new(SimOptions::instant(100 + at as u64));
                if at < created {
                    drop(open(disk, &options.options, 8 << 20, START));
                }
            }
            disks.iter().for_each(|disk| disk.crash(7));
            let mut harness = ClusterHarness::on(disks, options.options, 8 << 20, START.plus_ms(1_000));
            serve(&mut harness, &format!("{shards} shards, {created} stores, {recorded} recorded"));
            assert_eq!(harness.assert_three_equal_copies(), 12);
        }
    }
}

/// The map in the stores is of an active chain, whose members have stopped.
#[test]
fn a_cluster_that_restarts_serves_once_its_members_do() {
    let mut harness = ClusterHarness::new(true);
    serve(&mut harness, "the first start");
    let mut harness = harness.stop();
    assert!(!is_serving(&harness), "no member serves yet: {:#?}", harness.host.status().cluster);
    let server = harness.host.server().id().node();
    let others = (1..=MEMBERS).filter(|name| NodeId(*name) != server);
    let disks: Vec<SimDisk> = others.map(|name| harness.disks[name as usize - 1].clone()).collect();
    disks.iter().for_each(|disk| disk.fail_every(OpKind::Write, DeviceFault::Hang));
    let id = harness.connect(Protocol::Resp);
    harness.send(id, &resp("SET k0 w"));
    for _ in 0..40 {
        harness.run(100);
        assert!(!is_serving(&harness), "a majority cannot store the map: {:#?}", harness.host.status().cluster);
    }
    assert_eq!(harness.clients[&id].received, b"");
    for disk in disks {
        disk.end_faults(OpKind::Write);
        disk.release_hung();
    }
    serve(&mut harness, "disks that write again");
}
