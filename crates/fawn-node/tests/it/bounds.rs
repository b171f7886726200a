//! Bounds of a shard: slow readers, endless pipelines, too many requests at once, a failed device, corrupt input.
use crate::harness::{Restarts, ShardHarness, resp, shard_options};
use fawn_flash::SimOptions;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_node::ClientService;
use fawn_node::ShardOptions;
use fawn_types::Durability;
use fawn_wire::Protocol;

fn harness(options: ShardOptions) -> ShardHarness {
    ShardHarness::with(SimOptions::instant(1), options)
}

fn sync() -> ShardOptions {
    shard_options(Durability::Sync)
}

#[test]
fn a_slow_reader_stops_its_own_input_only() {
    let mut harness = harness(ShardOptions { session_output_bytes_max: 10_000, ..sync() });
    let (slow, quick) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    assert_eq!(harness.redis(quick, &format!("SET k {}", "v".repeat(1000))), "+OK");
    harness.reads_replies = false;
    for _ in 0..100 {
        harness.send(slow, &resp("GET k"));
        harness.run_once();
    }
    let waiting = harness.host.output(slow).len();
    assert!((10_000..12_000).contains(&waiting), "{waiting} bytes wait for a client that does not read");
    assert!(!harness.host.wants_input(slow) && !harness.clients[&slow].input.is_empty());
    harness.send(quick, &resp("PING"));
    harness.run_once();
    assert_eq!(harness.host.output(quick), b"+PONG\r\n");
    harness.reads_replies = true;
    harness.take(slow);
    harness.settle();
    assert_eq!(harness.clients[&slow].received.len(), 100 * (1000 + "$1000\r\n\r\n".len()));
}

/// A host that offers less again only costs time: the length of a partial request is known from its first bytes.
#[test]
fn a_partial_request_tells_its_length() {
    let mut harness = harness(sync());
    let id = harness.connect(Protocol::Resp);
    let request = resp(&format!("SET k {}", "v".repeat(100_000)));
    assert_eq!(harness.host.handle_input(harness.now, id, &request[..50]), 0);
    assert_eq!(harness.host.need_bytes(id), request.len());
    assert_eq!(harness.host.handle_input(harness.now, id, &request), request.len());
    assert_eq!(harness.host.need_bytes(id), 1);
}

/// A session that waits for its own write accepts no input, so its host keeps what is left and offers it again.
#[test]
fn a_stalled_session_wants_no_input() {
    let mut harness = harness(sync());
    let id = harness.connect(Protocol::Resp);
    harness.send(id, &[resp("SET k v"), resp("DBSIZE"), resp("PING")].concat());
    assert!(!harness.host.wants_input(id));
    assert_eq!(harness.clients[&id].input, [resp("DBSIZE"), resp("PING")].concat());
    harness.settle();
    assert!(harness.host.wants_input(id));
    assert_eq!(harness.clients[&id].received, b"+OK\r\n:1\r\n+PONG\r\n");
}

#[test]
fn input_after_quit_is_discarded() {
    let mut harness = harness(sync());
    let id = harness.connect(Protocol::Resp);
    let input = [resp("QUIT"), resp("SET k v"), b"*9".to_vec()].concat();
    assert_eq!(harness.host.handle_input(harness.now, id, &input), input.len());
    assert!(!harness.host.wants_input(id));
    harness.settle();
    assert_eq!((&harness.clients[&id].received[..], harness.clients[&id].closed), (&b"+OK\r\n"[..], true));
    let other = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(other, "GET k"), "$-1");
}

#[test]
fn an_endless_pipeline_is_taken_in_pieces() {
    let mut harness = harness(ShardOptions { session_pending_max: 64, ..sync() });
    let id = harness.connect(Protocol::Resp);
    let pipeline: Vec<u8> = (0..1000).flat_map(|i| resp(&format!("SET key:{i} {i}"))).collect();
    harness.send(id, &pipeline);
    assert_eq!(harness.host.status().uncommitted, 64);
    harness.settle();
    assert_eq!(harness.clients[&id].received.len(), 1000 * "+OK\r\n".len());
    // The bound is on the writes, so it also applies without replies.
    let id = harness.connect(Protocol::Memcached);
    let pipeline: Vec<u8> = (0..1000).flat_map(|i| format!("set n:{i} 0 0 1 noreply\r\n1\r\n").into_bytes()).collect();
    harness.send(id, &pipeline);
    assert_eq!(harness.host.status().uncommitted, 64);
    harness.settle();
    assert_eq!(harness.memcached(id, "get n:999"), "VALUE n:999 0 1|1|END");
}

#[test]
fn cold_requests_beyond_the_bound_wait_as_input() {
    let mut first = harness(sync());
    let id = first.connect(Protocol::Resp);
    for i in 0..20 {
        assert_eq!(first.redis(id, &format!("SET key:{i} {}", "x".repeat(5000))), "+OK");
    }
    first.options =
        ShardOptions { session_output_bytes_max: 8 << 20, pending_max: 8, reads_in_flight_max: 2, ..sync() };
    let mut harness = first.reopen();
    let (redis, memcached) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Memcached));
    let pipeline: Vec<u8> = (0..10).flat_map(|i| resp(&format!("STRLEN key:{i}"))).collect();
    harness.send(redis, &pipeline);
    harness.send(memcached, b"append key:19 0 0 1\r\ny\r\n");
    assert_eq!(harness.host.status().pending, 8);
    assert!(!harness.host.wants_input(redis) && !harness.host.wants_input(memcached));
    harness.settle();
    let received = String::from_utf8_lossy(&harness.clients[&redis].received).into_owned();
    assert_eq!(received, ":5000\r\n".repeat(10));
    assert_eq!(harness.clients[&memcached].received, b"STORED\r\n");
}

/// Requests that wait for a read keep their values, which count like those of requests at other shards.
#[test]
fn values_of_waiting_requests_are_bounded() {
    let mut first = harness(sync());
    let id = first.connect(Protocol::Resp);
    for i in 0..20 {
        assert_eq!(first.redis(id, &format!("SET key:{i} {}", "x".repeat(5000))), "+OK");
    }
    first.options = ShardOptions {
        session_output_bytes_max: 8 << 20,
        requests_bytes_max: 100_000,
        reads_in_flight_max: 2,
        ..sync()
    };
    let mut harness = first.reopen();
    let ids: Vec<_> = (0..10).map(|_| harness.connect(Protocol::Resp)).collect();
    for (i, id) in ids.iter().enumerate() {
        harness.send(*id, &resp(&format!("APPEND key:{i} {}", "y".repeat(40_000))));
    }
    assert_eq!(harness.host.status().pending, 3, "the third one exceeds the bound");
    harness.settle();
    assert!(ids.iter().all(|id| harness.clients[id].received == b":45000\r\n"));
}

#[test]
fn writes_of_all_sessions_are_bounded() {
    let mut harness = harness(ShardOptions { uncommitted_max: 10, ..sync() });
    let ids: Vec<_> = (0..5).map(|_| harness.connect(Protocol::Resp)).collect();
    for id in &ids {
        let pipeline: Vec<u8> = (0..20).flat_map(|i| resp(&format!("SET key:{i} {i}"))).collect();
        harness.send(*id, &pipeline);
    }
    assert_eq!(harness.host.status().uncommitted, 10);
    harness.settle();
    for id in &ids {
        assert_eq!(harness.clients[id].received.len(), 20 * "+OK\r\n".len());
    }
}

#[test]
fn a_reply_to_many_keys_is_bounded() {
    let mut harness = harness(ShardOptions { reply_bytes_max: 2500, ..sync() });
    let (redis, memcached) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Memcached));
    assert_eq!(harness.redis(redis, &format!("SET k {}", "v".repeat(1000))), "+OK");
    assert!(harness.redis(redis, "MGET k k").starts_with("*2|$1000|v"));
    let refused = "reply longer than 2500 bytes; ask for fewer keys at once";
    assert_eq!(harness.redis(redis, "MGET k k k k"), format!("-ERR {refused}"));
    assert_eq!(harness.memcached(memcached, "get k k k k"), format!("SERVER_ERROR {refused}"));
    let mut harness = harness.reopen();
    let redis = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(redis, "MGET k k k k"), format!("-ERR {refused}"), "uncached values too");
    assert_eq!(harness.redis(redis, "EXISTS k k k k"), ":4", "EXISTS holds no values");
}

#[test]
fn a_failed_write_ends_writes_not_reads() {
    let mut harness = harness(sync());
    let (redis, memcached) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Memcached));
    assert_eq!(harness.redis(redis, "SET k v"), "+OK");
    harness.disks[0].fail_nth(OpKind::Write, 1, DeviceFault::Fail);
    let pipeline: Vec<u8> = ["GET k", "SET k w", "GET k", "PING"].iter().flat_map(|line| resp(line)).collect();
    harness.send(redis, &pipeline);
    harness.send(memcached, b"set k 0 0 1\r\nx\r\nset k 0 0 1 noreply\r\nx\r\nget k\r\n");
    for _ in 0..10 {
        harness.run_once();
    }
    let received = String::from_utf8_lossy(&harness.clients[&redis].received).into_owned();
    let mut lines = received.split("\r\n");
    assert_eq!((lines.next(), lines.next()), (Some("$1"), Some("v")));
    assert!(lines.next().unwrap().starts_with("-MISCONF device failed"), "{received}");
    assert!(
        lines.next().unwrap().starts_with("-MISCONF device failed"),
        "a read of the failed write fails too: {received}"
    );
    assert_eq!(lines.next(), Some("+PONG"));
    let received = String::from_utf8_lossy(&harness.clients[&memcached].received).into_owned();
    assert!(received.starts_with("SERVER_ERROR device failed"), "{received}");
    assert!(received.contains("may or may not have been applied"), "its record may be durable: {received}");
    harness.clients.values_mut().for_each(|client| client.received.clear());
    harness.send(redis, &[resp("GET k"), resp("SET k y")].concat());
    harness.run_once();
    let received = String::from_utf8_lossy(&harness.clients[&redis].received).into_owned();
    assert!(received.starts_with("$1\r\nv\r\n-MISCONF"), "{received}");
    assert!(!received.contains("may or may not"), "it was refused: {received}");
    assert!(harness.host.status().store.poisoned.is_some());
}

#[test]
fn the_age_of_a_write_that_hangs_is_reported() {
    let mut harness = harness(sync());
    let id = harness.connect(Protocol::Resp);
    harness.run_once();
    assert_eq!(harness.host.status().store.oldest_write_ms, 0);
    harness.disks[0].fail_nth(OpKind::Write, 1, DeviceFault::Hang);
    harness.send(id, &resp("SET k v"));
    harness.run(3);
    harness.now = harness.now.plus_ms(3_000);
    harness.run(3);
    assert_eq!(harness.host.status().store.oldest_write_ms, 3_000);
    harness.disks[0].release_hung();
    harness.settle();
    assert_eq!(harness.host.status().store.oldest_write_ms, 0);
}

/// The failure of a write without a reply is not told, also if the write had to read its key first.
#[test]
fn a_failed_silent_write_stays_silent() {
    let mut harness = harness(sync());
    let id = harness.connect(Protocol::Memcached);
    assert_eq!(harness.memcached(id, "set k 0 0 1|v"), "STORED");
    assert_eq!(harness.memcached(id, &format!("set filler 0 0 20000|{}", "x".repeat(20_000))), "STORED");
    let mut harness = harness.reopen();
    harness.disks[0].fail_nth(OpKind::Write, 1, DeviceFault::Fail);
    let id = harness.connect(Protocol::Memcached);
    harness.send(id, b"append k 0 0 1 noreply\r\nw\r\nget none\r\n");
    harness.run(10);
    assert!(harness.host.status().store.poisoned.is_some());
    assert_eq!(harness.clients[&id].received, b"END\r\n");
}

#[test]
fn errors_behind_a_pending_write_are_counted() {
    let mut harness = harness(sync());
    let id = harness.connect(Protocol::Resp);
    harness.send(id, &[resp("SET k v"), resp("SET k"), resp("NONSENSE")].concat());
    assert_eq!(harness.host.status().uncommitted, 1);
    harness.settle();
    assert_eq!(harness.host.status().counters.error_replies, 2);
}

/// An error behind the first value of a reply, or as an element of an array, is one error reply.
#[test]
fn a_reply_that_fails_in_part_is_counted_as_an_error() {
    let mut harness = harness(sync());
    let redis = harness.connect(Protocol::Resp);
    // Far apart: reads of a bring no page of b, which is not at the end of the log either.
    for key in ["a", "b"] {
        assert_eq!(harness.redis(redis, &format!("SET {key} v")), "+OK");
        assert_eq!(harness.redis(redis, &format!("SET filler {}", "x".repeat(100_000))), "+OK");
    }
    let mut harness = harness.reopen();
    let (redis, memcached) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Memcached));
    assert_eq!(harness.redis(redis, "GET a"), "$1|v");
    harness.disks[0].fail_every(OpKind::Read, DeviceFault::Fail);
    let reply = harness.redis(redis, "MGET a b b");
    assert!(reply.starts_with("*3|$1|v|-"), "{reply}");
    assert_eq!(harness.host.status().counters.error_replies, 1);
    let reply = harness.memcached(memcached, "get a b");
    assert!(reply.starts_with("VALUE a 0 1|v|SERVER_ERROR"), "{reply}");
    assert_eq!(harness.host.status().counters.error_replies, 2);
    let reply = harness.memcached(memcached, "get b a");
    assert_eq!(harness.host.status().counters.error_replies, 3, "{reply}");
}

#[test]
fn a_full_disk_refuses_writes_and_takes_them_again() {
    let mut harness = harness(sync());
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k v"), "+OK");
    harness.disks[0].set_capacity_bytes(Some(4 << 20));
    let value = "x".repeat(100 << 10);
    let refused = (0..200).map(|i| harness.redis(id, &format!("SET key:{i} {value}"))).find(|reply| reply != "+OK");
    assert_eq!(refused.as_deref(), Some("-OOM store full: delete keys or add space, then retry"));
    assert_eq!(harness.redis(id, "GET k"), "$1|v");
    assert_eq!(harness.redis(id, "DEL k"), ":1");
    harness.disks[0].set_capacity_bytes(None);
    harness.now = harness.now.plus_ms(2000);
    let replies: Vec<_> = (0..100).map(|i| harness.redis(id, &format!("SET again:{i} {value}"))).collect();
    assert_eq!(replies.last().map(String::as_str), Some("+OK"), "{replies:?}");
}

#[test]
fn bad_requests_are_refused_in_their_protocols_manner() {
    let mut harness = harness(sync());
    let id = harness.connect(Protocol::Resp);
    assert!(harness.redis(id, "SET k").starts_with("-ERR wrong number of arguments"));
    let value = "x".repeat((200 << 10) + 1);
    assert!(harness.redis(id, &format!("SET k {value}")).starts_with("-ERR"));
    assert_eq!(harness.redis(id, "APPEND k v"), ":1", "the stream is still in sync");
    let half = "x".repeat(199 << 10);
    assert_eq!(harness.redis(id, &format!("APPEND k {half}")), format!(":{}", half.len() + 1));
    let reply = harness.redis(id, &format!("APPEND k {half}"));
    assert!(reply.starts_with("-ERR value longer than 204800 bytes"), "{reply}");
    assert!(harness.ask(id, b"*1\r\n$-5\r\n").starts_with("-ERR Protocol error"));
    assert!(harness.clients[&id].closed, "after a protocol error the connection is closed");
    let id = harness.connect(Protocol::Memcached);
    assert_eq!(harness.memcached(id, &format!("get {}", "k".repeat(251))), "CLIENT_ERROR bad command line format");
    assert_eq!(harness.memcached(id, "get k2"), "END");
}
