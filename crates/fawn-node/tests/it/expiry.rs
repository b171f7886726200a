//! Expiry at a shard: a key that an update keeps is never missed before that update is committed.
use crate::harness::{ShardHarness, resp};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_wire::Protocol;

/// How long the key lives, ms.
const LIFE_MS: u64 = 200;

#[test]
fn a_key_kept_by_a_pending_update_is_not_missed() {
    for update in ["PERSIST key", "PEXPIRE key 60000"] {
        let mut harness = ShardHarness::new();
        let [writer, reader, several, scanner] = [0; 4].map(|_| harness.connect(Protocol::Resp));
        assert_eq!(harness.redis(writer, &format!("SET key value PX {LIFE_MS}")), "+OK");
        assert_eq!(harness.redis(writer, "SET other value"), "+OK");
        let kinds = [OpKind::Write, OpKind::Sync];
        kinds.iter().for_each(|kind| harness.disks[0].fail_every(*kind, DeviceFault::Hang));
        harness.send(writer, &resp(update));
        harness.run(3);
        harness.now = harness.now.plus_ms(LIFE_MS + 100);
        harness.send(reader, &resp("GET key"));
        harness.send(several, &resp("MGET key none"));
        harness.send(scanner, &resp("SCAN 0 COUNT 1000"));
        harness.run(10);
        let received =
            |harness: &ShardHarness, id| String::from_utf8_lossy(&harness.clients[&id].received).into_owned();
        assert_eq!([reader, several, scanner].map(|id| received(&harness, id)), [""; 3], "{update}");
        kinds.iter().for_each(|kind| harness.disks[0].end_faults(*kind));
        harness.disks[0].release_hung();
        harness.settle();
        assert_eq!(received(&harness, reader), "$5\r\nvalue\r\n", "{update}");
        assert_eq!(received(&harness, several), "*2\r\n$5\r\nvalue\r\n$-1\r\n", "{update}");
        assert!(received(&harness, scanner).contains("$3\r\nkey\r\n"), "{update}: {}", received(&harness, scanner));
    }
}

#[test]
fn an_expired_key_is_missed_once_the_update_that_follows_is_committed() {
    let mut harness = ShardHarness::new();
    let [writer, reader] = [0; 2].map(|_| harness.connect(Protocol::Resp));
    assert_eq!(harness.redis(writer, &format!("SET key value PX {LIFE_MS}")), "+OK");
    let kinds = [OpKind::Write, OpKind::Sync];
    kinds.iter().for_each(|kind| harness.disks[0].fail_every(*kind, DeviceFault::Hang));
    harness.send(writer, &resp("DEL key"));
    harness.now = harness.now.plus_ms(LIFE_MS + 100);
    harness.send(reader, &resp("GET key"));
    harness.run(10);
    assert_eq!(harness.clients[&reader].received, b"");
    kinds.iter().for_each(|kind| harness.disks[0].end_faults(*kind));
    harness.disks[0].release_hung();
    harness.settle();
    assert_eq!(harness.clients[&reader].received, b"$-1\r\n");
}

#[test]
fn a_scan_step_over_expired_keys_has_a_cursor_and_no_key() {
    let mut harness = ShardHarness::new();
    let id = harness.connect(Protocol::Resp);
    for number in 0..500 {
        assert_eq!(harness.redis(id, &format!("SET key:{number} v PX {LIFE_MS}")), "+OK");
    }
    harness.now = harness.now.plus_ms(LIFE_MS + 100);
    let (mut cursor, mut steps) = ("0".to_owned(), 0);
    loop {
        let reply = harness.redis(id, &format!("SCAN {cursor}"));
        let words: Vec<&str> = reply.split('|').collect();
        assert_eq!(words[3..], ["*0"], "{reply}");
        (cursor, steps) = (words[2].to_owned(), steps + 1);
        if cursor == "0" {
            break;
        }
    }
    assert!(steps > 10, "{steps} steps passed 500 records");
}
