//! Order of replies and visibility: a session sees its own writes, and other sessions' writes only after their commit.
use crate::harness::{Restarts, ShardHarness, resp, shard_options};
use fawn_flash::SimOptions;
use fawn_node::ClientService;
use fawn_node::SessionId;
use fawn_types::Durability;
use fawn_wire::Protocol;

fn pipeline(harness: &mut ShardHarness, id: SessionId, lines: &[String]) {
    let bytes: Vec<u8> = lines.iter().flat_map(|line| resp(line)).collect();
    harness.send(id, &bytes);
}

/// A harness whose keys `key:0` … are on flash and not cached.
fn cold(keys: usize, sim: SimOptions) -> ShardHarness {
    let mut harness = ShardHarness::with(sim, shard_options(Durability::Sync));
    let id = harness.connect(Protocol::Resp);
    for i in 0..keys {
        // Each value occupies its own pages.
        harness.send(id, &resp(&format!("SET key:{i} {i}{}", "x".repeat(9000))));
        harness.settle();
    }
    harness.reopen()
}

#[test]
fn nothing_is_heard_or_read_before_it_is_synced() {
    let sim = SimOptions { ticks_per_reap: 0, latency_ticks: 5..=9, ..SimOptions::default() };
    let mut harness = ShardHarness::with(sim, shard_options(Durability::Sync));
    let (writer, reader) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    pipeline(&mut harness, writer, &["SET k v".to_owned(), "GET k".to_owned()]);
    harness.run_once();
    harness.send(reader, &resp("GET k"));
    harness.run_once();
    assert!(harness.clients[&writer].received.is_empty(), "the device has completed no operation");
    assert_eq!(harness.clients[&reader].received, b"$-1\r\n");
    while !harness.host.is_idle() {
        harness.disks[0].advance_to(harness.disks[0].tick() + 1);
        harness.run_once();
    }
    harness.run_once();
    assert_eq!(harness.clients[&writer].received, b"+OK\r\n$1\r\nv\r\n");
    assert_eq!(harness.redis(reader, "GET k"), "$-1|$1|v");
}

#[test]
fn cold_reads_fly_together_and_answer_in_order() {
    let sim = SimOptions { latency_ticks: 1..=20, ..SimOptions::default() };
    let mut harness = cold(40, sim);
    let id = harness.connect(Protocol::Resp);
    // Teaches the session that its replies are short: few long ones are requested at a time.
    let missing: Vec<String> = (0..40).map(|i| format!("STRLEN none:{i}")).collect();
    pipeline(&mut harness, id, &missing);
    harness.settle();
    harness.clients.get_mut(&id).unwrap().received.clear();
    let mut lines: Vec<String> = (0..40).rev().map(|i| format!("STRLEN key:{i}")).collect();
    lines.insert(20, "PING".to_owned());
    pipeline(&mut harness, id, &lines);
    assert!(
        harness.host.server().engine().in_flight() >= 40,
        "{} reads in flight",
        harness.host.server().engine().in_flight()
    );
    harness.settle();
    let lengths = |from: usize, to: usize| (from..to).rev().map(|i| format!(":{}\r\n", 9000 + i.to_string().len()));
    let expected: String = lengths(20, 40).chain(["+PONG\r\n".to_owned()]).chain(lengths(0, 20)).collect();
    assert_eq!(String::from_utf8_lossy(&harness.clients[&id].received), expected);
}

#[test]
fn updates_of_one_cold_key_share_its_read() {
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET counter 10"), "+OK");
    // After an opening the log's last page is in memory; the filler puts the counter on another page.
    assert_eq!(harness.redis(id, &format!("SET filler {}", "x".repeat(20_000))), "+OK");
    let mut harness = harness.reopen();
    let (one, other) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    let increments: Vec<String> = (0..50).map(|_| "INCR counter".to_owned()).collect();
    pipeline(&mut harness, one, &increments);
    pipeline(&mut harness, other, &increments);
    pipeline(&mut harness, one, &["GET counter".to_owned()]);
    harness.settle();
    let expected: String = (11..=60).map(|i| format!(":{i}\r\n")).collect();
    assert_eq!(String::from_utf8_lossy(&harness.clients[&one].received), expected + "$3\r\n110\r\n");
    assert_eq!(harness.host.status().counters.cold, 1, "one device read for a hundred updates");
}

#[test]
fn a_write_does_not_overtake_the_sessions_own_read() {
    let mut harness = cold(1, SimOptions::default());
    let id = harness.connect(Protocol::Resp);
    pipeline(&mut harness, id, &["GETRANGE".to_owned(), "STRLEN key:0".to_owned(), "SET key:0 short".to_owned()]);
    pipeline(&mut harness, id, &["STRLEN key:0".to_owned()]);
    harness.settle();
    let received = String::from_utf8_lossy(&harness.clients[&id].received).into_owned();
    assert!(received.ends_with("\r\n:9001\r\n+OK\r\n:5\r\n"), "{received}");
}

#[test]
fn keyspace_commands_are_barriers() {
    let mut harness = cold(2, SimOptions::default());
    let id = harness.connect(Protocol::Resp);
    let lines = ["APPEND key:0 x", "SET other 1", "DBSIZE", "FLUSHALL", "GET key:1", "SET after 1", "DBSIZE"];
    pipeline(&mut harness, id, &lines.map(str::to_owned));
    harness.settle();
    assert_eq!(harness.clients[&id].received, b":9002\r\n+OK\r\n:3\r\n+OK\r\n$-1\r\n+OK\r\n:1\r\n");
}

#[test]
fn a_half_closed_session_hears_its_replies() {
    let mut harness = cold(2, SimOptions::default());
    let id = harness.connect(Protocol::Resp);
    pipeline(&mut harness, id, &["STRLEN key:0".to_owned(), "SET k v".to_owned(), "STRLEN key:1".to_owned()]);
    harness.host.end_input(id);
    assert!(!harness.host.wants_input(id));
    harness.settle();
    assert_eq!(harness.clients[&id].received, b":9001\r\n+OK\r\n:9001\r\n");
    assert!(harness.clients[&id].closed);
}

#[test]
fn an_idle_half_closed_session_ends() {
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "PING"), "+PONG");
    harness.run_once();
    harness.host.end_input(id);
    harness.run_once();
    assert!(harness.clients[&id].closed);
}

/// The first of two silent writes is committed before the second one, whose value the read returns.
#[test]
fn a_read_waits_for_the_newest_of_the_sessions_silent_writes() {
    let sim = SimOptions { ticks_per_reap: 0, latency_ticks: 5..=5, ..SimOptions::default() };
    let mut harness = ShardHarness::with(sim, shard_options(Durability::Sync));
    let id = harness.connect(Protocol::Memcached);
    harness.send(id, b"set k 0 0 1 noreply\r\n1\r\n");
    harness.run_once();
    harness.disks[0].advance_to(harness.disks[0].tick() + 3);
    harness.send(id, b"set k 0 0 1 noreply\r\n2\r\nget k\r\n");
    harness.run_once();
    assert_eq!(harness.host.status().uncommitted, 2);
    while harness.clients[&id].received.is_empty() {
        harness.disks[0].advance_to(harness.disks[0].tick() + 1);
        harness.run_once();
    }
    assert_eq!(harness.clients[&id].received, b"VALUE k 0 1\r\n2\r\nEND\r\n");
    assert_eq!(harness.host.status().uncommitted, 0, "the value is committed before it is returned");
}

/// The reply to an update that had to read its key first waits for the commit, as any other does.
#[test]
fn an_update_of_a_cold_key_is_answered_after_its_commit() {
    let mut harness = cold(1, SimOptions { latency_ticks: 5..=9, ..SimOptions::default() });
    let id = harness.connect(Protocol::Resp);
    harness.send(id, &resp("APPEND key:0 x"));
    while harness.clients[&id].received.is_empty() {
        harness.run_once();
    }
    assert_eq!(harness.clients[&id].received, b":9002\r\n");
    assert_eq!(harness.host.status().uncommitted, 0);
}

/// A session sees its own flush before that is committed, also at keys whose hashes resemble one that it wrote since.
#[test]
fn a_pending_flush_is_seen_at_every_key() {
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Memcached);
    let sets: String = (0..300).map(|i| format!("set old:{i} 0 0 1 noreply\r\nx\r\n")).collect();
    assert_eq!(harness.ask(id, sets.as_bytes()), "");
    let gets: String = (0..300).map(|i| format!("get old:{i}\r\n")).collect();
    let pipeline = format!("flush_all noreply\r\nset new 0 0 1 noreply\r\ny\r\n{gets}get new\r\n");
    let expected = ["END"; 300].join("|") + "|VALUE new 0 1|y|END";
    assert_eq!(harness.ask(id, pipeline.as_bytes()), expected);
}

#[test]
fn quit_waits_for_what_came_before_and_ignores_what_comes_after() {
    let mut harness = cold(1, SimOptions::default());
    let id = harness.connect(Protocol::Resp);
    let lines = ["STRLEN key:0", "SET k v", "QUIT", "SET k w"].map(str::to_owned);
    pipeline(&mut harness, id, &lines);
    harness.settle();
    assert_eq!(harness.clients[&id].received, b":9001\r\n+OK\r\n+OK\r\n");
    assert!(harness.clients[&id].closed);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "GET k"), "$1|v");
}

#[test]
fn a_session_that_goes_leaves_others_alone() {
    let mut harness = cold(3, SimOptions { latency_ticks: 2..=9, ..SimOptions::default() });
    let (gone, stays) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    let lines = ["STRLEN key:0", "APPEND key:1 x", "GET key:1", "MGET key:0 key:2", "SCAN 0", "SET k v"];
    pipeline(&mut harness, gone, &lines.map(str::to_owned));
    pipeline(&mut harness, stays, &["APPEND key:1 y".to_owned(), "STRLEN key:0".to_owned()]);
    harness.host.close_session(gone);
    harness.clients.remove(&gone);
    let next = harness.connect(Protocol::Resp);
    pipeline(&mut harness, next, &["PING".to_owned()]);
    harness.settle();
    assert_eq!(harness.clients[&stays].received, b":9003\r\n:9001\r\n");
    assert_eq!(harness.clients[&next].received, b"+PONG\r\n");
}
