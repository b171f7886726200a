//! Requests that continue without an event: those that find the log full, because the commit that frees it comes after the
//! iteration's retries, and reads of segments that are gone when their turn comes.
use crate::harness::{Restarts, ShardHarness, resp, shard_options};
use fawn_flash::SimOptions;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_node::{ClientService, SessionId, ShardOptions};
use fawn_types::{Durability, MonoMs};
use fawn_wire::Protocol;

/// A shard with one uncommitted write at most and a long value on flash under `cold`.
fn narrow_shard() -> ShardHarness {
    let options = ShardOptions { uncommitted_max: 1, ..shard_options(Durability::Sync) };
    let mut harness = ShardHarness::with(SimOptions::instant(1), options);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, &format!("SET cold {}", "x".repeat(9000))), "+OK");
    harness.reopen()
}

fn run_once(harness: &mut ShardHarness) -> Option<MonoMs> {
    let due = harness.host.run_once(harness.now);
    while let Some(output) = harness.host.poll_output() {
        harness.handle(output);
    }
    due
}

/// Sends requests on the cold key while another session's write, which the disk does not complete, fills the log.
/// Returns the replies after its commit, of iterations within 10 ms that are due.
fn replies_after_the_commit(requests: &[&str]) -> String {
    let mut harness = narrow_shard();
    let (other, id) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    harness.disks[0].hang(OpKind::Write);
    harness.send(other, &resp("SET k v"));
    requests.iter().for_each(|request| harness.send(id, &resp(request)));
    harness.run(20);
    assert!(harness.disks[0].hung() > 0 && harness.host.status().reads == 0, "the read is done, the write is not");
    let received = |harness: &ShardHarness, id: SessionId| harness.clients[&id].received.clone();
    harness.disks[0].release_hung();
    let mut due = None;
    while received(&harness, other).is_empty() {
        due = run_once(&mut harness);
    }
    let end = harness.now.mono.plus_ms(10);
    while let Some(at) = due.filter(|at| *at <= end) {
        harness.now = harness.now.plus_ms(at.ms_since(harness.now.mono));
        due = run_once(&mut harness);
        // The device completes what was submitted.
        harness.run(3);
        if harness.host.is_idle() {
            break;
        }
    }
    assert_eq!(harness.host.status().counters.forwarded, 0, "there is no other shard");
    received(&harness, id).escape_ascii().to_string()
}

#[test]
fn an_update_of_a_cold_key_is_retried_after_the_commit() {
    assert_eq!(replies_after_the_commit(&["APPEND cold y"]), ":9001\\r\\n");
}

#[test]
fn an_update_behind_the_sessions_read_is_retried_after_the_commit() {
    assert_eq!(replies_after_the_commit(&["STRLEN cold", "SET cold y"]), ":9000\\r\\n+OK\\r\\n");
}

#[test]
fn a_queued_read_whose_segment_is_gone_is_answered_at_once() {
    let options = ShardOptions { reads_in_flight_max: 1, ..shard_options(Durability::Sync) };
    let mut harness = ShardHarness::with(SimOptions::instant(1), options);
    let id = harness.connect(Protocol::Resp);
    let (filler, value) = ("x".repeat(150 << 10), "x".repeat(5000));
    for number in 0..30 {
        assert_eq!(harness.redis(id, &format!("SET filler:{number} {filler}")), "+OK");
        if number == 10 || number == 20 {
            assert_eq!(harness.redis(id, &format!("SET key:{number} {value}")), "+OK");
        }
    }
    let mut harness = harness.reopen();
    let ids: Vec<_> = (0..3).map(|_| harness.connect(Protocol::Resp)).collect();
    harness.disks[0].fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    harness.send(ids[0], &resp("STRLEN key:10"));
    harness.send(ids[1], &resp("STRLEN key:20"));
    harness.send(ids[2], &resp("FLUSHALL"));
    harness.run(100);
    let status = harness.host.status();
    assert_eq!((harness.disks[0].hung(), status.reads), (1, 2), "one read is in flight, one is queued");
    assert!(status.store.segments <= 3, "only the one that is read stays: {} segments", status.store.segments);
    harness.disks[0].release_hung();
    while harness.clients[&ids[0]].received.is_empty() {
        let due = run_once(&mut harness);
        assert!(harness.disks[0].hung() == 0 && due.is_some_and(|at| at <= harness.now.mono), "due at {due:?}");
    }
    run_once(&mut harness);
    assert_eq!(harness.clients[&ids[1]].received, b":0\r\n");
}

/// Runs the iterations that are due until the session has a reply; no more than a minute's. Returns the reply.
fn reply_in_time(harness: &mut ShardHarness, id: SessionId) -> String {
    let end = harness.now.mono.plus_ms(60_000);
    let mut due = run_once(harness);
    while harness.clients[&id].received.is_empty()
        && let Some(at) = due.filter(|at| *at <= end)
    {
        harness.now = harness.now.plus_ms(at.ms_since(harness.now.mono));
        due = run_once(harness);
    }
    let received = std::mem::take(&mut harness.clients.get_mut(&id).unwrap().received);
    received.escape_ascii().to_string()
}

/// As many as may be in flight hang. Further lookups of their pages begin no reads, those of other pages go on.
#[test]
fn lookups_of_other_pages_go_on_while_reads_hang() {
    let mut harness = shard_of_long_values(2);
    let ids: Vec<_> = (0..6).map(|_| harness.connect(Protocol::Resp)).collect();
    harness.disks[0].hang(OpKind::Read);
    harness.send(ids[0], &resp("STRLEN key:0"));
    harness.send(ids[1], &resp("STRLEN key:4"));
    run_once(&mut harness);
    harness.disks[0].end_faults(OpKind::Read);
    harness.send(ids[2], &resp("STRLEN key:0"));
    harness.send(ids[3], &resp("STRLEN key:0"));
    harness.send(ids[4], &resp("GET key:2"));
    assert!(reply_in_time(&mut harness, ids[4]).starts_with("$9002"));
    let status = harness.host.status();
    assert_eq!((harness.disks[0].hung(), status.reads), (2, 4), "two lookups wait for the end of the first read");
    harness.send(ids[5], &resp("STRLEN key:4"));
    run_once(&mut harness);
    assert_eq!((harness.disks[0].hung(), harness.host.status().reads), (2, 5));
    harness.disks[0].release_hung();
    for (id, bytes) in [(0, 9000), (1, 9004), (2, 9000), (3, 9000), (5, 9004)] {
        assert_eq!(reply_in_time(&mut harness, ids[id]), format!(":{bytes}\\r\\n"), "session {id}");
    }
}

/// A shard with a bound on its reads, and with values of 9,000 bytes and more. Each shares pages with its neighbours.
fn shard_of_long_values(reads_in_flight_max: usize) -> ShardHarness {
    let options = ShardOptions { reads_in_flight_max, ..shard_options(Durability::Sync) };
    let mut harness = ShardHarness::with(SimOptions::instant(1), options);
    let id = harness.connect(Protocol::Resp);
    for number in 0..5 {
        assert_eq!(harness.redis(id, &format!("SET key:{number} {}", "x".repeat(9000 + number))), "+OK");
    }
    harness.reopen()
}

#[test]
fn lookups_behind_a_read_that_hangs_fail_with_it() {
    let mut harness = shard_of_long_values(1);
    let ids: Vec<_> = (0..5).map(|_| harness.connect(Protocol::Resp)).collect();
    harness.disks[0].fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    ids[..4].iter().for_each(|id| harness.send(*id, &resp("STRLEN key:0")));
    harness.send(ids[4], &resp("STRLEN key:2"));
    assert_eq!(reply_in_time(&mut harness, ids[4]), ":9002\\r\\n");
    let name = harness.disks[0].names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    harness.disks[0].make_unreadable(&name, 4096..2 * 4096);
    harness.disks[0].release_hung();
    harness.disks[0].hang(OpKind::Read);
    for id in &ids[..4] {
        let reply = reply_in_time(&mut harness, *id);
        assert!(reply.starts_with('-'), "{reply}");
    }
    assert_eq!(harness.disks[0].hung(), 0, "none of them reads the page again");
}

#[test]
fn keys_that_share_a_page_with_a_read_that_hangs_are_read() {
    let mut harness = shard_of_long_values(1);
    let (long, next) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    harness.disks[0].fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    harness.send(long, &resp("STRLEN key:0"));
    harness.send(next, &resp("STRLEN key:1"));
    assert_eq!(reply_in_time(&mut harness, next), ":9001\\r\\n");
    assert_eq!(harness.disks[0].hung(), 1);
}

/// The engine's time is that of its last poll: such a read is no older than the first iteration that meets it.
#[test]
fn the_first_read_after_a_pause_does_not_count_as_hanging() {
    let mut harness = shard_of_long_values(1);
    let (first, second) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    harness.disks[0].hang(OpKind::Read);
    harness.now = harness.now.plus_ms(10_000);
    harness.send(first, &resp("STRLEN key:0"));
    harness.send(second, &resp("STRLEN key:4"));
    run_once(&mut harness);
    assert_eq!(harness.disks[0].hung(), 1);
}

#[test]
fn a_put_to_a_full_store_is_answered_while_a_read_hangs() {
    let mut harness = ShardHarness::with(SimOptions::instant(1), shard_options(Durability::Sync));
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, &format!("SET cold {}", "x".repeat(9000))), "+OK");
    let mut harness = harness.reopen();
    let (reader, writer) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    harness.disks[0].set_capacity_bytes(Some(8 << 20));
    harness.disks[0].fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    harness.disks[0].fail_nth(OpKind::Read, 2, DeviceFault::Hang);
    harness.send(reader, &resp("STRLEN cold"));
    let value = "x".repeat(100 << 10);
    let mut replies = (0..2_000).map(|number| {
        // Each segment has some records that are live, so that its cleaning reads it.
        let key = if number % 5 == 0 { number } else { 1 };
        harness.send(writer, &resp(&format!("SET key:{key} {value}")));
        reply_in_time(&mut harness, writer)
    });
    let refused = replies.find(|reply| reply != "+OK\\r\\n");
    assert!(refused.as_ref().is_some_and(|reply| reply.starts_with("-OOM store full")), "{refused:?}");
}
