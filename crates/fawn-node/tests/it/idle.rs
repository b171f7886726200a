//! A shard without clients, run only when it asks for it: it does all that is left to do, and then sleeps.
use crate::harness::{ShardHarness, shard_options};
use fawn_ds::internals::format::FRAMES_OFFSET;
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::format::segment::StreamKind;
use fawn_flash::SimOptions;
use fawn_node::ClientService;
use fawn_types::{Durability, MonoMs};
use fawn_wire::Protocol;

/// Runs the shard when it asks for it, or an operation is in flight, until neither is the case. Returns the iterations.
fn rest(harness: &mut ShardHarness) -> usize {
    for iterations in 1..1000 {
        let due = harness.host.run_once(harness.now);
        let is_in_flight = harness.host.engines().any(|engine| engine.in_flight() > 0);
        let at: MonoMs = match due {
            Some(at) => at,
            None if is_in_flight => harness.now.mono,
            None => return iterations,
        };
        harness.now = harness.now.plus_ms(at.ms_since(harness.now.mono));
    }
    panic!("the shard does not rest");
}

#[test]
fn an_idle_shard_records_the_end_of_its_log_and_sleeps() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let mut harness = ShardHarness::with(SimOptions::instant(1), shard_options(durability));
        let client = harness.connect(Protocol::Resp);
        assert_eq!(harness.redis(client, "SET k v"), "+OK");
        let iterations = rest(&mut harness);
        assert!(iterations < 100, "{durability:?}: {iterations} iterations");
        let manifest = harness.disks[0].contents("manifest").unwrap();
        let end = decode_all(&manifest).unwrap().state.ends_of_log[StreamKind::Foreground];
        assert!(durability == Durability::Memory || end.offset > FRAMES_OFFSET, "{durability:?}: {end:?}");
    }
}
