//! Expiry at a tail: a key that an update keeps is never missed before that update is committed.
use super::commands::{Answer, TestCommand, get, memcached, redis, set};
use super::world::{BACK_ENDS, FRONT_END, TestOp, TestWorld};
use crate::member;
use fawn_chain::RangeEntry;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, KeyRange, RangeId};

const KEY: &[u8] = b"key";
/// How long the key lives, ms.
const LIFE_MS: u64 = 200;

/// One range. Sends one record per frame and round trip, if it is `slow`.
fn world(is_slow: bool) -> TestWorld {
    let disk = |node: u32| SimDisk::new(SimOptions::instant(u64::from(node)));
    let disks = (1..=BACK_ENDS).map(|node| (node, disk(node))).collect();
    let chain = [member(1), member(2), member(3)];
    let range = RangeEntry::new(RangeId(1), KeyRange::ALL, &chain);
    let mut world = TestWorld::on(7, Durability::Sync, 8 << 20, disks, Some(range));
    if is_slow {
        for node in 1..=FRONT_END {
            world.kill(node, false);
        }
        world.limits.replica.window_bytes_max = 1;
        world.limits.replica.frame_bytes_max = 1;
        (1..=FRONT_END).for_each(|node| world.start(node));
    }
    assert_eq!(world.call(&redis(&[b"SET", KEY, b"value", b"PX", b"60000"])), Answer::Stored);
    world
}

/// Lets the key expire soon.
fn expire(world: &mut TestWorld) {
    let command = redis(&[b"PEXPIRE", KEY, LIFE_MS.to_string().as_bytes()]);
    assert_eq!(world.call(&command), Answer::Number(1));
}

/// Lets the key never expire.
fn persist() -> TestCommand {
    memcached(&[b"touch", KEY, b"0"])
}

/// A relative expiry becomes absolute at the head: a clock that is ahead where the session is does not matter.
#[test]
fn a_relative_expiry_does_not_follow_the_sessions_clock() {
    let mut world = world(false);
    world.kill(FRONT_END, false);
    // A new store takes its expiry time from the wall clock.
    world.disks.insert(FRONT_END, SimDisk::new(SimOptions::instant(8)));
    let now = world.now;
    world.now.wall = now.wall.plus_ms(3_600_000);
    world.start(FRONT_END);
    world.now = now;
    assert_eq!(world.call(&redis(&[b"SET", KEY, b"value", b"PX", b"200"])), Answer::Stored);
    world.run(LIFE_MS as usize + 200);
    assert_eq!(world.get(KEY), Answer::Absent);
}

/// After a reboot, or a step of the wall clock, chain time is behind for a minute and then jumps.
#[test]
fn a_time_to_live_does_not_end_with_a_jump_of_chain_time() {
    let mut world = world(false);
    world.now.wall = world.now.wall.plus_ms(3_600_000);
    world.run(10);
    assert_eq!(world.call(&redis(&[b"SET", KEY, b"value", b"EX", b"600"])), Answer::Stored);
    assert_eq!(world.call(&redis(&[b"SET", b"short", b"value", b"PX", b"1000"])), Answer::Stored);
    world.run(1_200);
    assert_eq!(world.get(b"short"), Answer::Absent);
    world.run(62_000);
    assert_eq!(world.get(KEY).value(), Some(&b"value"[..]));
    let left = world.call(&redis(&[b"PTTL", KEY]));
    assert!(matches!(left, Answer::Number(500_000..=537_000)), "{left:?}");
}

/// A time source that is wrong for a moment costs a day at most.
#[test]
fn a_time_to_live_counts_from_no_time_that_is_years_ahead() {
    const DAY_MS: i64 = 86_400_000;
    let mut world = world(false);
    let right = world.now.wall;
    world.now.wall = right.plus_ms(20 * 365 * DAY_MS as u64);
    world.run(10);
    assert_eq!(world.call(&redis(&[b"SET", KEY, b"value", b"EX", b"600"])), Answer::Stored);
    assert_eq!(world.call(&redis(&[b"SET", b"short", b"value", b"PX", b"1000"])), Answer::Stored);
    world.now.wall = right;
    world.run(1_200);
    assert_eq!(world.get(b"short"), Answer::Absent);
    let left = world.call(&redis(&[b"PTTL", KEY]));
    assert!(matches!(left, Answer::Number(left_ms) if left_ms <= DAY_MS + 600_000), "{left:?}");
}

fn answer(world: &TestWorld, op: TestOp) -> Option<&Answer> {
    world.done.get(&op)
}

#[test]
fn a_key_kept_by_a_pending_update_is_not_missed() {
    let mut world = world(false);
    let tail = world.manager_map().ranges[0].tail().unwrap().node().0;
    expire(&mut world);
    for kind in [OpKind::Write, OpKind::Sync] {
        world.disks[&tail].fail_every(kind, DeviceFault::Hang);
    }
    let persist = world.submit(&persist()).unwrap();
    world.run(LIFE_MS as usize + 200);
    let gets = |world: &TestWorld| world.nodes[&tail].status().counters.gets;
    let gets_before = gets(&world);
    let read = world.submit(&get(KEY)).unwrap();
    // At the tail itself a read is a call; it depends on the same update.
    let mut calls = Vec::new();
    for _ in 0..30 {
        world.run(10);
        calls.push(world.submit_at(tail, &get(KEY)).unwrap());
    }
    world.run(1);
    assert_eq!(answer(&world, persist), None, "the tail has not synced it");
    assert_eq!(answer(&world, read), None, "the key has expired, unless the update is committed");
    for call in &calls {
        assert_eq!(answer(&world, *call), None, "the key has expired, unless the update is committed");
    }
    for kind in [OpKind::Write, OpKind::Sync] {
        world.disks[&tail].end_faults(kind);
    }
    world.disks[&tail].release_hung();
    assert_eq!(world.wait(read).value(), Some(&b"value"[..]));
    for call in calls {
        assert_eq!(world.wait(call).value(), Some(&b"value"[..]));
    }
    assert_eq!(gets(&world) - gets_before, 31, "each read counts once, with its reply");
    assert_eq!(world.wait(persist), Answer::Other("Touched".to_owned()));
}

/// The tail has the update that keeps the key on flash only, and the head has not synced it.
#[test]
fn a_pending_version_that_is_read_from_flash_waits_for_its_commit() {
    const OTHERS: u32 = 2_000;
    const VALUE: [u8; 10_000] = [2; 10_000];
    let mut world = world(false);
    world.memory_bytes = 1 << 20;
    (2..=BACK_ENDS).for_each(|node| world.kill(node, false));
    (2..=BACK_ENDS).for_each(|node| world.start(node));
    world.run(5_000);
    let set_others = |world: &mut TestWorld, from: u32, to: u32| -> Vec<TestOp> {
        (from..to).map(|at| world.submit(&set(&at.to_le_bytes(), &[1; 1_000])).unwrap()).collect()
    };
    for from in (0..OTHERS).step_by(100) {
        let ops = set_others(&mut world, from, from + 100);
        ops.into_iter().for_each(|op| assert_eq!(world.wait(op), Answer::Stored));
    }
    let entry = &world.manager_map().ranges[0];
    let [head, tail] = [entry.head(), entry.tail()].map(|id| id.unwrap().node().0);
    assert_eq!(world.call(&redis(&[b"SET", KEY, &VALUE, b"PX", b"60000"])), Answer::Stored);
    expire(&mut world);
    for kind in [OpKind::Write, OpKind::Sync] {
        world.disks[&head].fail_every(kind, DeviceFault::Hang);
    }
    let persist = world.submit(&persist()).unwrap();
    // These writes and reads take the place of the update in the tail's memory.
    set_others(&mut world, OTHERS, OTHERS + 20);
    world.run(20);
    let reads: Vec<TestOp> =
        (0..OTHERS).map(|at| world.submit(&redis(&[b"STRLEN", &at.to_le_bytes()])).unwrap()).collect();
    world.run(LIFE_MS as usize + 200);
    assert!(reads.iter().all(|read| answer(&world, *read).is_some()));
    let cold = |world: &TestWorld| world.nodes[&tail].status().counters.cold;
    let cold_before = cold(&world);
    let read = world.submit(&get(KEY)).unwrap();
    world.run(100);
    assert!(cold(&world) > cold_before, "the read found the update in memory");
    assert!([persist, read].iter().all(|op| answer(&world, *op).is_none()), "the update is not committed");
    for kind in [OpKind::Write, OpKind::Sync] {
        world.disks[&head].end_faults(kind);
    }
    world.disks[&head].release_hung();
    assert_eq!(world.wait(read).value(), Some(&VALUE[..]));
}

#[test]
fn a_key_kept_by_an_update_on_its_way_is_not_missed() {
    let mut world = world(true);
    expire(&mut world);
    // These records reach the tail one by one, and only then the update that keeps the key.
    let others: Vec<TestOp> = (0..200_u32).map(|at| world.submit(&set(&at.to_le_bytes(), b"other")).unwrap()).collect();
    let persist = world.submit(&persist()).unwrap();
    let mut reads = Vec::new();
    for _ in 0..LIFE_MS {
        world.run(4);
        reads.push(world.submit(&get(KEY)).unwrap());
    }
    assert_eq!(world.wait(persist), Answer::Other("Touched".to_owned()));
    assert!(others.into_iter().all(|op| answer(&world, op).is_some()));
    for read in reads {
        assert_eq!(world.wait(read).value(), Some(&b"value"[..]));
    }
}

/// Under a load that the chain never catches up with, an expired key is still missed soon.
#[test]
fn an_expired_key_is_missed_while_records_are_on_their_way() {
    let mut world = world(true);
    expire(&mut world);
    let (mut behind, mut read) = (0, None);
    for at in 0..4_000_u32 {
        // Two writes arrive in the time in which the chain takes one.
        let _ = world.submit(&set(&at.to_le_bytes(), b"other"));
        world.step();
        if u64::from(at) == LIFE_MS + 500 {
            read = Some(world.submit(&get(KEY)).unwrap());
        }
        let assigned = world.statuses().into_iter().flat_map(|(_, status)| status.members);
        let ends: Vec<_> = assigned.map(|member| member.last).collect();
        behind += u32::from(ends.iter().min() < ends.iter().max());
        if read.is_some_and(|read| answer(&world, read).is_some()) {
            break;
        }
    }
    assert!(behind > 600, "the tail was behind in {behind} iterations only");
    assert_eq!(answer(&world, read.unwrap()), Some(&Answer::Absent));
}
