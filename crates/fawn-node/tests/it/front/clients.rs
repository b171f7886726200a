//! Clients of a cluster: the same transcripts as on one store, order within a connection, keyspace requests.
use super::harness::ClusterHarness;
use crate::harness::resp;
use crate::shards::alone::{ROOM_BYTES, clients_hear_their_own};
use crate::transcripts::{MEMCACHED_STORAGE, REDIS_CONNECTION, REDIS_EXPIRY, REDIS_STRINGS, play};
use fawn_node::{ClientService, LocalOptions, ShardOptions};
use fawn_types::Durability;
use fawn_types::random::SplitMix64;
use fawn_wire::Protocol;

#[test]
fn redis_hears_what_one_store_tells() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let mut harness = ClusterHarness::with(true, durability, 8 << 20);
        let id = harness.connect(Protocol::Resp);
        play(REDIS_STRINGS, |line| harness.redis(id, line));
        play(REDIS_EXPIRY, |line| harness.redis(id, line));
        play(REDIS_CONNECTION, |line| harness.redis(id, line).replace("everysec", "yes"));
        assert!(harness.redis(id, "INFO").contains("redis_version:7"));
        assert_eq!(harness.redis(id, "QUIT"), "+OK");
        assert!(harness.clients[&id].closed);
    }
}

#[test]
fn memcached_hears_what_one_store_tells() {
    for is_one_range in [true, false] {
        let mut harness = ClusterHarness::new(is_one_range);
        let id = harness.connect(Protocol::Memcached);
        play(MEMCACHED_STORAGE, |line| harness.memcached(id, line));
        harness.memcached(id, "set k 0 0 1|a");
        let cas = harness.memcached(id, "gets k").split('|').next().unwrap().rsplit(' ').next().unwrap().to_owned();
        assert_eq!(harness.memcached(id, &format!("cas k 0 0 1 {cas}|b")), "STORED");
        assert_eq!(harness.memcached(id, &format!("cas k 0 0 1 {cas}|c")), "EXISTS");
        let pipeline = "set a 0 0 1 noreply|1|incr a 1 noreply|add a 0 0 1 noreply|9|get a|delete a noreply|get a";
        assert_eq!(harness.memcached(id, pipeline), "VALUE a 0 1|2|END|END");
        let stats = harness.memcached(id, "stats");
        assert!(stats.contains("STAT cmd_get ") && stats.ends_with("|END"), "{stats}");
    }
}

#[test]
fn both_protocols_see_the_same_keys_and_three_copies_agree() {
    let mut harness = ClusterHarness::new(false);
    let (redis, memcached) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Memcached));
    assert_eq!(harness.redis(redis, "SET k 41"), "+OK");
    assert_eq!(harness.memcached(memcached, "incr k 1"), "42");
    assert_eq!(harness.redis(redis, "INCR k"), ":43");
    assert_eq!(harness.memcached(memcached, "get k"), "VALUE k 0 2|43|END");
    assert_eq!(harness.assert_three_equal_copies(), 1);
    assert_eq!(harness.memcached(memcached, "delete k"), "DELETED");
    assert_eq!(harness.redis(redis, "EXISTS k"), ":0");
    assert_eq!(harness.assert_three_equal_copies(), 0);
}

/// The node that serves the clients is the tail: a read of a value in memory needs no frame. A long list neither.
#[test]
fn reads_at_the_tail_are_calls() {
    let mut harness = ClusterHarness::new(true);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k 1"), "+OK");
    let forwarded = harness.host.status().counters.forwarded;
    assert_eq!(harness.redis(id, "GET k"), "$1|1");
    assert_eq!(harness.redis(id, "GET none"), "$-1");
    assert_eq!(harness.redis(id, "MGET k none k"), "*3|$1|1|$-1|$1|1");
    let status = harness.host.status().counters;
    assert_eq!((status.forwarded, status.gets, status.hits), (forwarded, 5, 3));
    assert_eq!(harness.redis(id, "SET k 2"), "+OK");
    assert_eq!(harness.redis(id, "GET k"), "$1|2");
    assert_eq!(harness.host.status().counters.forwarded, forwarded + 1);
}

/// The result of an update is stored in the record for retries. It may be as long as a value.
#[test]
fn updates_that_give_the_former_value_back_give_long_ones_back() {
    let mut harness = ClusterHarness::with_values(2 << 20, false, Durability::Sync, 64 << 20);
    let (redis, memcached) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Memcached));
    let [one, two] = ["1", "2"].map(|digit| digit.repeat(1 << 20));
    assert_eq!(harness.redis(redis, &format!("SET k {one}")), "+OK");
    for round in 0..20 {
        let (held, next) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        assert!(harness.redis(redis, &format!("GETSET k {next}")).ends_with(held.as_str()), "round {round}");
    }
    assert!(harness.redis(redis, "GETEX k EX 1000").ends_with(one.as_str()));
    assert!(harness.memcached(memcached, "gat 1000 k").contains(one.as_str()));
    assert_eq!(harness.assert_three_equal_copies(), 1);
    assert!(harness.redis(redis, "GETDEL k").ends_with(one.as_str()));
    assert_eq!(harness.redis(redis, "EXISTS k"), ":0");
    assert_eq!(harness.assert_three_equal_copies(), 0);
}

#[test]
fn a_connection_sees_its_operations_in_order() {
    let mut harness = ClusterHarness::new(false);
    let id = harness.connect(Protocol::Resp);
    let (mut pipeline, mut expected) = (Vec::new(), Vec::new());
    for i in 0..300 {
        let key = i % 7;
        for (line, reply) in [
            (format!("SET k{key} {i}"), "+OK".to_owned()),
            (format!("GET k{key}"), format!("${}|{i}", i.to_string().len())),
            (format!("GET k{key}"), format!("${}|{i}", i.to_string().len())),
            (format!("INCR k{key}"), format!(":{}", i + 1)),
            (format!("MGET k{key} k{key}"), {
                let (len, value) = ((i + 1).to_string().len(), i + 1);
                format!("*2|${len}|{value}|${len}|{value}")
            }),
        ] {
            pipeline.extend_from_slice(&resp(&line));
            expected.push(reply);
        }
    }
    assert_eq!(harness.ask(id, &pipeline), expected.join("|"));
}

#[test]
fn a_pipeline_beyond_all_windows_is_answered_in_order() {
    let mut harness = ClusterHarness::new(true);
    let id = harness.connect(Protocol::Resp);
    let mut pipeline = Vec::new();
    (0..6000).for_each(|i| pipeline.extend_from_slice(&resp(&format!("SET key:{i} {i}"))));
    assert_eq!(harness.ask(id, &pipeline), ["+OK"; 6000].join("|"));
    let keys: Vec<String> = (0..6000).map(|i| format!("key:{i}")).collect();
    let reply = harness.redis(id, &format!("MGET {}", keys.join(" ")));
    let values: Vec<&str> = reply.split('|').skip(1).collect();
    assert!(values.chunks(2).enumerate().all(|(i, pair)| pair[1] == i.to_string()));
    assert_eq!(harness.redis(id, &format!("DEL {}", keys.join(" "))), ":6000");
}

#[test]
fn keyspace_requests_span_ranges_and_are_barriers() {
    for is_one_range in [true, false] {
        let mut harness = ClusterHarness::new(is_one_range);
        let id = harness.connect(Protocol::Resp);
        let mut pipeline = Vec::new();
        (0..500).for_each(|i| pipeline.extend_from_slice(&resp(&format!("SET key:{i} v"))));
        pipeline.extend_from_slice(&resp("DBSIZE"));
        assert!(harness.ask(id, &pipeline).ends_with("|:500"), "earlier writes of the pipeline are counted");
        for count in [10, 1000] {
            let (mut cursor, mut met) = ("0".to_owned(), Vec::new());
            loop {
                let reply = harness.redis(id, &format!("SCAN {cursor} MATCH key:* COUNT {count}"));
                let mut words = reply.split('|').skip(2);
                cursor = words.next().unwrap().to_owned();
                met.extend(words.filter(|word| word.starts_with("key:")).map(str::to_owned));
                if cursor == "0" {
                    break;
                }
            }
            assert_eq!(met.len(), 500, "each key is returned once while nothing changes");
            met.sort_unstable();
            met.dedup();
            assert_eq!(met.len(), 500);
        }
        assert_eq!(harness.redis(id, "SCAN 0 TYPE list COUNT 10000"), "*2|$1|0|*0");
        let pipeline = [resp("SET a 1"), resp("FLUSHALL"), resp("GET a"), resp("SET b 2"), resp("DBSIZE")].concat();
        assert_eq!(harness.ask(id, &pipeline), "+OK|+OK|$-1|+OK|:1");
        assert_eq!(harness.assert_three_equal_copies(), 1);
    }
}

#[test]
fn delayed_flush_voids_what_is_there_then() {
    crate::transcripts::delayed_flush(&mut ClusterHarness::new(false));
}

#[test]
fn batches_are_atomic_within_a_chain_and_refused_across() {
    let mut harness = ClusterHarness::new(false);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "MSET {t}a 1 {t}b 2 {t}a 3"), "+OK");
    assert_eq!(harness.redis(id, "MGET {t}a {t}b"), "*2|$1|3|$1|2");
    let across: Vec<String> = (0..20).map(|i| format!("k{i} v")).collect();
    let reply = harness.redis(id, &format!("MSET {}", across.join(" ")));
    assert!(reply.starts_with("-CROSSSLOT "), "{reply}");
    let long = "x".repeat(190 << 10);
    let reply = harness.redis(id, &format!("MSET {{t}}c {long} {{t}}d {long} {{t}}e {long}"));
    assert!(
        reply.starts_with("-ERR records of one command longer than "),
        "a record longer than half a segment: {reply}"
    );
    assert_eq!(harness.redis(id, "DBSIZE"), ":2", "neither request had an effect");
    assert_eq!(harness.assert_three_equal_copies(), 2);
}

/// A batch longer than a link's frame is still forwarded as a whole.
#[test]
fn long_batches_go_down_the_chain_as_a_whole() {
    let mut harness = ClusterHarness::new(true);
    let id = harness.connect(Protocol::Resp);
    let pairs: Vec<String> = (0..40).map(|i| format!("k{i} {}", "x".repeat(10_000 + i))).collect();
    assert_eq!(harness.redis(id, &format!("MSET {}", pairs.join(" "))), "+OK");
    assert_eq!(harness.redis(id, "STRLEN k39"), ":10039");
    assert_eq!(harness.assert_three_equal_copies(), 40);
}

#[test]
fn a_get_costs_at_most_one_device_read() {
    let mut harness = ClusterHarness::with(true, Durability::Sync, 1 << 20);
    let id = harness.connect(Protocol::Resp);
    for i in 0..3000 {
        harness.send(id, &resp(&format!("SET cold:{i} {}", format!("{i:04}").repeat(250))));
        if i % 100 == 99 {
            harness.settle();
        }
    }
    harness.run(300);
    let before = harness.reads();
    for i in (0..3000).step_by(10) {
        let reply = harness.redis(id, &format!("GET cold:{i}"));
        assert!(reply.ends_with(&format!("{i:04}").repeat(250)), "{i}");
    }
    let cost = harness.reads() - before;
    assert!((100..=301).contains(&cost), "{cost} device reads for 300 gets of cold keys");
}

/// Each client receives the replies that a store of its own would send, whatever the windows and budgets of the cluster
/// make wait.
#[test]
fn clients_of_a_narrow_cluster_hear_what_a_store_of_their_own_would_tell() {
    for seed in 0..20 {
        println!("seed {seed}");
        let shard = ShardOptions {
            replies_bytes_max: ROOM_BYTES,
            value_bytes_max: 200 << 10,
            pending_max: if seed % 2 == 0 { 24 } else { 10_000 },
            ..ShardOptions::default()
        };
        let (is_one_range, shards) = (seed % 3 == 0, if seed % 3 == 1 { 2 } else { 1 });
        let mut options = LocalOptions { shard, is_one_range, shards, ..LocalOptions::default() };
        options.limits.router.window_ops_max = 2 + seed;
        let mut harness = ClusterHarness::with_options(options, seed + 1);
        clients_hear_their_own(&mut harness, &mut SplitMix64::new(seed));
        let status = harness.host.status();
        let replies = status.replies;
        assert_eq!((replies.held_bytes, replies.reserved_bytes, replies.waiting), (0, 0, 0), "seed {seed}");
        assert_eq!(status.pending, 0, "seed {seed}");
    }
}

fn sets(key: impl Fn(usize) -> String, value: &str, count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| resp(&format!("SET {} {value}", key(i)))).collect()
}

/// A range that takes no more requests stalls the sessions that ask for it, so its requests do not pile up.
#[test]
fn a_full_window_stalls_its_range_only() {
    let mut harness = ClusterHarness::with_window(4);
    let (id, other) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    harness.send(id, &sets(|i| format!("{{a}}{i}"), "v", 500));
    let pending = harness.host.status().pending;
    assert!(pending <= 5, "{pending} requests");
    harness.send(other, &sets(|i| format!("{i}"), "v", 1));
    harness.settle();
    assert_eq!(harness.clients[&id].received.len(), 500 * "+OK\r\n".len());
    assert_eq!(harness.clients[&other].received, b"+OK\r\n");
}

/// The requests of all sessions together are bounded by their number and by their bytes.
#[test]
fn requests_at_a_cluster_are_bounded() {
    for (is_long, pending_max, requests_bytes_max) in [(false, 30, 64 << 20), (true, 10_000, 1 << 20)] {
        let shard =
            ShardOptions { value_bytes_max: 200 << 10, pending_max, requests_bytes_max, ..ShardOptions::default() };
        let mut harness = ClusterHarness::with_options(LocalOptions { shard, ..LocalOptions::default() }, 1);
        let value = "v".repeat(if is_long { 100 << 10 } else { 1 });
        let ids: Vec<_> = (0..5).map(|_| harness.connect(Protocol::Resp)).collect();
        for id in &ids {
            harness.send(*id, &sets(|i| format!("k{i}"), &value, 40));
        }
        let pending = harness.host.status().pending;
        let most = if is_long { requests_bytes_max / value.len() + 1 } else { pending_max };
        assert!((most / 2..=most).contains(&pending), "{pending} requests");
        harness.settle();
        assert!(ids.iter().all(|id| harness.clients[id].received.len() == 40 * "+OK\r\n".len()));
    }
}

/// A part for a range whose window is full waits for its space, like any other operation.
#[test]
fn a_keyspace_request_that_finds_a_full_window_waits() {
    let mut harness = ClusterHarness::with_window(4);
    let (filling, id) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    harness.send(filling, &sets(|i| format!("{{a}}{i}"), "v", 100));
    harness.send(id, &resp("FLUSHALL"));
    harness.settle();
    assert_eq!(harness.clients[&id].received, b"+OK\r\n");
    assert_eq!(harness.clients[&filling].received, b"+OK\r\n".repeat(100));
    assert_eq!(harness.redis(filling, "EXISTS {a}0").rsplit('|').next(), Some(":0"), "it was in the window before");
}

#[test]
fn a_cluster_counts_its_open_sessions() {
    let mut harness = ClusterHarness::new(true);
    let ids: Vec<_> = (0..3).map(|_| harness.connect(Protocol::Resp)).collect();
    assert_eq!(harness.host.status().sessions, 3);
    harness.host.close_session(ids[1]);
    assert_eq!(harness.host.status().sessions, 2);
}
