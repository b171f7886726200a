//! Single-replica tests: the chain of one that a lone server runs, rejections, a full log, marks of a clean shutdown.
use crate::member;
use fawn_chain::map::{ChainMember, ChainState, MemberRole};
use fawn_chain::message::{Body, Frame, Header};
use fawn_chain::{
    Closed, LogProgress, PersistedState, RangeEntry, Rejection, Replica, ReplicaConfig, ReplicaOptions, ReplicaOutput,
    Role,
};
use fawn_types::{BootId, Durability, Epoch, KeyRange, MemberId, Now, RangeId, TimeMs, Version};

const NODE: MemberId = member(1);
const BOOT: BootId = BootId(77);

fn version(e: u32, seq: u64) -> Version {
    Version::new(Epoch::new(e).unwrap(), seq).unwrap()
}

fn drain(replica: &mut Replica) -> Vec<ReplicaOutput> {
    std::iter::from_fn(|| replica.poll_output()).collect()
}

/// A chain of one in epoch 4 whose log ended in 3.9.
fn single(options: ReplicaOptions) -> Replica {
    let config = ReplicaConfig { id: NODE, boot: BOOT, range: RangeId(1), durability: Durability::Sync, options };
    let mut replica = Replica::new(config, PersistedState::default(), version(3, 9), version(3, 4));
    let mut entry = RangeEntry::new(RangeId(1), KeyRange::ALL, &[NODE]);
    entry.epoch = Epoch::new(4).unwrap();
    entry.members = vec![ChainMember { id: NODE, boot: BOOT, role: MemberRole::Serving }];
    replica.handle_entry(Now::at(1), &entry);
    let outputs = drain(&mut replica);
    assert!(
        matches!(outputs[..], [ReplicaOutput::Persist { number: 1, .. }]),
        "no report before the promise is durable"
    );
    replica.handle_persisted(Now::at(1), 1);
    assert!(matches!(drain(&mut replica)[..], [ReplicaOutput::SendManager { .. }]));
    let header = Header { from: member(0), boot: BootId(0), range: RangeId(1), epoch: entry.epoch };
    let base = version(3, 9);
    let body = Body::Align { entry: entry.clone(), donor: NODE, base, cut: base };
    let _ = replica.handle_frame(Now::at(2), &Frame { header, body });
    drain(&mut replica);
    entry.state = ChainState::Active;
    entry.base = base;
    replica.handle_entry(Now::at(3), &entry);
    let outputs = drain(&mut replica);
    assert!(outputs.contains(&ReplicaOutput::Commit { through: base }), "equality at activation is a commit");
    assert_eq!(replica.role(), Some(Role::Single));
    replica
}

fn progress(appended: Version, synced: Version) -> LogProgress {
    LogProgress { appended, flushed: synced, synced }
}

#[test]
fn a_chain_of_one_commits_by_its_own_watermark_without_frames() {
    let mut replica = single(ReplicaOptions::default());
    let first = replica.assign(Now::at(5)).unwrap();
    assert_eq!(first, version(4, 1), "a new epoch begins at 1");
    (0..99).for_each(|_| assert!(replica.assign(Now::at(5)).is_ok()));
    replica.handle_progress(Now::at(5), progress(version(4, 100), version(3, 9)));
    assert_eq!(drain(&mut replica), []);
    replica.handle_progress(Now::at(6), progress(version(4, 100), version(4, 60)));
    assert_eq!(
        drain(&mut replica),
        [ReplicaOutput::Commit { through: version(4, 60) }],
        "one commit for sixty records"
    );
    assert_eq!(replica.admit_read(Now::at(9)).map(|time| time.now), Ok(TimeMs(9)));
    assert_eq!(replica.admit_read(Now::at(2)).map(|time| time.now), Ok(TimeMs(9)), "chain time never decreases");
}

#[test]
fn a_full_log_gives_its_version_back() {
    let mut replica = single(ReplicaOptions::default());
    let first = replica.assign(Now::at(5)).unwrap();
    replica.retract(version(3, 9));
    assert_eq!(replica.assign(Now::at(6)).unwrap(), first);
    let second = replica.assign(Now::at(6)).unwrap();
    replica.retract(first);
    assert_eq!(replica.assign(Now::at(6)).unwrap(), second);
}

#[test]
fn too_many_pending_writes_are_refused() {
    let mut replica = single(ReplicaOptions { pending_max: 2, ..ReplicaOptions::default() });
    assert!(replica.assign(Now::at(5)).is_ok() && replica.assign(Now::at(5)).is_ok());
    assert_eq!(replica.assign(Now::at(5)), Err(Rejection::Overloaded));
    replica.handle_progress(Now::at(6), progress(version(4, 2), version(4, 1)));
    assert!(replica.assign(Now::at(6)).is_ok(), "a commit frees capacity");
}

#[test]
fn a_batch_takes_its_versions_together() {
    let options = ReplicaOptions { pending_max: 3, epoch_records_max: 32, ..ReplicaOptions::default() };
    let mut replica = single(options);
    assert_eq!(replica.assign_batch(Now::at(5), 10), Ok(version(4, 1)));
    assert_eq!((replica.last(), replica.uncommitted()), (version(4, 10), 10), "a batch is not split by a bound");
    assert_eq!(replica.assign_batch(Now::at(5), 1), Err(Rejection::Overloaded));
    replica.retract(version(3, 9));
    assert_eq!((replica.assign_batch(Now::at(5), 2), replica.uncommitted()), (Ok(version(4, 1)), 2));
    replica.handle_progress(Now::at(6), progress(version(4, 2), version(4, 2)));
    assert!(!replica.wants_epoch());
    assert_eq!(replica.assign_batch(Now::at(6), 31), Err(Rejection::EpochFull));
    assert!(replica.wants_epoch(), "the batch fits into no rest of this epoch");
    assert_eq!((replica.last(), replica.uncommitted()), (version(4, 2), 0), "none was assigned");
    assert_eq!(replica.assign_batch(Now::at(6), 30), Ok(version(4, 3)));
}

/// The next epoch is requested once per interval, not by every write that comes near the end of this one.
#[test]
fn a_new_epoch_is_requested_once_per_interval() {
    let mut replica = single(ReplicaOptions { epoch_records_max: 64, ..ReplicaOptions::default() });
    let mut requests = |at| {
        (0..2).for_each(|_| assert!(replica.assign(Now::at(at)).is_ok()));
        let is_request = |output: &ReplicaOutput| {
            matches!(output, ReplicaOutput::SendManager { frame: Frame { body: Body::EpochWanted, .. } })
        };
        drain(&mut replica).iter().filter(|output| is_request(output)).count()
    };
    assert_eq!((0..30).map(|_| requests(5)).sum::<usize>(), 0);
    assert_eq!(requests(6), 1);
    assert_eq!(requests(6 + ReplicaOptions::default().retransmit_ms), 1);
}

#[test]
fn versions_are_assigned_without_a_walk_or_an_output() {
    let mut replica = single(ReplicaOptions { pending_max: 100, ..ReplicaOptions::default() });
    for round in 0..50 {
        let seqs = round * 100 + 1..=round * 100 + 100;
        seqs.for_each(|seq| assert_eq!(replica.assign(Now::at(7)), Ok(version(4, seq))));
        assert_eq!(replica.assign(Now::at(7)), Err(Rejection::Overloaded));
        assert_eq!(drain(&mut replica), [], "the log is all that hears of a write");
        let all = version(4, round * 100 + 100);
        replica.handle_progress(Now::at(8), progress(all, all));
        assert_eq!(drain(&mut replica), [ReplicaOutput::Commit { through: all }]);
        assert_eq!((replica.uncommitted(), replica.next_timeout()), (0, None), "and no timer");
    }
}

/// The only member activates itself; what it keeps is what a manager would have told it.
#[test]
fn a_member_alone_serves_by_itself_and_a_later_chain_goes_on_from_its_entry() {
    let options = ReplicaOptions::default();
    let config = ReplicaConfig { id: NODE, boot: BOOT, range: RangeId(1), durability: Durability::Sync, options };
    let mut state = PersistedState::default();
    let mut last = Version::ZERO;
    for e in 1..=3 {
        let mut replica = Replica::new(config, state.clone(), last, last);
        replica.serve_alone(Now::at(1), Epoch::new(e).unwrap(), KeyRange::ALL);
        assert_eq!((replica.role(), replica.acknowledges()), (Some(Role::Single), true));
        let outputs = drain(&mut replica);
        let [ReplicaOutput::Persist { state: kept, .. }, ReplicaOutput::NowServing { .. }] = &outputs[..] else {
            panic!("a promise, and no message: {outputs:?}");
        };
        let entry = kept.entry.as_ref().unwrap();
        assert_eq!((kept.promised, entry.epoch, entry.base), (Epoch::new(e).unwrap(), kept.promised, last));
        assert_eq!(entry.last_active.as_ref().unwrap().members, entry.members);
        assert_eq!(entry.common_point(last), last, "the history knows the log");
        assert_eq!(entry.history.len(), e as usize);
        state = kept.clone();
        assert_eq!(replica.assign(Now::at(2)), Ok(version(e, 1)));
        last = version(e, 1);
        replica.handle_progress(Now::at(3), progress(last, last));
        assert_eq!(replica.committed(), last);
    }
    // A manager that knows nothing of these epochs learns of them by the first refusal.
    let mut replica = Replica::new(config, state, last, last);
    let mut entry = RangeEntry::new(RangeId(1), KeyRange::ALL, &[NODE]);
    entry.epoch = Epoch::new(1).unwrap();
    replica.handle_entry(Now::at(9), &entry);
    let outputs = drain(&mut replica);
    let [ReplicaOutput::SendManager { frame: Frame { body: Body::PromisedAbove(newest), .. } }] = &outputs[..] else {
        panic!("a promise is kept: {outputs:?}");
    };
    assert_eq!(newest.epoch, Epoch::new(3).unwrap());
}

#[test]
fn a_member_alone_begins_its_next_epoch_while_it_serves() {
    let options = ReplicaOptions { epoch_records_max: 32, ..ReplicaOptions::default() };
    let config = ReplicaConfig { id: NODE, boot: BOOT, range: RangeId(1), durability: Durability::Memory, options };
    let mut replica = Replica::new(config, PersistedState::default(), Version::ZERO, Version::ZERO);
    for e in 1..=3 {
        replica.serve_alone(Now::at(1), Epoch::new(e).unwrap(), KeyRange::ALL);
        assert_eq!((replica.role(), replica.uncommitted(), replica.wants_epoch()), (Some(Role::Single), 0, false));
        drain(&mut replica);
        (1..=32).for_each(|seq| assert_eq!(replica.assign(Now::at(2)), Ok(version(e, seq))));
        assert_eq!((replica.assign(Now::at(2)), replica.wants_epoch()), (Err(Rejection::EpochFull), true));
        let last = version(e, 32);
        replica.handle_progress(Now::at(3), progress(last, last));
        assert_eq!(drain(&mut replica).pop(), Some(ReplicaOutput::Commit { through: last }));
    }
}

#[test]
fn a_replica_without_a_part_refuses() {
    let options = ReplicaOptions::default();
    let config = ReplicaConfig { id: NODE, boot: BOOT, range: RangeId(1), durability: Durability::Sync, options };
    let mut replica = Replica::new(config, PersistedState::default(), Version::ZERO, Version::ZERO);
    assert_eq!(replica.assign(Now::at(1)), Err(Rejection::NotServing));
    assert_eq!(replica.admit_read(Now::at(1)), Err(Rejection::NotServing));
    assert!(matches!(replica.admit_epoch(Epoch::new(3).unwrap()), Err(Rejection::StaleEpoch { .. })));
    replica.handle_timeout(Now::at(500));
    assert!(matches!(drain(&mut replica)[..], [ReplicaOutput::SendManager { .. }]), "requests its entry");
}

#[test]
fn another_boot_of_a_member_does_not_serve() {
    let mut replica = single(ReplicaOptions::default());
    let mut entry = replica.entry().unwrap().clone();
    entry.revision += 1;
    entry.members[0].boot = BootId(78);
    replica.handle_entry(Now::at(9), &entry);
    assert_eq!(replica.role(), None);
    assert!(drain(&mut replica).contains(&ReplicaOutput::Stopped));
}

/// A boot reports that it continues the one before only if that one left a mark and the log ends there.
#[test]
fn a_boot_continues_the_one_closed_in_order_if_the_log_ends_there() {
    let before = single(ReplicaOptions::default());
    let state = before.close().expect("it promised, and has not failed");
    assert_eq!(state.closed, Some(Closed { boot: BOOT, last: version(3, 9), before: None }));
    let mut failed = before;
    failed.fail(Now::at(9));
    assert_eq!(failed.close(), None, "a failed replica leaves no mark");
    let options = ReplicaOptions::default();
    let config =
        ReplicaConfig { id: NODE, boot: BootId(78), range: RangeId(1), durability: Durability::Memory, options };
    let entry =
        RangeEntry { epoch: Epoch::new(5).unwrap(), state: ChainState::Preparing, ..state.entry.clone().unwrap() };
    for (last, continues) in [(version(3, 9), Some(BOOT)), (version(3, 8), None)] {
        let mut replica = Replica::new(config, state.clone(), last, version(3, 4));
        assert_eq!(replica.close(), None, "a boot that promised nothing leaves the mark unchanged");
        replica.handle_entry(Now::at(1), &entry);
        let outputs = drain(&mut replica);
        assert!(
            matches!(&outputs[..], [ReplicaOutput::Persist { state, .. }] if state.closed.is_none()),
            "{outputs:?}"
        );
        replica.handle_persisted(Now::at(1), 1);
        let outputs = drain(&mut replica);
        let [ReplicaOutput::SendManager { frame: Frame { body: Body::Report(report), .. } }] = &outputs[..] else {
            panic!("expected a report, got {outputs:?}");
        };
        assert_eq!(report.continues, continues, "the log ends in {last:?}");
    }
}
