//! Announced work: a host that runs iterations only when one is due, or for a device, leaves nothing behind.
use super::harness::{ClusterHarness, MEMBERS};
use crate::harness::resp;
use fawn_ds::internals::{Engine, Options};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::cluster::NodeError;
use fawn_node::{ClientService, LocalCluster};
use fawn_types::{Durability, HashSecret, MonoMs, Now};
use fawn_wire::Protocol;

/// Runs every iteration that is due now, or for a device; returns when the next one is.
fn run_due(harness: &mut ClusterHarness) -> Option<MonoMs> {
    for _ in 0..10_000 {
        let due = harness.host.run_once(harness.now);
        while let Some(output) = harness.host.poll_output() {
            harness.handle(output);
        }
        let in_flight: usize = harness.host.engines().map(Engine::in_flight).sum();
        if !harness.host.has_due_work() && in_flight == 0 && due.is_none_or(|due| due > harness.now.mono) {
            return due;
        }
    }
    panic!("an iteration is always due: {:#?}", harness.host.status());
}

/// Each update waits for the reply to the one before. Together they pass more rounds of frames than one iteration has.
#[test]
fn rounds_that_an_iteration_leaves_are_due_at_once() {
    let mut harness = ClusterHarness::with(true, Durability::Memory, 8 << 20);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET n 0"), "+OK");
    harness.send(id, &resp("INCR n").repeat(500));
    run_due(&mut harness);
    let received = std::mem::take(&mut harness.clients.get_mut(&id).unwrap().received);
    assert!(received.ends_with(b":500\r\n"), "{}", received.escape_ascii());
}

/// A new map continues its way in the iteration in which enough stores have it.
#[test]
fn a_cluster_starts_in_the_iterations_that_are_due() {
    let mut harness = ClusterHarness::new(true);
    let started = harness.now;
    while !harness.host.status().cluster.is_some_and(|cluster| cluster.is_serving()) {
        let due = run_due(&mut harness).expect("a cluster has timers");
        harness.now = harness.now.plus_ms(due.ms_since(harness.now.mono));
    }
    let took_ms = harness.now.mono.ms_since(started.mono);
    assert!(took_ms < 100, "it took {took_ms} ms on disks without latency");
}

#[test]
fn a_cluster_is_not_idle_while_a_store_writes() {
    let mut harness = ClusterHarness::with(true, Durability::Memory, 8 << 20);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k v"), "+OK");
    let server = harness.host.server().id().node().0;
    for name in (1..=MEMBERS).filter(|name| *name != server) {
        let disk = harness.disks[name as usize - 1].clone();
        disk.hang(OpKind::Write);
        harness.send(id, &resp("SET k w"));
        harness.run(1_500);
        assert!(disk.hung() > 0 && !harness.host.is_idle(), "{name}: {} writes", disk.hung());
        disk.release_hung();
        harness.settle();
    }
}

#[test]
fn a_store_of_another_cluster_is_refused() {
    let mut harness = ClusterHarness::new(true);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k v"), "+OK");
    let ClusterHarness { host, options, .. } = harness;
    let mut engines = host.into_engines();
    assert!(LocalCluster::check_stores(engines.iter(), &options.options).unwrap().is_some());
    let other = Options { secret: Some(HashSecret([1; 16])), ..Options::default() };
    let device = SimDevice::attach(&SimDisk::new(SimOptions::instant(9)));
    engines.push(Engine::open(device, other, Now::at(1)).unwrap().0);
    let refused = LocalCluster::check_stores(engines.iter(), &options.options).unwrap_err();
    assert!(matches!(refused, NodeError::SecretDiffers), "{refused}");
}
