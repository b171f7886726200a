//! Owns the tests of front-end and completions: routes, retries with the same tag, bounded windows, exactly once.
use fawn_chain::completions::{Admission, CompletionLimits, Completions};
use fawn_chain::map::{Activation, ChainState};
use fawn_chain::{ClusterMap, Frontend, FrontendOptions, FrontendOutput, Intent, NodeEntry, RingOptions};
use fawn_types::{ClientTag, Durability, Epoch, HashSecret, NodeId, Now, RingKey, Version};

const SECRET: HashSecret = HashSecret([5; 16]);

fn active_map() -> ClusterMap {
    let node = |id| NodeEntry { node: NodeId(id), weight: 1, domain: 0, address: String::new() };
    let options = RingOptions { replication: 3, virtual_ids: 1 };
    let mut map = ClusterMap::new(SECRET, Durability::Sync, options, (1..=3).map(node).collect());
    map.ranges.iter_mut().for_each(|entry| {
        entry.epoch = Epoch::new(1).unwrap();
        entry.state = ChainState::Active;
        entry.remember(Activation { epoch: entry.epoch, base: Version::ZERO });
    });
    map
}

fn drain(frontend: &mut Frontend) -> Vec<FrontendOutput> {
    std::iter::from_fn(|| frontend.poll_output()).collect()
}

#[test]
fn writes_go_to_the_head_and_reads_to_the_tail() {
    let map = active_map();
    let mut frontend = Frontend::new(7, FrontendOptions::default(), map.clone());
    let key = RingKey::of(&SECRET, b"a");
    let entry = map.range_of(&key).unwrap();
    let write = frontend.start(Now::at(0), key, Intent::Write).unwrap();
    let read = frontend.start(Now::at(0), key, Intent::Read).unwrap();
    let sent = drain(&mut frontend);
    let tag = ClientTag { session: 7, seq: write.0 };
    let (range, epoch) = (entry.range, entry.epoch);
    let to = entry.head().unwrap();
    assert_eq!(sent[0], FrontendOutput::Send { op: write, to, range, epoch, tag, first_incomplete: 1 });
    assert!(matches!(sent[1], FrontendOutput::Send { to, .. } if Some(to) == entry.tail()));
    assert!(frontend.handle_reply(write) && !frontend.handle_reply(write), "the second answer is a duplicate");
    assert_eq!(frontend.first_incomplete(), read.0);
}

#[test]
fn silence_is_retried_with_the_same_tag_then_given_up() {
    let mut frontend = Frontend::new(7, FrontendOptions::default(), active_map());
    let op = frontend.start(Now::at(0), RingKey::MIN, Intent::Write).unwrap();
    let first = drain(&mut frontend);
    frontend.handle_timeout(Now::at(100));
    assert!(drain(&mut frontend).is_empty(), "not yet");
    frontend.handle_timeout(Now::at(200));
    assert_eq!(drain(&mut frontend), first);
    frontend.handle_timeout(Now::at(5_000));
    assert_eq!(drain(&mut frontend), [FrontendOutput::Failed { op }]);
    assert_eq!(frontend.next_timeout(), None);
}

#[test]
fn a_newer_entry_sends_waiting_operations_again() {
    let map = active_map();
    let mut frontend = Frontend::new(7, FrontendOptions::default(), map.clone());
    let op = frontend.start(Now::at(0), RingKey::MIN, Intent::Write).unwrap();
    drain(&mut frontend);
    let mut newer = map.range_of(&RingKey::MIN).unwrap().clone();
    newer.epoch = Epoch::new(2).unwrap();
    newer.members.remove(0);
    frontend.handle_refused(Now::at(1), op);
    frontend.handle_entry(Now::at(1), &newer);
    let again = drain(&mut frontend);
    assert!(
        matches!(again[..], [FrontendOutput::Send { to, epoch, .. }] if Some(to) == newer.head() && epoch == newer.epoch)
    );
    frontend.handle_entry(Now::at(2), map.range_of(&RingKey::MIN).unwrap());
    assert!(drain(&mut frontend).is_empty(), "an older entry is no news");
}

#[test]
fn the_window_bounds_unanswered_operations() {
    let options = FrontendOptions { window_ops_max: 3, ..FrontendOptions::default() };
    let mut frontend = Frontend::new(7, options, active_map());
    let start = |frontend: &mut Frontend| frontend.start(Now::at(0), RingKey::MIN, Intent::Write);
    let first = start(&mut frontend).unwrap();
    let second = start(&mut frontend).unwrap();
    start(&mut frontend).unwrap();
    assert_eq!(start(&mut frontend), None);
    frontend.handle_reply(second);
    assert_eq!(start(&mut frontend), None, "the oldest one holds the window: completions stay bounded");
    frontend.handle_reply(first);
    assert!(start(&mut frontend).is_some());
}

fn version(seq: u64) -> Version {
    Version::new(Epoch::new(1).unwrap(), seq).unwrap()
}

fn tag(seq: u64) -> ClientTag {
    ClientTag { session: 3, seq }
}

#[test]
fn a_retry_gets_the_first_answer() {
    let mut completions = Completions::new(CompletionLimits::default());
    assert_eq!(completions.admit(tag(1), 1), Admission::New);
    completions.record(tag(1), version(1), b"one");
    assert_eq!(completions.admit(tag(1), 1), Admission::Pending(version(1)));
    let mut answers = Vec::new();
    completions.commit(version(1), |tag, done| answers.push((tag, done.result.clone())));
    assert_eq!(answers, [(tag(1), b"one".to_vec())]);
    assert!(matches!(completions.admit(tag(1), 1), Admission::Done(done) if done.result == b"one"));
    assert_eq!(completions.admit(tag(2), 2), Admission::New);
    assert_eq!(completions.admit(tag(1), 2), Admission::Answered);
    assert!(completions.is_empty());
}

#[test]
fn what_was_cut_off_never_happened() {
    let mut completions = Completions::new(CompletionLimits::default());
    completions.record(tag(1), version(1), b"one");
    completions.record(tag(2), version(2), b"two");
    completions.rollback(version(1));
    assert_eq!(completions.admit(tag(2), 1), Admission::New);
    let mut answered = 0;
    completions.commit(version(2), |_, _| answered += 1);
    assert_eq!(answered, 1);
}

#[test]
fn completions_are_bounded() {
    let limits = CompletionLimits { per_session_max: 4, sessions_max: 2, ..CompletionLimits::default() };
    let mut completions = Completions::new(limits);
    for seq in 1..=4 {
        completions.record(tag(seq), version(seq), b"");
    }
    assert_eq!(completions.admit(tag(5), 1), Admission::Overloaded);
    completions.commit(version(4), |_, _| {});
    completions.record(ClientTag { session: 8, seq: 1 }, version(5), b"");
    completions.record(ClientTag { session: 9, seq: 1 }, version(6), b"");
    assert_eq!(completions.len(), 2, "the session idle for longest was forgotten");
}

/// Long results bound a session by their bytes: the head refuses, a replica forgets only what the head would have refused
/// beside the rest.
#[test]
fn long_results_are_bounded_by_bytes() {
    let limits = CompletionLimits { per_session_bytes_max: 10, bytes_max: 10_000, ..CompletionLimits::default() };
    let mut completions = Completions::new(limits);
    completions.record(tag(1), version(1), b"123456");
    assert!(completions.has_room(tag(2).session) && completions.admit(tag(2), 1) == Admission::New);
    completions.record(tag(2), version(2), b"123456");
    assert!(!completions.has_room(tag(3).session));
    assert_eq!(completions.admit(tag(3), 1), Admission::Overloaded);
    assert_eq!(completions.len(), 2, "what was taken is remembered");
    assert_eq!(completions.admit(tag(3), 2), Admission::New);
    // A replica hears of no answers.
    completions.record(tag(3), version(3), b"123456");
    completions.record(tag(4), version(4), b"123456");
    assert_eq!(completions.len(), 2, "the oldest was forgotten");
    completions.commit(version(4), |_, _| {});
    let other = |session| ClientTag { session, seq: 1 };
    completions.record(other(8), version(5), &[0; 5_000]);
    completions.commit(version(5), |_, _| {});
    completions.record(other(9), version(6), &[0; 5_000]);
    assert_eq!(completions.len(), 2, "the session idle for longest was forgotten");
    completions.rollback(version(5));
    assert!(completions.has_room(9));
}
