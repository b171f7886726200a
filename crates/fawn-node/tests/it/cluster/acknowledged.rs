//! Results that front-ends have and do not acknowledge: the head asks for that once they use all of their memory.
use super::commands::{Answer, redis, set};
use super::transfers::{VALUE_BYTES, completion_bytes, head, key, put_long, wait_for_members};
use super::world::{BACK_ENDS, FRONT_END, TestWorld};
use crate::member;
use fawn_chain::RangeEntry;
use fawn_chain::completions::CompletionLimits;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, KeyRange, RangeId, Version};

/// The results of three deletions of a long value use more.
const BYTES_MAX: usize = 40_000;

/// One range.
fn world(completions: CompletionLimits) -> TestWorld {
    let disk = |node: u32| SimDisk::new(SimOptions::instant(u64::from(node)));
    let disks = (1..=BACK_ENDS).map(|node| (node, disk(node))).collect();
    let range = RangeEntry::new(RangeId(1), KeyRange::ALL, &[member(1), member(2), member(3)]);
    let mut world = TestWorld::on(71, Durability::Sync, 8 << 20, disks, Some(range));
    restart(&mut world, completions);
    world
}

fn restart(world: &mut TestWorld, completions: CompletionLimits) {
    world.limits.completions = completions;
    (1..=FRONT_END).for_each(|node| world.kill(node, true));
    (1..=FRONT_END).for_each(|node| world.start(node));
    wait_for_members(world, 3);
}

fn narrow() -> CompletionLimits {
    CompletionLimits { bytes_max: BYTES_MAX, sessions_max: 8, ..CompletionLimits::default() }
}

/// Each back-end is a front-end, too: it deletes a key, receives its value, and sends no update any more.
fn delete_long(world: &mut TestWorld) {
    for node in 1..=BACK_ENDS {
        let op = world.submit_at(node, &redis(&[b"GETDEL", &key(u64::from(node))])).unwrap();
        assert_eq!(world.wait(op), Answer::Previous(vec![b'v'; VALUE_BYTES]));
    }
}

/// Sends an update at the front-end, which has a reply in a second.
fn update_in_a_second(world: &mut TestWorld) {
    let op = world.submit(&set(b"later", b"value")).unwrap();
    world.run(1_000);
    assert_eq!(world.done.get(&op), Some(&Answer::Stored), "{:#?}", world.statuses());
}

fn last_versions(world: &TestWorld) -> Vec<Version> {
    (1..=BACK_ENDS).map(|node| world.status(node).members[0].last).collect()
}

/// A front-end that sends no update any more does not acknowledge the reply to its last one by itself.
#[test]
fn idle_front_ends_leave_memory_for_the_results_of_others() {
    let mut world = world(narrow());
    put_long(&mut world, u64::from(BACK_ENDS));
    let before = last_versions(&world)[0].seq();
    delete_long(&mut world);
    update_in_a_second(&mut world);
    let bytes = [1, 2, 3].map(|node| completion_bytes(&world, node));
    assert!(bytes.iter().all(|bytes| *bytes < 2 * VALUE_BYTES), "all members free the same results: {bytes:?}");
    let after = last_versions(&world);
    let records = after[0].seq() - before;
    assert_eq!(records, 3 + 2 + 1, "deletions, acknowledgements of all but the last, which was on its way, the update");
    world.run(10_000);
    assert_eq!(last_versions(&world), after, "a front-end with nothing to acknowledge sends nothing");
}

/// An acknowledgement costs a record, so front-ends are not asked for one while there is memory.
#[test]
fn results_are_kept_while_there_is_memory_for_them() {
    let mut world = world(CompletionLimits::default());
    put_long(&mut world, u64::from(BACK_ENDS));
    delete_long(&mut world);
    let after = last_versions(&world);
    world.run(10_000);
    assert_eq!(last_versions(&world), after);
}

/// The results in the memory may be those of former processes, which acknowledge nothing any more. The present ones may
/// send no update either.
#[test]
fn restarted_front_ends_leave_memory_for_the_results_of_others() {
    let mut world = world(CompletionLimits::default());
    put_long(&mut world, u64::from(BACK_ENDS));
    delete_long(&mut world);
    assert!(completion_bytes(&world, head(&world).node().0) > BYTES_MAX);
    restart(&mut world, narrow());
    update_in_a_second(&mut world);
}
