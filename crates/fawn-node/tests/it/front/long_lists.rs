//! Lists longer than a session's bound: at chains that take no requests, with other sessions behind them.
use super::harness::ClusterHarness;
use crate::harness::resp;
use crate::test_harness::seeds;
use fawn_node::{ClientService, LocalOptions, ShardOptions};
use fawn_types::Durability;
use fawn_types::random::SplitMix64;
use fawn_wire::Protocol;

fn names(count: usize) -> String {
    (0..count).map(|key| format!("k{key}")).collect::<Vec<_>>().join(" ")
}

fn options(shard: ShardOptions) -> LocalOptions {
    LocalOptions { shard: ShardOptions { value_bytes_max: 200 << 10, ..shard }, ..LocalOptions::default() }
}

/// A request on many keys of a range that takes no requests fails in the time that each of them may take, however many
/// begin later.
#[test]
fn items_that_begin_later_fail_with_the_first() {
    for list in ["DEL", "MGET", "EXISTS"] {
        let options = options(ShardOptions { session_pending_max: 4, ..ShardOptions::default() });
        let timeout_ms = options.limits.router.timeout_ms;
        let mut harness = ClusterHarness::at_dead_chains(options);
        let id = harness.connect(Protocol::Resp);
        harness.send(id, &resp(&format!("{list} {}", names(40))));
        let mut took_ms = 0;
        while harness.clients[&id].received.is_empty() {
            harness.run(100);
            took_ms += 100;
        }
        assert!(took_ms <= timeout_ms + 200, "{list} took {took_ms} ms of {timeout_ms}");
    }
}

/// A list at chains that take no requests keeps the input of no other session waiting beyond the time of one request.
#[test]
fn a_list_at_dead_chains_stalls_others_for_one_timeout() {
    let shard = ShardOptions { session_pending_max: 4, requests_bytes_max: 1_000, ..ShardOptions::default() };
    let options = options(shard);
    let timeout_ms = options.limits.router.timeout_ms;
    let mut harness = ClusterHarness::at_dead_chains(options);
    let (id, other) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    harness.send(id, &resp(&format!("DEL {}", names(40))));
    harness.send(other, &resp("DEL k1"));
    let mut took_ms = 0;
    while harness.clients[&other].received.is_empty() {
        harness.run(100);
        took_ms += 100;
    }
    assert!(took_ms <= 2 * timeout_ms + 200, "another session's DEL took {took_ms} ms of {timeout_ms}");
}

/// Frames of a shard to itself that are dropped are sent again.
#[test]
fn own_frames_beyond_the_bound_are_repeated() {
    for outbound_bytes_max in [200, 4_000] {
        let mut options = options(ShardOptions { session_pending_max: 64, ..ShardOptions::default() });
        options.is_one_range = outbound_bytes_max == 200;
        options.limits.outbound_bytes_max = outbound_bytes_max;
        let mut harness = ClusterHarness::with_options(options, 1);
        let ids: Vec<_> = (0..3).map(|_| harness.connect(Protocol::Resp)).collect();
        for (at, id) in ids.iter().enumerate() {
            let mut pipeline = Vec::new();
            for round in 0..50 {
                pipeline.extend(resp(&format!("INCR n{at}:{}", round % 7)));
                pipeline.extend(resp(&format!("SET big{at}:{round} {}", "v".repeat(2_000))));
                pipeline.extend(resp(&format!("GET big{at}:{round}")));
                pipeline.extend(resp(&format!("MGET big{at}:{round} n{at}:1 n{at}:2")));
            }
            harness.send(*id, &pipeline);
        }
        harness.settle();
        for id in &ids {
            let received = String::from_utf8_lossy(&harness.clients[id].received).into_owned();
            assert!(!received.lines().any(|line| line.starts_with('-')), "{outbound_bytes_max}: {received}");
            assert_eq!(received.matches("+OK").count(), 50);
        }
    }
}

/// Lists of several sessions under tiny bounds all end, in order, with nothing left behind.
#[test]
fn lists_under_tiny_bounds_end() {
    for seed in seeds("lists_under_tiny_bounds", 0..20) {
        let mut rng = SplitMix64::new(seed);
        let mut options = options(ShardOptions {
            session_pending_max: 1 + (seed % 4) as usize,
            pending_max: 4 + (seed % 9) as usize,
            requests_bytes_max: [100, 4 << 10, 100 << 10][(seed / 3 % 3) as usize],
            replies_bytes_max: [2 << 10, 24 << 10, 100 << 10][(seed % 3) as usize],
            reply_bytes_max: if seed % 5 == 0 { 5_000 } else { 64 << 20 },
            session_output_bytes_max: if seed % 2 == 0 { 3_000 } else { 1 << 20 },
            durability: if seed % 2 == 0 { Durability::Sync } else { Durability::Memory },
            ..ShardOptions::default()
        });
        options.is_one_range = seed % 2 == 0;
        options.shards = 1 + (seed % 2) as u16;
        options.limits.router.window_ops_max = 1 + seed % 5;
        let mut harness = ClusterHarness::with_options(options, seed + 1);
        harness.turn_ms = 1;
        for round in 0..6 {
            let protocol = |at| if at % 3 == 2 { Protocol::Memcached } else { Protocol::Resp };
            let ids: Vec<_> = (0..5).map(|at| harness.connect(protocol(at))).collect();
            for _ in 0..12 {
                for (at, id) in ids.iter().enumerate() {
                    let bytes = command(&mut rng, at % 3 == 2);
                    if harness.clients.contains_key(id) {
                        harness.send(*id, &bytes);
                    }
                    if round >= 3 && rng.below(40) == 0 {
                        harness.host.close_session(*id);
                        harness.clients.remove(id);
                    }
                }
                harness.reads_replies = rng.below(3) > 0;
                harness.run(rng.below(4) as usize);
            }
            harness.reads_replies = true;
            ids.iter().for_each(|id| harness.take(*id));
            harness.settle();
            let status = harness.host.status();
            let replies = status.replies;
            assert_eq!((replies.held_bytes, replies.reserved_bytes, replies.waiting, status.pending), (0, 0, 0, 0));
            for id in ids {
                harness.host.close_session(id);
                harness.clients.remove(&id);
            }
        }
    }
}

fn command(rng: &mut SplitMix64, is_memcached: bool) -> Vec<u8> {
    let keys: Vec<String> = (0..1 + rng.below(14)).map(|_| format!("k{}", rng.below(16))).collect();
    let (list, key) = (keys.join(" "), &keys[0]);
    let value = "v".repeat([1, 700, 3_000, 9_000][rng.below(4) as usize]);
    if is_memcached {
        return match rng.below(8) {
            0 | 1 => format!("get {list}\r\n"),
            2 | 3 => format!("gat 1000 {list}\r\n"),
            4 => format!("append {key} 0 0 3 noreply\r\nabc\r\n"),
            5 => format!("delete {key} noreply\r\n"),
            6 => format!("set {key} 0 0 {} noreply\r\n{value}\r\n", value.len()),
            _ => format!("get {key}\r\n"),
        }
        .into_bytes();
    }
    resp(&match rng.below(9) {
        0 | 1 => format!("MGET {list}"),
        2 => format!("DEL {list}"),
        3 => format!("EXISTS {list}"),
        4 => format!("GET {key}"),
        5 => format!("GETEX {key} EX 1000"),
        6 => format!("APPEND {key} {value}"),
        7 => "DBSIZE".to_owned(),
        _ => format!("SET {key} {value}"),
    })
}
