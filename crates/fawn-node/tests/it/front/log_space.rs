//! Records that a member's log rejects: when the member looks for space again, and what that costs.
use super::harness::{ClusterHarness, MEMBERS};
use crate::harness::resp;
use fawn_node::ClientService;
use fawn_types::{MonoMs, NodeId};
use fawn_wire::Protocol;

/// Longest time between two looks for space, ms.
const PAUSE_MS: u64 = 10;

/// Runs one iteration; returns when the next is due.
fn run_once(harness: &mut ClusterHarness) -> MonoMs {
    let due = harness.host.run_once(harness.now);
    while let Some(output) = harness.host.poll_output() {
        harness.handle(output);
    }
    due.unwrap()
}

#[test]
fn a_member_with_a_full_disk_looks_for_space_at_intervals() {
    let mut harness = ClusterHarness::new(true);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k v"), "+OK");
    let server = harness.host.server().id().node();
    let victim = (1..=MEMBERS).find(|name| NodeId(*name) != server).unwrap();
    harness.disks[victim as usize - 1].set_full(true);
    for key in 0..100 {
        let id = harness.connect(Protocol::Resp);
        harness.send(id, &resp(&format!("SET k{key} {}", "x".repeat(50_000))));
    }
    harness.run(2_000);
    let rejected: u64 = harness.statuses().map(|status| status.counters.frames_cut).sum();
    assert!(rejected > 0, "the log was never full");
    let (mut at_once, mut latest_ms) = (0, 0);
    for _ in 0..1_000 {
        let due = run_once(&mut harness);
        let wait_ms = due.ms_since(harness.now.mono);
        (at_once, latest_ms) = (at_once + u32::from(wait_ms == 0), latest_ms.max(wait_ms));
        harness.now = harness.now.plus_ms(wait_ms.max(1));
    }
    assert!(at_once < 100, "{at_once} of 1,000 iterations have the next one due at once");
    assert!((1..=PAUSE_MS).contains(&latest_ms), "{latest_ms} ms between two looks");
}
