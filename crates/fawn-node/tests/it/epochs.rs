//! Epochs of a standalone shard: before one's sequence numbers are used up the next one begins, and no client notices.
use crate::harness::{Restarts, ShardHarness, shard_options};
use crate::shards;
use crate::test_harness::{TestHarness, resp, seeds};
use fawn_flash::SimOptions;
use fawn_node::{ClientService, SessionId, ShardOptions};
use fawn_types::{Durability, Epoch, Version};
use fawn_wire::Protocol;

const MODES: [Durability; 3] = [Durability::Sync, Durability::EverySecond, Durability::Memory];

fn short_epochs(durability: Durability, epoch_writes_max: u64) -> ShardOptions {
    ShardOptions { epoch_writes_max, ..shard_options(durability) }
}

/// Writes one after the other; returns their versions.
fn versions_of_writes<H: ClientService, S>(
    harness: &mut TestHarness<H, S>,
    id: SessionId,
    numbers: std::ops::Range<u32>,
) -> Vec<Version> {
    let mut versions = Vec::new();
    for number in numbers {
        let reply = harness.memcached(id, &format!("set k 0 0 5|{number:05}"));
        assert_eq!(reply, "STORED", "write {number}");
        let found = harness.memcached(id, "gets k");
        let version =
            found.strip_prefix("VALUE k 0 5 ").and_then(|rest| rest.strip_suffix(&format!("|{number:05}|END")));
        let version = version.and_then(|version| version.parse().ok());
        versions.push(Version::from_u64(version.unwrap_or_else(|| panic!("read {number}: {found}"))));
    }
    assert!(versions.is_sorted_by(|version, next| version < next), "versions rise: {versions:?}");
    versions
}

fn epochs_of(versions: &[Version]) -> Vec<Epoch> {
    let mut epochs: Vec<Epoch> = versions.iter().map(|version| version.epoch()).collect();
    epochs.dedup();
    epochs
}

#[test]
fn writes_continue_in_the_next_epoch_and_after_restarts() {
    for durability in MODES {
        let mut harness = ShardHarness::with(SimOptions::instant(1), short_epochs(durability, 48));
        let mut newest = Version::ZERO;
        for restart in 0..3 {
            let id = harness.connect(Protocol::Memcached);
            let versions = versions_of_writes(&mut harness, id, 0..300);
            assert!(epochs_of(&versions).len() >= 6, "{durability:?}: {:?}", epochs_of(&versions));
            assert!(versions[0] > newest, "{durability:?}: {:?} after {newest:?}", versions[0]);
            newest = versions[299];
            harness = if restart == 0 { harness.reopen() } else { harness.crash(restart) };
        }
        let id = harness.connect(Protocol::Memcached);
        // A crash loses nothing in `Sync`.
        let found = harness.memcached(id, "get k");
        assert!(durability != Durability::Sync || found == "VALUE k 0 5|00299|END", "{found}");
    }
}

/// One input holds more writes than an epoch has: those above its end wait until all below it are committed.
fn pipelines_are_answered_in_order<H: ClientService>(mut harness: TestHarness<H, ShardOptions>, seed: u64)
where
    TestHarness<H, ShardOptions>: Restarts,
{
    for round in 0..3 {
        let ids: Vec<SessionId> = (0..3).map(|_| harness.connect(Protocol::Resp)).collect();
        for (client, id) in ids.iter().enumerate() {
            let requests = |i: u64| {
                // One shard has all keys of a tag.
                let client = format!("{{{client}}}");
                let batch = format!("MSET {client}:{i} x {client}:{i}b y");
                [format!("INCR {client}"), format!("SET {client}:{i} {i}"), batch, format!("GET {client}:{i}")]
            };
            let input: Vec<u8> = (0..100).flat_map(requests).flat_map(|request| resp(&request)).collect();
            harness.send(*id, &input);
        }
        harness.run_out();
        for (client, id) in ids.iter().enumerate() {
            let before = round * 100;
            let replies = |i: u64| format!(":{}\r\n+OK\r\n+OK\r\n$1\r\nx\r\n", before + i + 1);
            let expected: String = (0..100).map(replies).collect();
            let received = String::from_utf8_lossy(&harness.clients[id].received).into_owned();
            assert_eq!(received, expected, "seed {seed}, client {client}");
        }
        harness.check_empty();
        harness = harness.reopen();
    }
}

#[test]
fn a_pipeline_over_several_epochs_is_answered_in_order() {
    for seed in seeds("a_pipeline_over_several_epochs", 0..30) {
        let sim = SimOptions { seed, latency_ticks: 0..=6, ..SimOptions::default() };
        let mut options = short_epochs(MODES[(seed % 3) as usize], 20 + seed % 40);
        if seed.is_multiple_of(2) {
            options.uncommitted_max = 7;
        }
        pipelines_are_answered_in_order(ShardHarness::with(sim.clone(), options), seed);
        // The shards run by events, so no other event may be needed.
        pipelines_are_answered_in_order(shards::harness(1 + (seed % 3) as u16, sim, options), seed);
    }
}
