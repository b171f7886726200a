//! Healthy cluster: a put is on three disks, a get costs at most one device read, all copies agree.
use super::commands::{Answer, append_if_present, get, increment, redis, set, set_if_absent, set_if_version};
use super::world::{BACK_ENDS, FRONT_END, TestWorld};
use fawn_flash::sim::OpKind;
use fawn_types::{Durability, Version};

#[test]
fn a_put_is_read_back_and_lies_on_three_disks() {
    let mut world = TestWorld::new(1);
    world.put(b"key", b"value");
    let version = world.version(b"key");
    assert!(version > Version::ZERO);
    assert_eq!(world.get(b"key"), Answer::Value(b"value".to_vec(), version));
    assert_eq!(world.get(b"other"), Answer::Absent);
    assert_eq!(world.assert_equal_copies(), 1);
}

#[test]
fn every_mode_commits_and_agrees() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let mut world = TestWorld::with(2, durability, 8 << 20);
        for i in 0..200_u32 {
            let key = format!("key:{}", i % 50).into_bytes();
            world.put(&key, &i.to_le_bytes());
        }
        for i in 150..200_u32 {
            let key = format!("key:{}", i % 50).into_bytes();
            assert_eq!(world.get(&key).value(), Some(&i.to_le_bytes()[..]), "{durability:?}");
        }
        assert_eq!(world.assert_equal_copies(), 50, "{durability:?}");
    }
}

#[test]
fn pipelined_operations_on_one_key_are_all_done_once() {
    let mut world = TestWorld::new(3);
    let ops: Vec<_> = (0..500).map(|_| world.submit(&increment(b"counter")).unwrap()).collect();
    let mut answers: Vec<i64> = ops
        .into_iter()
        .map(|op| match world.wait(op) {
            Answer::Number(value) => value,
            other => panic!("{other:?}"),
        })
        .collect();
    answers.sort_unstable();
    assert_eq!(answers, (1..=500).collect::<Vec<_>>(), "each increment is counted once and has its own reply");
}

#[test]
fn conditional_outcomes_are_ordered_and_answered_by_the_tail() {
    let mut world = TestWorld::new(4);
    world.put(b"k", b"1");
    let version = world.version(b"k");
    let stale = Version::from_u64(version.as_u64() + 9);
    assert_eq!(world.call(&set_if_version(b"k", b"2", stale)), Answer::Other("Exists".to_owned()));
    assert_eq!(world.call(&set_if_absent(b"k", b"2")), Answer::Other("NotStored".to_owned()));
    assert_eq!(world.call(&set_if_version(b"k", b"2", version)), Answer::Stored);
    assert!(world.version(b"k") > version, "a later write has a higher version");
    assert_eq!(world.call(&append_if_present(b"k", b"3")), Answer::Stored);
    assert_eq!(world.get(b"k").value(), Some(&b"23"[..]));
    assert_eq!(world.call(&redis(&[b"GETDEL", b"k"])), Answer::Previous(b"23".to_vec()));
    assert_eq!(world.get(b"k"), Answer::Absent);
    assert_eq!(world.assert_equal_copies(), 0);
}

/// A cluster with a cache far smaller than the data, so that reads and updates go to the device.
pub(super) fn cold_world(seed: u64) -> TestWorld {
    let mut world = TestWorld::with(seed, Durability::Sync, 1 << 20);
    for i in 0..3000_u32 {
        let value = vec![i as u8; 1000];
        let op = world.submit(&set(format!("cold:{i}").as_bytes(), &value)).unwrap();
        if i % 100 == 99 {
            world.wait(op);
        }
    }
    world.run(300);
    world
}

#[test]
fn a_get_costs_at_most_one_device_read() {
    let mut world = cold_world(5);
    let reads = |world: &TestWorld| -> u64 { world.nodes.values().map(|node| node.engine().stats().reads).sum() };
    let before = reads(&world);
    for i in 0..300_u32 {
        let answer = world.get(format!("cold:{}", i * 7).as_bytes());
        assert_eq!(answer.value(), Some(&vec![(i * 7) as u8; 1000][..]));
    }
    let cost = reads(&world) - before;
    assert!(cost > 100, "the data does not fit in the cache, but there were only {cost} device reads");
    assert!(cost <= 301, "{cost} device reads for 300 gets");
}

#[test]
fn cold_updates_queue_per_key_and_keep_their_order() {
    let mut world = cold_world(6);
    let mut last = Vec::new();
    for key in 0..20_u32 {
        let name = format!("cold:{}", key * 100);
        for i in 0..10_u8 {
            last.push(world.submit(&append_if_present(name.as_bytes(), &[i])).unwrap());
        }
    }
    for op in last {
        assert_eq!(world.wait(op), Answer::Stored);
    }
    for key in 0..20_u32 {
        let answer = world.get(format!("cold:{}", key * 100).as_bytes());
        assert_eq!(answer.value().unwrap()[1000..], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "in the order submitted");
    }
    let cold: u64 = world.statuses().iter().map(|(_, status)| status.counters.cold).sum();
    assert!(cold >= 20, "only {cold} values were loaded from the device");
}

/// Requests that wait for a device read are bounded. Further ones are refused, and sent again.
#[test]
fn parked_requests_are_bounded() {
    const PARKED_MAX: usize = 4;
    let mut world = cold_world(8);
    world.limits.parked_max = PARKED_MAX;
    (1..=BACK_ENDS).for_each(|node| world.close(node));
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    assert_eq!(world.get(b"cold:0").value(), Some(&[0; 1000][..]));
    let keys: Vec<String> = (1..100).map(|key| format!("cold:{key}")).collect();
    let ops: Vec<_> = keys.iter().map(|key| world.submit(&get(key.as_bytes())).unwrap()).collect();
    let mut most = 0;
    for _ in 0..2_000 {
        world.run(1);
        most = world.statuses().iter().map(|(_, status)| status.parked).fold(most, usize::max);
    }
    assert_eq!(most, PARKED_MAX);
    assert!(ops.iter().all(|op| world.done.get(op).is_some_and(|answer| answer.value().is_some())));
}

/// While no disk reads, a member parks no more requests of front-ends than it may, on many keys or on one. The others
/// are refused and sent again: each has its reply once the disks work.
#[test]
fn parked_requests_are_bounded_while_disks_hang() {
    const PARKED_MAX: usize = 4;
    let mut world = cold_world(11);
    world.limits.parked_max = PARKED_MAX;
    (1..=BACK_ENDS).for_each(|node| world.close(node));
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    assert_eq!(world.get(b"cold:0").value(), Some(&[0; 1000][..]));
    let disks: Vec<_> = (1..=BACK_ENDS).map(|node| world.disks[&node].clone()).collect();
    disks.iter().for_each(|disk| disk.hang(OpKind::Read));
    let reads: Vec<_> = (1..40).map(|key| world.submit(&get(format!("cold:{key}").as_bytes())).unwrap()).collect();
    // The first of them reads; the others wait behind it.
    let updates: Vec<_> = (0..40).map(|i| world.submit(&append_if_present(b"cold:100", &[i])).unwrap()).collect();
    for _ in 0..1_000 {
        world.run(1);
        let parked: Vec<usize> = world.statuses().iter().map(|(_, status)| status.parked).collect();
        assert!(parked.iter().all(|parked| *parked <= PARKED_MAX), "{parked:?}");
    }
    let refused: u64 = world.statuses().iter().map(|(_, status)| status.counters.chain_refused).sum();
    assert!(refused > 0 && world.status(FRONT_END).outstanding > 40, "{:#?}", world.statuses());
    for disk in disks {
        disk.end_faults(OpKind::Read);
        disk.release_hung();
    }
    world.run(2_000);
    assert!(reads.iter().all(|op| world.done.get(op).is_some_and(|answer| answer.value().is_some())));
    assert!(updates.iter().all(|op| world.done.get(op) == Some(&Answer::Stored)));
    let mut appended = world.get(b"cold:100").value().unwrap()[1000..].to_vec();
    appended.sort_unstable();
    assert_eq!(appended, (0..40).collect::<Vec<u8>>(), "each once");
}

/// A node that starts again routes by the entries of its own members, which its store holds: they are newer than the
/// map it was configured with.
#[test]
fn a_node_starts_with_the_entries_of_its_members() {
    let mut world = TestWorld::new(9);
    world.put(b"k", b"v");
    world.run(1_000);
    let expected: Vec<_> = world.manager_map().ranges.iter().map(|entry| (entry.range, entry.epoch)).collect();
    world.close(2);
    world.start(2);
    let map = world.nodes[&2].map().unwrap();
    assert_eq!(map.ranges.iter().map(|entry| (entry.range, entry.epoch)).collect::<Vec<_>>(), expected);
}

/// A node asks for its next iteration in time for heartbeats, timers of members, and checks of operations. It sends no
/// heartbeat before it is due.
#[test]
fn a_node_is_due_for_each_of_its_timers() {
    for (heartbeat_ms, node, has_operation, due_ms_max) in
        [(5, 1, false, 5), (5, FRONT_END, false, 5), (60_000, 2, false, 500), (60_000, FRONT_END, true, 20)]
    {
        let mut world = TestWorld::new(10);
        world.limits.heartbeat_ms = heartbeat_ms;
        (1..=FRONT_END).for_each(|node| world.close(node));
        (1..=FRONT_END).for_each(|node| world.start(node));
        world.run(500);
        if has_operation {
            world.cut.extend((1..=BACK_ENDS).map(|node| (FRONT_END, node)));
            world.submit(&set(b"k", b"v")).unwrap();
        }
        let node = world.nodes.get_mut(&node).unwrap();
        let mut now = world.now;
        for _ in 0..100 {
            let due = node.run_once(now).unwrap();
            assert!(due <= now.mono.plus_ms(due_ms_max), "at {now:?} due {due:?}, within {due_ms_max} ms");
            while node.poll_node_output().is_some() {}
            node.run_once(now);
            assert_eq!(node.poll_node_output(), None, "nothing is due twice");
            now = now.plus_ms(1);
        }
    }
}

/// The requests that a range's window does not admit wait in their sessions: the front-end takes one of them at most.
#[test]
fn sessions_stall_while_the_window_is_full() {
    let mut world = TestWorld::new(7);
    world.put(b"a", b"b");
    let window = world.limits.router.window_ops_max as usize;
    let ops: Vec<_> = std::iter::from_fn(|| world.submit(&set(b"key", b"value")).ok()).take(window + 2).collect();
    assert!((window..=window + 1).contains(&ops.len()), "{} requests were taken for a window of {window}", ops.len());
    assert_eq!(world.status(FRONT_END).outstanding, window);
    world.run(2000);
    assert_eq!(world.status(FRONT_END).outstanding, 0, "all operations were answered");
    assert!(ops.iter().all(|op| world.done.get(op) == Some(&Answer::Stored)));
    assert!(world.submit(&set(b"key", b"value")).is_ok());
}
