//! Full resyncs of a range: one member of a chain at a time, so that the others keep their old copies.
use crate::cluster::{Bug, MANAGER, RANGE, TestCluster, TestMessage, boot_id};
use crate::member;
use fawn_chain::message::{Body, Frame, Header, encode_frame};
use fawn_types::{Durability, Version};

/// A chain of three, and two members whose logs ended before those of the others begin.
fn left_behind() -> TestCluster {
    let mut cluster = TestCluster::new(5, Durability::Sync, Bug::None);
    cluster.retained_max = 2;
    cluster.run(600);
    let head = cluster.head().expect("a new cluster has a head");
    (0..5).for_each(|_| assert!(cluster.put(head).is_some()));
    cluster.run(100);
    for member in [4, 5] {
        cluster.crash(member, 0);
    }
    cluster.run(6_000);
    let head = cluster.head().expect("three members continue");
    (0..20).for_each(|_| assert!(cluster.put(head).is_some()));
    cluster.run(100);
    cluster
}

#[test]
fn one_member_of_a_chain_is_copied_at_a_time() {
    let mut cluster = left_behind();
    for member in [4, 5] {
        cluster.restart(member);
    }
    cluster.is_rotten = true;
    cluster.run(20_000);
    let copying =
        |cluster: &TestCluster| [4, 5].into_iter().filter(|member| cluster.machines[member].log.copy.is_some()).count();
    assert_eq!(copying(&cluster), 1, "one member has discarded its copy, the other waits with its old one");
    cluster.is_rotten = false;
    cluster.run(10_000);
    assert_eq!(copying(&cluster), 0);
    assert!(cluster.healed() && cluster.copies == 2, "{} copies were made", cluster.copies);
}

/// Its requests show that it is alive, and the chunk that it is sent never takes effect: whether the disk fills before
/// the first chunk, or what the tail sends is lost before the member has a base.
#[test]
fn a_member_that_stores_no_chunk_does_not_keep_another_one_from_being_copied() {
    for loses_base in [false, true] {
        let mut cluster = left_behind();
        let tail = (1..=3).find(|id| cluster.phase(*id) == "tail").expect("three members serve");
        let machine = cluster.machines.get_mut(&4).expect("a machine");
        machine.is_full = !loses_base;
        cluster.restart(4);
        while cluster.phase(4) != "copying" {
            if cluster.net.is_empty() { cluster.advance(10) } else { cluster.deliver(0) }
        }
        if loses_base {
            cluster.cut.insert((tail, 4));
        }
        cluster.run(1_000);
        assert_eq!(cluster.phase(4), "copying", "{:#?}", cluster.events);
        assert_eq!(cluster.machines[&4].log.copy.is_some(), !loses_base);
        cluster.restart(5);
        cluster.run(5_000);
        assert_eq!(cluster.phase(5), "copying", "slow chunks are waited for");
        cluster.run(20_000);
        assert!(cluster.serving(5), "{:#?}", cluster.events);
        cluster.machines.get_mut(&4).expect("a machine").is_full = false;
        cluster.cut.clear();
        cluster.run(20_000);
        assert!(cluster.healed() && cluster.copies == 2, "{} copies were made: {:#?}", cluster.copies, cluster.events);
    }
}

/// The tail committed a record that the others lost with power, in a mode that permits that. Later the chain changes to
/// `sync`. The tail's copy is replaced, whether it learns of the chain at once or first as a process without a role, and
/// also if it restarts before a base arrives.
#[test]
fn a_history_that_was_lost_before_a_change_to_sync_is_replaced() {
    for restarts in 0..3 {
        let mut cluster = TestCluster::new(3, Durability::Memory, Bug::None);
        cluster.run(600);
        assert!(cluster.put(1).is_some());
        cluster.run(100);
        [1, 2].iter().for_each(|id| cluster.machines.get_mut(id).expect("a machine").is_hung = true);
        let lost = cluster.put(1).expect("n1 is the head");
        cluster.run(100);
        assert_eq!(cluster.machines[&3].committed, lost);
        cluster.cut.extend([1, 2, MANAGER].into_iter().flat_map(|other| [(3, other), (other, 3)]));
        for id in [1, 2] {
            cluster.crash(id, 0);
            cluster.machines.get_mut(&id).expect("a machine").is_hung = false;
            cluster.restart(id);
        }
        assert!(cluster.acked.remove(&lost), "it was acknowledged");
        cluster.run(4_000);
        assert!(cluster.put(1).is_some(), "{:#?}", cluster.events);
        cluster.durability = Durability::Sync;
        cluster.start_manager();
        cluster.run(4_000);
        assert!(cluster.put(1).is_some(), "{:#?}", cluster.events);
        for restart in 0..restarts {
            cluster.crash(3, 1);
            cluster.restart(3);
            cluster.cut.clear();
            if restart + 1 < restarts {
                cluster.cut.insert((3, 2));
                cluster.run(2_000);
                assert_eq!((cluster.phase(3), cluster.copies), ("copying", 0), "its request for a base is lost");
            }
        }
        cluster.cut.clear();
        cluster.run(20_000);
        assert!(cluster.healed() && cluster.copies == 1, "{} copies were made: {:#?}", cluster.copies, cluster.events);
    }
}

/// The network repeats a request of a syncing member for records that the log has given up since.
#[test]
fn a_late_request_does_not_end_the_stream_of_a_member_that_has_caught_up() {
    let mut cluster = TestCluster::new(3, Durability::Sync, Bug::None);
    cluster.run(600);
    cluster.machines.get_mut(&3).expect("a machine").is_full = true;
    assert!(cluster.put(1).is_some());
    cluster.run(3_000);
    cluster.machines.get_mut(&3).expect("a machine").is_full = false;
    cluster.run(3_000);
    (0..5).for_each(|_| assert!(cluster.put(1).is_some()));
    cluster.run(500);
    assert_eq!(cluster.phase(3), "syncing", "a member that was suspected waits: {:#?}", cluster.events);
    assert_eq!(cluster.machines[&3].log.last(), cluster.machines[&2].log.last());
    cluster.retained_max = 1;
    let machine = &cluster.machines[&3];
    let epoch = machine.replica.as_ref().map(fawn_chain::Replica::epoch).expect("it runs");
    let header = Header { from: member(3), boot: boot_id(machine.boot), range: RANGE, epoch };
    let mut bytes = Vec::new();
    encode_frame(&Frame { header, body: Body::ReplayWanted { after: Version::ZERO } }, &mut bytes);
    cluster.hand_over(&TestMessage { from: 3, to: 2, bytes });
    cluster.run(100);
    let last = cluster.put(1).expect("n1 is the head");
    cluster.run(500);
    assert_eq!((cluster.phase(3), cluster.machines[&3].log.last()), ("syncing", last));
    assert_eq!(cluster.copies, 0, "{:#?}", cluster.events);
}

/// The network repeats a request whose records the log has given up since, and the tail misses the member's newer
/// acknowledgements: it removes the link. Nothing else in the range shows the member that its stream has ended, and the
/// tail's refusal, which would, may be lost.
#[test]
fn a_late_request_does_not_end_the_stream_of_a_member_whose_acks_are_lost() {
    for loses_refusal in [false, true] {
        late_request_without_acks(loses_refusal);
    }
}

fn late_request_without_acks(loses_refusal: bool) {
    let mut cluster = TestCluster::new(3, Durability::Sync, Bug::None);
    cluster.run(600);
    cluster.machines.get_mut(&3).expect("a machine").is_full = true;
    assert!(cluster.put(1).is_some());
    cluster.run(3_000);
    cluster.machines.get_mut(&3).expect("a machine").is_full = false;
    cluster.run(3_000);
    assert_eq!(cluster.phase(3), "syncing", "a member that was suspected waits: {:#?}", cluster.events);
    let after = cluster.machines[&3].log.last();
    cluster.cut.insert((3, 2));
    (0..5).for_each(|_| assert!(cluster.put(1).is_some()));
    cluster.run(100);
    assert_eq!(cluster.machines[&3].log.last(), cluster.machines[&2].log.last());
    cluster.retained_max = 1;
    let machine = &cluster.machines[&3];
    let epoch = machine.replica.as_ref().map(fawn_chain::Replica::epoch).expect("it runs");
    let header = Header { from: member(3), boot: boot_id(machine.boot), range: RANGE, epoch };
    let mut bytes = Vec::new();
    encode_frame(&Frame { header, body: Body::ReplayWanted { after } }, &mut bytes);
    if loses_refusal {
        cluster.cut.insert((2, 3));
    }
    cluster.hand_over(&TestMessage { from: 3, to: 2, bytes });
    cluster.run(50);
    cluster.cut.clear();
    let last = cluster.put(1).expect("n1 is the head");
    cluster.run(500);
    assert_eq!((cluster.phase(3), cluster.machines[&3].log.last()), ("syncing", last));
    assert_eq!(cluster.copies, 0, "{:#?}", cluster.events);
}
