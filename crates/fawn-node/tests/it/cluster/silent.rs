//! A front-end that stays silent after an operation: its result is kept for a retry, and the log behind it is not.
use super::edges::{STRANGER, STRANGERS_BOOT, introduce};
use super::transfers::{
    VALUE_BYTES, completion_bytes, delete, head, key, leave_behind, put_long, resync, tail, wait_for_members, world,
};
use super::world::{BACK_ENDS, TestWorld};
use crate::cluster::commands::Answer;
use crate::member;
use fawn_types::Durability;

/// Writes several times the capacity of each disk.
fn overwrite(world: &mut TestWorld) {
    (0..300_u32).for_each(|at| world.put(&(at % 8).to_le_bytes(), &[b'v'; VALUE_BYTES]));
}

/// The deletion is repeated: each member knows its result, so the key that was written since stays.
fn check_retry(world: &mut TestWorld) {
    for node in 1..=BACK_ENDS {
        let bytes = completion_bytes(world, node);
        assert!(bytes > VALUE_BYTES, "node {node} has {bytes} bytes of results");
    }
    let head = head(world).node().0;
    let answered = world.status(head).counters.retries_answered;
    delete(world, 1, 1);
    assert_eq!(world.status(head).counters.retries_answered, answered + 1);
    assert!(matches!(world.get(&key(1)), Answer::Value(..)), "the key was deleted twice");
}

fn lose_power(world: &mut TestWorld) {
    (1..=BACK_ENDS).for_each(|node| world.kill(node, true));
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    wait_for_members(world, 3);
    introduce(world, member(STRANGER), STRANGERS_BOOT);
}

#[test]
fn the_result_of_a_silent_front_end_is_kept_without_the_log_behind_it() {
    let mut world = world(Durability::Sync, 8 << 20);
    (1..=BACK_ENDS).for_each(|node| world.disks[&node].set_capacity_bytes(Some(24 * (64 << 10))));
    put_long(&mut world, 1);
    delete(&mut world, 1, 1);
    assert_eq!(world.get(&key(1)), Answer::Absent);
    world.put(&key(1), b"later");
    overwrite(&mut world);
    check_retry(&mut world);
    lose_power(&mut world);
    check_retry(&mut world);
    // The result comes with the copy, and leaves the segment of the copy in its turn.
    let tail = tail(&world);
    leave_behind(&mut world, tail);
    resync(&mut world, tail);
    overwrite(&mut world);
    check_retry(&mut world);
    lose_power(&mut world);
    check_retry(&mut world);
}
