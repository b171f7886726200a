//! Owns the tests of order: replies as requested, one's own writes seen, nobody else's before their commit.
use crate::bed::{Bed, Restarts, resp, shard_options};
use fawn_flash::SimOptions;
use fawn_node::SessionId;
use fawn_types::Durability;
use fawn_wire::Protocol;

fn pipeline(bed: &mut Bed, id: SessionId, lines: &[String]) {
    let bytes: Vec<u8> = lines.iter().flat_map(|line| resp(line)).collect();
    bed.send(id, &bytes);
}

/// A bed whose keys `key:0` … are on flash and not cached.
fn cold(keys: usize, sim: SimOptions) -> Bed {
    let mut bed = Bed::with(sim, shard_options(Durability::Sync));
    let id = bed.connect(Protocol::Resp);
    for i in 0..keys {
        // Each in pages of its own.
        bed.send(id, &resp(&format!("SET key:{i} {i}{}", "x".repeat(9000))));
        bed.settle();
    }
    bed.reopen()
}

#[test]
fn nothing_is_heard_or_read_before_it_is_synced() {
    let sim = SimOptions { ticks_per_reap: 0, latency_ticks: 5..=9, ..SimOptions::default() };
    let mut bed = Bed::with(sim, shard_options(Durability::Sync));
    let (writer, reader) = (bed.connect(Protocol::Resp), bed.connect(Protocol::Resp));
    pipeline(&mut bed, writer, &["SET k v".to_owned(), "GET k".to_owned()]);
    bed.turn();
    bed.send(reader, &resp("GET k"));
    bed.turn();
    assert!(bed.clients[&writer].received.is_empty(), "the device has completed nothing");
    assert_eq!(bed.clients[&reader].received, b"$-1\r\n");
    while !bed.host.is_idle() {
        bed.disks[0].advance_to(bed.disks[0].tick() + 1);
        bed.turn();
    }
    bed.turn();
    assert_eq!(bed.clients[&writer].received, b"+OK\r\n$1\r\nv\r\n");
    assert_eq!(bed.redis(reader, "GET k"), "$-1|$1|v");
}

#[test]
fn cold_reads_fly_together_and_answer_in_order() {
    let sim = SimOptions { latency_ticks: 1..=20, ..SimOptions::default() };
    let mut bed = cold(40, sim);
    let id = bed.connect(Protocol::Resp);
    // Replies that are known to be short: of long ones few are asked for at a time.
    let missing: Vec<String> = (0..40).map(|i| format!("STRLEN none:{i}")).collect();
    pipeline(&mut bed, id, &missing);
    bed.settle();
    bed.clients.get_mut(&id).unwrap().received.clear();
    let mut lines: Vec<String> = (0..40).rev().map(|i| format!("STRLEN key:{i}")).collect();
    lines.insert(20, "PING".to_owned());
    pipeline(&mut bed, id, &lines);
    assert!(bed.host.engine().in_flight() >= 40, "{} reads in flight", bed.host.engine().in_flight());
    bed.settle();
    let lengths = |from: usize, to: usize| (from..to).rev().map(|i| format!(":{}\r\n", 9000 + i.to_string().len()));
    let expected: String = lengths(20, 40).chain(["+PONG\r\n".to_owned()]).chain(lengths(0, 20)).collect();
    assert_eq!(String::from_utf8_lossy(&bed.clients[&id].received), expected);
}

#[test]
fn updates_of_one_cold_key_share_its_read() {
    let mut bed = Bed::new();
    let id = bed.connect(Protocol::Resp);
    assert_eq!(bed.redis(id, "SET counter 10"), "+OK");
    // The log's last page is in memory after opening: this one is not.
    assert_eq!(bed.redis(id, &format!("SET filler {}", "x".repeat(20_000))), "+OK");
    let mut bed = bed.reopen();
    let (one, other) = (bed.connect(Protocol::Resp), bed.connect(Protocol::Resp));
    let increments: Vec<String> = (0..50).map(|_| "INCR counter".to_owned()).collect();
    pipeline(&mut bed, one, &increments);
    pipeline(&mut bed, other, &increments);
    pipeline(&mut bed, one, &["GET counter".to_owned()]);
    bed.settle();
    let expected: String = (11..=60).map(|i| format!(":{i}\r\n")).collect();
    assert_eq!(String::from_utf8_lossy(&bed.clients[&one].received), expected + "$3\r\n110\r\n");
    assert_eq!(bed.host.status().counters.cold, 1, "one device read for a hundred updates");
}

#[test]
fn a_write_does_not_overtake_the_sessions_own_read() {
    let mut bed = cold(1, SimOptions::default());
    let id = bed.connect(Protocol::Resp);
    pipeline(&mut bed, id, &["GETRANGE".to_owned(), "STRLEN key:0".to_owned(), "SET key:0 short".to_owned()]);
    pipeline(&mut bed, id, &["STRLEN key:0".to_owned()]);
    bed.settle();
    let received = String::from_utf8_lossy(&bed.clients[&id].received).into_owned();
    assert!(received.ends_with("\r\n:9001\r\n+OK\r\n:5\r\n"), "{received}");
}

#[test]
fn keyspace_commands_are_barriers() {
    let mut bed = cold(2, SimOptions::default());
    let id = bed.connect(Protocol::Resp);
    let lines = ["APPEND key:0 x", "SET other 1", "DBSIZE", "FLUSHALL", "GET key:1", "SET after 1", "DBSIZE"];
    pipeline(&mut bed, id, &lines.map(str::to_owned));
    bed.settle();
    assert_eq!(bed.clients[&id].received, b":9002\r\n+OK\r\n:3\r\n+OK\r\n$-1\r\n+OK\r\n:1\r\n");
}

#[test]
fn a_half_closed_session_hears_its_replies() {
    let mut bed = cold(2, SimOptions::default());
    let id = bed.connect(Protocol::Resp);
    pipeline(&mut bed, id, &["STRLEN key:0".to_owned(), "SET k v".to_owned(), "STRLEN key:1".to_owned()]);
    bed.host.end_input(id);
    assert!(!bed.host.wants_input(id));
    bed.settle();
    assert_eq!(bed.clients[&id].received, b":9001\r\n+OK\r\n:9001\r\n");
    assert!(bed.clients[&id].closed);
}

#[test]
fn quit_waits_for_what_came_before_and_ignores_what_comes_after() {
    let mut bed = cold(1, SimOptions::default());
    let id = bed.connect(Protocol::Resp);
    let lines = ["STRLEN key:0", "SET k v", "QUIT", "SET k w"].map(str::to_owned);
    pipeline(&mut bed, id, &lines);
    bed.settle();
    assert_eq!(bed.clients[&id].received, b":9001\r\n+OK\r\n+OK\r\n");
    assert!(bed.clients[&id].closed);
    let id = bed.connect(Protocol::Resp);
    assert_eq!(bed.redis(id, "GET k"), "$1|v");
}

#[test]
fn a_session_that_goes_leaves_others_alone() {
    let mut bed = cold(3, SimOptions { latency_ticks: 2..=9, ..SimOptions::default() });
    let (gone, stays) = (bed.connect(Protocol::Resp), bed.connect(Protocol::Resp));
    let lines = ["STRLEN key:0", "APPEND key:1 x", "GET key:1", "MGET key:0 key:2", "SCAN 0", "SET k v"];
    pipeline(&mut bed, gone, &lines.map(str::to_owned));
    pipeline(&mut bed, stays, &["APPEND key:1 y".to_owned(), "STRLEN key:0".to_owned()]);
    bed.host.close_session(gone);
    bed.clients.remove(&gone);
    let next = bed.connect(Protocol::Resp);
    pipeline(&mut bed, next, &["PING".to_owned()]);
    bed.settle();
    assert_eq!(bed.clients[&stays].received, b":9003\r\n:9001\r\n");
    assert_eq!(bed.clients[&next].received, b"+PONG\r\n");
}
