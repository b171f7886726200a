//! Owns the tests of failures under clients: a member dies, power fails; what was acked is there, batches are whole.
use super::bed::{Bed, MEMBERS};
use crate::bed::resp;
use fawn_flash::sim::{Fault, Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_node::ClientHost;
use fawn_node::cluster::NodeError;
use fawn_types::{Durability, NodeId};
use fawn_wire::Protocol;

#[test]
fn a_member_dies_and_writes_resume_without_loss() {
    for victim in 1..=MEMBERS {
        for is_one_range in [true, false] {
            let mut bed = Bed::new(is_one_range);
            let id = bed.connect(Protocol::Memcached);
            for i in 0..60 {
                assert_eq!(bed.memcached(id, &format!("set k{i} 0 0 6|before")), "STORED");
            }
            bed.kill(victim, 7);
            for i in 30..90 {
                assert_eq!(bed.memcached(id, &format!("set k{i} 0 0 5|after")), "STORED", "victim {victim}, k{i}");
            }
            for i in 0..90 {
                let expected = if i < 30 { "VALUE k{} 0 6|before|END" } else { "VALUE k{} 0 5|after|END" };
                assert_eq!(bed.memcached(id, &format!("get k{i}")), expected.replace("{}", &i.to_string()));
            }
            bed.restart(victim);
            bed.run(3000);
            assert_eq!(bed.assert_three_equal_copies(), 90, "victim {victim}, one range: {is_one_range}");
        }
    }
}

#[test]
fn the_cluster_loses_power_and_nothing_acked_is_gone() {
    let mut acked = 0;
    for seed in 0..8 {
        let mut bed = Bed::with(seed % 2 == 0, Durability::Sync, 8 << 20);
        for round in 0..3 {
            let id = bed.connect(Protocol::Resp);
            assert_eq!(bed.redis(id, "DEL nothing"), ":0", "it serves again");
            let mut pipeline = Vec::new();
            (0..200).for_each(|i| pipeline.extend_from_slice(&resp(&format!("SET r{round}:{i} {i}"))));
            bed.send(id, &pipeline);
            bed.run(1 + seed as usize);
            let received = bed.clients[&id].received.len() / "+OK\r\n".len();
            bed = bed.crash(100 * seed + round);
            let id = bed.connect(Protocol::Resp);
            for i in 0..received {
                let reply = bed.redis(id, &format!("GET r{round}:{i}"));
                assert!(reply.ends_with(&format!("|{i}")), "seed {seed}, round {round}: acked {i}, found {reply}");
            }
            acked += received;
        }
        bed.assert_three_equal_copies();
    }
    assert!((1..8 * 3 * 200).contains(&acked), "power failed in the midst of it: {acked} acked");
}

#[test]
fn no_crash_leaves_half_a_batch() {
    for seed in 0..12 {
        let mut bed = Bed::with(true, Durability::EverySecond, 8 << 20);
        let id = bed.connect(Protocol::Resp);
        let batch = |round: u32| -> Vec<u8> {
            let pairs: Vec<String> = (0..30).map(|i| format!("k{i} {round}{}", "x".repeat(9000))).collect();
            resp(&format!("MSET {}", pairs.join(" ")))
        };
        bed.ask(id, &batch(1));
        (2..6).for_each(|round| bed.send(id, &batch(round)));
        bed.run(seed as usize);
        bed = bed.crash(seed);
        let id = bed.connect(Protocol::Resp);
        let keys: Vec<String> = (0..30).map(|i| format!("k{i}")).collect();
        let reply = bed.redis(id, &format!("MGET {}", keys.join(" ")));
        let values: Vec<&str> = reply.split('|').skip(1).collect();
        assert!(
            values.windows(2).step_by(2).all(|pair| pair == &values[..2]) || reply.matches("$-1").count() == 30,
            "seed {seed}: {reply:.400}"
        );
        bed.assert_three_equal_copies();
    }
}

/// The whole process was stopped for longer than a machine may be silent: nobody is dropped for it.
#[test]
fn a_pause_of_the_process_drops_no_member() {
    let mut bed = Bed::new(false);
    let id = bed.connect(Protocol::Resp);
    assert_eq!(bed.redis(id, "SET k v"), "+OK");
    bed.run(1000);
    let epochs = |bed: &Bed| -> Vec<_> {
        let statuses = bed.host.statuses().into_iter();
        statuses.flat_map(|(_, status)| status.members.into_iter().map(|member| member.epoch)).collect()
    };
    let before = epochs(&bed);
    bed.now = bed.now.plus_ms(60_000);
    assert_eq!(bed.redis(id, "GET k"), "$1|v");
    bed.run(3000);
    assert_eq!(epochs(&bed), before, "no chain was formed anew");
}

/// Nothing in a start waits for a timer: neither for beats, nor for somebody to ask again, nor for a read per record.
#[test]
fn a_start_serves_as_soon_as_all_members_have_spoken() {
    const TURNS_MAX: usize = 40;
    for is_one_range in [true, false] {
        let mut bed = Bed::new(is_one_range);
        for round in 0..4 {
            let id = bed.connect(Protocol::Resp);
            let reads = bed.reads();
            bed.send(id, &resp("SET early bird"));
            let mut turns = 0;
            while bed.clients[&id].received.is_empty() && turns < TURNS_MAX {
                bed.turn();
                turns += 1;
            }
            println!("round {round}, one range: {is_one_range}: {turns} ms");
            assert_eq!(bed.clients[&id].received, b"+OK\r\n", "round {round}, one range: {is_one_range}: {turns} ms");
            bed.clients.get_mut(&id).unwrap().received.clear();
            assert!(bed.reads() - reads < 10, "{} reads", bed.reads() - reads);
            (0..200).for_each(|i| assert_eq!(bed.redis(id, &format!("SET k{i} {round}")), "+OK"));
            bed = if round == 1 { bed.crash(7) } else { bed.stop() };
            let recovery = bed.reads();
            assert!(recovery < 20, "{recovery} reads to recover some {} records on three stores", 200 * (round + 1));
        }
    }
}

/// Where acks are not synced, an end in order is no loss and none is told; an end without a word, or a failed one, is.
#[test]
fn an_end_in_order_is_told_apart_from_a_kill() {
    for (durability, is_one_range) in
        [(Durability::EverySecond, true), (Durability::Memory, true), (Durability::Memory, false)]
    {
        let mut bed = Bed::with(is_one_range, durability, 24 << 20);
        let losses = |bed: &Bed| bed.host.status().cluster.expect("a cluster says how it stands").possible_losses;
        for round in 0..3 {
            let id = bed.connect(Protocol::Resp);
            let serves = |bed: &mut Bed| assert_eq!(bed.redis(id, "SET served again"), "+OK", "{durability:?}");
            serves(&mut bed);
            assert_eq!(losses(&bed), 0, "{durability:?}, round {round}: everything was synced when it was closed");
            let held = if round == 0 { 0 } else { 100 };
            (0..held).for_each(|i| assert_eq!(bed.redis(id, &format!("GET r{}k{i}", round - 1)), "$1|v"));
            (0..100).for_each(|i| assert_eq!(bed.redis(id, &format!("SET r{round}k{i} v")), "+OK"));
            bed = bed.stop();
        }
        for is_crash in [true, false] {
            let id = bed.connect(Protocol::Resp);
            (0..100).for_each(|i| assert_eq!(bed.redis(id, &format!("SET k{i} v")), "+OK"));
            bed = if is_crash { bed.crash(11) } else { bed.stop_unsynced() };
            let id = bed.connect(Protocol::Resp);
            assert_eq!(bed.redis(id, "SET served again"), "+OK");
            assert!(losses(&bed) > 0, "{durability:?}: acked in memory, and power was lost (crash: {is_crash})");
        }
    }
}

/// A store takes no more writes, its process stays: clients notice nothing but that two copies are left, whichever it is.
#[test]
fn a_store_that_fails_leaves_two_copies_and_a_word_about_it() {
    for victim in 1..=MEMBERS {
        let mut bed = Bed::new(victim % 2 == 0);
        let id = bed.connect(Protocol::Resp);
        (0..40).for_each(|i| assert_eq!(bed.redis(id, &format!("SET k{i} before")), "+OK"));
        let whole = bed.host.status().cluster.expect("a cluster says how it stands");
        assert!(!whole.is_degraded() && whole.is_serving(), "{whole:?}");
        bed.disks[victim as usize - 1].fail_nth(OpKind::Write, 1, Fault::Fail);
        for i in 20..60 {
            let before = bed.now;
            assert_eq!(bed.redis(id, &format!("SET k{i} after")), "+OK", "victim {victim}, k{i}");
            assert!(
                bed.now.mono.ms_since(before.mono) < 500,
                "victim {victim}: {} ms for a write",
                bed.now.mono.ms_since(before.mono)
            );
        }
        let status = bed.host.status().cluster.expect("a cluster");
        assert!(status.is_degraded() && status.is_serving(), "{status:?}");
        assert!(status.chains.iter().all(|chain| chain.copies == 2 && chain.copies_wanted == 3), "{status:?}");
        let poisoned: Vec<_> = status.back_ends.iter().filter(|end| end.poisoned.is_some()).collect();
        assert!(poisoned.len() == 1 && poisoned[0].node == NodeId(victim), "{status:?}");
        assert!(status.members_dropped > 0);
        // A restart of the process mends it: the medium is in order again.
        bed.disks[victim as usize - 1].clear_faults();
        let mut bed = bed.crash(u64::from(victim));
        let id = bed.connect(Protocol::Resp);
        for i in 0..60 {
            let expected = if i < 20 { "$6|before" } else { "$5|after" };
            assert_eq!(bed.redis(id, &format!("GET k{i}")), expected, "victim {victim}, k{i}");
        }
        bed.run(3000);
        assert_eq!(bed.assert_three_equal_copies(), 60, "victim {victim}");
        assert!(!bed.host.status().cluster.expect("a cluster").is_degraded());
    }
}

/// All three stores fail: reads of what is there go on, writes are refused in time, and the status says so.
#[test]
fn stores_that_all_fail_leave_reads() {
    let mut bed = Bed::new(true);
    let id = bed.connect(Protocol::Resp);
    assert_eq!(bed.redis(id, "SET k v"), "+OK");
    for at in 0..MEMBERS as usize {
        bed.disks[at].fail_nth(OpKind::Write, 1, Fault::Fail);
        assert!(bed.redis(id, "SET k w").starts_with(['+', '-']));
        bed.run(300);
    }
    assert!(bed.redis(id, "SET k x").starts_with('-'));
    assert!(bed.redis(id, "GET k").starts_with("$1|"), "reads go on");
    assert!(!bed.host.status().cluster.expect("a cluster").is_serving());
}

/// Reads of ranges whose tail is dead fill the windows of these ranges. Sessions that read other ranges are served
/// meanwhile.
#[test]
fn a_dead_tail_does_not_stall_sessions_on_other_ranges() {
    let mut bed = Bed::with_window(4);
    let id = bed.connect(Protocol::Resp);
    let keys: Vec<String> = (0..200).map(|i| format!("k{i}")).collect();
    for key in &keys {
        assert_eq!(bed.redis(id, &format!("SET {key} 1")), "+OK");
    }
    bed.kill(1, 7);
    let pipeline: Vec<u8> = keys.iter().flat_map(|key| resp(&format!("GET {key}"))).collect();
    bed.send(id, &pipeline);
    bed.run(20);
    assert!(!bed.clients[&id].received.ends_with(b"$1\r\n1\r\n".repeat(200).as_slice()), "some ranges are silent");
    let others: Vec<_> = keys.iter().map(|key| (bed.connect(Protocol::Resp), key)).collect();
    others.iter().for_each(|(other, key)| bed.send(*other, &resp(&format!("GET {key}"))));
    bed.run(20);
    let served = others.iter().filter(|(other, _)| bed.clients[other].received == b"$1\r\n1\r\n").count();
    assert!((50..200).contains(&served), "{served} of 200 keys are served while some tails are dead");
}

/// An empty disk in the place of a member's: the member joins again and is copied to, at every later start too.
#[test]
fn a_replaced_disk_is_copied_to() {
    let mut bed = Bed::new(false);
    for victim in 1..=MEMBERS {
        let id = bed.connect(Protocol::Memcached);
        for i in 0..60 {
            assert_eq!(bed.memcached(id, &format!("set k{i} 0 0 1|{victim}")), "STORED");
        }
        for _ in 0..3 {
            bed = bed.stop();
        }
        let disk = SimDisk::new(SimOptions::instant(100 + u64::from(victim)));
        bed = bed.replace(victim, disk).unwrap();
        bed.run(20_000);
        let id = bed.connect(Protocol::Memcached);
        assert_eq!(bed.memcached(id, "get k7"), format!("VALUE k7 0 1|{victim}|END"));
        bed = bed.stop();
        bed.run(20_000);
        assert_eq!(bed.assert_three_equal_copies(), 60, "member {victim}");
    }
}

/// A store of some opens ago would pass for an earlier process of its member: the start is refused.
#[test]
fn a_restored_store_is_refused() {
    let mut bed = Bed::new(false);
    let id = bed.connect(Protocol::Memcached);
    assert_eq!(bed.memcached(id, "set k 0 0 1|1"), "STORED");
    let past = bed.disks[1].image(Loss::Process, 1);
    bed = bed.stop();
    bed.run(5_000);
    bed = bed.stop();
    bed.run(5_000);
    let refused = bed.replace(2, past).map(|_| ()).unwrap_err();
    assert!(matches!(refused, NodeError::Restored { node: NodeId(2), .. }), "{refused}");
    assert!(refused.to_string().contains("remove its directory"), "{refused}");
}
