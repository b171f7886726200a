//! Disks that hang or are full: what must be durable waits, other members go on, everything serves again afterwards.
use super::commands::{Answer, set};
use super::transfers::{self, leave_behind, tail, wait_for_members};
use super::world::{BACK_ENDS, FRONT_END, TestWorld};
use fawn_chain::RangeEntry;
use fawn_flash::SimDisk;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_types::{Durability, RingKey};
use std::collections::BTreeSet;

/// The bound on healing [replication.md § 2.5], ms.
const HEAL_MS: usize = 60_000;

pub(super) fn is_serving(world: &TestWorld) -> bool {
    let serves = |phase| matches!(phase, "head" | "middle" | "tail" | "single");
    world.statuses().iter().flat_map(|(_, status)| &status.members).all(|member| serves(member.phase))
}

fn keys() -> impl Iterator<Item = Vec<u8>> {
    (0..10_u32).map(|i| format!("k{i}").into_bytes())
}

fn put_all(world: &mut TestWorld, value: &[u8]) {
    for key in keys() {
        world.put(&key, value);
    }
}

/// Puts that are answered somehow while a disk hangs: something has to be in flight.
fn try_all(world: &mut TestWorld, value: &[u8]) {
    let ops: Vec<_> = keys().map(|key| world.submit(&set(&key, value)).unwrap()).collect();
    for op in ops {
        world.wait(op);
    }
}

/// No byte more than they hold fits on the disks.
fn fill(disks: impl Iterator<Item = SimDisk>) {
    for disk in disks {
        let len = |name: &String| disk.contents(name).map_or(0, |contents| contents.len() as u64);
        let used_bytes = disk.names().iter().map(|name| len(name).next_multiple_of(4096)).sum();
        disk.set_capacity_bytes(Some(used_bytes));
    }
}

/// **whole-again**: all disks are full while promises and maps are due, because a member is restarted now and then.
/// Once space is back, everything serves without another restart.
#[test]
fn full_disks_delay_promises_and_maps() {
    let mut world = TestWorld::new(2);
    put_all(&mut world, b"1");
    world.run(1_000);
    fill(world.disks.values().cloned());
    for _ in 0..60 {
        world.kill(3, false);
        // Opening a store needs space for the number of the open.
        world.disks[&3].set_capacity_bytes(None);
        world.start(3);
        fill([world.disks[&3].clone()].into_iter());
        world.run(1_500);
    }
    assert!(!is_serving(&world), "nothing was due on the full disks");
    world.disks.values().for_each(|disk| disk.set_capacity_bytes(None));
    world.run(HEAL_MS);
    assert!(is_serving(&world), "60 s after space was back: {:#?}", world.statuses());
    put_all(&mut world, b"2");
    world.assert_equal_copies();
}

/// A head without space answers without a record, so it would do a late copy of the request as a new one: a write that
/// was sent more than once is not reported as refused.
#[test]
fn a_full_disk_leaves_open_what_was_sent_twice() {
    let mut world = TestWorld::new(3);
    put_all(&mut world, b"1");
    let map = world.manager_map().clone();
    let head = map.range_of(&RingKey::of(&map.secret, b"k1")).and_then(RangeEntry::head).unwrap();
    fill([world.disks[&head.node().0].clone()].into_iter());
    let value = vec![7; 4_000];
    let refused = (0..1_000).any(|_| world.call(&set(b"k1", &value)).is_error("OOM "));
    assert!(refused, "the store never became full");
    // The reply to the first copy of the request is lost.
    world.cut.insert((head.node().0, FRONT_END));
    let op = world.submit(&set(b"k1", &value)).unwrap();
    world.run(100);
    world.cut.clear();
    let answer = world.wait(op);
    assert!(answer.is_error("TRYAGAIN range unavailable"), "{answer:?}");
}

fn hang(world: &TestWorld, victim: u32) {
    world.disks[&victim].hang(OpKind::Write);
    world.disks[&victim].hang(OpKind::Sync);
}

/// A disk hangs without an error for a minute: within 15 s the two others serve every range without it; it is promoted
/// again once its disk works.
#[test]
fn a_disk_that_hangs_leaves_its_chains() {
    for victim in 2..=BACK_ENDS {
        let mut world = TestWorld::new(40 + u64::from(victim));
        put_all(&mut world, b"1");
        hang(&world, victim);
        let started = world.now;
        try_all(&mut world, b"2");
        world.run(15_000_u64.saturating_sub(world.now.mono.ms_since(started.mono)) as usize);
        while world.now.mono.ms_since(started.mono) < 60_000 {
            for key in keys() {
                let before = world.now;
                let answer = world.call(&set(&key, b"3"));
                let took_ms = world.now.mono.ms_since(before.mono);
                assert!(answer == Answer::Stored && took_ms < 1_000, "{answer:?} after {took_ms} ms");
            }
            world.run(500);
        }
        world.disks[&victim].release_hung();
        world.run(HEAL_MS);
        assert!(is_serving(&world), "60 s after the disk works again: {:#?}", world.statuses());
        assert_eq!(world.assert_equal_copies(), 10);
    }
}

/// The disk with the manager's map hangs: chains cannot change meanwhile. Once it works, everything serves.
#[test]
fn the_managers_disk_hangs_and_works_again() {
    let mut world = TestWorld::new(50);
    put_all(&mut world, b"1");
    hang(&world, 1);
    try_all(&mut world, b"2");
    world.run(30_000);
    world.disks[&1].release_hung();
    world.run(HEAL_MS);
    assert!(is_serving(&world), "60 s after the disk works again: {:#?}", world.statuses());
    put_all(&mut world, b"3");
    assert_eq!(world.assert_equal_copies(), 10);
}

/// A member that returns asks for records again and again while its peers' disks do not read them.
#[test]
fn a_disk_that_hangs_reads_once_for_a_request_that_is_repeated() {
    let mut world = TestWorld::with(240, Durability::Sync, 2 << 20);
    world.put(b"k", b"v");
    world.kill(2, false);
    for i in 0..300_u32 {
        world.put(format!("k{i}").as_bytes(), &[i as u8; 9_000]);
    }
    let peers = [1, 3].map(|node| world.disks[&node].clone());
    peers.iter().for_each(|disk| disk.fail_every(OpKind::Read, DeviceFault::Hang));
    world.start(2);
    world.run(5_000);
    let hung: Vec<usize> = peers.iter().map(|disk| disk.hung()).collect();
    let ranges = world.manager_map().ranges.len();
    let is_bounded = hung.iter().sum::<usize>() <= ranges && hung.iter().any(|reads| *reads > 0);
    assert!(is_bounded, "{hung:?} reads, for a member of {ranges} ranges");
    for disk in peers {
        disk.end_faults(OpKind::Read);
        disk.release_hung();
    }
    world.run(5_000);
    assert_eq!(world.assert_equal_copies(), 301);
}

/// The announcement of an epoch arrives while the member's disk does not begin its copy, so the member ignores it. Its
/// sender in the former epoch is gone, and no client sends the member the newer epoch.
#[test]
fn a_member_whose_disk_hung_at_an_activation_joins_the_new_epoch() {
    let mut world = transfers::world(Durability::Sync, 8 << 20);
    let returning = 5 - tail(&world);
    leave_behind(&mut world, returning);
    let tail = tail(&world);
    assert_eq!(BTreeSet::from([1, returning, tail]).len(), 3, "node 1 has the map");
    world.start(returning);
    let is_beginning = |world: &TestWorld| world.status(returning).members.iter().any(|at| at.phase == "copying");
    while !is_beginning(&world) {
        world.step();
    }
    hang(&world, returning);
    world.run(100);
    world.kill(tail, false);
    wait_for_members(&mut world, 1);
    world.disks[&returning].release_hung();
    wait_for_members(&mut world, 2);
    world.put(b"k", b"v");
}
