//! Limits between shards under clients that leave, clients that read slowly, and keys that are being loaded.
use super::{ShardsBed, harness};
use crate::harness::shard_options;
use crate::test_harness::{Restarts, resp};
use fawn_flash::SimOptions;
use fawn_node::{ClientService, SessionId, ShardOptions};
use fawn_types::Durability;
use fawn_wire::Protocol;

/// A session of the same shard as each other one that this function returns.
fn connect_at_one_shard(harness: &mut ShardsBed) -> SessionId {
    let id = harness.connect(Protocol::Resp);
    if id.serial().is_multiple_of(2) {
        return id;
    }
    harness.host.close_session(id);
    harness.clients.remove(&id);
    harness.connect(Protocol::Resp)
}

fn forwarded(harness: &ShardsBed) -> u64 {
    harness.host.shards.iter().map(|shard| shard.status().counters.forwarded).sum()
}

/// Keys of another shard than the session's.
fn remote_keys(harness: &mut ShardsBed, id: SessionId, count: usize) -> Vec<String> {
    let is_remote = |key: &String| {
        let before = forwarded(harness);
        harness.redis(id, &format!("GET {key}"));
        forwarded(harness) > before
    };
    (0..).map(|number| format!("key:{number}")).filter(is_remote).take(count).collect()
}

/// A key of the session's shard.
fn local_key(harness: &mut ShardsBed, id: SessionId) -> String {
    let is_local = |key: &String| {
        let before = forwarded(harness);
        harness.redis(id, &format!("GET {key}"));
        forwarded(harness) == before
    };
    (0..).map(|number| format!("key:{number}")).find(is_local).unwrap()
}

/// Grants of ended sessions count until the replies have arrived: their memory is at the other shard until then.
#[test]
fn grants_of_ended_sessions_count_until_their_replies_arrive() {
    const REPLIES_BYTES: usize = 256 << 10;
    let options = ShardOptions { replies_bytes_max: REPLIES_BYTES, ..shard_options(Durability::Memory) };
    let mut harness = harness(2, SimOptions::instant(4), options);
    let id = connect_at_one_shard(&mut harness);
    let keys = remote_keys(&mut harness, id, 200);
    let value = "v".repeat(500);
    keys.iter().for_each(|key| assert_eq!(harness.redis(id, &format!("SET {key} {value}")), "+OK"));
    let gets: Vec<u8> = keys.iter().flat_map(|key| resp(&format!("GET {key}"))).collect();
    harness.host.longest = 0;
    for _ in 0..20 {
        let id = connect_at_one_shard(&mut harness);
        harness.send(id, &gets);
        harness.host.close_session(id);
        harness.clients.remove(&id);
    }
    harness.settle();
    let longest = harness.host.longest;
    assert!(longest <= REPLIES_BYTES * 9 / 8, "{longest} bytes in a message batch");
    harness.host.check_empty();
}

/// An update of an ended session that comes back for a larger grant is executed, but its value is not sent.
#[test]
fn values_for_ended_sessions_are_not_sent() {
    const REPLIES_BYTES: usize = 256 << 10;
    let options = ShardOptions { replies_bytes_max: REPLIES_BYTES, ..shard_options(Durability::Memory) };
    for update in ["GETSET KEY w", "SET KEY w GET", "GETDEL KEY", "GETEX KEY EX 100"] {
        let mut harness = harness(2, SimOptions::instant(4), options);
        let id = connect_at_one_shard(&mut harness);
        let keys = remote_keys(&mut harness, id, 20);
        let value = "v".repeat(60_000);
        keys.iter().for_each(|key| assert_eq!(harness.redis(id, &format!("SET {key} {value}")), "+OK"));
        let updates: Vec<u8> = keys.iter().flat_map(|key| resp(&update.replace("KEY", key))).collect();
        let leaving = connect_at_one_shard(&mut harness);
        harness.send(leaving, &updates);
        harness.host.close_session(leaving);
        harness.clients.remove(&leaving);
        harness.host.longest = 0;
        harness.settle();
        let longest = harness.host.longest;
        assert!(longest <= REPLIES_BYTES * 9 / 8, "{update}: {longest} bytes in a message batch");
        harness.host.check_empty();
        for key in &keys {
            let found = match update.split(' ').next() {
                Some("GETDEL") => "$-1".to_owned(),
                Some("GETEX") => format!("$60000|{value}"),
                _ => "$1|w".to_owned(),
            };
            assert_eq!(harness.redis(id, &format!("GET {key}")), found, "{update}");
            let ttl = if update.starts_with("GETEX") { ":100" } else { ":-" };
            assert!(harness.redis(id, &format!("TTL {key}")).starts_with(ttl), "{update}");
        }
    }
}

/// Requests of one session that leave their queue make room for another session, whatever the first one's client does.
#[test]
fn a_slow_reader_does_not_hold_back_other_clients_updates() {
    let options = ShardOptions { pending_max: 4, replies_bytes_max: 20_000, ..shard_options(Durability::Memory) };
    let mut harness = harness(2, SimOptions::instant(4), options);
    let id = connect_at_one_shard(&mut harness);
    let remote = remote_keys(&mut harness, id, 1).remove(0);
    let before = forwarded(&harness);
    harness.redis(id, &format!("SET {remote} v"));
    assert_eq!(forwarded(&harness), before + 1);
    let is_local = |key: &String| {
        let before = forwarded(&harness);
        harness.redis(id, &format!("SET {key} {}", "v".repeat(9000)));
        forwarded(&harness) == before
    };
    let local = (0..100).map(|number| format!("key:{number}")).find(is_local).unwrap();
    let mut harness = harness.reopen();
    let (slow, other) = (connect_at_one_shard(&mut harness), connect_at_one_shard(&mut harness));
    assert_eq!(slow.serial() % 2, other.serial() % 2);
    harness.reads_replies = false;
    // The first one reads flash, the others wait behind it, then for their client.
    harness.send(slow, &resp(&format!("GET {local}")).repeat(5));
    harness.run(50);
    assert!(!harness.host.output(slow).is_empty());
    harness.send(other, &resp(&format!("SET {remote} w")));
    harness.run(50);
    assert!(!harness.clients[&other].input.is_empty(), "the limit is reached");
    // The slow client takes one reply: the next one takes its place.
    harness.reads_replies = true;
    harness.take(slow);
    harness.reads_replies = false;
    harness.run(50);
    assert!(!harness.host.output(slow).is_empty());
    assert_eq!(harness.host.output(other), b"+OK\r\n", "{:#?}", harness.host.status());
}

/// Queued reads that end with their session make room for another session, although nothing else happens.
#[test]
fn reads_of_an_ended_session_hold_back_no_other_client() {
    let options = ShardOptions { pending_max: 4, replies_bytes_max: 20_000, ..shard_options(Durability::Memory) };
    let mut bed = harness(2, SimOptions::instant(4), options);
    let id = connect_at_one_shard(&mut bed);
    let remote = remote_keys(&mut bed, id, 2);
    let local = local_key(&mut bed, id);
    for (key, bytes) in [(&local, 30_000), (&remote[0], 15_000), (&remote[1], 5)] {
        assert_eq!(bed.redis(id, &format!("SET {key} {}", "v".repeat(bytes))), "+OK");
    }
    let [slow, kept, leaving, other] = [(); 4].map(|()| connect_at_one_shard(&mut bed));
    bed.reads_replies = false;
    // The first client exceeds the reply limit. The first reads of the next two wait for it, the others behind them.
    bed.send(slow, &resp(&format!("GET {local}")));
    bed.send(kept, &resp(&format!("GET {}", remote[0])));
    bed.send(leaving, &resp(&format!("GET {}", remote[0])).repeat(3));
    bed.run(50);
    bed.send(other, &resp(&format!("GET {}", remote[1])));
    bed.run(50);
    assert!(!bed.clients[&other].input.is_empty(), "the limit is reached");
    bed.host.close_session(leaving);
    bed.clients.remove(&leaving);
    bed.run(50);
    assert_eq!(bed.host.output(other), b"$5\r\nvvvvv\r\n", "{:#?}", bed.host.status());
}

/// An item that came back is not read for a list that is too long already.
#[test]
fn values_beyond_the_longest_list_are_not_sent() {
    let options = ShardOptions { reply_bytes_max: 100_000, ..shard_options(Durability::Memory) };
    let mut bed = harness(2, SimOptions::instant(4), options);
    let id = connect_at_one_shard(&mut bed);
    let remote = remote_keys(&mut bed, id, 1).remove(0);
    let local = local_key(&mut bed, id);
    for key in [&local, &remote] {
        assert_eq!(bed.redis(id, &format!("SET {key} {}", "v".repeat(60_000))), "+OK");
    }
    let executed = |bed: &ShardsBed| -> u64 {
        bed.host.shards.iter().map(|shard| shard.status().counters.executed_for_peers).sum()
    };
    let before = executed(&bed);
    assert_eq!(bed.redis(id, &format!("MGET {remote}")).len(), "*1|$60000|".len() + 60_000);
    assert_eq!(executed(&bed), before + 2, "once more, for its length");
    let refused = bed.redis(id, &format!("MGET {local} {remote}"));
    assert_eq!(refused, "-ERR reply longer than 100000 bytes; ask for fewer keys at once");
    assert_eq!(executed(&bed), before + 3, "its length is enough");
    bed.host.check_empty();
}

/// An item that came back no longer has its first grant.
#[test]
fn a_list_reserves_the_lengths_of_its_values() {
    let mut bed = harness(2, SimOptions::instant(4), shard_options(Durability::Memory));
    let id = connect_at_one_shard(&mut bed);
    let keys = remote_keys(&mut bed, id, 2);
    for key in &keys {
        assert_eq!(bed.redis(id, &format!("SET {key} {}", "v".repeat(60_000))), "+OK");
    }
    bed.send(id, &resp(&format!("MGET {} {}", keys[0], keys[1])));
    let mut most = 0;
    while bed.clients[&id].received.is_empty() {
        bed.run_once();
        let reserved = bed.host.shards.iter().map(|shard| shard.status().replies.reserved_bytes);
        most = reserved.fold(most, usize::max);
    }
    assert!((120_000..121_000).contains(&most), "{most} bytes are reserved for two values of 60,000 bytes");
}

/// A batch runs when all of its keys are loaded, and the later updates of each key follow it.
#[test]
fn batches_of_another_shard_wait_for_each_of_their_keys() {
    for seed in 0..40 {
        println!("seed {seed}");
        let sim = SimOptions { seed, latency_ticks: 0..=9, ..SimOptions::default() };
        let mut bed = harness(2, sim, shard_options(Durability::Memory));
        let id = connect_at_one_shard(&mut bed);
        let tag = remote_keys(&mut bed, id, 1).remove(0);
        let [a, b] = ["a", "b"].map(|name| format!("{{{tag}}}{name}"));
        for key in [&a, &b] {
            assert_eq!(bed.redis(id, &format!("SET {key} {}", "v".repeat(9000))), "+OK");
        }
        let mut bed = bed.reopen();
        let id = connect_at_one_shard(&mut bed);
        let lines = [
            format!("APPEND {a} x"),
            format!("APPEND {b} y"),
            format!("MSET {a} 1 {b} 2"),
            format!("APPEND {a} 3"),
            format!("APPEND {b} 4"),
            format!("MSET {b} 5 {a} 6"),
            format!("MGET {a} {b}"),
            format!("SET {b} 8"),
            format!("SET {a} 7"),
            format!("MGET {a} {b}"),
        ];
        let requests: Vec<u8> = lines.iter().flat_map(|line| resp(line)).collect();
        let replies = bed.ask(id, &requests);
        assert_eq!(replies, ":9001|:9001|+OK|:2|:2|+OK|*2|$1|6|$1|5|+OK|+OK|*2|$1|7|$1|8");
        bed.host.check_empty();
    }
}

/// A list whose local values exceed the limit while its other values wait in the grant queue behind another session.
#[test]
fn the_list_that_exceeds_the_limit_does_not_wait_behind_others() {
    for turns in 0..40 {
        println!("{turns} turns");
        let options = ShardOptions { replies_bytes_max: 24 << 10, ..shard_options(Durability::Memory) };
        let sim = SimOptions { seed: 1, latency_ticks: 8..=8, ..SimOptions::default() };
        let mut bed = harness(2, sim, options);
        let id = connect_at_one_shard(&mut bed);
        let remote = remote_keys(&mut bed, id, 3);
        let is_local = |key: &String| {
            !remote.contains(key) && {
                let before = forwarded(&bed);
                bed.redis(id, &format!("GET {key}"));
                forwarded(&bed) == before
            }
        };
        let local: Vec<String> = (0..).map(|number| format!("key:{number}")).filter(is_local).take(3).collect();
        for (keys, bytes) in [(&remote[..], 14_000), (&local[1..2], 9_000), (&local[2..], 16_000)] {
            for key in keys {
                assert_eq!(bed.redis(id, &format!("SET {key} {}", "v".repeat(bytes))), "+OK");
            }
        }
        let mut bed = bed.reopen();
        let [first, second, list] = [(); 3].map(|()| connect_at_one_shard(&mut bed));
        assert_eq!(bed.redis(first, &format!("SET {} {}", local[0], "v".repeat(30_000))), "+OK");
        bed.reads_replies = false;
        // The first one exceeds the limit. The second one and then the list wait for its end. Meanwhile the list's
        // local values arrive, which exceed the limit too.
        bed.send(second, &resp(&format!("GET {}", remote[0])));
        bed.send(list, &resp(&format!("MGET {} {} {} {}", remote[1], remote[2], local[1], local[2])));
        bed.send(first, &resp(&format!("GET {}", local[0])));
        bed.run(turns);
        bed.reads_replies = true;
        [first, second, list].into_iter().for_each(|id| bed.take(id));
        bed.settle();
        let received = [first, second, list].map(|id| bed.clients[&id].received.len());
        assert_eq!(received[..2], [30_010, 14_010]);
        // A local value that arrives beyond twice the limit is refused.
        let list_bytes = "*4\r\n".len() + 2 * 14_010 + 9_009;
        assert!((list_bytes..=list_bytes + 16_010).contains(&received[2]), "{received:?}");
        bed.host.check_empty();
    }
}

/// Requests sent and device reads of a cold read at another shard. It comes back if its first device read is longer
/// than 8 KiB and the first grant, and again if the value is longer than the grant then.
#[test]
fn a_cold_read_of_another_shard_is_sent_at_most_three_times() {
    let cost = |replies_bytes_max, bytes: usize| {
        let options = ShardOptions { replies_bytes_max, ..shard_options(Durability::Memory) };
        let mut bed = harness(2, SimOptions::instant(9), options);
        let id = connect_at_one_shard(&mut bed);
        // The last records of the log stay in memory.
        let keys = remote_keys(&mut bed, id, 40);
        for key in &keys {
            assert_eq!(bed.redis(id, &format!("SET {key} {}", "v".repeat(bytes))), "+OK");
        }
        let mut bed = bed.reopen();
        let id = connect_at_one_shard(&mut bed);
        assert!(bed.redis(id, &format!("GET {}", keys[0])).len() > bytes);
        let counters = bed.host.shards.iter().map(|shard| shard.status().counters);
        counters.fold((0, 0), |sum, of| (sum.0 + of.executed_for_peers, sum.1 + of.cold))
    };
    let costs =
        |replies_bytes_max| [500, 1 << 10, 7 << 10, 20 << 10, 190 << 10].map(|bytes| cost(replies_bytes_max, bytes));
    let found = [64 << 20, 4 << 20].map(costs);
    assert_eq!(found, [[(1, 1), (1, 1), (1, 1), (3, 2), (3, 2)], [(1, 1), (2, 1), (2, 1), (3, 2), (3, 2)]]);
}
