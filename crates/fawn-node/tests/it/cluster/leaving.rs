//! Sessions that end while their requests are at chains: their grants return with the replies, and only then.
use super::world::{FRONT_END, TestWorld};
use crate::harness::resp;
use fawn_wire::Protocol;

/// Sends `bytes` in a session at the front-end, ends it after `forwarded` requests left, and checks that the whole
/// budget is free in the end.
fn leave(world: &mut TestWorld, protocol: Protocol, bytes: &[u8], forwarded: u64) {
    let now = world.now;
    let node = world.nodes.get_mut(&FRONT_END).unwrap();
    let before = node.status().counters.forwarded;
    let id = node.open_session(protocol);
    assert_eq!(node.handle_input(now, id, bytes), bytes.len());
    for _ in 0..1_000 {
        if world.nodes[&FRONT_END].status().counters.forwarded >= before + forwarded {
            break;
        }
        world.step();
    }
    let node = world.nodes.get_mut(&FRONT_END).unwrap();
    assert_eq!(node.status().counters.forwarded, before + forwarded);
    let granted = node.status().replies.reserved_bytes;
    node.close_session(id);
    assert!(granted > 0);
    // Only the ends of its own replies were reserved beside the grants.
    assert!(node.status().replies.reserved_bytes + 16 > granted, "replies may still arrive");
    world.run(2_000);
    let status = world.nodes[&FRONT_END].status();
    let replies = status.replies;
    assert_eq!((status.pending, replies.held_bytes, replies.reserved_bytes, replies.waiting), (0, 0, 0, 0));
}

#[test]
fn a_read_returns_the_grant_of_a_session_that_ended() {
    let mut world = TestWorld::new(70);
    world.put(b"k", b"1");
    leave(&mut world, Protocol::Memcached, b"get k\r\n", 1);
}

#[test]
fn reads_that_share_a_reply_return_their_grants() {
    let mut world = TestWorld::new(71);
    let pipeline = b"set k 0 0 1 noreply\r\nv\r\nget k\r\nget k\r\nget k\r\n";
    leave(&mut world, Protocol::Memcached, pipeline, 2);
}

#[test]
fn items_that_need_more_return_their_first_grants() {
    let mut world = TestWorld::new(72);
    world.put(b"long", &[7; 16_000]);
    leave(&mut world, Protocol::Resp, &resp(&format!("MGET{}", " long".repeat(100))), 100);
}

#[test]
fn items_that_wait_for_a_window_return_their_grants() {
    let mut world = TestWorld::new(73);
    world.limits.router.window_ops_max = 4;
    world.kill(FRONT_END, false);
    world.start(FRONT_END);
    world.put(b"k", b"1");
    leave(&mut world, Protocol::Resp, &resp(&format!("MGET{}", " k".repeat(64))), 64);
}
