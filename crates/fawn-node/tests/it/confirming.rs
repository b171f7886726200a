//! Deferred verifications at a shard without clients: the host is told when to continue.
use crate::harness::{Restarts, ShardHarness};
use fawn_node::ClientService;
use fawn_wire::Protocol;

/// Small records: most of their old versions are in a page that another verification has read, and need no read.
const KEYS: usize = 3000;

#[test]
fn an_idle_shard_confirms_what_its_opening_deferred() {
    let mut harness = ShardHarness::new();
    let client = harness.connect(Protocol::Resp);
    for value in 0..2 {
        for first in (0..KEYS).step_by(100) {
            let pairs: Vec<_> = (first..first + 100).map(|i| format!("key{i} {value}")).collect();
            assert_eq!(harness.redis(client, &format!("MSET {}", pairs.join(" "))), "+OK");
        }
    }
    let mut harness = harness.crash(1);
    let deferred =
        |harness: &ShardHarness| harness.host.engines().map(|engine| engine.verifications_deferred()).sum::<usize>();
    let first = deferred(&harness);
    assert!(first > KEYS / 2, "{first} of {KEYS} keys");
    let mut iterations = 0;
    while deferred(&harness) > 0 {
        let due = harness.host.run_once(harness.now);
        let is_in_flight = harness.host.engines().any(|engine| engine.in_flight() > 0);
        let left = deferred(&harness);
        assert!(left == 0 || due.is_some() || is_in_flight, "no event and no time continues with {left}");
        harness.now = harness.now.plus_ms(1);
        iterations += 1;
    }
    assert!(iterations < KEYS / 4, "{iterations} iterations for {first} keys");
    let client = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(client, "MGET key0 key1500 key2999"), "*3|$1|1|$1|1|$1|1");
}
