//! Bounds of requests at chains: bytes of operations that fail or come back, windows, batches, pages of scans.
use super::harness::ClusterHarness;
use crate::harness::resp;
use fawn_node::{ClientService, LocalOptions, ShardOptions};
use fawn_types::Durability;
use fawn_wire::Protocol;

/// The bytes of a request are free again if it ends without its reply: it failed, or came back for a longer grant.
#[test]
fn requests_that_fail_or_come_back_free_their_bytes() {
    let shard = ShardOptions { value_bytes_max: 200 << 10, requests_bytes_max: 4 << 10, ..ShardOptions::default() };
    let mut harness = ClusterHarness::with_options(LocalOptions { shard, ..LocalOptions::default() }, 1);
    let id = harness.connect(Protocol::Resp);
    let (key, value) = ("k".repeat(200), "v".repeat(20_000));
    assert_eq!(harness.redis(id, &format!("SET {key} {value}")), "+OK");
    for _ in 0..40 {
        assert!(harness.redis(id, &format!("GETEX {key} EX 1000")).ends_with(&value));
    }
    assert!(harness.host.status().counters.rereads >= 40, "each was repeated");
    [2, 3].into_iter().for_each(|name| harness.kill(name, 7));
    for _ in 0..3 {
        harness.send(id, &(0..12).flat_map(|at| resp(&format!("SET {key}{at} v"))).collect::<Vec<u8>>());
        harness.run(6_000);
        let received = std::mem::take(&mut harness.clients.get_mut(&id).unwrap().received);
        assert_eq!(received.iter().filter(|byte| **byte == b'\n').count(), 12, "{}", received.escape_ascii());
        assert!(received.starts_with(b"-"), "{}", received.escape_ascii());
    }
    [2, 3].into_iter().for_each(|name| harness.restart(name));
    harness.run(5_000);
    assert_eq!(harness.redis(id, &format!("SET {key} v")), "+OK");
}

/// Operations that wait for the window of their range count as requests, and stall later requests on several keys. They
/// do not keep the node busy.
#[test]
fn operations_that_wait_for_a_window_are_counted_and_wait_quietly() {
    let mut harness = ClusterHarness::with_window(4);
    let (id, other) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    let keys: Vec<String> = (0..300).map(|key| format!("k{key}")).collect();
    assert_eq!(harness.redis(id, "DBSIZE"), ":0");
    harness.clients.get_mut(&id).unwrap().received.clear();
    harness.kill(2, 7);
    harness.send(id, &resp(&format!("EXISTS {}", keys.join(" "))));
    harness.run(50);
    // The ranges whose tail is dead have full windows, the others have replied.
    let pending = harness.host.status().pending;
    assert!((10..280).contains(&pending), "{pending} operations wait");
    let due = harness.host.run_once(harness.now);
    assert!(due.is_some_and(|due| due > harness.now.mono), "due at {due:?}, it is {:?}", harness.now.mono);
    harness.send(other, &resp(&format!("EXISTS {}", keys.join(" "))));
    assert!(harness.host.status().pending <= pending, "the range takes no more");
    harness.settle();
    assert_eq!(harness.clients[&id].received, b":0\r\n");
    assert_eq!(harness.clients[&other].received, b":0\r\n");
}

/// A batch that no frame can hold is refused.
#[test]
fn a_batch_longer_than_a_frame_is_refused() {
    let mut harness = ClusterHarness::with_values(1 << 20, true, Durability::Memory, 64 << 20);
    let id = harness.connect(Protocol::Resp);
    let value = "v".repeat(1 << 20);
    let batch = |count| -> String { (0..count).map(|key| format!(" k{key} {value}")).collect() };
    let reply = harness.redis(id, &format!("MSET{}", batch(17)));
    assert!(reply.starts_with("-ERR records of one command longer than 17694720 bytes"), "{reply}");
    assert_eq!(harness.redis(id, "DBSIZE"), ":0");
    assert_eq!(harness.redis(id, "MSET k0 v k1 v"), "+OK");
}

/// Items that have their replies no longer count as granted: a reply to many keys with a long value among them reserves
/// no more than its first grants and that value.
#[test]
fn items_with_replies_count_as_granted_no_more() {
    const ITEMS: usize = 200;
    let mut harness = ClusterHarness::with(false, Durability::Sync, 1 << 20);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "DBSIZE"), ":0");
    // The tail of the key is another node, so its read is no call.
    let forwarded = |harness: &ClusterHarness| harness.host.status().counters.forwarded;
    let is_elsewhere = |tag: &usize| {
        let before = forwarded(&harness);
        harness.redis(id, &format!("GET {{{tag}}}"));
        forwarded(&harness) > before
    };
    let tag = (0..100).find(is_elsewhere).unwrap();
    let value = "v".repeat(100 << 10);
    assert_eq!(harness.redis(id, &format!("SET {{{tag}}}long {value}")), "+OK");
    // The value leaves the memory, so that it is read from the device once it is granted.
    (0..40).for_each(|at| assert_eq!(harness.redis(id, &format!("SET other{at} {value}")), "+OK"));
    let keys: String = (0..ITEMS).map(|at| format!("{{{tag}}}{at} ")).collect();
    harness.send(id, &resp(&format!("MGET {keys}{{{tag}}}long")));
    let reserved = |harness: &ClusterHarness| harness.host.status().replies.reserved_bytes;
    let mut most = reserved(&harness);
    let first = most;
    while harness.clients[&id].received.is_empty() {
        harness.run_once();
        most = most.max(reserved(&harness));
    }
    assert!(harness.clients[&id].received.ends_with(format!("{value}\r\n").as_bytes()));
    assert!(harness.host.status().counters.rereads > 0);
    assert!(first > 2 * value.len() && most == first, "{first} bytes at first, then {most}");
}
