//! Linearizability checker for one key: a search over orders that remembers visited states (Wing and Gong's algorithm
//! with Lowe's memoization).
//!
//! An operation without a reply may be left out, so a state in which fewer of them have taken effect covers every state
//! with the same register and the same answered operations. The search tries answered operations first, and prunes
//! states that are covered. Otherwise each operation without a reply would double the states.
//!
//! A first search lets an operation without a reply take effect only if some reply shows its value. That finds nearly
//! every valid order; only if it finds none, a second search tries all operations.
use super::{HistoryOperation, KeyRequest, Observed, PresentKey};
use rustc_hash::FxBuildHasher;
use std::collections::HashMap;

/// Maximum number of states to visit; beyond it the result is "undecided", because the search could take forever.
const STATES_MAX: usize = 500_000;

/// Result of the check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A valid order exists.
    Linearizable,
    /// No valid order exists. Contains the operations in the order of their calls, and whether the longest valid order
    /// of some of them has each.
    Violation(Vec<(HistoryOperation, bool)>),
    /// The history is too large to decide.
    Undecided,
}

/// Checks the history of one key that was absent at first.
#[must_use]
pub fn check(operations: &[HistoryOperation]) -> Verdict {
    let mut operations: Vec<HistoryOperation> =
        operations.iter().filter(|operation| operation.observed != Observed::Refused).cloned().collect();
    // Answered operations come first, because the search tries them in this order.
    operations.sort_by_key(|operation| (operation.observed == Observed::Unknown, operation.called_at));
    if Search::new(&operations, shown_values(&operations)).run() == Some(true) {
        return Verdict::Linearizable;
    }
    let mut search = Search::new(&operations, None);
    match search.run() {
        Some(true) => Verdict::Linearizable,
        Some(false) => {
            let longest = search.longest;
            let in_order = |at| !longest.0.is_empty() && longest.has(at);
            let in_order: Vec<bool> = (0..operations.len()).map(in_order).collect();
            let mut story: Vec<(HistoryOperation, bool)> = operations.into_iter().zip(in_order).collect();
            story.sort_by_key(|(operation, _)| operation.called_at);
            Verdict::Violation(story)
        }
        None => Verdict::Undecided,
    }
}

/// The values in replies, sorted.
fn shown_values(operations: &[HistoryOperation]) -> Option<Vec<&[u8]>> {
    let mut values = Vec::new();
    for operation in operations {
        if let Observed::Value(Some(value)) = &operation.observed {
            values.push(value.as_slice());
        }
    }
    values.sort_unstable();
    Some(values)
}

/// Whether a reply shows the value, possibly with more appended to it.
fn is_shown(values: &[&[u8]], value: &[u8]) -> bool {
    let at = values.partition_point(|shown| *shown < value);
    values.get(at).is_some_and(|shown| shown.starts_with(value))
}

/// The last answered operation of the same connection before each. An unanswered one may take effect later than those
/// that its connection sent after it.
fn predecessors(operations: &[HistoryOperation]) -> Vec<Option<usize>> {
    let mut by_call: Vec<usize> = (0..operations.len()).collect();
    by_call.sort_by_key(|at| operations[*at].called_at);
    let (mut last, mut before) = (HashMap::new(), vec![None; operations.len()]);
    for at in by_call {
        let operation = &operations[at];
        before[at] = last.get(&operation.connection).copied();
        if operation.connection != 0 && operation.observed != Observed::Unknown {
            last.insert(operation.connection, at);
        }
    }
    before
}

/// The register: the key, and the number of falls of chain time at the call of the operation that found it expired.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Register {
    key: Option<PresentKey>,
    hidden_at: Option<u64>,
}

/// A set of operations, by index.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct OperationSet(Vec<u64>);

impl OperationSet {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn flip(&mut self, at: usize) {
        self.0[at / 64] ^= 1 << (at % 64);
    }

    fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    fn is_within(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(own, others)| own & !others == 0)
    }

    /// The members below `answered`, and the others.
    fn split(&self, answered: usize) -> (Self, Self) {
        let (mut below, mut above) = (self.clone(), self.clone());
        for (word, (below, above)) in below.0.iter_mut().zip(&mut above.0).enumerate() {
            let count = answered.saturating_sub(64 * word).min(64);
            let mask = if count == 64 { u64::MAX } else { (1 << count) - 1 };
            (*below, *above) = (*below & mask, *above & !mask);
        }
        (below, above)
    }
}

/// Visited states: answered operations that are done and the register, each with the sets of the others that are done.
type VisitedStates = HashMap<(OperationSet, Register), Vec<OperationSet>, FxBuildHasher>;

struct Search<'a> {
    /// The answered ones first.
    operations: &'a [HistoryOperation],
    /// Number of answered operations.
    answered: usize,
    /// The operation that must precede each.
    before: Vec<Option<usize>>,
    /// The values that an operation without a reply may leave; `None`: any.
    shown: Option<Vec<&'a [u8]>>,
    visited: VisitedStates,
    /// Number of states visited.
    states: usize,
    /// The operations of the longest order so far.
    longest: OperationSet,
}

/// One choice of the search: an operation comes next in one of its ways.
struct HistoryEvent {
    choice: usize,
    before: Register,
}

/// Ways in which an operation may come next.
const WAYS: [Way; CHOICES] = [Way::Found, Way::Expired, Way::Touched];
const CHOICES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It finds the key as it is.
    Found,
    /// It finds the key expired.
    Expired,
    /// A swap finds the expected value with a version that a change of the expiry gave it.
    Touched,
}

impl<'a> Search<'a> {
    fn new(operations: &'a [HistoryOperation], shown: Option<Vec<&'a [u8]>>) -> Self {
        let answered = operations.iter().filter(|operation| operation.observed != Observed::Unknown).count();
        let (visited, longest) = (HashMap::default(), OperationSet::default());
        Self { operations, answered, before: predecessors(operations), shown, visited, states: 0, longest }
    }

    /// Searches depth-first; `None` if there are too many states.
    fn run(&mut self) -> Option<bool> {
        let mut done = OperationSet::new(self.operations.len());
        let mut register = Register::default();
        let mut steps: Vec<HistoryEvent> = Vec::new();
        let mut from = 0;
        loop {
            if (0..self.answered).all(|at| done.has(at)) {
                return Some(true);
            }
            match self.next_choice(&done, from, &register) {
                Some((choice, after)) => {
                    done.flip(choice / CHOICES);
                    if self.states > STATES_MAX {
                        return None;
                    }
                    if self.is_first_visit(&done, &after) {
                        if done.len() > self.longest.len() {
                            self.longest.clone_from(&done);
                        }
                        steps.push(HistoryEvent { choice, before: std::mem::replace(&mut register, after) });
                        from = 0;
                    } else {
                        done.flip(choice / CHOICES);
                        from = choice + 1;
                    }
                }
                None => {
                    let Some(step) = steps.pop() else { return Some(false) };
                    done.flip(step.choice / CHOICES);
                    register = step.before;
                    from = step.choice + 1;
                }
            }
        }
    }

    /// Records a state, unless a visited one covers it.
    fn is_first_visit(&mut self, done: &OperationSet, register: &Register) -> bool {
        let (answered, others) = done.split(self.answered);
        let sets = self.visited.entry((answered, register.clone())).or_default();
        if sets.iter().any(|set| set.is_within(&others)) {
            return false;
        }
        sets.retain(|set| !others.is_within(set));
        sets.push(others);
        self.states += 1;
        true
    }

    /// The first choice from `from` on that may come next and whose reply matches.
    fn next_choice(&self, done: &OperationSet, from: usize, register: &Register) -> Option<(usize, Register)> {
        let open = || self.operations.iter().enumerate().filter(|(at, _)| !done.has(*at));
        // The operation with the first reply must precede all operations called after that reply.
        let first_answer = open().map(|(_, operation)| operation.replied_at).min()?;
        let may_be_next = |at: usize, operation: &HistoryOperation| {
            let is_after_its_predecessor = self.before[at].is_none_or(|before| done.has(before));
            at >= from / CHOICES && operation.called_at < first_answer && is_after_its_predecessor
        };
        let choices = open().filter(|(at, operation)| may_be_next(*at, operation)).flat_map(|(at, operation)| {
            WAYS.into_iter().enumerate().map(move |(way, name)| (at * CHOICES + way, operation, name))
        });
        let after = |(choice, operation, way): (usize, &HistoryOperation, Way)| {
            let after = next_register(operation, register, way)?;
            (operation.observed != Observed::Unknown || self.may_leave(&after)).then_some((choice, after))
        };
        choices.filter(|(choice, ..)| *choice >= from).find_map(after)
    }

    /// Whether an operation without a reply may leave this register.
    fn may_leave(&self, register: &Register) -> bool {
        let (Some(shown), Some(key)) = (&self.shown, &register.key) else { return true };
        // A counter is shown by its later values.
        key.value.first().is_none_or(u8::is_ascii_digit) || is_shown(shown, &key.value)
    }
}

/// The register after an operation that comes next in this way; `None` if it cannot.
fn next_register(operation: &HistoryOperation, register: &Register, way: Way) -> Option<Register> {
    let HistoryOperation { request, time, .. } = operation;
    let expires = register.key.as_ref().and_then(|key| key.expires);
    let is_expired = way == Way::Expired;
    let may_be = match way {
        Way::Found => time.may_find(expires, register.hidden_at),
        Way::Expired => time.may_miss(expires),
        Way::Touched => {
            let is_touched = register.key.as_ref().is_some_and(|key| key.is_touched);
            is_touched && matches!(request, KeyRequest::Swap { .. }) && time.may_find(expires, register.hidden_at)
        }
    };
    if !may_be {
        return None;
    }
    let (key, outcome) = match way {
        Way::Touched => (register.key.clone(), Observed::DoneIf(false)),
        _ => request.apply(register.key.as_ref().filter(|_| !is_expired), time),
    };
    if !operation.permits(&outcome) {
        return None;
    }
    if is_expired && key.is_none() {
        // The record is still there: it is found again if chain time falls.
        let hidden_at = register.hidden_at.map_or(time.falls.0, |falls| falls.max(time.falls.0));
        return Some(Register { key: register.key.clone(), hidden_at: Some(hidden_at) });
    }
    Some(Register { key, hidden_at: None })
}

#[cfg(test)]
mod tests {
    use super::super::JudgedTime;
    use super::*;

    fn op(called_at: u64, replied_at: u64, request: KeyRequest, observed: Observed) -> HistoryOperation {
        HistoryOperation { called_at, replied_at, request, observed, connection: 0, time: JudgedTime::ANY, batch: 0 }
    }

    fn write(called_at: u64, replied_at: u64, value: &str) -> HistoryOperation {
        op(called_at, replied_at, KeyRequest::Write(value.into()), Observed::Done)
    }

    fn read(called_at: u64, replied_at: u64, value: Option<&str>) -> HistoryOperation {
        op(called_at, replied_at, KeyRequest::Read, Observed::Value(value.map(|value| value.as_bytes().to_vec())))
    }

    fn lost(called_at: u64, request: KeyRequest) -> HistoryOperation {
        op(called_at, u64::MAX, request, Observed::Unknown)
    }

    #[test]
    fn sound_histories_pass() {
        assert_eq!(check(&[]), Verdict::Linearizable);
        assert_eq!(check(&[write(1, 2, "a"), read(3, 4, Some("a"))]), Verdict::Linearizable);
        // The operations are concurrent, so the read may return either value.
        for seen in [None, Some("a")] {
            assert_eq!(check(&[write(1, 10, "a"), read(2, 9, seen)]), Verdict::Linearizable);
        }
        // Without a reply, an operation may take effect late, or never.
        let late = [lost(1, KeyRequest::Write(b"a".to_vec())), read(2, 3, None), read(4, 5, Some("a"))];
        assert_eq!(check(&late), Verdict::Linearizable);
        assert_eq!(check(&[lost(1, KeyRequest::Delete), read(2, 3, None)]), Verdict::Linearizable);
    }

    #[test]
    fn violations_are_found() {
        let stale = [write(1, 2, "a"), write(3, 4, "b"), read(5, 6, Some("a"))];
        assert!(matches!(check(&stale), Verdict::Violation(_)), "stale read");
        let undone = [write(1, 2, "a"), read(3, 4, None)];
        assert!(matches!(check(&undone), Verdict::Violation(_)), "acked write lost");
        let flicker = [lost(1, KeyRequest::Write(b"a".to_vec())), read(2, 3, Some("a")), read(4, 5, None)];
        assert!(matches!(check(&flicker), Verdict::Violation(_)), "read value undone");
        let refused = [op(1, 2, KeyRequest::Write(b"a".to_vec()), Observed::Refused), read(3, 4, Some("a"))];
        assert!(matches!(check(&refused), Verdict::Violation(_)), "refused write visible");
        let twice = [lost(1, KeyRequest::Append(b"x".to_vec())), read(2, 3, Some("xx"))];
        assert!(matches!(check(&twice), Verdict::Violation(_)), "retry applied twice");
        let counter =
            [op(1, 2, KeyRequest::Add(1), Observed::Number(1)), op(3, 4, KeyRequest::Add(1), Observed::Number(1))];
        assert!(matches!(check(&counter), Verdict::Violation(_)), "lost increment");
    }

    /// Two operations of one connection overlap in time, but keep their order.
    #[test]
    fn a_connection_keeps_its_order() {
        let pipeline = |connection| {
            let read = HistoryOperation { connection, ..read(1, 4, Some("a")) };
            [read, HistoryOperation { connection, ..write(2, 3, "a") }]
        };
        assert_eq!(check(&pipeline(0)), Verdict::Linearizable);
        assert!(matches!(check(&pipeline(1)), Verdict::Violation(_)), "a write overtook an earlier read");
        // A write without a reply may take effect after later ones of its connection.
        let late = [
            HistoryOperation { connection: 1, ..lost(1, KeyRequest::Write(b"a".to_vec())) },
            HistoryOperation { connection: 1, ..read(2, 3, None) },
            HistoryOperation { connection: 1, ..read(4, 5, Some("a")) },
        ];
        assert_eq!(check(&late), Verdict::Linearizable);
    }

    #[test]
    fn conditional_operations_and_uncertain_deletes_are_judged() {
        let changed = |observed| {
            let history = [
                op(1, 2, KeyRequest::AppendIfPresent(b"x".to_vec()), Observed::DoneIf(false)),
                op(3, 4, KeyRequest::Exchange(b"1".to_vec()), Observed::Value(None)),
                op(5, 6, KeyRequest::AddIfPresent(2), Observed::Number(3)),
                op(7, 8, KeyRequest::Exists, Observed::DoneIf(true)),
                op(9, 10, KeyRequest::Delete, Observed::Done),
                op(11, 12, KeyRequest::WriteIfPresent(b"y".to_vec()), Observed::DoneIf(observed)),
            ];
            check(&history)
        };
        assert_eq!(changed(false), Verdict::Linearizable);
        assert!(matches!(changed(true), Verdict::Violation(_)), "the key was deleted");
    }

    #[test]
    fn a_long_concurrent_history_is_decided() {
        let mut history = Vec::new();
        for i in 0..120_u64 {
            history.push(op(i * 10, i * 10 + 25, KeyRequest::Add(1), Observed::Number(i as i64 + 1)));
        }
        assert_eq!(check(&history), Verdict::Linearizable);
        history[60].observed = Observed::Number(60);
        assert!(matches!(check(&history), Verdict::Violation(_)));
    }

    /// Clients of a full disk have many writes without a reply, each of which may have taken effect anywhere.
    #[test]
    fn many_operations_without_a_reply_are_decided() {
        let history = |last: &str| {
            let mut history = vec![write(1, 2, "a"), read(3, 100, Some("u7"))];
            history.extend((0..24).map(|i| lost(10 + i, KeyRequest::Write(format!("u{i}").into_bytes()))));
            history.extend((0..8).map(|i| lost(40 + i, KeyRequest::Append(format!("v{i}").into_bytes()))));
            history
                .extend((0..20).map(|i| op(200 + 2 * i, 201 + 2 * i, KeyRequest::Write(vec![b'b']), Observed::Done)));
            history.extend([read(300, 301, Some("b")), read(302, 303, Some(last))]);
            check(&history)
        };
        assert_eq!(history("bv3v1"), Verdict::Linearizable);
        assert_eq!(history("u3v2"), Verdict::Linearizable);
        assert_ne!(history("a"), Verdict::Linearizable, "a read value was overwritten");
    }

    /// An operation at a chain time between `from` and `to`, also its moments.
    fn timed(from: u64, to: u64, request: KeyRequest, observed: Observed) -> HistoryOperation {
        let time = JudgedTime { called_ms: from, answered_ms: to, wall_ms: to, falls: (0, 0) };
        HistoryOperation { time, ..op(from, to, request, observed) }
    }

    #[test]
    fn a_key_expires_within_its_window_only() {
        let history = |from, to, found: bool| {
            let value = found.then(|| b"a".to_vec());
            let write = timed(10, 20, KeyRequest::WriteExpiring(b"a".to_vec(), 100), Observed::Done);
            check(&[write, timed(from, to, KeyRequest::Read, Observed::Value(value))])
        };
        for (from, to) in [(108, 112), (112, 118), (30, 200)] {
            assert_eq!(history(from, to, true), Verdict::Linearizable, "{from} to {to}");
            assert_eq!(history(from, to, false), Verdict::Linearizable, "{from} to {to}");
        }
        assert!(matches!(history(30, 109, false), Verdict::Violation(_)), "vanished early");
        assert!(matches!(history(120, 130, true), Verdict::Violation(_)), "found late");
    }

    #[test]
    fn an_expired_key_is_found_again_only_if_time_fell() {
        let history = |falls: u64| {
            let write = timed(10, 20, KeyRequest::WriteExpiring(b"a".to_vec(), 100), Observed::Done);
            let missed = timed(112, 113, KeyRequest::Read, Observed::Value(None));
            let mut found = timed(114, 115, KeyRequest::Read, Observed::Value(Some(b"a".to_vec())));
            found.time.falls = (falls, falls);
            check(&[write, missed, found])
        };
        assert_eq!(history(1), Verdict::Linearizable);
        assert!(matches!(history(0), Verdict::Violation(_)), "what expired is back");
    }

    #[test]
    fn changes_of_the_expiry_are_judged() {
        let history = |change: KeyRequest, observed, found: bool| {
            let value = found.then(|| b"a".to_vec());
            let write = timed(10, 20, KeyRequest::WriteExpiring(b"a".to_vec(), 100), Observed::Done);
            let read = timed(500, 510, KeyRequest::Read, Observed::Value(value));
            check(&[write, timed(30, 40, change, observed), read])
        };
        let read = || Observed::Value(Some(b"a".to_vec()));
        assert_eq!(history(KeyRequest::Persist, Observed::DoneIf(true), true), Verdict::Linearizable);
        assert!(matches!(history(KeyRequest::Persist, Observed::DoneIf(true), false), Verdict::Violation(_)));
        assert_eq!(history(KeyRequest::ReadPersistent, read(), true), Verdict::Linearizable);
        assert_eq!(history(KeyRequest::Expire(1_000), Observed::DoneIf(true), true), Verdict::Linearizable);
        assert!(matches!(history(KeyRequest::Expire(1_000), Observed::DoneIf(true), false), Verdict::Violation(_)));
        assert!(matches!(history(KeyRequest::ReadExpiring(5), read(), true), Verdict::Violation(_)));
        assert_eq!(history(KeyRequest::Write(b"a".to_vec()), Observed::Done, true), Verdict::Linearizable);
    }
}
