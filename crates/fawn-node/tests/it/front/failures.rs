//! Failures under client load: a member dies, power fails; acked writes survive, and batches are atomic.
use super::harness::{ClusterHarness, MEMBERS};
use crate::harness::resp;
use crate::member;
use fawn_flash::sim::Loss;
use fawn_flash::{SimDisk, SimOptions};
use fawn_node::cluster::NodeError;
use fawn_node::{ClientService, LocalOptions, SessionId};
use fawn_types::{Durability, MemberId, NodeId};
use fawn_wire::Protocol;

#[test]
fn a_member_dies_and_writes_resume_without_loss() {
    for victim in 1..=MEMBERS {
        for cluster in [|| ClusterHarness::new(true), || ClusterHarness::new(false), || ClusterHarness::with_shards(2)]
        {
            let mut harness = cluster();
            if harness.host.server().id().node() == NodeId(victim) {
                continue;
            }
            let id = harness.connect(Protocol::Memcached);
            for i in 0..60 {
                assert_eq!(harness.memcached(id, &format!("set k{i} 0 0 6|before")), "STORED");
            }
            harness.kill(victim, 7);
            for i in 30..90 {
                assert_eq!(harness.memcached(id, &format!("set k{i} 0 0 5|after")), "STORED", "victim {victim}, k{i}");
            }
            for i in 0..90 {
                let expected = if i < 30 { "VALUE k{} 0 6|before|END" } else { "VALUE k{} 0 5|after|END" };
                assert_eq!(harness.memcached(id, &format!("get k{i}")), expected.replace("{}", &i.to_string()));
            }
            harness.restart(victim);
            harness.run(3000);
            assert_eq!(harness.assert_three_equal_copies(), 90, "victim {victim}");
        }
    }
}

#[test]
fn the_cluster_loses_power_and_nothing_acked_is_gone() {
    let mut acked = 0;
    for seed in 0..8 {
        let mut harness = ClusterHarness::with(seed % 2 == 0, Durability::Sync, 8 << 20);
        for round in 0..3 {
            let id = harness.connect(Protocol::Resp);
            assert_eq!(harness.redis(id, "DEL nothing"), ":0", "the cluster serves again");
            let mut pipeline = Vec::new();
            (0..200).for_each(|i| pipeline.extend_from_slice(&resp(&format!("SET r{round}:{i} {i}"))));
            harness.send(id, &pipeline);
            harness.run(1 + seed as usize);
            let received = harness.clients[&id].received.len() / "+OK\r\n".len();
            harness = harness.crash(100 * seed + round);
            let id = harness.connect(Protocol::Resp);
            for i in 0..received {
                let reply = harness.redis(id, &format!("GET r{round}:{i}"));
                assert!(reply.ends_with(&format!("|{i}")), "seed {seed}, round {round}: acked {i}, found {reply}");
            }
            acked += received;
        }
        harness.assert_three_equal_copies();
    }
    assert!((1..8 * 3 * 200).contains(&acked), "power must fail during the writes: {acked} acked");
}

#[test]
fn no_crash_leaves_half_a_batch() {
    for seed in 0..12 {
        let mut harness = ClusterHarness::with(true, Durability::EverySecond, 8 << 20);
        let id = harness.connect(Protocol::Resp);
        let batch = |round: u32| -> Vec<u8> {
            let pairs: Vec<String> = (0..30).map(|i| format!("k{i} {round}{}", "x".repeat(9000))).collect();
            resp(&format!("MSET {}", pairs.join(" ")))
        };
        harness.ask(id, &batch(1));
        (2..6).for_each(|round| harness.send(id, &batch(round)));
        harness.run(seed as usize);
        harness = harness.crash(seed);
        let id = harness.connect(Protocol::Resp);
        let keys: Vec<String> = (0..30).map(|i| format!("k{i}")).collect();
        let reply = harness.redis(id, &format!("MGET {}", keys.join(" ")));
        let values: Vec<&str> = reply.split('|').skip(1).collect();
        assert!(
            values.windows(2).step_by(2).all(|pair| pair == &values[..2]) || reply.matches("$-1").count() == 30,
            "seed {seed}: {reply:.400}"
        );
        harness.assert_three_equal_copies();
    }
}

/// A pause of the whole process for longer than the heartbeat timeout drops no member.
#[test]
fn a_pause_of_the_process_drops_no_member() {
    let mut harness = ClusterHarness::new(false);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k v"), "+OK");
    harness.run(1000);
    let epochs = |harness: &ClusterHarness| -> Vec<_> {
        harness.statuses().flat_map(|status| status.members).map(|member| member.epoch).collect()
    };
    let before = epochs(&harness);
    harness.now = harness.now.plus_ms(60_000);
    assert_eq!(harness.redis(id, "GET k"), "$1|v");
    harness.run(3000);
    assert_eq!(epochs(&harness), before, "no new epoch began");
}

/// No step of a start waits for a timer, such as heartbeats or repeated requests, or for one read per record.
#[test]
fn a_start_serves_as_soon_as_all_members_have_spoken() {
    const TURNS_MAX: usize = 40;
    for is_one_range in [true, false] {
        let mut harness = ClusterHarness::new(is_one_range);
        for round in 0..4 {
            let id = harness.connect(Protocol::Resp);
            let reads = harness.reads();
            harness.send(id, &resp("SET early bird"));
            let mut iterations = 0;
            while harness.clients[&id].received.is_empty() && iterations < TURNS_MAX {
                harness.run_once();
                iterations += 1;
            }
            println!("round {round}, one range: {is_one_range}: {iterations} ms");
            assert_eq!(
                harness.clients[&id].received, b"+OK\r\n",
                "round {round}, one range: {is_one_range}: {iterations} ms"
            );
            harness.clients.get_mut(&id).unwrap().received.clear();
            assert!(harness.reads() - reads < 10, "{} reads", harness.reads() - reads);
            (0..200).for_each(|i| assert_eq!(harness.redis(id, &format!("SET k{i} {round}")), "+OK"));
            harness = if round == 1 { harness.crash(7) } else { harness.stop() };
            let recovery = harness.reads();
            assert!(recovery < 20, "{recovery} reads to recover some {} records on three stores", 200 * (round + 1));
        }
    }
}

/// If acks are not synced, a clean shutdown loses nothing and reports no loss; a kill or a failed shutdown reports one.
#[test]
fn an_end_in_order_is_told_apart_from_a_kill() {
    for (durability, is_one_range) in
        [(Durability::EverySecond, true), (Durability::Memory, true), (Durability::Memory, false)]
    {
        let mut harness = ClusterHarness::with(is_one_range, durability, 24 << 20);
        let losses =
            |harness: &ClusterHarness| harness.host.status().cluster.expect("a cluster's status").possible_losses;
        for round in 0..3 {
            let id = harness.connect(Protocol::Resp);
            let serves = |harness: &mut ClusterHarness| {
                assert_eq!(harness.redis(id, "SET served again"), "+OK", "{durability:?}")
            };
            serves(&mut harness);
            assert_eq!(losses(&harness), 0, "{durability:?}, round {round}: a clean shutdown syncs everything");
            let held = if round == 0 { 0 } else { 100 };
            (0..held).for_each(|i| assert_eq!(harness.redis(id, &format!("GET r{}k{i}", round - 1)), "$1|v"));
            (0..100).for_each(|i| assert_eq!(harness.redis(id, &format!("SET r{round}k{i} v")), "+OK"));
            harness = harness.stop();
        }
        for is_crash in [true, false] {
            let id = harness.connect(Protocol::Resp);
            (0..100).for_each(|i| assert_eq!(harness.redis(id, &format!("SET k{i} v")), "+OK"));
            harness = if is_crash { harness.crash(11) } else { harness.stop_unsynced() };
            let id = harness.connect(Protocol::Resp);
            assert_eq!(harness.redis(id, "SET served again"), "+OK");
            assert!(losses(&harness) > 0, "{durability:?}: acked in memory, and power was lost (crash: {is_crash})");
        }
    }
}

/// A store fails while its process keeps running: clients see no error, and the status shows two copies, whichever
/// store it is.
#[test]
fn a_store_that_fails_leaves_two_copies_and_a_word_about_it() {
    for victim in 1..=MEMBERS {
        let mut harness = ClusterHarness::new(victim % 2 == 0);
        let id = harness.connect(Protocol::Resp);
        (0..40).for_each(|i| assert_eq!(harness.redis(id, &format!("SET k{i} before")), "+OK"));
        let whole = harness.host.status().cluster.expect("a cluster's status");
        assert!(!whole.is_degraded() && whole.is_serving(), "{whole:?}");
        harness.fail(victim);
        for i in 20..60 {
            let before = harness.now;
            assert_eq!(harness.redis(id, &format!("SET k{i} after")), "+OK", "victim {victim}, k{i}");
            assert!(
                harness.now.mono.ms_since(before.mono) < 500,
                "victim {victim}: {} ms for a write",
                harness.now.mono.ms_since(before.mono)
            );
        }
        let status = harness.host.status().cluster.expect("a cluster");
        assert!(status.is_degraded() && status.is_serving(), "{status:?}");
        assert!(status.chains.iter().all(|chain| chain.copies == 2 && chain.copies_wanted == 3), "{status:?}");
        let poisoned: Vec<_> = status.back_ends.iter().filter(|end| end.poisoned.is_some()).collect();
        assert!(poisoned.len() == 1 && poisoned[0].id == member(victim), "{status:?}");
        assert!(status.members_dropped > 0);
        // The disk works again, so a restart of the process repairs the store.
        harness.disks[victim as usize - 1].clear_faults();
        let mut harness = harness.crash(u64::from(victim));
        let id = harness.connect(Protocol::Resp);
        for i in 0..60 {
            let expected = if i < 20 { "$6|before" } else { "$5|after" };
            assert_eq!(harness.redis(id, &format!("GET k{i}")), expected, "victim {victim}, k{i}");
        }
        harness.run(3000);
        assert_eq!(harness.assert_three_equal_copies(), 60, "victim {victim}");
        assert!(!harness.host.status().cluster.expect("a cluster").is_degraded());
    }
}

/// All three stores fail: reads of existing values continue, writes are rejected in time, and the status shows it.
#[test]
fn stores_that_all_fail_leave_reads() {
    let mut harness = ClusterHarness::new(true);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k v"), "+OK");
    for victim in 1..=MEMBERS {
        harness.fail(victim);
        assert!(harness.redis(id, "SET k w").starts_with(['+', '-']));
        harness.run(300);
    }
    assert!(harness.redis(id, "SET k x").starts_with('-'));
    assert!(harness.redis(id, "GET k").starts_with("$1|"), "reads continue");
    assert!(!harness.host.status().cluster.expect("a cluster").is_serving());
}

/// Reads of ranges whose tail is dead fill the windows of these ranges. Sessions that read other ranges are still
/// served.
#[test]
fn a_dead_tail_does_not_stall_sessions_on_other_ranges() {
    let mut harness = ClusterHarness::with_window(4);
    let id = harness.connect(Protocol::Resp);
    let keys: Vec<String> = (0..200).map(|i| format!("k{i}")).collect();
    for key in &keys {
        assert_eq!(harness.redis(id, &format!("SET {key} 1")), "+OK");
    }
    harness.kill(2, 7);
    let pipeline: Vec<u8> = keys.iter().flat_map(|key| resp(&format!("GET {key}"))).collect();
    harness.send(id, &pipeline);
    harness.run(20);
    assert!(!harness.clients[&id].received.ends_with(b"$1\r\n1\r\n".repeat(200).as_slice()), "all ranges reply");
    let others: Vec<_> = keys.iter().map(|key| (harness.connect(Protocol::Resp), key)).collect();
    others.iter().for_each(|(other, key)| harness.send(*other, &resp(&format!("GET {key}"))));
    harness.run(20);
    let served = others.iter().filter(|(other, _)| harness.clients[other].received == b"$1\r\n1\r\n").count();
    assert!((50..200).contains(&served), "{served} of 200 keys are served while some tails are dead");
}

fn errors(harness: &ClusterHarness, id: SessionId) -> usize {
    harness.clients[&id].received.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"-")).count()
}

/// A pipeline on one key of a chain without members waits for one timeout, not for one per request. Requests that came
/// later have their own time.
#[test]
fn a_pipeline_on_one_key_of_a_dead_chain_fails_after_one_timeout() {
    let mut harness = ClusterHarness::new(true);
    let (early, late) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    assert_eq!(harness.redis(early, "SET k 1"), "+OK");
    let server = harness.host.server().id().node();
    (1..=MEMBERS).filter(|name| NodeId(*name) != server).for_each(|name| harness.kill(name, 7));
    let timeout_ms = LocalOptions::default().limits.router.timeout_ms as usize;
    harness.send(early, &resp("INCR k").repeat(20));
    harness.send(late, &resp("INCR k").repeat(20));
    harness.run(timeout_ms / 2);
    harness.send(late, &resp("INCR k").repeat(20));
    harness.run(timeout_ms / 2 + 500);
    assert_eq!((errors(&harness, early), errors(&harness, late)), (20, 20), "the later ones have time left");
    harness.run(timeout_ms);
    assert_eq!(errors(&harness, late), 40);
}

/// An empty disk in the place of a member's: the member joins again and is copied to, at every later start too.
#[test]
fn a_replaced_disk_is_copied_to() {
    let mut harness = ClusterHarness::new(false);
    for victim in 1..=MEMBERS {
        let id = harness.connect(Protocol::Memcached);
        for i in 0..60 {
            assert_eq!(harness.memcached(id, &format!("set k{i} 0 0 1|{victim}")), "STORED");
        }
        for _ in 0..3 {
            harness = harness.stop();
        }
        let disk = SimDisk::new(SimOptions::instant(100 + u64::from(victim)));
        harness = harness.replace(victim, disk).unwrap();
        harness.run(20_000);
        let id = harness.connect(Protocol::Memcached);
        assert_eq!(harness.memcached(id, "get k7"), format!("VALUE k7 0 1|{victim}|END"));
        harness = harness.stop();
        harness.run(20_000);
        assert_eq!(harness.assert_three_equal_copies(), 60, "member {victim}");
    }
}

/// A store of some opens ago would pass for an earlier process of its member: the start is refused.
#[test]
fn a_restored_store_is_refused() {
    let mut harness = ClusterHarness::new(false);
    let id = harness.connect(Protocol::Memcached);
    assert_eq!(harness.memcached(id, "set k 0 0 1|1"), "STORED");
    let past = harness.disks[1].image(Loss::Process, 1);
    harness = harness.stop();
    harness.run(5_000);
    harness = harness.stop();
    harness.run(5_000);
    let refused = harness.replace(2, past).map(|_| ()).unwrap_err();
    assert!(matches!(refused, NodeError::Restored { id: MemberId(0x2000), .. }), "{refused}");
    assert!(refused.to_string().contains("remove its directory"), "{refused}");
}

/// A copy of the store from before its last start opens with the number of that start.
#[test]
fn a_store_restored_to_its_last_start_is_refused() {
    let mut harness = ClusterHarness::new(false);
    harness.run(5_000);
    let id = harness.connect(Protocol::Memcached);
    assert_eq!(harness.memcached(id, "set k 0 0 1|1"), "STORED");
    let past = harness.disks[1].image(Loss::Process, 1);
    harness = harness.stop();
    harness.run(5_000);
    let refused = harness.replace(2, past).map(|_| ()).unwrap_err();
    assert!(matches!(refused, NodeError::Restored { id: MemberId(0x2000), .. }), "{refused}");
}

/// The first store in order is behind and knows only older starts of the second one. The third store knows all of them.
#[test]
fn a_store_that_is_behind_hides_no_restored_one() {
    let mut harness = ClusterHarness::new(true);
    let id = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(id, "SET k 1"), "+OK");
    harness.fail(1);
    assert_eq!(harness.redis(id, "SET k 2"), "+OK");
    harness.run(5_000);
    let past = harness.disks[1].image(Loss::Process, 1);
    harness.kill(2, 7);
    harness.run(100);
    harness.restart(2);
    harness.run(20_000);
    assert_eq!(harness.redis(id, "SET k 3"), "+OK");
    let refused = harness.replace(2, past).map(|_| ()).unwrap_err();
    assert!(matches!(refused, NodeError::Restored { id: MemberId(0x2000), .. }), "{refused}");
}

/// The copy of a replaced disk is empty as long as there are no keys, and was known to the cluster before.
#[test]
fn a_restored_store_is_refused_though_it_is_empty() {
    let mut harness = ClusterHarness::new(true);
    harness.run(5_000);
    for _ in 0..3 {
        harness = harness.stop();
        harness.run(5_000);
    }
    harness = harness.replace(2, SimDisk::new(SimOptions::instant(100))).unwrap();
    harness.run(5_000);
    let past = harness.disks[1].image(Loss::Process, 1);
    for _ in 0..3 {
        harness = harness.stop();
        harness.run(5_000);
    }
    let refused = harness.replace(2, past).map(|_| ()).unwrap_err();
    assert!(matches!(refused, NodeError::Restored { id: MemberId(0x2000), .. }), "{refused}");
}

/// A member's store is behind: it took no writes when the map changed. All start again from the newest map.
#[test]
fn a_cluster_starts_from_the_newest_map_of_its_stores() {
    for victim in 1..=MEMBERS {
        let mut harness = ClusterHarness::new(true);
        let id = harness.connect(Protocol::Resp);
        assert_eq!(harness.redis(id, "SET k before"), "+OK");
        if victim == 1 {
            harness.fail(victim);
        } else {
            harness.kill(victim, 7);
        }
        harness.run(5_000);
        assert_eq!(harness.redis(id, "SET k after"), "+OK");
        harness = harness.crash(3);
        harness.run(20_000);
        let id = harness.connect(Protocol::Resp);
        assert_eq!(harness.redis(id, "GET k"), "$5|after", "victim {victim}");
        assert_eq!(harness.assert_three_equal_copies(), 1, "victim {victim}");
    }
}

/// While two members are dead no majority has the map that drops them. They receive it when they start again.
#[test]
fn members_that_start_again_receive_the_pending_map() {
    for starting in [[2, 3], [3, 2]] {
        let mut harness = ClusterHarness::new(true);
        let id = harness.connect(Protocol::Resp);
        assert_eq!(harness.redis(id, "SET k 1"), "+OK");
        starting.iter().for_each(|name| harness.kill(*name, 7));
        harness.run(20_000);
        assert!(
            !harness.host.status().cluster.is_some_and(|it| it.is_serving())
                || harness.host.status().cluster.is_some_and(|it| !it.is_serving())
        );
        starting.iter().for_each(|name| harness.restart(*name));
        harness.run(20_000);
        assert_eq!(harness.redis(id, "SET k 2"), "+OK", "{starting:?}");
        assert_eq!(harness.assert_three_equal_copies(), 1, "{starting:?}");
        harness.run(200);
        let status = harness.host.status().cluster.expect("a cluster");
        assert_eq!((status.is_serving(), status.unavailable_since), (true, None), "{starting:?}");
    }
}
