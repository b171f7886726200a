//! Failures: a node crashes and comes back, the whole cluster loses power, replies are lost.
use super::basics::cold_world;
use super::commands::{Answer, append_if_present, increment, set};
use super::world::{BACK_ENDS, FRONT_END, TestWorld};
use fawn_chain::RangeEntry;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_types::{Durability, RingKey, TimeMs};

#[test]
fn a_node_dies_and_comes_back_without_loss() {
    for victim in 2..=BACK_ENDS {
        let mut world = TestWorld::new(10 + u64::from(victim));
        for i in 0..100_u32 {
            world.put(format!("k{i}").as_bytes(), b"before");
        }
        world.kill(victim, false);
        for i in 50..150_u32 {
            world.put(format!("k{i}").as_bytes(), b"while away");
        }
        world.start(victim);
        world.run(3000);
        for i in 0..150_u32 {
            let expected: &[u8] = if i < 50 { b"before" } else { b"while away" };
            assert_eq!(world.get(format!("k{i}").as_bytes()).value(), Some(expected), "victim {victim}, k{i}");
        }
        assert_eq!(world.assert_equal_copies(), 150, "victim {victim}");
    }
}

#[test]
fn the_managers_node_dies_and_comes_back() {
    let mut world = TestWorld::new(20);
    world.put(b"k", b"1");
    world.kill(1, true);
    world.run(500);
    world.start(1);
    world.put(b"k", b"2");
    assert_eq!(world.get(b"k").value(), Some(&b"2"[..]));
    world.run(5000);
    assert_eq!(world.assert_equal_copies(), 1);
}

/// Timers follow the monotonic clock: a member that dies after the wall clock was set back or ahead leaves its chains,
/// and no other member does.
#[test]
fn a_step_of_the_wall_clock_moves_no_timer() {
    const HOUR_MS: i64 = 3_600_000;
    for step_ms in [-HOUR_MS, HOUR_MS] {
        let mut world = TestWorld::new(21);
        world.put(b"k", b"1");
        let epoch = world.manager_map().ranges[0].epoch;
        world.now.wall = TimeMs(world.now.wall.0.saturating_add_signed(step_ms));
        world.run(1_000);
        assert_eq!(world.manager_map().ranges[0].epoch, epoch, "{step_ms} ms: no member was taken for dead");
        world.kill(3, false);
        world.put(b"k", b"2");
        assert_eq!(world.get(b"k").value(), Some(&b"2"[..]), "{step_ms} ms");
        assert!(world.manager_map().ranges[0].epoch > epoch, "{step_ms} ms: the dead member left");
    }
}

#[test]
fn power_loss_of_the_whole_cluster_loses_no_acked_write() {
    for seed in 100..112_u64 {
        let mut world = TestWorld::new(seed);
        world.put(b"served", b"from here on");
        let mut acked = Vec::new();
        for round in 0..3_u32 {
            let mut ops = Vec::new();
            for i in 0..60_u32 {
                let (key, value) = (format!("r{round}:k{i}"), format!("{seed} {round} {i}"));
                ops.push((world.submit(&set(key.as_bytes(), value.as_bytes())).unwrap(), key, value));
                if i % 7 == 0 {
                    world.step();
                }
            }
            let steps = world.random.below(400) as usize;
            world.run(steps);
            for (op, key, value) in ops {
                if matches!(world.done.get(&op), Some(Answer::Stored)) {
                    acked.push((key, value));
                }
            }
            (1..=BACK_ENDS).for_each(|node| world.kill(node, true));
            (1..=BACK_ENDS).for_each(|node| world.start(node));
            for (key, value) in &acked {
                let found = world.get(key.as_bytes());
                assert_eq!(found.value(), Some(value.as_bytes()), "seed {seed}: acked {key} is lost");
            }
        }
        world.assert_equal_copies();
        assert!(!acked.is_empty(), "seed {seed}: no write was acked");
    }
}

#[test]
fn lost_answers_are_retried_and_applied_once() {
    let mut world = TestWorld::new(30);
    world.put(b"counter", b"0");
    // No reply reaches the front-end, so it resends the same operations repeatedly.
    let to_front_end: Vec<_> = (1..=BACK_ENDS).map(|node| (node, FRONT_END)).collect();
    world.cut.extend(to_front_end.iter().copied());
    let ops: Vec<_> = (0..50).map(|_| world.submit(&increment(b"counter")).unwrap()).collect();
    world.run(1500);
    assert!(ops.iter().all(|op| !world.done.contains_key(op)), "a reply reached the front-end");
    world.cut.clear();
    let mut answers: Vec<Answer> = ops.into_iter().map(|op| world.wait(op)).collect();
    answers.sort_by_key(|answer| if let Answer::Number(value) = answer { *value } else { -1 });
    assert_eq!(answers, (1..=50).map(Answer::Number).collect::<Vec<_>>());
    assert_eq!(world.get(b"counter").value(), Some(&b"50"[..]));
    let answered: u64 = world.statuses().iter().map(|(_, status)| status.counters.retries_answered).sum();
    assert!(answered >= 50, "only {answered} replies came from completions");
}

#[test]
fn retries_across_a_power_loss_are_applied_once() {
    for seed in 40..46_u64 {
        let mut world = TestWorld::new(seed);
        world.put(b"counter", b"0");
        world.cut.extend((1..=BACK_ENDS).map(|node| (node, FRONT_END)));
        let ops: Vec<_> = (0..40).map(|_| world.submit(&increment(b"counter")).unwrap()).collect();
        let steps = world.random.below(120) as usize;
        world.run(steps);
        (1..=BACK_ENDS).for_each(|node| world.kill(node, true));
        (1..=BACK_ENDS).for_each(|node| world.start(node));
        world.cut.clear();
        let answers: Vec<Answer> = ops.into_iter().map(|op| world.wait(op)).collect();
        assert!(answers.iter().all(|answer| matches!(answer, Answer::Number(_))), "seed {seed}: {answers:?}");
        assert_eq!(world.get(b"counter").value(), Some(&b"40"[..]), "seed {seed}: each is executed once");
    }
}

#[test]
fn links_that_lose_bytes_both_ways_between_neighbours_heal() {
    let mut world = TestWorld::with(50, Durability::EverySecond, 8 << 20);
    for i in 0..30_u32 {
        world.put(format!("a{i}").as_bytes(), b"1");
    }
    let mut ops = Vec::new();
    for i in 0..200_u32 {
        ops.push(world.submit(&set(format!("a{}", i % 30).as_bytes(), &i.to_le_bytes())).unwrap());
        if i % 20 == 0 {
            world.cut = [(1, 2), (2, 3), (3, 1), (2, 1)][(i / 20 % 4) as usize..][..1].iter().copied().collect();
        }
        world.step();
    }
    world.cut.clear();
    for op in ops {
        assert_eq!(world.wait(op), Answer::Stored);
    }
    assert_eq!(world.assert_equal_copies(), 30);
}

/// Tests the check for power loss: without syncs, acked writes are lost and the check detects it.
#[test]
fn power_loss_without_sync_is_seen_by_the_same_check() {
    let mut lost = 0;
    for seed in 70..74_u64 {
        let mut world = TestWorld::with(seed, Durability::Memory, 8 << 20);
        world.put(b"served", b"from here on");
        let keys: Vec<String> = (0..30).map(|i| format!("k{i}")).collect();
        keys.iter().for_each(|key| {
            world.put(key.as_bytes(), b"acked");
        });
        (1..=BACK_ENDS).for_each(|node| world.kill(node, true));
        (1..=BACK_ENDS).for_each(|node| world.start(node));
        world.run(7_000);
        lost += keys.iter().filter(|key| world.get(key.as_bytes()) == Answer::Absent).count();
        let losses = world.status(1).possible_losses;
        assert!(losses > 0, "seed {seed}: the manager reported no possible loss");
    }
    assert!(lost > 0, "a power loss in `memory` lost no write");
}

/// A sync fails and the process keeps running: its copies leave their chains at once, and the cluster continues with
/// two.
#[test]
fn a_node_whose_medium_fails_is_left_out_until_it_is_restarted() {
    for victim in 2..=BACK_ENDS {
        for (durability, kind) in [(Durability::Sync, OpKind::Write), (Durability::EverySecond, OpKind::Sync)] {
            let mut world = TestWorld::with(80 + u64::from(victim), durability, 8 << 20);
            for i in 0..50_u32 {
                world.put(format!("k{i}").as_bytes(), b"before");
            }
            world.disks[&victim].fail_nth(kind, 1, DeviceFault::Fail);
            for i in 20..80_u32 {
                let began = world.now;
                world.put(format!("k{i}").as_bytes(), b"after");
                let took_ms = world.now.mono.ms_since(began.mono);
                assert!(took_ms < 500, "victim {victim}, {kind:?}: {took_ms} ms for a write: it waited for a timeout");
                world.run(30); // Over all writes a second passes, with its sync.
            }
            let statuses = world.statuses();
            let status = |node| &statuses.iter().find(|(name, _)| *name == node).unwrap().1;
            assert!(status(victim).poisoned.is_some());
            assert!(status(victim).members.iter().all(|member| member.phase == "failed"), "{:?}", status(victim));
            assert!(status(1).members_dropped > 0);
            world.kill(victim, false);
            world.disks[&victim].clear_faults();
            world.start(victim);
            world.run(4000);
            for i in 0..80_u32 {
                let expected: &[u8] = if i < 20 { b"before" } else { b"after" };
                assert_eq!(world.get(format!("k{i}").as_bytes()).value(), Some(expected), "victim {victim}, k{i}");
            }
            assert_eq!(world.assert_equal_copies(), 80, "victim {victim}, {kind:?}");
        }
    }
}

/// An epoch's sequence numbers run out: the head has requested a new epoch before, so clients see no error.
#[test]
fn an_epoch_that_is_used_up_makes_way_for_the_next() {
    let mut world = TestWorld::new(90);
    world.limits.replica.epoch_records_max = 64;
    (1..=BACK_ENDS).for_each(|node| world.kill(node, false));
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    let ops: Vec<_> = (0..600_u32)
        .map(|i| {
            world.step();
            world.submit(&set(format!("k{}", i % 40).as_bytes(), &i.to_le_bytes())).unwrap()
        })
        .collect();
    for op in ops {
        assert_eq!(world.wait(op), Answer::Stored);
    }
    let statuses = world.statuses();
    let members = statuses.iter().flat_map(|(_, status)| &status.members);
    let epoch = members.clone().map(|member| member.epoch.get()).max().unwrap();
    assert!(epoch >= 4, "600 writes to three ranges in epochs of 64, found epoch {epoch}");
    assert!(members.map(|member| member.last.seq()).max().unwrap() <= 64);
    assert_eq!(world.assert_equal_copies(), 40);
}

/// A changed durability mode takes effect with the next epoch, stricter or laxer, and a kill loses no acked write.
#[test]
fn another_durability_takes_effect_with_the_next_epoch() {
    let modes =
        [Durability::Sync, Durability::EverySecond, Durability::Sync, Durability::EverySecond, Durability::Memory];
    let mut world = TestWorld::with(95, modes[0], 8 << 20);
    for (round, mode) in modes.into_iter().enumerate() {
        if round > 0 {
            (1..=BACK_ENDS).for_each(|node| world.kill(node, false));
            world.durability = mode;
            (1..=BACK_ENDS).for_each(|node| world.start(node));
        }
        for i in 0..30_u32 {
            world.put(format!("r{round}:k{i}").as_bytes(), b"acked");
        }
        let statuses = world.statuses();
        let mut members = statuses.iter().flat_map(|(_, status)| &status.members);
        assert!(members.all(|member| member.durability == mode), "round {round}: {statuses:#?}");
        for earlier in 0..round {
            assert!((0..30).all(|i| world.get(format!("r{earlier}:k{i}").as_bytes()).value().is_some()));
        }
    }
    // `memory` was the last mode that served, so its losses are reported whatever mode is configured now.
    (1..=BACK_ENDS).for_each(|node| world.kill(node, false));
    world.durability = Durability::Sync;
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    world.put(b"served", b"again");
    assert!(world.status(1).possible_losses > 0, "acks in memory may be missing after a kill");
}

/// The front-end cannot reach one head: operations on its range wait, those on other ranges do not.
#[test]
fn a_silent_head_stops_its_own_range_only() {
    let mut world = TestWorld::new(7);
    for i in 0..10_u32 {
        world.put(format!("k{i}").as_bytes(), b"1");
    }
    let map = world.manager_map().clone();
    let entry_of = |key: &[u8]| map.range_of(&RingKey::of(&map.secret, key)).unwrap();
    let (stuck, head) = (b"k0", entry_of(b"k0").head().unwrap());
    let is_other = |key: &Vec<u8>| entry_of(key).range != entry_of(stuck).range && entry_of(key).head() != Some(head);
    let other = (0..1000_u32).map(|i| format!("o{i}").into_bytes()).find(is_other).unwrap();
    world.cut.insert((FRONT_END, head.node().0));
    let silent = world.submit(&set(stuck, b"2")).unwrap();
    // More operations than a window, in less time than the unanswered one takes to time out.
    let window = world.limits.router.window_ops_max;
    for round in 0..(2 * window / 64) {
        let ops: Vec<_> = (0..64).map(|_| world.submit(&set(&other, b"3"))).collect();
        for op in ops {
            let op = op.unwrap_or_else(|error| panic!("round {round} of a healthy range: {error:?}"));
            assert_eq!(world.wait(op), Answer::Stored);
        }
    }
    assert!(!world.done.contains_key(&silent), "the unanswered operation ended too early");
}

/// Two of three nodes are gone: a write of which no second copy can be made is refused, and its reply says why.
#[test]
fn a_write_without_a_second_copy_is_refused_as_such() {
    let mut world = TestWorld::new(96);
    world.put(b"k", b"1");
    (2..=BACK_ENDS).for_each(|node| world.kill(node, false));
    world.run(10_000);
    let answer = world.call(&set(b"k", b"2"));
    assert!(answer.is_error("TRYAGAIN too few copies"), "{answer:?}");
    assert_eq!(world.get(b"k").value(), Some(&b"1"[..]), "reads continue");
}

/// The activation of a chain of one commits what that member has, which may be on a single disk: no reply follows.
#[test]
fn a_commit_of_a_chain_that_is_too_short_acknowledges_nothing() {
    let mut world = TestWorld::new(97);
    world.put(b"k", b"1");
    (2..=BACK_ENDS).for_each(|node| world.kill(node, false));
    let ops: Vec<_> = (0..20).map(|i| world.submit(&set(format!("k{i}").as_bytes(), b"2")).unwrap()).collect();
    for op in ops {
        let answer = world.wait(op);
        assert!(matches!(answer, Answer::Error(_)), "{answer:?}");
    }
}

/// A head is cut off while an update waits for its device read, and the other members do the update. Once that member
/// is head again, its own copy of the request has no effect.
#[test]
fn an_update_that_waits_when_its_head_stops_is_done_once() {
    let mut world = cold_world(9);
    let head_of = |world: &TestWorld, key: &[u8]| {
        let map = world.manager_map();
        let entry = map.range_of(&RingKey::of(&map.secret, key)).filter(|entry| entry.is_active());
        entry.and_then(RangeEntry::head).map(|id| id.node().0)
    };
    let keys = (0..100).map(|key| format!("cold:{key}").into_bytes());
    let (key, head) = keys
        .map(|key| (head_of(&world, &key), key))
        .find_map(|(head, key)| Some((key, head.filter(|head| *head > 1)?)))
        .unwrap();
    world.disks[&head].hang(OpKind::Read);
    let op = world.submit(&append_if_present(&key, b"once")).unwrap();
    world.run(50);
    assert!(world.disks[&head].hung() > 0, "the update waits for a read");
    for other in (1..=FRONT_END).filter(|other| *other != head) {
        world.cut.extend([(head, other), (other, head)]);
    }
    assert_eq!(world.wait(op), Answer::Stored, "the other members do the update");
    assert_ne!(head_of(&world, &key), Some(head));
    world.cut.clear();
    for _ in 0..60_000 {
        if head_of(&world, &key) == Some(head) {
            break;
        }
        world.run(1);
    }
    assert_eq!(head_of(&world, &key), Some(head), "{:#?}", world.statuses());
    world.disks[&head].release_hung();
    world.run(1_000);
    assert_eq!(world.get(&key).value().unwrap()[1000..], *b"once");
}
