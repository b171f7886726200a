//! Iterations of a group of shards: the frames that one exchanges, those that no shard takes, and what it reports.
use super::harness::{ClusterHarness, MEMBERS};
use crate::harness::resp;
use fawn_ds::internals::Engine;
use fawn_node::cluster::NodeOutput;
use fawn_node::{ClientService, Shard};
use fawn_types::{Durability, NodeId};
use fawn_wire::Protocol;

/// The write passes the whole chain before the engines submit, so the syncs of its members overlap.
#[test]
fn all_members_append_a_write_in_one_iteration() {
    let mut harness = ClusterHarness::new(true);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k v"), "+OK");
    harness.send(id, &resp("SET k w"));
    harness.run_once();
    let in_flight: Vec<usize> = harness.host.engines().map(Engine::in_flight).collect();
    assert!(in_flight.iter().all(|in_flight| *in_flight > 0), "{in_flight:?} operations on {MEMBERS} disks");
}

#[test]
fn frames_that_no_host_takes_are_lost_with_the_next_iteration() {
    let mut harness = ClusterHarness::new(true);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k v"), "+OK");
    let server = harness.host.server().id().node();
    let victim = (1..=MEMBERS).find(|name| NodeId(*name) != server).unwrap();
    harness.kill(victim, 7);
    let mut left = 0;
    for _ in 0..1_000 {
        harness.run_once();
        left = left.max(std::iter::from_fn(|| harness.host.poll_node_output()).count());
    }
    assert!(left > 0, "the others send to the killed member");
    harness.run(1_000);
    let kept = std::iter::from_fn(|| harness.host.poll_node_output()).count();
    assert!(kept <= left, "{kept} outputs after many iterations, {left} after one");
}

/// A chain takes no writes from the first iteration on that finds it so, however long that lasts.
#[test]
fn the_time_without_writes_grows() {
    let mut harness = ClusterHarness::new(true);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k v"), "+OK");
    for victim in 1..=MEMBERS {
        harness.fail(victim);
        assert!(harness.redis(id, "SET k w").starts_with(['+', '-']));
        harness.run(300);
    }
    let since = |harness: &ClusterHarness| harness.host.status().cluster.expect("a cluster").unavailable_since;
    let first = since(&harness);
    assert!(first.is_some_and(|since| since <= harness.now.mono), "{first:?}");
    harness.run(3_000);
    assert_eq!(since(&harness), first);
}

/// An iteration that ends with its last round may leave frames. They do not reach the next process of their receiver.
#[test]
fn frames_to_a_removed_shard_end_with_it() {
    let server = ClusterHarness::new(true).host.server().id().node();
    for victim in (1..=MEMBERS).filter(|name| NodeId(*name) != server) {
        let mut harness = ClusterHarness::with(true, Durability::Memory, 8 << 20);
        let id = harness.connect(Protocol::Resp);
        assert_eq!(harness.redis(id, "SET n 0"), "+OK");
        harness.send(id, &resp("INCR n").repeat(500));
        harness.run_once();
        harness.kill(victim, 7);
        let ids: Vec<_> = harness.host.shards().map(Shard::id).collect();
        for id in ids {
            let shard = harness.host.shard_mut(id).unwrap();
            while let Some(output) = shard.poll_node_output() {
                let is_for_victim = matches!(output, NodeOutput::Send { to, .. } if to.node() == NodeId(victim));
                assert!(!is_for_victim, "{id:?} has frames for the process that ended");
            }
        }
    }
}
