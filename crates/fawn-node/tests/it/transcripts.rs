//! Transcripts of both protocols: requests and expected replies, with line ends as `|`.
use crate::harness::{Restarts, ShardHarness, TestHarness};
use fawn_node::ClientService;
use fawn_wire::Protocol;

/// Plays a script of `> request` lines, each followed by the expected reply.
fn play_redis(script: &str) {
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Resp);
    play(script, |line| harness.redis(id, line));
}

fn play_memcached(script: &str) {
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Memcached);
    play(script, |line| harness.memcached(id, line));
}

pub(crate) fn play(script: &str, mut ask: impl FnMut(&str) -> String) {
    let mut lines = script.lines().map(str::trim).filter(|line| !line.is_empty());
    while let Some(line) = lines.next() {
        let request = line.strip_prefix("> ").unwrap_or_else(|| panic!("expected a request, found {line}"));
        let expected = lines.next().unwrap_or_default();
        assert_eq!(ask(request), expected.trim_matches('\''), "reply to {request}");
    }
}

pub(crate) const REDIS_STRINGS: &str = "> SET k v
         +OK
         > GET k
         $1|v
         > GET nothing
         $-1
         > SET k w NX
         $-1
         > SET k w XX GET
         $1|v
         > APPEND k xyz
         :4
         > STRLEN k
         :4
         > GETDEL k
         $4|wxyz
         > GET k
         $-1
         > SETNX n 10
         :1
         > INCRBY n -15
         :-5
         > DECR n
         :-6
         > GETSET n text
         $2|-6
         > INCR n
         -ERR value is not an integer or out of range
         > TYPE n
         +string
         > MSET a 1 b 2 a 3
         +OK
         > MGET a b c
         *3|$1|3|$1|2|$-1
         > EXISTS a b c a
         :3
         > DEL a b c
         :2
         > DBSIZE
         :1
         > FLUSHALL
         +OK
         > DBSIZE
         :0
         > GET n
         $-1";

#[test]
fn redis_strings() {
    play_redis(REDIS_STRINGS);
}

pub(crate) const REDIS_CONNECTION: &str = "> PING
         +PONG
         > ECHO hello
         $5|hello
         > CLIENT SETNAME me
         +OK
         > CLIENT GETNAME
         $2|me
         > SELECT 0
         +OK
         > CONFIG GET appendonly
         *2|$10|appendonly|$3|yes
         > NOSUCH
         -ERR unknown command 'NOSUCH', with args beginning with:";

#[test]
fn redis_connection() {
    play_redis(REDIS_CONNECTION);
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Resp);
    assert!(harness.redis(id, "HELLO 3").starts_with("%7|"));
    assert_eq!(harness.redis(id, "GET nothing"), "_");
    assert!(harness.redis(id, "INFO").contains("redis_version:7"));
    assert!(!harness.redis(id, "INFO memory").contains("redis_version:7"));
    assert!(harness.redis(id, "COMMAND COUNT").starts_with(':'));
    assert_eq!(harness.redis(id, "QUIT"), "+OK");
    assert!(harness.clients[&id].closed);
}

pub(crate) const REDIS_EXPIRY: &str = "> SET k v EX 10
         +OK
         > TTL k
         :10
         > EXPIRE k 20 LT
         :0
         > EXPIRE k 20 GT
         :1
         > PERSIST k
         :1
         > TTL k
         :-1
         > PEXPIRE k 1500
         :1
         > SET other x KEEPTTL
         +OK
         > GETEX other PX 1500
         $1|x";

#[test]
fn redis_expiry() {
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Resp);
    play(REDIS_EXPIRY, |line| harness.redis(id, line));
    harness.now = harness.now.plus_ms(1499);
    assert_eq!(harness.redis(id, "GET k"), "$1|v");
    harness.now = harness.now.plus_ms(1);
    assert_eq!(harness.redis(id, "GET k"), "$-1");
    assert_eq!(harness.redis(id, "SET other y NX"), "+OK");
    assert_eq!(harness.redis(id, "EXPIRE other -1"), ":1");
    assert_eq!(harness.redis(id, "GET other"), "$-1");
}

pub(crate) const MEMCACHED_STORAGE: &str = "> set k 5 0 3|abc
         STORED
         > get k
         VALUE k 5 3|abc|END
         > get k nothing k
         VALUE k 5 3|abc|VALUE k 5 3|abc|END
         > add k 0 0 1|x
         NOT_STORED
         > replace nothing 0 0 1|x
         NOT_STORED
         > append k 0 0 2|de
         STORED
         > prepend k 0 0 1|_
         STORED
         > get k
         VALUE k 5 6|_abcde|END
         > cas k 0 0 1 1|x
         EXISTS
         > cas nothing 0 0 1 1|x
         NOT_FOUND
         > set n 0 0 2|10
         STORED
         > decr n 1
         9
         > get n
         VALUE n 0 2|9 |END
         > incr n 91
         100
         > incr k 1
         CLIENT_ERROR cannot increment or decrement non-numeric value
         > incr nothing 1
         NOT_FOUND
         > touch n 100
         TOUCHED
         > gat 0 n k
         VALUE n 0 3|100|VALUE k 5 6|_abcde|END
         > delete n
         DELETED
         > delete n
         NOT_FOUND
         > flush_all
         OK
         > get k
         END
         > verbosity 1
         OK
         > bogus
         ERROR";

#[test]
fn memcached_storage() {
    play_memcached(MEMCACHED_STORAGE);
}

#[test]
fn memcached_cas_round_trip() {
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Memcached);
    harness.memcached(id, "set k 0 0 1|a");
    let cas_of = |reply: String| reply.split('|').next().unwrap().rsplit(' ').next().unwrap().to_owned();
    let cas = cas_of(harness.memcached(id, "gets k"));
    assert_eq!(harness.memcached(id, &format!("cas k 0 0 1 {cas}|b")), "STORED");
    assert_eq!(harness.memcached(id, &format!("cas k 0 0 1 {cas}|c")), "EXISTS");
    // The CAS token of `gats` is valid although `gats` itself wrote a new expiry.
    let cas = cas_of(harness.memcached(id, "gats 100 k"));
    assert_eq!(harness.memcached(id, &format!("cas k 0 0 1 {cas}|d")), "STORED");
    assert_eq!(harness.memcached(id, "get k"), "VALUE k 0 1|d|END");
}

#[test]
fn memcached_noreply_and_stats() {
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Memcached);
    let pipeline = "set a 0 0 1 noreply|1|incr a 1 noreply|add a 0 0 1 noreply|9|get a|delete a noreply|get a";
    assert_eq!(harness.memcached(id, pipeline), "VALUE a 0 1|2|END|END");
    let stats = harness.memcached(id, "stats");
    assert!(stats.starts_with("STAT pid ") && stats.ends_with("|END"), "{stats}");
    assert!(stats.contains("STAT get_hits 1|"), "{stats}");
    assert_eq!(harness.memcached(id, "stats reset"), "RESET");
    assert_eq!(harness.memcached(id, "quit"), "");
    assert!(harness.clients[&id].closed);
}

#[test]
fn delayed_flush_voids_what_is_there_then() {
    let mut harness = ShardHarness::new();
    delayed_flush(&mut harness);
    let id = harness.connect(Protocol::Memcached);
    assert_eq!(harness.memcached(id, "flush_all 10"), "OK");
    let due = harness.host.run_once(harness.now);
    assert!(due.is_some_and(|due| due.ms_since(harness.now.mono) <= 10_000), "the flush is due: {due:?}");
}

/// A delayed `flush_all`; the test runs on a store and on a cluster.
pub(crate) fn delayed_flush<H: ClientService, S>(harness: &mut TestHarness<H, S>) {
    let id = harness.connect(Protocol::Memcached);
    assert_eq!(harness.memcached(id, "flush_all 10"), "OK");
    assert_eq!(harness.memcached(id, "set k 0 0 1|a"), "STORED");
    assert_eq!(harness.memcached(id, "get k"), "VALUE k 0 1|a|END");
    harness.now = harness.now.plus_ms(10_000);
    harness.settle();
    assert_eq!(harness.memcached(id, "get k"), "END");
    assert_eq!(harness.memcached(id, "set k 0 0 1|b"), "STORED");
    harness.now = harness.now.plus_ms(10_000);
    assert_eq!(harness.memcached(id, "get k"), "VALUE k 0 1|b|END");
    // An immediate flush replaces a delayed one.
    assert_eq!(harness.memcached(id, "flush_all 10|flush_all|set k 0 0 1|c"), "OK|OK|STORED");
    harness.now = harness.now.plus_ms(10_000);
    harness.settle();
    assert_eq!(harness.memcached(id, "get k"), "VALUE k 0 1|c|END");
}

#[test]
fn both_protocols_see_the_same_keys() {
    let mut harness = ShardHarness::new();
    let (redis, memcached) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Memcached));
    assert_eq!(harness.redis(redis, "SET k 41"), "+OK");
    assert_eq!(harness.memcached(memcached, "incr k 1"), "42");
    assert_eq!(harness.redis(redis, "INCR k"), ":43");
    assert_eq!(harness.memcached(memcached, "get k"), "VALUE k 0 2|43|END");
    assert_eq!(harness.memcached(memcached, "delete k"), "DELETED");
    assert_eq!(harness.redis(redis, "EXISTS k"), ":0");
}

#[test]
fn scan_meets_every_key_once_without_changes() {
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Resp);
    for i in 0..500 {
        harness.send(id, &crate::harness::resp(&format!("SET key:{i} v")));
    }
    harness.settle();
    let mut harness = harness.reopen();
    let id = harness.connect(Protocol::Resp);
    let (mut cursor, mut met) = ("0".to_owned(), Vec::new());
    loop {
        let reply = harness.redis(id, &format!("SCAN {cursor} MATCH key:* COUNT 50"));
        let mut words = reply.split('|').skip(2);
        cursor = words.next().unwrap().to_owned();
        met.extend(words.filter(|word| word.starts_with("key:")).map(str::to_owned));
        if cursor == "0" {
            break;
        }
    }
    met.sort_unstable();
    met.dedup();
    assert_eq!(met.len(), 500);
    assert_eq!(harness.redis(id, "SCAN 0 MATCH other:* COUNT 10000"), "*2|$1|0|*0");
    assert_eq!(harness.redis(id, "SCAN 0 TYPE list COUNT 10000"), "*2|$1|0|*0");
    assert_eq!(harness.redis(id, "DBSIZE"), ":500");
}

/// As in Redis, an error counts whether the request was rejected or failed, at once or later.
#[test]
fn every_error_reply_is_counted_and_nothing_else() {
    let mut harness = ShardHarness::new();
    let redis = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(redis, "SET text ERROR"), "+OK");
    assert_eq!(harness.redis(redis, &format!("SET filler {}", "x".repeat(20_000))), "+OK");
    let mut harness = harness.reopen();
    let errors = |harness: &ShardHarness| harness.host.status().counters.error_replies;
    let (redis, memcached) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Memcached));
    for (line, total) in
        [("INCR text", 1), ("GET text", 1), ("NOSUCH", 2), ("INCR text", 3), ("SET k v EX 0", 4), ("PING", 4)]
    {
        harness.redis(redis, line);
        assert_eq!(errors(&harness), total, "after {line}");
    }
    for (lines, total) in [
        ("nonsense", 5),
        ("set k 0 0 -1", 6),
        ("set k 0 0 5|ERROR", 6),
        ("get k", 6),
        ("incr k 1", 7),
        ("incr k 1 noreply|version", 7),
        ("delete none|touch none 1", 7),
    ] {
        harness.memcached(memcached, lines);
        assert_eq!(errors(&harness), total, "after {lines}");
    }
    assert!(harness.redis(redis, "INFO stats").contains("total_error_replies:7"));
}
