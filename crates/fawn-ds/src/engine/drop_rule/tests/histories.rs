//! Searches all short histories of the model store for a crash that a drop has changed.
use super::*;

/// Replaces a fact by the value that keeps nothing.
type Blind = fn(&mut SegmentFacts, &mut RangeFacts);

struct HistorySearch<'s> {
    steps: &'s [Step],
    blind: Option<Blind>,
    /// Depth + 1 already explored from a state, by the state's hash.
    seen: HashMap<u64, usize>,
    hasher: BuildHasherDefault<DefaultHasher>,
    history: Vec<Step>,
    loss: Option<String>,
    dropped: usize,
    kept: BTreeSet<KeepReason>,
}

impl HistorySearch<'_> {
    fn verdict(&self, store: &DropRuleStore, segment: &ModelSegment) -> Option<KeepReason> {
        let (mut facts, mut ranges) = store.facts(segment);
        if let Some(blind) = self.blind {
            blind(&mut facts, &mut RangeFacts::default());
            ranges.iter_mut().for_each(|(_, range)| blind(&mut SegmentFacts::default(), range));
        }
        keep_reason(&facts, ranges.into_iter()).map(|(why, _)| why)
    }

    /// Drops one segment that the rule permits, after comparing every crash with and without it.
    fn drop_one(&mut self, store: &DropRuleStore) -> Option<DropRuleStore> {
        for segment in store.all() {
            if let Some(why) = self.verdict(store, segment) {
                self.kept.insert(why);
                continue;
            }
            let without = store.without(segment.sequence);
            self.dropped += 1;
            self.compare(store, &without, || format!("dropped {}", segment.sequence));
            return Some(without);
        }
        None
    }

    /// Compares what every crash leaves of a store with what it leaves after a change that clients cannot observe.
    fn compare(&mut self, before: &DropRuleStore, after: &DropRuleStore, change: impl Fn() -> String) {
        for cut in before.synced..=before.end {
            let with = before.recovered(cut, before.survivors_end).seen();
            for survivors_cut in after.survivors_synced..=after.survivors_end {
                let found = after.recovered(cut, survivors_cut).seen();
                if with != found {
                    let history = &self.history;
                    self.loss.get_or_insert_with(|| {
                        let change = change();
                        format!("{history:?}, {change}, cut at {cut}, {survivors_cut}: {found:?}, expected {with:?}")
                    });
                }
            }
        }
    }

    fn explore(&mut self, store: &DropRuleStore, depth: usize) {
        let known = self.seen.entry(self.hasher.hash_one(store)).or_insert(0);
        if *known > depth || self.loss.is_some() {
            return;
        }
        *known = depth + 1;
        if let Some(next) = self.drop_one(store) {
            self.history.push(Step::Drop);
            self.explore(&next, depth);
            self.history.pop();
        }
        for &step in self.steps.iter().take_while(|_| depth > 0) {
            let mut next = store.clone();
            if next.step(step) {
                self.history.push(step);
                if step == Step::Clean {
                    self.compare(store, &next, || "cleaned".to_owned());
                }
                self.explore(&next, depth - 1);
                self.history.pop();
            }
        }
    }
}

fn search(
    is_sole: [bool; RANGES],
    steps: &[Step],
    depth: usize,
    blind: Option<Blind>,
    verification: Verification,
) -> (Option<String>, usize, BTreeSet<KeepReason>) {
    let (seen, hasher) = (HashMap::new(), BuildHasherDefault::default());
    let (history, loss, kept) = (Vec::new(), None, BTreeSet::new());
    let mut search = HistorySearch { steps, blind, seen, hasher, history, loss, dropped: 0, kept };
    for beginning in BEGINNINGS {
        let mut store = DropRuleStore::new(is_sole, verification);
        // In a sole epoch there are no marks.
        let is_possible = |step| store.step(step) || matches!(step, Step::Mark(_));
        assert!(beginning.iter().copied().all(is_possible), "every step of a beginning is possible");
        search.history = beginning.to_vec();
        search.explore(&store, depth);
    }
    (search.loss, search.dropped, search.kept)
}

const ONE_RANGE: [Step; 10] = [
    Step::Write(0, Kind::Put(0)),
    Step::Write(0, Kind::Put(1)),
    Step::Write(0, Kind::Delete(0)),
    Step::Write(0, Kind::Clear),
    Step::Commit(0),
    Step::Rollback(0),
    Step::Mark(0),
    Step::Sync,
    Step::Switch,
    Step::Crash,
];

const TWO_RANGES: [Step; 9] = [
    Step::Write(0, Kind::Put(0)),
    Step::Write(0, Kind::Delete(0)),
    Step::Write(1, Kind::Put(0)),
    Step::Commit(0),
    Step::Commit(1),
    Step::Rollback(1),
    Step::Sync,
    Step::Switch,
    Step::Crash,
];

/// One range with one key, in sole epochs and in others.
const CHANGES: [Step; 9] = [
    Step::Write(0, Kind::Put(0)),
    Step::Write(0, Kind::Delete(0)),
    Step::Commit(0),
    Step::Rollback(0),
    Step::BeginSole(0),
    Step::EndSole(0),
    Step::Sync,
    Step::Switch,
    Step::Crash,
];

/// One range whose segments are cleaned.
const CLEANING: [Step; 12] = [
    Step::Write(0, Kind::Put(0)),
    Step::Write(0, Kind::Put(1)),
    Step::Write(0, Kind::Delete(0)),
    Step::Write(0, Kind::Clear),
    Step::Commit(0),
    Step::Rollback(0),
    Step::Mark(0),
    Step::Sync,
    Step::Switch,
    Step::Clean,
    Step::SyncSurvivors,
    Step::ListClear(0),
];

/// Steps of each history after one of [`BEGINNINGS`].
const DEPTH: usize = 6;
/// Prefixes of all histories: none; one committed record, sealed; two of them, then a committed delete in the next
/// segment; and two for cleaning.
const BEGINNINGS: [&[Step]; 5] = [
    &[],
    &[Step::Write(0, Kind::Put(0)), Step::Commit(0), Step::Switch],
    &[
        Step::Write(0, Kind::Put(0)),
        Step::Write(0, Kind::Put(1)),
        Step::Commit(0),
        Step::Commit(0),
        Step::Switch,
        Step::Write(0, Kind::Delete(0)),
        Step::Commit(0),
    ],
    // Two live keys in a synced segment, and one of them deleted in the next one, which is synced too.
    &[
        Step::Write(0, Kind::Put(0)),
        Step::Write(0, Kind::Put(1)),
        Step::Commit(0),
        Step::Commit(0),
        Step::Switch,
        Step::Write(0, Kind::Delete(0)),
        Step::Commit(0),
        Step::Mark(0),
        Step::Sync,
        Step::Switch,
    ],
    // A cleared key, and one that was written after the clear.
    &[
        Step::Write(0, Kind::Put(0)),
        Step::Commit(0),
        Step::Switch,
        Step::Write(0, Kind::Clear),
        Step::Write(0, Kind::Put(1)),
        Step::Commit(0),
        Step::Commit(0),
        Step::Mark(0),
        Step::Sync,
        Step::Switch,
    ],
];
/// Which ranges begin in a sole epoch, and the steps.
const SEARCHES: [([bool; RANGES], &[Step]); 9] = [
    ([false, false], &CLEANING),
    ([true, false], &CLEANING),
    ([false, false], &ONE_RANGE),
    ([false, false], &TWO_RANGES),
    ([true, true], &ONE_RANGE),
    ([true, true], &TWO_RANGES),
    ([true, false], &TWO_RANGES),
    ([true, false], &CHANGES),
    ([false, true], &CHANGES),
];

#[test]
fn a_drop_never_changes_what_a_crash_comes_back_with() {
    let mut met = BTreeSet::new();
    for (is_sole, steps) in SEARCHES {
        let (loss, dropped, kept) = search(is_sole, steps, DEPTH, None, Verification::AtOnce);
        assert_eq!(loss, None, "sole: {is_sole:?}");
        assert!(dropped > 200, "sole: {is_sole:?}: only {dropped} drops");
        met.extend(kept);
    }
    let expected = [
        KeepReason::Open,
        KeepReason::Live,
        KeepReason::Pending,
        KeepReason::NewestMark,
        KeepReason::Hides,
        KeepReason::CauseNotSynced,
    ];
    assert!(expected.iter().all(|why| met.contains(why)), "{met:?}");
    assert!(met.contains(&KeepReason::CommitNotDurable) && met.contains(&KeepReason::NewestRecord), "{met:?}");
}

#[test]
fn every_fact_is_needed() {
    let blind: [(&str, Blind); 8] = [
        ("live", |_, range| range.live_records = 0),
        ("marks", |segment, _| segment.newest_marks = 0),
        ("died at", |segment, _| segment.died_at = PerStream::default()),
        ("died by", |_, range| range.died_by = Version::ZERO),
        ("newest", |_, range| range.newest = Version::ZERO),
        ("hides puts", |_, range| range.hides_puts = false),
        ("hides what was rolled back", |_, range| range.hides_rolled_back = false),
        ("proves commit", |_, range| range.proves_commit = false),
    ];
    for (fact, blind) in blind {
        let loses = SEARCHES
            .iter()
            .any(|(is_sole, steps)| search(*is_sole, steps, DEPTH, Some(blind), Verification::AtOnce).0.is_some());
        assert!(loses, "nothing is lost without the fact {fact:?}");
    }
}

/// One range whose records wait for their verification.
const VERIFYING: [Step; 12] = [
    Step::Write(0, Kind::Put(0)),
    Step::Write(0, Kind::Put(1)),
    Step::Write(0, Kind::Delete(0)),
    Step::Commit(0),
    Step::Verify(0),
    Step::Rollback(0),
    Step::Mark(0),
    Step::Sync,
    Step::Switch,
    Step::Clean,
    Step::SyncSurvivors,
    Step::Crash,
];

/// A put that waits for its verification is live, and so is the old one in the index. Tombstones between them hide nothing, once the
/// newer put is durable. Deletes that wait hide puts that are live.
#[test]
fn a_drop_changes_nothing_while_records_wait_for_their_verification() {
    for is_sole in [[false, false], [true, false]] {
        let (loss, dropped, _) = search(is_sole, &VERIFYING, DEPTH, None, Verification::Later);
        assert_eq!(loss, None, "sole: {is_sole:?}");
        assert!(dropped > 200, "sole: {is_sole:?}: only {dropped} drops");
        for fault in [Verification::LaterDeletesHideNothing, Verification::LaterDeletesReplacedAtOnce] {
            let (loss, ..) = search(is_sole, &VERIFYING, DEPTH, None, fault);
            assert!(loss.is_some(), "sole: {is_sole:?}: nothing is lost with {fault:?}");
        }
    }
}

/// Each fact that only the running process needs keeps a segment on its own; no crash can show it.
#[test]
fn what_the_process_still_needs_stays() {
    let segment = SegmentFacts { is_sealed: true, ..SegmentFacts::default() };
    let version = Version::from_u64;
    let range = RangeFacts {
        newest: version(5),
        committed: version(5),
        retained_above: version(5),
        durably_committed: version(5),
        ..RangeFacts::default()
    };
    let kept = |segment, range| keep_reason(&segment, [(3, range)].into_iter());
    assert_eq!(kept(segment, range), None);
    assert_eq!(kept(SegmentFacts { pins: 1, ..segment }, range), Some((KeepReason::Pinned, None)));
    assert_eq!(kept(segment, RangeFacts { committed: version(4), ..range }), Some((KeepReason::Pending, Some(3))));
    assert_eq!(
        kept(segment, RangeFacts { retained_above: version(4), ..range }),
        Some((KeepReason::Retained, Some(3)))
    );
    assert_eq!(kept(segment, RangeFacts { keeps_results: true, ..range }), Some((KeepReason::CopiedResult, Some(3))));
    assert_eq!(kept(segment, RangeFacts { hides_puts: true, ..range }), Some((KeepReason::Hides, Some(3))));
    assert_eq!(kept(segment, RangeFacts { hides_rolled_back: true, ..range }), Some((KeepReason::Hides, Some(3))));
}
