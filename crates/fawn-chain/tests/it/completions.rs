//! Exactly-once per range: a retry gets the first reply, the head rejects operations past its bounds, no member
//! forgets.
use fawn_chain::completions::{Admission, CompletionLimits, Completions};
use fawn_types::{ClientTag, Epoch, MemberId, Version};

fn version(seq: u64) -> Version {
    Version::new(Epoch::new(1).unwrap(), seq).unwrap()
}

fn tag(seq: u64) -> ClientTag {
    ClientTag { session: 3, seq }
}

/// An operation of the `boot`-th session of a node's front-end.
fn of_node(node: u64, boot: u64, seq: u64) -> ClientTag {
    ClientTag { session: node << 32 | boot, seq }
}

#[test]
fn a_retry_gets_the_first_answer() {
    let mut completions = Completions::new(CompletionLimits::default());
    assert_eq!(completions.admit(tag(1), 1), Admission::New);
    completions.record(tag(1), 1, version(1), b"one");
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
    completions.record(tag(1), 1, version(1), b"one");
    completions.record(tag(2), 1, version(2), b"two");
    completions.rollback(version(1));
    assert_eq!(completions.admit(tag(2), 1), Admission::New);
    let mut answered = 0;
    completions.commit(version(2), |_, _| answered += 1);
    assert_eq!(answered, 1);
}

/// A result belongs to the newest record of its operation: the commit of an older one sends no reply.
#[test]
fn the_commit_of_an_older_record_answers_nothing() {
    let mut completions = Completions::new(CompletionLimits::default());
    completions.record(tag(1), 1, version(1), b"older");
    completions.record(tag(1), 1, version(2), b"newer");
    let mut answers = Vec::new();
    completions.commit(version(1), |_, done| answers.push(done.result.clone()));
    assert!(answers.is_empty(), "{answers:?}");
    completions.commit(version(2), |_, done| answers.push(done.result.clone()));
    assert_eq!(answers, [b"newer"]);
}

/// A store copies the results below a version and gives up their log: the result of that version is still in it.
#[test]
fn the_result_at_the_end_of_the_copies_is_still_needed() {
    let mut completions = Completions::new(CompletionLimits::default());
    for seq in 1..=3 {
        completions.record(tag(seq), 1, version(seq), b"");
    }
    completions.commit(version(3), |_, _| {});
    assert_eq!(completions.oldest_open(version(2)), Some(version(2)));
    assert_eq!(completions.oldest_open(version(2)), Some(version(2)), "a second answer is the same");
}

/// The log must keep the record of each result that may be requested again.
#[test]
fn the_oldest_result_that_may_be_requested_is_known() {
    let mut completions = Completions::new(CompletionLimits::default());
    assert_eq!(completions.oldest_open(Version::ZERO), None);
    (1..=3).for_each(|seq| completions.record(tag(seq), 1, version(seq), b"result"));
    assert_eq!(completions.oldest_open(Version::ZERO), Some(version(1)), "also before its commit");
    completions.commit(version(2), |_, _| {});
    assert_eq!(completions.oldest_open(Version::ZERO), Some(version(1)));
    completions.acknowledge(3, 3);
    assert_eq!(completions.oldest_open(Version::ZERO), Some(version(3)));
    completions.rollback(version(2));
    assert_eq!(completions.oldest_open(Version::ZERO), None);
    completions.record(of_node(7, 1, 1), 1, version(3), b"of a front-end that asks no more");
    for seq in 4..=10_000 {
        completions.record(tag(seq), seq, version(seq), b"result");
        completions.commit(version(seq), |_, _| {});
        assert_eq!(completions.oldest_open(Version::ZERO), Some(version(3)));
    }
    let shown = format!("{completions:?}");
    assert!(shown.len() < 20_000, "the freed results behind the oldest one are forgotten: {} bytes", shown.len());
    completions.record(of_node(7, 2, 1), 1, version(10_001), b"of its next process");
    assert_eq!(completions.oldest_open(Version::ZERO), Some(version(10_000)));
    let oldest = completions.oldest_open(version(10_001));
    assert_eq!(oldest, Some(version(10_001)), "the log need not keep what the store has copied");
}

/// A replica receives no requests, so it frees results according to the records alone.
#[test]
fn a_replica_frees_what_records_say_was_acknowledged() {
    let mut replica = Completions::new(CompletionLimits::default());
    for seq in 1..=10_000 {
        replica.record(tag(seq), seq.saturating_sub(32).max(1), version(seq), b"result");
        replica.commit(version(seq), |_, _| {});
    }
    assert_eq!(replica.len(), 33, "only the operations in the session's window are kept");
    assert_eq!(replica.admit(tag(5), 1), Admission::Answered, "a late duplicate is detected");
    assert!(matches!(replica.admit(tag(9_999), 1), Admission::Done(_)));
}

/// Many front-ends that never acknowledge: even short results are bounded over all of them.
#[test]
fn the_head_refuses_past_its_bounds_and_no_member_forgets() {
    let by_number = CompletionLimits { results_max: 1_000, ..CompletionLimits::default() };
    let by_bytes = CompletionLimits { bytes_max: 100_000, ..CompletionLimits::default() };
    for limits in [by_number, by_bytes] {
        let mut head = Completions::new(limits);
        let (mut at, mut admitted, mut refused) = (0, Vec::new(), 0);
        for node in 1..=500 {
            for seq in 1..=10 {
                let tag = of_node(node, 1, seq);
                match head.admit(tag, 1) {
                    Admission::New => {
                        at += 1;
                        head.record(tag, 1, version(at), &[3, 0, 0, 0, 5]);
                        head.commit(version(at), |_, _| {});
                        admitted.push(tag);
                    }
                    Admission::Overloaded => refused += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(refused > 0 && head.len() <= 1_001 && head.len() == admitted.len(), "{}", head.len());
        assert!(
            admitted.iter().all(|tag| matches!(head.admit(*tag, 1), Admission::Done(_))),
            "each can be asked again"
        );
        // An acknowledgement frees capacity for other sessions too.
        let tag = of_node(1, 1, 11);
        assert_eq!(head.admit(tag, 11), Admission::New);
        assert_eq!(head.admit(of_node(499, 1, 1), 1), Admission::New);
    }
}

/// An acknowledgement is admitted although results use all of the memory. Its own short result fits every share, so its
/// front-end is asked once.
#[test]
fn front_ends_with_more_than_their_share_are_to_acknowledge() {
    for (results_max, bytes_max) in [(16, usize::MAX), (usize::MAX, 16 * 200), (4, usize::MAX), (usize::MAX, 4 * 200)] {
        let limits = CompletionLimits { results_max, bytes_max, sessions_max: 8, ..CompletionLimits::default() };
        let mut head = Completions::new(limits);
        let mut last = 0;
        let mut update = |head: &mut Completions, node, seq, first_incomplete, result: &[u8]| {
            let tag = of_node(node, 1, seq);
            assert_eq!(head.admit(tag, first_incomplete), Admission::New);
            assert!(head.has_room(tag.session));
            last += 1;
            head.record(tag, first_incomplete, version(last), result);
            head.commit(version(last), |_, _| {});
        };
        update(&mut head, 1, 1, 1, b"");
        let mut seq = 0;
        while !head.is_full() {
            seq += 1;
            update(&mut head, 2, seq, 1, &[0; 104]);
        }
        assert_eq!(head.admit(of_node(3, 1, 1), 1), Admission::Overloaded);
        assert_eq!(head.holders().collect::<Vec<_>>(), [MemberId(2)], "one short result is in every share");
        update(&mut head, 2, seq + 1, seq + 1, b"short");
        assert_eq!((head.holders().count(), head.len()), (0, 2));
        assert_eq!(head.admit(of_node(3, 1, 1), 1), Admission::New);
    }
}

/// If all results are those of former processes, no session of a present one has any to acknowledge. A member that becomes the
/// head may have more results than the head before it had: it takes acknowledgements with records only.
#[test]
fn a_restarted_front_end_is_admitted_to_the_memory_of_its_former_session() {
    let by_number = CompletionLimits { results_max: 4, ..CompletionLimits::default() };
    let by_bytes = CompletionLimits { bytes_max: 4 * 196, ..CompletionLimits::default() };
    let by_sessions = CompletionLimits { sessions_max: 4, ..CompletionLimits::default() };
    for (limits, kept) in [(by_number, 1), (by_bytes, 1), (by_sessions, 1), (by_number, 2), (by_bytes, 2)] {
        let mut head = Completions::new(limits);
        for (node, seq) in (1..=4).flat_map(|node| (1..=kept).map(move |seq| (node, seq))) {
            head.restore(of_node(node, 1, seq), 1, version(node * kept + seq), &[0; 100]);
        }
        assert_eq!(head.admit(of_node(5, 1, 1), 1), Admission::Overloaded);
        let mut long_refused = 0;
        for node in 1..=4 {
            assert_eq!(head.admit(of_node(node, 2, 1), 1), Admission::New, "node {node}");
            assert!(head.has_room_for(of_node(node, 2, 1).session, 8), "node {node}");
            long_refused += u64::from(!head.has_room_for(of_node(node, 2, 1).session, 8 << 20));
            head.record(of_node(node, 2, 1), 1, version(20 + node), b"");
            assert_eq!(head.len() as u64, 4 * kept - node * (kept - 1));
            assert_eq!(head.admit(of_node(node, 1, 1), 1), Admission::Answered);
        }
        let is_beyond = kept == 2 && limits == by_bytes;
        assert_eq!(long_refused, if is_beyond { 2 } else { 0 }, "as long as bytes are beyond the bound");
    }
}

#[test]
fn one_session_is_bounded_by_number_and_bytes() {
    let limits = CompletionLimits { per_session_max: 4, per_session_bytes_max: 10, ..CompletionLimits::default() };
    let mut completions = Completions::new(limits);
    (1..=4).for_each(|seq| completions.record(tag(seq), 1, version(seq), b""));
    assert_eq!(completions.admit(tag(5), 1), Admission::Overloaded);
    assert_eq!(completions.admit(tag(5), 5), Admission::New);
    completions.record(tag(5), 5, version(5), b"123456");
    assert!(completions.has_room(tag(6).session));
    completions.record(tag(6), 5, version(6), b"123456");
    assert!(!completions.has_room(tag(7).session));
    assert_eq!(completions.admit(tag(7), 5), Admission::Overloaded);
    assert_eq!(completions.len(), 2);
    assert_eq!(completions.admit(tag(7), 6), Admission::New);
}

#[test]
fn sessions_are_bounded() {
    let limits = CompletionLimits { sessions_max: 2, ..CompletionLimits::default() };
    let mut completions = Completions::new(limits);
    assert_eq!(completions.admit(of_node(1, 1, 1), 1), Admission::New);
    assert_eq!(completions.admit(of_node(2, 1, 1), 1), Admission::New);
    assert_eq!(completions.admit(of_node(3, 1, 1), 1), Admission::Overloaded);
    assert_eq!(completions.admit(of_node(2, 1, 2), 1), Admission::New);
}

/// A restarted front-end has a new session: results of the former one are freed, and its late requests are not
/// executed.
#[test]
fn a_restart_of_a_front_end_ends_its_former_session() {
    let mut completions = Completions::new(CompletionLimits::default());
    for boot in 1..=500 {
        for seq in 1..=20 {
            let at = version(boot * 100 + seq);
            assert_eq!(completions.admit(of_node(7, boot, seq), 1), Admission::New, "boot {boot}");
            completions.record(of_node(7, boot, seq), 1, at, &[0; 100]);
            completions.commit(at, |_, _| {});
        }
    }
    assert_eq!(completions.len(), 20);
    assert!(completions.bytes() < 20 * 300);
    assert_eq!(completions.admit(of_node(7, 499, 3), 1), Admission::Answered, "late");
    assert_eq!(completions.admit(of_node(7, 499, 21), 1), Admission::Answered, "late, and not executed before");
    assert!(!completions.has_room(of_node(7, 499, 21).session), "admitted before, evaluated after");
    assert!(matches!(completions.admit(of_node(7, 500, 3), 1), Admission::Done(_)));
    assert_eq!(completions.admit(of_node(7, 1, 21), 1), Admission::New, "few former sessions are remembered");
    // A copy adds results in any order: the session of the newest record is the current one.
    let mut copy = Completions::new(CompletionLimits::default());
    copy.restore(of_node(7, 500, 3), 1, version(50_003), b"");
    copy.restore(of_node(7, 499, 20), 1, version(49_920), b"");
    assert_eq!(copy.len(), 1);
    assert!(matches!(copy.admit(of_node(7, 500, 3), 1), Admission::Done(_)), "restored results are committed");
    let mut copy = Completions::new(CompletionLimits::default());
    copy.restore(of_node(7, 499, 20), 1, version(49_920), b"");
    copy.restore(of_node(7, 500, 3), 1, version(50_003), b"");
    assert_eq!((copy.len(), copy.admit(of_node(7, 499, 20), 1)), (1, Admission::Answered));
    copy.restore(of_node(7, 500, 3), 1, version(50_003), b"again");
    assert!(matches!(copy.admit(of_node(7, 500, 3), 1), Admission::Done(done) if done.result.is_empty()), "the first");
}

/// An operation may wait for its value while its front-end restarts, and its session may have no record yet.
#[test]
fn an_operation_of_a_former_process_is_not_evaluated_after_one_of_the_next() {
    let mut head = Completions::new(CompletionLimits::default());
    let (former, next, other) = (of_node(7, 1, 1), of_node(7, 2, 1), of_node(8, 1, 1));
    assert_eq!(
        [former, other].map(|tag| head.admit(tag, 1) == Admission::New && head.has_room(tag.session)),
        [true; 2]
    );
    assert_eq!(head.admit(next, 1), Admission::New);
    assert_eq!([former, next, other].map(|tag| head.has_room(tag.session)), [false, true, true]);
}

/// A front-end that restarts again and again, and whose updates leave no record, does not use up the sessions.
#[test]
fn sessions_without_a_record_end_with_their_process() {
    let limits = CompletionLimits { sessions_max: 3, ..CompletionLimits::default() };
    let mut head = Completions::new(limits);
    for boot in 1..=100 {
        assert_eq!(head.admit(of_node(7, boot, 1), 1), Admission::New, "boot {boot}");
    }
    head.record(of_node(7, 100, 1), 1, version(1), b"one");
    head.commit(version(1), |_, _| {});
    assert_eq!(head.admit(of_node(7, 101, 1), 1), Admission::New);
    assert_eq!(head.len(), 1, "a session with records ends with the first record of the next one");
}

/// An operation refused for its length is repeated as another one: none of its copies is done, whatever the head has
/// learned since.
#[test]
fn a_refusal_for_the_length_is_final() {
    let limits = CompletionLimits { per_session_max: 3, ..CompletionLimits::default() };
    let mut head = Completions::new(limits);
    head.refuse_larger(ClientTag::NONE, 500);
    for seq in 1..=3 {
        assert_eq!(head.admit(tag(seq), 1), Admission::New);
        head.refuse_larger(tag(seq), 500);
    }
    assert_eq!(head.admit(tag(4), 1), Admission::Overloaded, "refusals are bounded like results");
    assert_eq!(head.admit(tag(2), 1), Admission::Larger(500));
    head.rollback(Version::ZERO);
    assert_eq!(head.admit(tag(2), 2), Admission::Larger(500));
    assert_eq!(head.admit(tag(4), 3), Admission::New);
    head.record(tag(4), 3, version(1), b"four");
    head.commit(version(1), |_, _| {});
    assert_eq!(head.admit(tag(3), 3), Admission::Larger(500));
    assert_eq!(head.admit(tag(3), 4), Admission::Answered, "forgotten with its reply");
    let next_session = of_node(0, 4, 1);
    head.record(next_session, 1, version(2), b"");
    head.refuse_larger(tag(5), 500);
    assert_eq!(head.admit(tag(5), 4), Admission::Answered, "its session has ended");
}
