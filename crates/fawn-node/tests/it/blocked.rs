//! Requests that find the log full: the commit that frees it comes after the iteration's retries, and no event follows.
use crate::harness::{Restarts, ShardHarness, resp, shard_options};
use fawn_flash::SimOptions;
use fawn_flash::sim::OpKind;
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
