//! Clients of several shards: the same replies as from one shard, except for batches across shards.
use super::{ShardsBed, harness};
use crate::harness::shard_options;
use crate::test_harness::{Restarts, resp};
use crate::transcripts::{self, play};
use fawn_flash::SimOptions;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_node::{ClientService, SessionId, ShardOptions};
use fawn_types::Durability;
use fawn_types::random::SplitMix64;
use fawn_wire::Protocol;
use std::collections::BTreeSet;

fn plain(count: u16, seed: u64) -> ShardsBed {
    harness(count, SimOptions::instant(seed), shard_options(Durability::Sync))
}

#[test]
fn transcripts_of_one_shard_hold_for_several() {
    // Only `MSET` of keys without a common tag differs.
    let strings = transcripts::REDIS_STRINGS.replace("> MSET a 1 b 2 a 3\n", "> SET b 2\n+OK\n> MSET a 1 a 3\n");
    for count in [2, 3, 5] {
        for seed in 0..8 {
            println!("{count} shards, seed {seed}");
            for script in [&strings, transcripts::REDIS_CONNECTION, transcripts::REDIS_EXPIRY] {
                let mut harness = plain(count, seed);
                let id = harness.connect(Protocol::Resp);
                play(script, |line| harness.redis(id, line));
            }
            let mut harness = plain(count, seed);
            let id = harness.connect(Protocol::Memcached);
            play(transcripts::MEMCACHED_STORAGE, |line| harness.memcached(id, line));
        }
    }
}

#[test]
fn delayed_flushes_empty_every_shard() {
    transcripts::delayed_flush(&mut plain(3, 1));
}

/// A node has one delayed flush, whichever shards the clients are connected to.
#[test]
fn a_later_delayed_flush_replaces_one_of_another_shard() {
    let mut harness = plain(3, 4);
    let ids: Vec<SessionId> = (0..3).map(|_| harness.connect(Protocol::Memcached)).collect();
    assert_eq!(harness.memcached(ids[0], "flush_all 10"), "OK");
    assert_eq!(harness.memcached(ids[1], "flush_all 100"), "OK");
    assert_eq!(harness.memcached(ids[2], "set k 0 0 1|v"), "STORED");
    harness.now = harness.now.plus_ms(20_000);
    harness.settle();
    assert_eq!(harness.memcached(ids[0], "get k"), "VALUE k 0 1|v|END", "the first one is void");
    harness.now = harness.now.plus_ms(100_000);
    harness.settle();
    assert_eq!(harness.memcached(ids[0], "get k"), "END");
}

fn forwarded(harness: &ShardsBed) -> u64 {
    harness.host.shards.iter().map(|shard| shard.status().counters.forwarded).sum()
}

/// A key of another shard than the session's.
fn remote_key(harness: &mut ShardsBed, id: SessionId) -> String {
    let is_remote = |key: &String| {
        let before = forwarded(harness);
        harness.redis(id, &format!("SET {key} v"));
        forwarded(harness) > before
    };
    (0..100).map(|number| format!("key:{number}")).find(is_remote).unwrap()
}

/// A pipeline of reads of one key of another shard costs two messages: the reads behind the first share a reply.
#[test]
fn reads_of_one_key_behind_each_other_share_a_reply() {
    let mut harness = plain(2, 3);
    let id = harness.connect(Protocol::Resp);
    let key = remote_key(&mut harness, id);
    let before = forwarded(&harness);
    assert_eq!(harness.ask(id, &resp(&format!("GET {key}")).repeat(40)), ["$1|v"; 40].join("|"));
    assert_eq!(forwarded(&harness) - before, 2);
    // Not with an update between them.
    let mixed = [resp(&format!("GET {key}")), resp(&format!("GET {key}")), resp(&format!("SET {key} w"))].concat();
    let requests = [mixed, resp(&format!("GET {key}")).repeat(2)].concat();
    assert_eq!(harness.ask(id, &requests), "$1|v|$1|v|+OK|$1|w|$1|w");
}

/// Reads that wait for an earlier one of a session that has ended are not sent: nobody would grant their values.
#[test]
fn queued_reads_end_with_their_session() {
    let mut harness = plain(2, 3);
    let id = harness.connect(Protocol::Resp);
    let key = remote_key(&mut harness, id);
    let before = forwarded(&harness);
    harness.send(id, &[resp(&format!("GET {key}")).repeat(20), resp(&format!("SET {key} last"))].concat());
    harness.host.close_session(id);
    harness.clients.remove(&id);
    harness.settle();
    assert_eq!(forwarded(&harness) - before, 2, "the first read and the update");
    harness.host.check_empty();
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, &format!("GET {key}")), "$4|last");
}

/// The parts of a scan's step follow each other: the first reply finds that nobody waits for the next ones.
#[test]
fn a_scan_ends_with_its_session() {
    let mut harness = plain(4, 3);
    let id = harness.connect(Protocol::Resp);
    let value = "v".repeat(4000);
    (0..100).for_each(|number| harness.send(id, &resp(&format!("SET key:{number} {value}"))));
    harness.settle();
    let mut harness = harness.reopen();
    let id = harness.connect(Protocol::Resp);
    let reads = |harness: &ShardsBed| harness.disks.iter().map(|disk| disk.counted(OpKind::Read)).collect::<Vec<_>>();
    let before = reads(&harness);
    harness.send(id, &resp("SCAN 0 COUNT 1000"));
    harness.host.close_session(id);
    harness.clients.remove(&id);
    harness.settle();
    let shards = reads(&harness).iter().zip(&before).filter(|(after, before)| after > before).count();
    assert_eq!(shards, 1, "shards that were scanned for no session");
    harness.host.check_empty();
}

/// No event of the store follows the expiry: a scan that waited for one would never be answered.
#[test]
fn a_scan_is_answered_although_keys_expire_between_its_reads() {
    let mut harness = plain(2, 5);
    let id = harness.connect(Protocol::Resp);
    let value = "v".repeat(4000);
    (0..60).for_each(|number| harness.send(id, &resp(&format!("SET key:{number} {value} PX 5000"))));
    harness.settle();
    let mut harness = harness.reopen();
    let id = harness.connect(Protocol::Resp);
    let reads = |harness: &ShardsBed| harness.disks.iter().map(|disk| disk.counted(OpKind::Read)).sum::<u64>();
    let before = reads(&harness);
    harness.send(id, &resp("SCAN 0 COUNT 1000"));
    while reads(&harness) < before + 5 {
        harness.run(1);
    }
    harness.now = harness.now.plus_ms(6000);
    harness.settle();
    let received = String::from_utf8_lossy(&harness.clients[&id].received).into_owned();
    assert!(received.starts_with("*2"), "{received:?}");
    harness.host.check_empty();
}

/// A store that fails ends the writes of other shards' clients with an error, not with silence; what it has is still
/// read.
#[test]
fn a_failed_write_at_another_shard_is_answered() {
    let mut harness = harness(2, SimOptions::instant(3), shard_options(Durability::Sync));
    let id = harness.connect(Protocol::Resp);
    let key = remote_key(&mut harness, id);
    let owner = 1 - id.serial() as usize % 2;
    harness.disks[owner].fail_nth(OpKind::Write, 1, DeviceFault::Fail);
    let requests = [format!("SET {key} w"), format!("GET {key}"), format!("APPEND {key} x"), "PING".to_owned()];
    harness.send(id, &requests.iter().flat_map(|line| resp(line)).collect::<Vec<u8>>());
    harness.run(20);
    let received = String::from_utf8_lossy(&harness.clients[&id].received).into_owned();
    let lines: Vec<&str> = received.lines().collect();
    assert_eq!(lines.len(), 4, "{received}");
    assert!(lines[..3].iter().all(|line| line.starts_with("-MISCONF device failed")), "{received}");
    assert!(lines[0].contains("may or may not have been applied"), "{received}");
    assert_eq!(lines[3], "+PONG");
    harness.clients.get_mut(&id).unwrap().received.clear();
    // Not `settle`: the failed writes never end.
    harness.send(id, &resp(&format!("GET {key}")));
    harness.run(20);
    assert_eq!(harness.clients[&id].received, b"$1\r\nv\r\n");
}

/// Long values of a list come from another shard in parts that are granted one by one.
#[test]
fn long_lists_of_another_shard_stay_within_the_budget() {
    const VALUE_BYTES: usize = 8_000;
    const KEYS: usize = 12;
    const REPLIES_BYTES: usize = 96 << 10;
    let options = ShardOptions { replies_bytes_max: REPLIES_BYTES, ..shard_options(Durability::Memory) };
    let mut harness = harness(2, SimOptions::instant(6), options);
    let ids: Vec<SessionId> = (0..4).map(|_| harness.connect(Protocol::Resp)).collect();
    for number in 0..KEYS {
        harness.redis(ids[0], &format!("SET key:{number} {}", "v".repeat(VALUE_BYTES)));
    }
    let keys: String = (0..KEYS).map(|number| format!(" key:{number}")).collect();
    harness.host.longest = 0;
    for id in &ids {
        harness.send(*id, &resp(&format!("MGET{keys}")));
    }
    harness.settle();
    let whole_bytes = KEYS * (VALUE_BYTES + "$8000\r\n\r\n".len()) + "*12\r\n".len();
    for id in &ids {
        assert_eq!(harness.clients[id].received.len(), whole_bytes);
    }
    // Of the two sessions of a shard, one waits for the other: together their values are twice as long.
    let longest = harness.host.longest;
    assert!(longest <= REPLIES_BYTES, "{longest} bytes in a message batch");
    harness.host.check_empty();
}

#[test]
fn batches_are_atomic_on_one_shard_and_refused_across() {
    for seed in 0..8 {
        let mut harness = plain(3, seed);
        for _ in 0..3 {
            let id = harness.connect(Protocol::Resp);
            for tag in ["a", "b", "c", "d"] {
                assert_eq!(harness.redis(id, &format!("MSET {{{tag}}}1 x {{{tag}}}2 y")), "+OK");
                assert_eq!(harness.redis(id, &format!("MGET {{{tag}}}1 {{{tag}}}2")), "*2|$1|x|$1|y");
            }
            let across: Vec<String> = (0..20).map(|number| format!("k{number} v")).collect();
            let refused = harness.redis(id, &format!("MSET {}", across.join(" ")));
            assert!(refused.starts_with("-CROSSSLOT"), "{refused}");
            assert_eq!(harness.redis(id, "GET k0"), "$-1");
        }
    }
}

fn scanned(harness: &mut ShardsBed, id: SessionId) -> BTreeSet<String> {
    let (mut cursor, mut found) = ("0".to_owned(), BTreeSet::new());
    loop {
        let reply = harness.redis(id, &format!("SCAN {cursor} COUNT 20 MATCH key:*"));
        let mut words = reply.split('|').filter(|word| !word.starts_with(['*', '$']));
        cursor = words.next().unwrap().to_owned();
        found.extend(words.map(str::to_owned));
        if cursor == "0" {
            return found;
        }
    }
}

#[test]
fn the_whole_keyspace_is_counted_scanned_and_emptied() {
    let mut harness = plain(4, 7);
    let (id, other) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    let value = "v".repeat(4000);
    for number in 0..300 {
        harness.send(id, &resp(&format!("SET key:{number} {value}")));
    }
    harness.settle();
    harness.clients.get_mut(&id).unwrap().received.clear();
    let keys: Vec<u64> = harness.host.shards.iter().map(|shard| shard.status().store.keys).collect();
    assert!(keys.iter().all(|keys| *keys > 40), "every shard has some keys: {keys:?}");
    assert_eq!(harness.redis(other, "DBSIZE"), ":300");
    assert_eq!(scanned(&mut harness, other).len(), 300, "SCAN returns every key");
    // After a restart a scan reads the keys from flash, also at other shards.
    let mut harness = harness.reopen();
    let (id, other) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    assert_eq!(scanned(&mut harness, other).len(), 300, "SCAN returns every cold key");
    assert_eq!(harness.redis(id, "FLUSHALL"), "+OK");
    assert_eq!(harness.redis(other, "DBSIZE"), ":0");
    assert_eq!(harness.redis(other, "SCAN 3"), "*2|$1|0|*0", "a cursor past the last shard");
}

#[test]
fn clients_have_names_of_their_own_and_counters_are_reset_everywhere() {
    let mut harness = plain(3, 2);
    let ids: Vec<SessionId> = (0..9).map(|_| harness.connect(Protocol::Resp)).collect();
    let names: BTreeSet<String> = ids.iter().map(|id| harness.redis(*id, "CLIENT ID")).collect();
    assert_eq!(names.len(), ids.len());
    for number in 0..30 {
        harness.redis(ids[0], &format!("SET key:{number} v"));
    }
    let served: u64 = harness.host.shards.iter().map(|shard| shard.status().counters.executed_for_peers).sum();
    let commands: u64 = harness.host.shards.iter().map(|shard| shard.status().counters.commands).sum();
    assert!(served > 5, "{served} requests were forwarded to another shard");
    assert_eq!(commands, 9 + 30, "each command is counted once, on its client's shard");
    let memcached = harness.connect(Protocol::Memcached);
    assert_eq!(harness.memcached(memcached, "stats reset"), "RESET");
    assert!(harness.host.shards.iter().all(|shard| shard.status().counters.executed_for_peers == 0));
}

#[test]
fn what_sessions_leave_behind_is_forgotten() {
    for seed in 0..40 {
        let mut rng = SplitMix64::new(seed);
        let sim = SimOptions { seed, latency_ticks: 0..=9, ..SimOptions::default() };
        // Half of the runs have clients that leave without their replies, which fill the budget.
        let replies_bytes_max = if seed % 2 == 0 { 64 << 20 } else { 24 << 10 };
        let options = ShardOptions { replies_bytes_max, ..shard_options(Durability::Sync) };
        let mut harness = harness(3, sim, options);
        harness.reads_replies = seed % 2 == 0;
        for _ in 0..30 {
            let id = harness.connect(Protocol::Resp);
            for _ in 0..rng.below(8) {
                let keys = if seed % 2 == 0 { 20 } else { 3 };
                let (a, b) = (rng.below(keys), rng.below(keys));
                let request = match rng.below(6) {
                    0 => format!("SET key:{a} {}", "v".repeat(5000)),
                    1 => format!("MGET key:{a} key:{b} key:{a}"),
                    2 => format!("DEL key:{a} key:{b}"),
                    3 => "DBSIZE".to_owned(),
                    4 => "SCAN 0 COUNT 100".to_owned(),
                    _ => format!("GET key:{a}"),
                };
                harness.send(id, &resp(&request));
            }
            harness.run(rng.below(4) as usize);
            harness.host.close_session(id);
            harness.clients.remove(&id);
        }
        harness.reads_replies = true;
        harness.settle();
        harness.host.check_empty();
        let id = harness.connect(Protocol::Resp);
        assert_eq!(harness.redis(id, "SET after all"), "+OK");
    }
}

/// Replies that do not fit in the budget are requested again, but a client never reads an older version afterwards.
#[test]
fn a_readers_answers_never_go_back() {
    let mut asked_again = 0;
    for seed in 0..60 {
        println!("seed {seed}");
        let mut rng = SplitMix64::new(seed);
        let options = ShardOptions { replies_bytes_max: 64 << 10, ..shard_options(Durability::Memory) };
        let mut harness = harness(2, SimOptions { seed, ..SimOptions::default() }, options);
        let writer = harness.connect(Protocol::Resp);
        let readers: Vec<SessionId> = (0..12).map(|_| harness.connect(Protocol::Resp)).collect();
        for version in 1..60 {
            // Short values first, so that many requests are in flight when the values become long.
            let padding = "x".repeat(if version < 20 { 10 } else { 9000 + rng.below(9000) as usize });
            harness.send(writer, &resp(&format!("SET k {version}:{padding}")));
            for _ in 0..rng.below(20) {
                harness.send(readers[rng.below(12) as usize], &resp("GET k"));
            }
            harness.reads_replies = rng.below(3) == 0;
            if harness.reads_replies {
                readers.iter().for_each(|id| harness.take(*id));
            }
            harness.run_once();
        }
        harness.reads_replies = true;
        readers.iter().for_each(|id| harness.take(*id));
        harness.settle();
        for reader in &readers {
            let text =
                String::from_utf8(std::mem::take(&mut harness.clients.get_mut(reader).unwrap().received)).unwrap();
            let versions = text.lines().filter_map(|line| line.split_once(':')?.0.parse::<u32>().ok());
            assert!(versions.is_sorted(), "a later read returned an older version");
        }
        asked_again += harness.host.shards.iter().map(|shard| shard.status().counters.rereads).sum::<u64>();
    }
    assert!(asked_again > 100, "only {asked_again} replies did not fit in the budget");
}

/// The number of requests to a stalled shard is bounded; further requests are sent once it replies.
#[test]
fn requests_away_are_bounded() {
    let options = ShardOptions { pending_max: 64, ..shard_options(Durability::Memory) };
    let mut harness = harness(2, SimOptions::instant(5), options);
    let ids: Vec<SessionId> = (0..20).map(|_| harness.connect(Protocol::Resp)).collect();
    // Teaches the sessions that replies are short; before that, each waits for budget.
    for _ in 0..40 {
        ids.iter().for_each(|id| assert_eq!(harness.redis(*id, "GET k"), "$-1"));
    }
    for id in &ids {
        harness.send(*id, &resp("GET k").repeat(50));
    }
    // Half of the sessions send requests to the other shard.
    let pending: Vec<usize> = harness.host.shards.iter().map(|shard| shard.status().pending).collect();
    assert!(pending.contains(&64), "{pending:?}");
    harness.settle();
    assert!(ids.iter().all(|id| harness.clients[id].received == b"$-1\r\n".repeat(50)));
    harness.host.check_empty();
}

/// The bytes of requests to a stalled shard are bounded, too.
#[test]
fn bytes_of_requests_away_are_bounded() {
    const VALUE_BYTES: usize = 20_000;
    let options = ShardOptions { requests_bytes_max: 3 * VALUE_BYTES, ..shard_options(Durability::Memory) };
    let mut harness = harness(2, SimOptions::instant(5), options);
    let id = harness.connect(Protocol::Resp);
    let key = remote_key(&mut harness, id);
    harness.send(id, &resp(&format!("SET {key} {}", "v".repeat(VALUE_BYTES))).repeat(20));
    let pending: usize = harness.host.shards.iter().map(|shard| shard.status().pending).sum();
    // The last one may exceed the limit.
    assert_eq!(pending, 3, "{pending} requests");
    harness.settle();
    assert_eq!(harness.clients[&id].received, b"+OK\r\n".repeat(20));
    harness.host.check_empty();
}

/// A stalled shard costs the others what it has granted for its replies, and eventually receives everything.
#[test]
fn a_slow_shard_costs_the_others_little() {
    const VALUE_BYTES: usize = 20_000;
    const GETS: usize = 200;
    const REPLIES_BYTES: usize = 16 << 20;
    let options = ShardOptions {
        replies_bytes_max: REPLIES_BYTES,
        session_output_bytes_max: 1 << 20,
        pending_max: 512,
        ..shard_options(Durability::Memory)
    };
    let mut harness = harness(2, SimOptions::instant(3), options);
    let ids: Vec<SessionId> = (0..40).map(|_| harness.connect(Protocol::Resp)).collect();
    for number in 0..20 {
        harness.redis(ids[0], &format!("SET key:{number} {}", "v".repeat(VALUE_BYTES)));
        for id in &ids {
            assert!(harness.redis(*id, &format!("GET key:{number}")).len() > VALUE_BYTES);
        }
    }
    harness.host.longest = 0;
    for id in &ids {
        let requests: Vec<u8> = (0..GETS).flat_map(|get| resp(&format!("GET key:{}", get % 20))).collect();
        harness.send(*id, &requests);
    }
    // Pipelined requests, local and forwarded, start while their replies fit in half of the budget.
    for shard in &harness.host.shards {
        let replies = shard.status().replies;
        let bytes = replies.held_bytes + replies.reserved_bytes;
        assert!((REPLIES_BYTES / 8..=REPLIES_BYTES / 2).contains(&bytes), "{replies:?}");
    }
    // The first requests come back with the lengths of their values, and are sent again with grants of these.
    for turn in 0..8 {
        harness.host.turn_of(turn % 2, harness.now);
    }
    for _ in 0..200 {
        harness.host.turn_of(1, harness.now);
    }
    harness.settle();
    let longest = harness.host.longest;
    // The shard that asks has granted all of these bytes.
    assert!((256 << 10..=REPLIES_BYTES / 2).contains(&longest), "{longest} bytes in a message batch");
    for id in &ids {
        assert_eq!(harness.clients[id].received.len(), GETS * (VALUE_BYTES + "$20000\r\n\r\n".len()));
    }
    harness.host.check_empty();
}

/// A server runs a shard only after an event or when an iteration is due: that is enough for everything to be served.
#[test]
fn shards_that_run_only_when_they_must_serve_everything() {
    for seed in 0..20 {
        println!("seed {seed}");
        let durability = if seed % 2 == 0 { Durability::Sync } else { Durability::Memory };
        let options = ShardOptions {
            session_pending_max: 8 + seed as usize,
            session_output_bytes_max: 20_000,
            replies_bytes_max: 100_000,
            pending_max: 40,
            uncommitted_max: 6,
            ..shard_options(durability)
        };
        let sim = SimOptions { seed, latency_ticks: 0..=4, ..SimOptions::default() };
        let mut harness = harness(2 + (seed % 2) as u16, sim, options);
        let sessions = 1 + seed % 6;
        let ids: Vec<SessionId> = (0..sessions).map(|_| harness.connect(Protocol::Resp)).collect();
        let (mut rng, mut expected) = (SplitMix64::new(seed), Vec::new());
        for id in &ids {
            let mut lines = Vec::new();
            for i in 0..60 {
                // Long values come when the replies are known to be short.
                let (key, long) = (rng.below(30), i > 20 && rng.below(2) == 0);
                let value = if long { "v".repeat(5000) } else { "v".to_owned() };
                match rng.below(10) {
                    0 => lines.extend(["MGET a b c".to_owned(), format!("APPEND a{i} x")]),
                    1 => lines.extend(["DBSIZE".to_owned(), "SCAN 0".to_owned()]),
                    2..=5 => lines.push(format!("SET {key} {value}")),
                    _ => lines.push(format!("GET {key}")),
                }
            }
            lines.push(format!("ECHO end:{}", id.serial()));
            harness.send(*id, &lines.iter().flat_map(|line| resp(line)).collect::<Vec<u8>>());
            expected.push(format!("end:{}\r\n", id.serial()));
        }
        let is_served = |harness: &ShardsBed| {
            let ends = |(id, end): (&SessionId, &String)| harness.clients[id].received.ends_with(end.as_bytes());
            ids.iter().zip(&expected).all(ends)
        };
        harness.run_by_events(is_served);
        harness.settle();
        harness.host.check_empty();
    }
}
