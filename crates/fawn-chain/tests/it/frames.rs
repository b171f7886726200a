//! Single members of a chain, frame by frame: requests for missing records, early reports, forged acks, silent peers.
use crate::member;
use fawn_chain::map::{Activation, ChainMember, ChainState, MemberRole};
use fawn_chain::message::{Body, Frame, Header, TransferCursor};
use fawn_chain::replica::Alarm;
use fawn_chain::{
    FrameVerdict, LogProgress, PersistedState, RangeEntry, Replayed, Replica, ReplicaConfig, ReplicaOptions,
    ReplicaOutput, Role,
};
use fawn_types::{BootId, Durability, Epoch, KeyRange, MemberId, Now, RangeId, TimeMs, Version};

const BOOT: BootId = BootId(77);
const RANGE: RangeId = RangeId(1);

fn version(e: u32, seq: u64) -> Version {
    Version::new(Epoch::new(e).unwrap(), seq).unwrap()
}

/// Every member's log ends here when epoch 4 begins.
fn base() -> Version {
    version(3, 9)
}

fn drain(replica: &mut Replica) -> Vec<ReplicaOutput> {
    std::iter::from_fn(|| replica.poll_output()).collect()
}

/// Epoch 4 of a chain of members 1 and 2, with member 3 syncing.
fn entry(state: ChainState) -> RangeEntry {
    let mut entry = RangeEntry::new(RANGE, KeyRange::ALL, &[member(1), member(2)]);
    entry.epoch = Epoch::new(4).unwrap();
    let listed = |(number, role)| ChainMember { id: member(number), boot: BOOT, role };
    let roles = [(1, MemberRole::Serving), (2, MemberRole::Serving), (3, MemberRole::Syncing)];
    entry.members = roles.map(listed).to_vec();
    (entry.state, entry.base) = (state, base());
    entry
}

fn receive(replica: &mut Replica, at: u64, from: MemberId, body: Body<'_>) -> FrameVerdict {
    let header = Header { from, boot: BOOT, range: RANGE, epoch: Epoch::new(4).unwrap() };
    replica.handle_frame(Now::at(at), &Frame { header, body })
}

/// A member that has promised epoch 4 and is asked to make its log equal to that of `donor` through `through`.
fn aligning(number: u32, donor: MemberId, through: Version) -> Replica {
    let options = ReplicaOptions::default();
    let config = ReplicaConfig { id: member(number), boot: BOOT, range: RANGE, durability: Durability::Sync, options };
    let mut replica = Replica::new(config, PersistedState::default(), base(), base());
    let entry = entry(ChainState::Preparing);
    replica.handle_entry(Now::at(1), &entry);
    replica.handle_persisted(Now::at(1), 1);
    let _ = receive(&mut replica, 2, member(0), Body::Align { entry, donor, base: through, cut: base() });
    drain(&mut replica);
    replica
}

fn serving(number: u32, role: Role) -> Replica {
    let mut replica = aligning(number, member(number), base());
    replica.handle_entry(Now::at(3), &entry(ChainState::Active));
    drain(&mut replica);
    assert_eq!(replica.role(), Some(role));
    replica
}

fn append(last: Version) -> Body<'static> {
    Body::Append { after: base(), last, upstream: base(), time: TimeMs(3), assigned: last, records: &[] }
}

fn wants_replay(replica: &mut Replica) -> bool {
    let is_request = |output: &ReplicaOutput| matches!(output, ReplicaOutput::Send { frame: Frame { body: Body::ReplayWanted { after }, .. }, .. } if *after == base());
    drain(replica).iter().any(is_request)
}

#[test]
fn a_watermark_beyond_the_log_asks_for_the_records() {
    let mut tail = serving(2, Role::Tail);
    let watermark = |sent| Body::Watermark { sent, upstream: base(), time: TimeMs(3), assigned: sent };
    let _ = receive(&mut tail, 4, member(1), watermark(base()));
    assert!(!wants_replay(&mut tail), "it lacks nothing");
    let _ = receive(&mut tail, 4, member(1), watermark(version(4, 3)));
    assert!(wants_replay(&mut tail));
}

/// The log rejected the records: they are requested again once it has space, before the pause for that is over.
#[test]
fn free_space_in_the_log_asks_for_the_rejected_records_at_once() {
    let mut tail = serving(2, Role::Tail);
    let verdict = receive(&mut tail, 4, member(1), append(version(4, 2)));
    assert_eq!(verdict, FrameVerdict::Append { after: base(), through: version(4, 2) });
    tail.retract(base());
    assert!(!wants_replay(&mut tail), "the log has just rejected them");
    tail.handle_log_space(Now::at(5));
    assert!(wants_replay(&mut tail));
}

/// Above the base the donor's log may have records that the manager does not count on.
#[test]
fn an_aligning_member_takes_no_records_above_the_base() {
    let mut replica = aligning(2, member(1), version(3, 12));
    assert_eq!(receive(&mut replica, 3, member(1), append(version(3, 13))), FrameVerdict::Nothing);
    let expected = FrameVerdict::Append { after: base(), through: version(3, 12) };
    assert_eq!(receive(&mut replica, 3, member(1), append(version(3, 12))), expected);
}

/// The cut was chosen for the log that a former process of the member has reported.
#[test]
fn an_alignment_of_a_former_boot_changes_nothing() {
    let options = ReplicaOptions::default();
    let config = ReplicaConfig { id: member(2), boot: BOOT, range: RANGE, durability: Durability::Sync, options };
    let mut replica = Replica::new(config, PersistedState::default(), base(), version(3, 1));
    replica.handle_entry(Now::at(1), &entry(ChainState::Preparing));
    replica.handle_persisted(Now::at(1), 1);
    drain(&mut replica);
    let mut former = entry(ChainState::Preparing);
    former.members[1].boot = BootId(BOOT.0 - 1);
    let (donor, cut) = (member(1), version(3, 4));
    for (entry, is_taken) in [(former, false), (entry(ChainState::Preparing), true)] {
        let _ = receive(&mut replica, 2, member(0), Body::Align { entry, donor, base: cut, cut });
        let is_cut = |output: &ReplicaOutput| matches!(output, ReplicaOutput::Rollback { after } if *after == cut);
        assert_eq!(drain(&mut replica).iter().any(is_cut), is_taken);
        assert_eq!(replica.last(), if is_taken { cut } else { base() });
    }
}

#[test]
fn a_syncing_member_reports_only_once_it_has_what_the_tail_has_committed() {
    let mut syncing = aligning(3, member(3), base());
    syncing.handle_entry(Now::at(3), &entry(ChainState::Active));
    drain(&mut syncing);
    let mut reports = |at, upstream| {
        let watermark = Body::Watermark { sent: base(), upstream, time: TimeMs(3), assigned: base() };
        let _ = receive(&mut syncing, at, member(2), watermark);
        syncing.handle_timeout(Now::at(at));
        let is_report = |output: &ReplicaOutput| {
            matches!(output, ReplicaOutput::SendManager { frame: Frame { body: Body::CaughtUp { .. }, .. } })
        };
        drain(&mut syncing).iter().any(is_report)
    };
    assert!(reports(4, base()) && !reports(103, base()) && reports(104, base()), "it repeats the report");
    assert!(!reports(204, version(4, 5)));
}

/// A new epoch begins before the timer for reports ends, again and again.
#[test]
fn a_syncing_member_reports_in_epochs_that_are_shorter_than_its_timer() {
    let mut syncing = aligning(3, member(3), base());
    syncing.handle_entry(Now::at(3), &entry(ChainState::Active));
    drain(&mut syncing);
    let epoch_ms = ReplicaOptions::default().retransmit_ms * 2 / 5;
    let mut reports_in = |number: u32| {
        let (epoch, at) = (Epoch::new(number).unwrap(), u64::from(number) * epoch_ms);
        let mut next = entry(ChainState::Active);
        next.epoch = epoch;
        syncing.handle_entry(Now::at(at), &next);
        let header = Header { from: member(2), boot: BOOT, range: RANGE, epoch };
        let body = Body::Watermark { sent: base(), upstream: base(), time: TimeMs(3), assigned: base() };
        let _ = syncing.handle_frame(Now::at(at + 1), &Frame { header, body });
        syncing.handle_timeout(Now::at(at + epoch_ms - 1));
        drain(&mut syncing).iter().any(|output| is_report_in(output, epoch))
    };
    assert!((5..15).filter(|&number| reports_in(number)).count() >= 3);
}

/// Peers that are being prepared send the member each new epoch before the manager announces it as active.
#[test]
fn a_syncing_member_reports_in_short_epochs_whose_handshakes_it_hears_of() {
    let mut syncing = aligning(3, member(3), base());
    syncing.handle_entry(Now::at(3), &entry(ChainState::Active));
    drain(&mut syncing);
    let (epoch_ms, active_ms) = (6, 3);
    let mut reports_in = |number: u32| {
        let (epoch, at) = (Epoch::new(number).unwrap(), u64::from(number) * epoch_ms);
        let mut next = entry(ChainState::Preparing);
        next.epoch = epoch;
        syncing.handle_entry(Now::at(at), &next);
        syncing.handle_timeout(Now::at(at + active_ms - 1));
        next.state = ChainState::Active;
        syncing.handle_entry(Now::at(at + active_ms), &next);
        let header = Header { from: member(2), boot: BOOT, range: RANGE, epoch };
        let body = Body::Watermark { sent: base(), upstream: base(), time: TimeMs(3), assigned: base() };
        let _ = syncing.handle_frame(Now::at(at + active_ms), &Frame { header, body });
        syncing.handle_timeout(Now::at(at + epoch_ms - 1));
        drain(&mut syncing).iter().any(|output| is_report_in(output, epoch))
    };
    let reports = (5..505).filter(|&number| reports_in(number)).count();
    assert!(reports >= 5, "{reports} reports in three seconds");
}

/// Whether the member reports that it has caught up with this epoch.
fn is_report_in(output: &ReplicaOutput, epoch: Epoch) -> bool {
    let ReplicaOutput::SendManager { frame } = output else { return false };
    matches!(frame.body, Body::CaughtUp { .. }) && frame.header.epoch == epoch
}

/// A serving head with version 4.1, which its successor has received.
fn head_with_a_record(synced: Version) -> Replica {
    let mut head = serving(1, Role::Head);
    let first = head.assign(Now::at(4)).unwrap();
    head.handle_progress(Now::at(4), LogProgress { appended: first, flushed: synced, synced });
    drain(&mut head);
    let records = Replayed::Records { last: first, bytes: 100 };
    assert!(head.handle_replayed(Now::at(4), member(2), base(), records).is_some());
    head
}

/// The log need not hold records any more that the successor has acknowledged. If it does not, the head reports that it
/// cannot send, and leaves the chain.
#[test]
fn a_late_request_of_the_successor_asks_for_nothing_that_it_has() {
    let mut head = head_with_a_record(version(4, 1));
    let _ = receive(&mut head, 5, member(2), Body::Ack { received: version(4, 1), committed: version(4, 1) });
    let _ = receive(&mut head, 6, member(2), Body::ReplayWanted { after: base() });
    let second = head.assign(Now::at(7)).unwrap();
    head.handle_progress(Now::at(7), LogProgress { appended: second, flushed: second, synced: second });
    let replays = drain(&mut head).into_iter().filter_map(|output| match output {
        ReplicaOutput::SendRecords { after, through, .. } => Some((after, through)),
        _ => None,
    });
    assert_eq!(replays.collect::<Vec<_>>(), [(version(4, 1), second)]);
}

/// The tail's commit includes the head's own watermark: an ack beyond it is forged or of another epoch.
#[test]
fn an_ack_beyond_the_own_watermark_commits_nothing() {
    let first = version(4, 1);
    for (synced, committed) in [(base(), base()), (first, first)] {
        let mut head = head_with_a_record(synced);
        let _ = receive(&mut head, 5, member(2), Body::Ack { received: first, committed: first });
        assert_eq!(head.committed(), committed, "synced through {synced:?}");
        let alarms = drain(&mut head).iter().filter(|output| matches!(output, ReplicaOutput::Alarm(_))).count();
        assert_eq!(alarms, usize::from(synced == base()));
    }
}

/// A successor that has received all and then falls silent does not commit: the head asks, then reports it.
#[test]
fn a_successor_that_received_all_and_falls_silent_is_suspected() {
    let mut head = head_with_a_record(version(4, 1));
    let _ = receive(&mut head, 5, member(2), Body::Ack { received: version(4, 1), committed: base() });
    let ReplicaOptions { retransmit_ms, suspect_ms, .. } = ReplicaOptions::default();
    let mut is_reported = |at| {
        head.handle_timeout(Now::at(at));
        let is_report = |output: &ReplicaOutput| {
            matches!(output, ReplicaOutput::SendManager { frame: Frame { body: Body::Suspect { .. }, .. } })
        };
        drain(&mut head).iter().any(is_report)
    };
    let asked_at = 5 + retransmit_ms;
    assert!(!is_reported(asked_at) && !is_reported(asked_at + suspect_ms - 1));
    assert!(is_reported(asked_at + suspect_ms));
}

/// The first watermark may be lost, and nothing new follows in an idle range.
#[test]
fn every_request_of_a_syncing_member_without_gaps_gets_a_watermark() {
    let mut tail = serving(2, Role::Tail);
    for _ in 0..2 {
        let _ = receive(&mut tail, 4, member(3), Body::ReplayWanted { after: base() });
        let is_watermark = |output: &ReplicaOutput| matches!(output, ReplicaOutput::Send { to, frame: Frame { body: Body::Watermark { .. }, .. } } if *to == member(3));
        assert!(drain(&mut tail).iter().any(is_watermark));
    }
}

/// Its records were acknowledged under `sync` and the others lost them: the copy is kept, however often the process
/// starts again after the chain has continued in another mode.
#[test]
fn a_restart_does_not_discard_a_history_of_sync() {
    let options = ReplicaOptions::default();
    let config = ReplicaConfig { id: member(3), boot: BOOT, range: RANGE, durability: Durability::Sync, options };
    let is_persist = |output| match output {
        ReplicaOutput::Persist { state, .. } => Some(state),
        _ => None,
    };
    let mut state = serving(2, Role::Tail).close().expect("it persisted its promise");
    let last = version(4, 2);
    let mut entry = entry(ChainState::Active);
    entry.durability = Durability::Memory;
    entry.history = vec![Activation { epoch: Epoch::new(5).unwrap(), base: base() }];
    for number in 5..8 {
        let mut replica = Replica::new(config, state.clone(), last, last);
        entry.epoch = Epoch::new(number).unwrap();
        entry.members[2].boot = BootId(1);
        replica.handle_entry(Now::at(1), &entry);
        state = drain(&mut replica).into_iter().find_map(is_persist).expect("it steps aside");
        entry.revision += 1;
        entry.members[2].boot = BOOT;
        replica.handle_entry(Now::at(2), &entry);
        let outputs = drain(&mut replica);
        assert!(matches!(outputs[..], [ReplicaOutput::Alarm(Alarm::CutBelowCommitted { .. })]), "{outputs:?}");
        state = replica.close().unwrap_or(state);
    }
}

/// The state of a serving member is persisted without waiting. Records of an epoch show that the epoch began.
#[test]
fn the_mode_of_a_log_that_is_newer_than_the_persisted_state_is_that_of_its_epoch() {
    for (durability, replaces) in [(Durability::Sync, false), (Durability::Memory, true)] {
        let options = ReplicaOptions::default();
        let config = ReplicaConfig { id: member(3), boot: BOOT, range: RANGE, durability, options };
        let mut prepared = entry(ChainState::Preparing);
        prepared.durability = durability;
        let log_durability = if replaces { Durability::Sync } else { Durability::Memory };
        let promised = prepared.epoch;
        let state = PersistedState { promised, entry: Some(prepared), log_durability, closed: None };
        let mut replica = Replica::new(config, state, version(4, 2), version(4, 2));
        let mut entry = entry(ChainState::Active);
        entry.epoch = Epoch::new(5).unwrap();
        entry.history = vec![Activation { epoch: entry.epoch, base: base() }];
        replica.handle_entry(Now::at(1), &entry);
        assert_eq!(replica.is_copying(), replaces);
    }
}

/// The mode of the old copy does not apply to the new one, also after a restart.
#[test]
fn the_mode_of_a_finished_copy_is_persisted() {
    let (options, durability) = (ReplicaOptions::default(), Durability::Sync);
    let config = ReplicaConfig { id: member(3), boot: BOOT, range: RANGE, durability, options };
    let log_durability = Durability::Memory;
    let mut entry = entry(ChainState::Active);
    entry.history = vec![Activation { epoch: entry.epoch, base: version(3, 4) }];
    let state = PersistedState { entry: Some(entry.clone()), log_durability, ..PersistedState::default() };
    let mut syncing = Replica::new(config, state, base(), base());
    syncing.handle_entry(Now::at(1), &entry);
    let (cursor, at) = (TransferCursor::START, version(4, 5));
    for next in [TransferCursor::START, TransferCursor::End] {
        let part = Body::Transfer { base: at, cursor, next, read_version: at, keys: 0, records: &[] };
        if let FrameVerdict::Transfer { next } = receive(&mut syncing, 2, member(2), part) {
            syncing.handle_transferred(Now::at(3), next);
        }
    }
    let persisted = |syncing: &mut Replica| {
        let states = drain(syncing).into_iter().filter_map(|output| match output {
            ReplicaOutput::Persist { state, .. } => Some(state.log_durability),
            _ => None,
        });
        states.collect::<Vec<_>>()
    };
    assert_eq!(persisted(&mut syncing), [Durability::Memory]);
    syncing.handle_transfer_finished(Now::at(4), at);
    assert!(!syncing.is_copying());
    assert_eq!(persisted(&mut syncing), [Durability::Sync]);
}

/// The log's answer to the end of the first copy comes when the second one is at its end, too.
#[test]
fn the_end_of_a_former_copy_does_not_end_the_present_one() {
    let mut syncing = aligning(3, member(3), base());
    syncing.handle_entry(Now::at(3), &entry(ChainState::Active));
    let mut copy_from = |after, base| {
        let _ = receive(&mut syncing, 4, member(2), Body::Gone { after });
        let cursor = TransferCursor::START;
        for next in [TransferCursor::START, TransferCursor::End] {
            let part = Body::Transfer { base, cursor, next, read_version: base, keys: 0, records: &[] };
            if let FrameVerdict::Transfer { next } = receive(&mut syncing, 5, member(2), part) {
                syncing.handle_transferred(Now::at(5), next);
            }
        }
        assert!(drain(&mut syncing).contains(&ReplicaOutput::FinishTransfer { base }));
    };
    let (first, second) = (version(4, 5), version(4, 9));
    copy_from(base(), first);
    copy_from(first, second);
    syncing.handle_transfer_finished(Now::at(6), first);
    assert!(syncing.is_copying());
    syncing.handle_transfer_finished(Now::at(7), second);
    assert!(!syncing.is_copying());
}

/// The tail gives up the records above the base, and the chain then loses the history of that base: what the member had
/// before is discarded already, so no alarm could save it.
#[test]
fn a_member_that_has_discarded_its_copy_is_copied_whatever_the_chain_lost() {
    let mut syncing = aligning(3, member(3), base());
    syncing.handle_entry(Now::at(3), &entry(ChainState::Active));
    let _ = receive(&mut syncing, 4, member(2), Body::Gone { after: base() });
    let (cursor, next, at) = (TransferCursor::START, TransferCursor::START, version(4, 5));
    let begin = Body::Transfer { base: at, cursor, next, read_version: at, keys: 0, records: &[] };
    let _ = receive(&mut syncing, 5, member(2), begin);
    assert!(drain(&mut syncing).contains(&ReplicaOutput::BeginTransfer { base: at }));
    let _ = receive(&mut syncing, 6, member(2), Body::Gone { after: at });
    drain(&mut syncing);
    let mut entry = entry(ChainState::Active);
    entry.epoch = Epoch::new(5).unwrap();
    entry.history = vec![Activation { epoch: entry.epoch, base: base() }];
    syncing.handle_entry(Now::at(7), &entry);
    let outputs = drain(&mut syncing);
    let is_request = |output: &ReplicaOutput| {
        matches!(output, ReplicaOutput::Send { frame: Frame { body: Body::TransferWanted { base: None, .. }, .. }, .. })
    };
    assert!(outputs.iter().any(is_request), "{outputs:?}");
}

/// The refusal may have ended its stream. The network repeats the refusal, and the first request is lost.
#[test]
fn a_refusal_of_another_position_asks_again_at_the_pace_of_the_timer() {
    for after in [version(3, 8), version(3, 10)] {
        let mut syncing = aligning(3, member(3), base());
        syncing.handle_entry(Now::at(3), &entry(ChainState::Active));
        let watermark = Body::Watermark { sent: base(), upstream: base(), time: TimeMs(3), assigned: base() };
        let _ = receive(&mut syncing, 4, member(2), watermark.clone());
        drain(&mut syncing);
        let pause_ms = ReplicaOptions::default().retransmit_ms;
        let at = 4 + 2 * pause_ms;
        let mut requests = 0;
        for _ in 0..1_000 {
            let _ = receive(&mut syncing, at, member(2), Body::Gone { after });
            requests += usize::from(wants_replay(&mut syncing));
        }
        assert_eq!(requests, 1);
        let mut requests_at = |at| {
            syncing.handle_timeout(Now::at(at));
            wants_replay(&mut syncing)
        };
        assert!(!requests_at(at + pause_ms - 1));
        assert!((1..=3).any(|pauses| requests_at(at + pauses * pause_ms)), "the predecessor has not replied");
        let _ = receive(&mut syncing, at + 4 * pause_ms, member(2), watermark);
        drain(&mut syncing);
        syncing.handle_timeout(Now::at(at + 6 * pause_ms));
        assert!(!wants_replay(&mut syncing), "its stream goes on");
    }
}

/// Members 3 and 4 take no chunk of their bases, or member 4 ends its copy. Member 3 continues to receive replies, but does
/// not keep member 5 waiting a second time.
#[test]
fn a_member_that_took_no_chunk_does_not_block_others_again() {
    for is_second_done in [false, true] {
        let mut tail = serving(2, Role::Tail);
        let mut entry = entry(ChainState::Active);
        entry.revision += 1;
        let syncing = |number| ChainMember { id: member(number), boot: BOOT, role: MemberRole::Syncing };
        entry.members.extend([4, 5].map(syncing));
        tail.handle_entry(Now::at(3), &entry);
        drain(&mut tail);
        let mut is_answered = |at, number, base| {
            let cursor = TransferCursor::START;
            let _ = receive(&mut tail, at, member(number), Body::TransferWanted { base, cursor });
            drain(&mut tail).iter().any(|output| match output {
                ReplicaOutput::Send { frame: Frame { body: Body::Transfer { .. }, .. }, .. } => true,
                ReplicaOutput::SendTransfer { to, base, cursor } => {
                    tail.handle_transfer_read(Now::at(at), *to, *base, *cursor).is_some()
                }
                _ => false,
            })
        };
        let held = Some(base());
        assert!(is_answered(10, 3, None));
        assert!((1..=100).all(|tenth| is_answered(tenth * 100, 3, held)));
        assert!(!is_answered(10_050, 4, None), "slow chunks are waited for");
        assert!(is_answered(10_200, 4, None));
        assert!(is_answered(10_300, 4, held) && is_answered(10_310, 3, held));
        assert!(!is_answered(10_320, 5, None), "member 4 is copied");
        let last = if is_second_done { 110 } else { 210 };
        assert!((104..=last).all(|tenth| is_answered(tenth * 100, 4, held) && is_answered(tenth * 100, 3, held)));
        let until = if is_second_done { last + 25 } else { last };
        assert!((last..=until).all(|tenth| is_answered(tenth * 100, 3, held)));
        assert!(is_answered(until * 100 + 50, 5, None), "it is its turn");
        assert!(is_answered(until * 100 + 60, 5, held) && is_answered(until * 100 + 70, 3, held));
        assert!(!is_answered(until * 100 + 80, 4, None), "the others keep what they have");
    }
}
