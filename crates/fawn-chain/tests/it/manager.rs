//! The manager's decisions on late and foreign processes, on members that stall repeatedly or have a slow disk, and on
//! many reports.
use crate::cluster::{Bug, MANAGER, RANGE, TestCluster, TestMessage};
use crate::member;
use fawn_chain::boots::{BootsMessage, NO_TABLE};
use fawn_chain::manager::{FileConsensus, Manager, ManagerOptions, ManagerOutput};
use fawn_chain::map::NodeEntry;
use fawn_chain::message::{Body, MemberReport, decode_frame, encode_frame};
use fawn_chain::{ClusterMap, Frame, Header, RingOptions};
use fawn_types::{BootId, BootOrder, Durability, Epoch, HashSecret, MemberId, NodeId, Now, RangeId};

/// A serving cluster of three.
fn serving() -> TestCluster {
    let mut cluster = TestCluster::new(3, Durability::Sync, Bug::None);
    cluster.run(600);
    assert!(cluster.put(1).is_some());
    cluster.run(100);
    cluster
}

fn epoch(cluster: &TestCluster) -> Epoch {
    cluster.manager.as_ref().unwrap().map().range(RANGE).unwrap().epoch
}

/// The next heartbeat of `node`, removed from the network.
fn heartbeat(cluster: &mut TestCluster, node: u32) -> TestMessage {
    loop {
        cluster.advance(10);
        let is_it = |message: &TestMessage| {
            let hello = decode_frame(&message.bytes).is_ok_and(|frame| frame.body == Body::Hello);
            hello && message.from == node && message.to == MANAGER
        };
        if let Some(at) = cluster.net.iter().position(is_it) {
            return cluster.net.remove(at);
        }
        while !cluster.net.is_empty() {
            cluster.deliver(0);
        }
    }
}

#[test]
fn a_late_heartbeat_of_a_former_boot_changes_nothing() {
    let mut cluster = serving();
    let late = heartbeat(&mut cluster, 3);
    cluster.crash(3, 0);
    cluster.restart(3);
    cluster.run(10_000);
    assert!(cluster.healed());
    let before = epoch(&cluster);
    cluster.hand_over(&late);
    cluster.run(3_000);
    assert_eq!(epoch(&cluster), before, "no handshake for a process that has ended");
    // A restarted manager has forgotten the heartbeats, but the map still contains the boot.
    cluster.start_manager();
    cluster.hand_over(&late);
    cluster.run(3_000);
    assert_eq!(epoch(&cluster), before);
}

#[test]
fn another_process_with_the_same_number_of_opens_is_refused() {
    let mut cluster = serving();
    let TestMessage { from, to, bytes } = heartbeat(&mut cluster, 3);
    let mut frame = decode_frame(&bytes).unwrap();
    let boot = frame.header.boot;
    frame.header.boot = BootId::new(boot.generation(), boot.0 as u32 ^ 1);
    assert_eq!(frame.header.boot.against(boot), BootOrder::Twin);
    let mut bytes = Vec::new();
    encode_frame(&frame, &mut bytes);
    let before = epoch(&cluster);
    for _ in 0..3 {
        cluster.hand_over(&TestMessage { from, to, bytes: bytes.clone() });
        cluster.run(1_000);
    }
    assert_eq!(epoch(&cluster), before, "the cluster continues with the known process");
    let refused = cluster.events.iter().filter(|event| event.starts_with("n3 is refused")).count();
    assert_eq!(refused, 1, "reported once: {:?}", cluster.events);
}

#[test]
fn boots_are_ordered_by_the_opens_of_their_store() {
    let known = BootId::new(7, 3);
    assert_eq!(known.against(known), BootOrder::Same);
    assert_eq!(BootId::new(8, 1).against(known), BootOrder::Newer);
    assert_eq!(BootId::new(6, 9).against(known), BootOrder::Older);
    assert_eq!(BootId::new(7, 4).against(known), BootOrder::Twin);
    assert_eq!(known.against(BootId::default()), BootOrder::Newer, "no boot is known yet");
}

/// A front-end has a store, so it sends heartbeats, and reports a disk that hangs. It is not in the map: no chain
/// changes, and it still receives the entries that it requests.
#[test]
fn heartbeats_of_a_node_outside_the_map_change_nothing() {
    let mut cluster = serving();
    let (before, events) = (epoch(&cluster), cluster.events.clone());
    let sends = |cluster: &mut TestCluster, opens: u32, range: RangeId, body: Body<'_>| {
        let boot = BootId::new(opens, 5);
        let header = Header { from: member(9), boot, range, epoch: Epoch::default() };
        let mut bytes = Vec::new();
        encode_frame(&Frame { header, body }, &mut bytes);
        cluster.hand_over(&TestMessage { from: 9, to: MANAGER, bytes });
    };
    for opens in 1..=3 {
        for body in [Body::Hello, Body::Slow { oldest_ms: 2_000 }, Body::Slow { oldest_ms: 60_000 }] {
            sends(&mut cluster, opens, RangeId(0), body);
            cluster.run(1_000);
        }
        sends(&mut cluster, opens, RANGE, Body::EntryWanted);
        let is_entry = |message: &&TestMessage| {
            message.to == 9 && matches!(decode_frame(&message.bytes).unwrap().body, Body::Entry(_))
        };
        assert_eq!(cluster.net.iter().filter(is_entry).count(), 1);
    }
    cluster.run(20_000);
    assert!(cluster.healed());
    assert_eq!((epoch(&cluster), &cluster.events), (before, &events));
}

/// A head must know which process of a shard is the present one, also of shards that are in no chain with it.
#[test]
fn the_manager_sends_all_boots_to_all_shards() {
    let mut cluster = serving();
    cluster.boots_sent.clear();
    // The boots that are sent after this frame of a front-end.
    let sent = |cluster: &mut TestCluster, boot: BootId, body: Body<'_>| -> Vec<(u32, BootsMessage)> {
        let header = Header { from: member(9), boot, range: RangeId(0), epoch: Epoch::default() };
        let mut bytes = Vec::new();
        encode_frame(&Frame { header, body }, &mut bytes);
        cluster.hand_over(&TestMessage { from: 9, to: MANAGER, bytes });
        let mut sent = std::mem::take(&mut cluster.boots_sent);
        sent.sort_by_key(|(to, _)| *to);
        sent
    };
    let [first, twin, later] = [(3, 5), (3, 6), (4, 1)].map(|(opens, random)| BootId::new(opens, random));
    let changes = sent(&mut cluster, first, Body::Hello);
    assert_eq!(changes.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [1, 2, 3, 9]);
    assert!(changes.iter().all(|(_, message)| message.boots == [(member(9), first)] && message.changes != NO_TABLE));
    let whole = sent(&mut cluster, first, Body::BootsWanted { held: NO_TABLE });
    let [(9, BootsMessage { changes: NO_TABLE, revision, boots })] = whole.as_slice() else { panic!("{whole:?}") };
    let ids: Vec<MemberId> = boots.iter().map(|(id, _)| *id).collect();
    assert_eq!((ids, boots[3].1, *revision), ([1, 2, 3, 9].map(member).to_vec(), first, changes[0].1.revision));
    assert_eq!(sent(&mut cluster, first, Body::BootsWanted { held: *revision }), [], "it has this table");
    for body in [Body::Hello, Body::BootsWanted { held: NO_TABLE }] {
        assert_eq!(sent(&mut cluster, twin, body), [], "a refused process receives none");
    }
    let changes = sent(&mut cluster, later, Body::Hello);
    assert!(changes.iter().all(|(_, message)| message.boots == [(member(9), later)] && message.changes == *revision));
    assert_eq!(sent(&mut cluster, later, Body::BootsWanted { held: *revision }).len(), 1);
}

/// The head's disk persists promises but syncs no records, while two healthy members hold everything. The head is
/// promoted again at growing intervals.
#[test]
fn a_member_that_stalls_each_handshake_costs_less_and_less() {
    let mut cluster = serving();
    cluster.machines.get_mut(&1).unwrap().is_hung = true;
    cluster.cut.insert((1, 2));
    assert!(cluster.put(1).is_some());
    cluster.run(20);
    cluster.cut.clear();
    cluster.crash(3, 0);
    cluster.restart(3);
    let (began, before) = (cluster.now, cluster.acked.len());
    let mut tries = 0;
    while cluster.now < began + 120_000 {
        cluster.run(200);
        if let Some(head) = cluster.head() {
            let _ = cluster.put(head);
        }
        tries += 1;
    }
    let acked = cluster.acked.len() - before;
    assert!(acked * 10 >= tries * 7, "{acked} of {tries} writes: {:#?}", cluster.events);
    // The disk works again: the next promotion succeeds.
    cluster.machines.get_mut(&1).unwrap().is_hung = false;
    cluster.run(200_000);
    assert!(cluster.healed(), "{:?}", (1..=3).map(|id| cluster.phase(id)).collect::<Vec<_>>());
}

/// A chain with one serving member takes a member back at once, for whatever reason it was left out.
#[test]
fn a_single_member_waits_for_no_hold_off() {
    let mut cluster = serving();
    cluster.machines.get_mut(&3).unwrap().is_full = true;
    assert!(cluster.put(1).is_some());
    cluster.run(3_000);
    assert_eq!(cluster.phase(3), "syncing", "suspected: {:?}", cluster.events);
    cluster.machines.get_mut(&3).unwrap().is_full = false;
    cluster.crash(1, 0);
    cluster.run(3_500);
    assert_eq!((cluster.phase(2), cluster.phase(3)), ("head", "tail"), "{:#?}", cluster.events);
}

/// The tail receives neither the epoch that drops it nor the revision that takes it back. Nothing reminds it of the
/// chain: it would answer reads of the old epoch for ever, and the chain would stay short.
#[test]
fn a_tail_that_missed_the_epoch_without_it_is_told_later() {
    let mut cluster = serving();
    cluster.cut.extend([(MANAGER, 3), (2, 3)]);
    assert!(cluster.put(1).is_some());
    cluster.run(5_000);
    assert_eq!((cluster.phase(1), cluster.phase(2), cluster.phase(3)), ("head", "tail", "tail"));
    cluster.cut.clear();
    cluster.run(2_000);
    assert_eq!((cluster.phase(1), cluster.phase(2), cluster.phase(3)), ("head", "tail", "syncing"));
    cluster.run(20_000);
    assert!(cluster.healed(), "{:#?}", cluster.events);
}

/// As above, with a tail whose disk has failed: it is not taken back before a restart, and must stop.
#[test]
fn a_failed_tail_that_missed_the_epoch_without_it_stops() {
    let mut cluster = serving();
    cluster.cut.insert((MANAGER, 3));
    cluster.fail(3);
    cluster.run(5_000);
    assert!(cluster.serving(3) && cluster.phase(2) == "tail", "{:#?}", cluster.events);
    cluster.cut.clear();
    cluster.run(2_000);
    assert!(!cluster.serving(3), "{:#?}", cluster.events);
}

/// Two others remain: the member leaves at the first report, streams, and returns a hold-off after the last one.
#[test]
fn a_slow_member_leaves_a_chain_of_three() {
    let mut cluster = serving();
    cluster.machines.get_mut(&2).unwrap().slow_since = Some(cluster.now.saturating_sub(2_000));
    cluster.run(1_500);
    assert_eq!((cluster.phase(1), cluster.phase(2), cluster.phase(3)), ("head", "syncing", "tail"));
    let dropped = cluster.events.iter().filter(|event| event.contains("Slow")).count();
    assert_eq!(dropped, 1, "{:#?}", cluster.events);
    cluster.run(30_000);
    assert_eq!(cluster.phase(2), "syncing", "its disk still hangs");
    cluster.machines.get_mut(&2).unwrap().slow_since = None;
    cluster.run(9_000);
    assert_eq!(cluster.phase(2), "syncing", "the hold-off begins once its disk works");
    cluster.run(5_000);
    assert!(cluster.healed(), "{:#?}", cluster.events);
}

/// It counts as dead, so it is no member of the new chain. The announcement is lost while its heartbeats arrive.
#[test]
fn a_tail_with_a_hung_disk_stops_once_it_can_receive_the_new_chain() {
    let mut cluster = serving();
    cluster.run(20_000);
    cluster.machines.get_mut(&3).unwrap().slow_since = Some(cluster.now - 20_000);
    cluster.cut.insert((MANAGER, 3));
    cluster.run(6_000);
    assert_eq!((cluster.phase(1), cluster.phase(2), cluster.phase(3)), ("head", "tail", "tail"));
    assert!(cluster.put(1).is_some(), "{:#?}", cluster.events);
    cluster.cut.clear();
    cluster.run(2_000);
    assert!(!cluster.serving(3), "it would reply to reads with old values: {:#?}", cluster.events);
    cluster.machines.get_mut(&3).unwrap().slow_since = None;
    cluster.run(15_000);
    assert!(cluster.healed(), "{:#?}", cluster.events);
}

/// One other remains: the member stays until its disk counts as dead.
#[test]
fn a_slow_member_stays_in_a_chain_of_two_for_ten_seconds() {
    let mut cluster = serving();
    cluster.crash(3, 0);
    cluster.run(4_000);
    assert_eq!((cluster.phase(1), cluster.phase(2)), ("head", "tail"), "{:#?}", cluster.events);
    cluster.machines.get_mut(&2).unwrap().slow_since = Some(cluster.now);
    cluster.run(9_000);
    assert_eq!((cluster.phase(1), cluster.phase(2)), ("head", "tail"), "{:#?}", cluster.events);
    cluster.run(3_000);
    assert_eq!(cluster.phase(1), "single", "{:#?}", cluster.events);
    cluster.machines.get_mut(&2).unwrap().slow_since = None;
    cluster.restart(3);
    cluster.run(60_000);
    assert!(cluster.healed(), "{:#?}", cluster.events);
}

/// After each failure hundreds of ranges report. The layout is computed once per map, not once per report.
#[test]
fn the_layout_is_computed_once_per_map() {
    let node = |id| NodeEntry { node: NodeId(id), shards: 1, weight: 1, domain: 0, address: String::new() };
    let ring = RingOptions { replication: 3, virtual_ids: 8 };
    let map = ClusterMap::new(HashSecret([7; 16]), Durability::Sync, ring, (1..=20).map(node).collect());
    let ranges: Vec<RangeId> = map.ranges.iter().map(|entry| entry.range).collect();
    assert!(ranges.len() > 100);
    let mut manager =
        Manager::new(member(MANAGER), BootId::new(1, 1), ManagerOptions::default(), FileConsensus::default(), map);
    let mut maps = 0;
    let mut drain = |manager: &mut Manager<FileConsensus>, at: u64| {
        while let Some(output) = manager.poll_output() {
            if let ManagerOutput::Persist { revision, .. } = output {
                maps += 1;
                manager.handle_persisted(Now::at(at), revision);
            }
        }
    };
    let boot = |node: u32| BootId::new(5, node);
    let header = |node, range, epoch| Header { from: member(node), boot: boot(node), range, epoch };
    for node in 1..=20 {
        let body = Body::Hello;
        manager.handle_frame(Now::at(1), &Frame { header: header(node, RangeId(0), Epoch::default()), body });
        drain(&mut manager, 1);
    }
    let mut frames = 0_u64;
    for range in ranges {
        let entry = manager.map().range(range).unwrap().clone();
        for member in entry.serving() {
            let body = Body::Report(MemberReport::default());
            manager.handle_frame(Now::at(2), &Frame { header: header(member.id.node().0, range, entry.epoch), body });
            frames += 1;
        }
        drain(&mut manager, 2);
    }
    assert!(frames > 300);
    let computed = manager.layout().computed();
    assert!(computed <= maps + 1, "{computed} layouts for {maps} maps and {frames} reports");
}
