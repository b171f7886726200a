//! Linearizability checker for one key: a search over orders that remembers visited states (Wing and Gong's algorithm
//! with Lowe's memoization).
use super::{HistoryOperation, KeyRequest, Observed, PresentKey};
use std::collections::{HashMap, HashSet};

/// Maximum number of states to visit; beyond it the result is "undecided", because the search could take forever.
const STATES_MAX: usize = 2_000_000;

/// Result of the check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A valid order exists.
    Linearizable,
    /// No valid order exists. Contains the operations in the order of their calls, and whether the longest valid order of
    /// some of them has each.
    Violation(Vec<(HistoryOperation, bool)>),
    /// The history is too large to decide.
    Undecided,
}

/// Checks the history of one key that was absent at first.
#[must_use]
pub fn check(operations: &[HistoryOperation]) -> Verdict {
    let mut operations: Vec<HistoryOperation> =
        operations.iter().filter(|operation| operation.heard != Observed::Refused).cloned().collect();
    operations.sort_by_key(|operation| operation.called);
    let before = predecessors(&operations);
    let mut search = Search { operations: &operations, before, visited: HashSet::new(), longest: Vec::new() };
    match search.run() {
        Some(true) => Verdict::Linearizable,
        Some(false) => {
            let longest = search.longest;
            let in_order = |(at, operation)| (operation, !longest.is_empty() && Search::is_done(&longest, at));
            Verdict::Violation(operations.into_iter().enumerate().map(in_order).collect())
        }
        None => Verdict::Undecided,
    }
}

/// The last answered operation of the same connection before each. An unanswered one may take effect later than those
/// that its connection sent after it.
fn predecessors(operations: &[HistoryOperation]) -> Vec<Option<usize>> {
    let mut last = HashMap::new();
    let mut predecessor = |(at, operation): (usize, &HistoryOperation)| {
        let before = last.get(&operation.connection).copied();
        if operation.connection != 0 && operation.heard != Observed::Unknown {
            last.insert(operation.connection, at);
        }
        before
    };
    operations.iter().enumerate().map(&mut predecessor).collect()
}

/// The register: the key, and the number of falls of chain time at the call of the operation that found it expired.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Register {
    key: Option<PresentKey>,
    hidden_at: Option<u64>,
}

struct Search<'a> {
    operations: &'a [HistoryOperation],
    /// The operation that must precede each.
    before: Vec<Option<usize>>,
    visited: HashSet<(Vec<u64>, Register)>,
    /// The operations of the longest order so far.
    longest: Vec<u64>,
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

impl Search<'_> {
    /// Searches depth-first; `None` if there are too many states.
    fn run(&mut self) -> Option<bool> {
        let count = self.operations.len();
        let mut done = vec![0_u64; count.div_ceil(64)];
        let mut register = Register::default();
        let mut steps: Vec<HistoryEvent> = Vec::new();
        let mut from = 0;
        loop {
            if self.all_answered_are_done(&done) {
                return Some(true);
            }
            match self.next_choice(&done, from, &register) {
                Some((choice, after)) => {
                    let chosen = choice / CHOICES;
                    done[chosen / 64] |= 1 << (chosen % 64);
                    if self.visited.len() > STATES_MAX {
                        return None;
                    }
                    if self.visited.insert((done.clone(), after.clone())) {
                        let count = |done: &[u64]| done.iter().map(|word| word.count_ones()).sum::<u32>();
                        if count(&done) > count(&self.longest) {
                            self.longest.clone_from(&done);
                        }
                        steps.push(HistoryEvent { choice, before: std::mem::replace(&mut register, after) });
                        from = 0;
                    } else {
                        done[chosen / 64] &= !(1 << (chosen % 64));
                        from = choice + 1;
                    }
                }
                None => {
                    let Some(step) = steps.pop() else { return Some(false) };
                    let chosen = step.choice / CHOICES;
                    done[chosen / 64] &= !(1 << (chosen % 64));
                    register = step.before;
                    from = step.choice + 1;
                }
            }
        }
    }

    fn is_done(done: &[u64], at: usize) -> bool {
        done[at / 64] >> (at % 64) & 1 == 1
    }

    fn all_answered_are_done(&self, done: &[u64]) -> bool {
        let open = |(at, operation): (usize, &HistoryOperation)| {
            operation.heard != Observed::Unknown && !Self::is_done(done, at)
        };
        !self.operations.iter().enumerate().any(open)
    }

    /// The first choice from `from` on that may come next and whose reply matches.
    fn next_choice(&self, done: &[u64], from: usize, register: &Register) -> Option<(usize, Register)> {
        let open = || self.operations.iter().enumerate().filter(|(at, _)| !Self::is_done(done, *at));
        // The operation with the first reply must precede all operations called after that reply.
        let first_answer = open().map(|(_, operation)| operation.answered).min()?;
        let may_be_next = |at: usize, operation: &HistoryOperation| {
            let is_after_its_predecessor = self.before[at].is_none_or(|before| Self::is_done(done, before));
            at >= from / CHOICES && operation.called < first_answer && is_after_its_predecessor
        };
        let choices = open().filter(|(at, operation)| may_be_next(*at, operation)).flat_map(|(at, operation)| {
            WAYS.into_iter().enumerate().map(move |(way, name)| (at * CHOICES + way, operation, name))
        });
        choices
            .filter(|(choice, ..)| *choice >= from)
            .find_map(|(choice, operation, is_expired)| Some((choice, next_register(operation, register, is_expired)?)))
    }
}

/// The register after an operation that comes next in this way; `None` if it cannot.
fn next_register(operation: &HistoryOperation, register: &Register, way: Way) -> Option<Register> {
    let HistoryOperation { ask, time, .. } = operation;
    let expires = register.key.as_ref().and_then(|key| key.expires);
    let is_expired = way == Way::Expired;
    let may_be = match way {
        Way::Found => time.may_find(expires, register.hidden_at),
        Way::Expired => time.may_miss(expires),
        Way::Touched => {
            let is_touched = register.key.as_ref().is_some_and(|key| key.is_touched);
            is_touched && matches!(ask, KeyRequest::Swap { .. }) && time.may_find(expires, register.hidden_at)
        }
    };
    if !may_be {
        return None;
    }
    let (key, outcome) = match way {
        Way::Touched => (register.key.clone(), Observed::DoneIf(false)),
        _ => ask.apply(register.key.as_ref().filter(|_| !is_expired), time),
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

    fn op(called: u64, answered: u64, ask: KeyRequest, heard: Observed) -> HistoryOperation {
        HistoryOperation { called, answered, ask, heard, connection: 0, time: JudgedTime::ANY, batch: 0 }
    }

    fn write(called: u64, answered: u64, value: &str) -> HistoryOperation {
        op(called, answered, KeyRequest::Write(value.into()), Observed::Done)
    }

    fn read(called: u64, answered: u64, value: Option<&str>) -> HistoryOperation {
        op(called, answered, KeyRequest::Read, Observed::Value(value.map(|value| value.as_bytes().to_vec())))
    }

    fn lost(called: u64, ask: KeyRequest) -> HistoryOperation {
        op(called, u64::MAX, ask, Observed::Unknown)
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
        let changed = |heard| {
            let history = [
                op(1, 2, KeyRequest::AppendIfPresent(b"x".to_vec()), Observed::DoneIf(false)),
                op(3, 4, KeyRequest::Exchange(b"1".to_vec()), Observed::Value(None)),
                op(5, 6, KeyRequest::AddIfPresent(2), Observed::Number(3)),
                op(7, 8, KeyRequest::Exists, Observed::DoneIf(true)),
                op(9, 10, KeyRequest::Delete, Observed::Done),
                op(11, 12, KeyRequest::WriteIfPresent(b"y".to_vec()), Observed::DoneIf(heard)),
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
        history[60].heard = Observed::Number(60);
        assert!(matches!(check(&history), Verdict::Violation(_)));
    }

    /// An operation at a chain time between `from` and `to`, also its moments.
    fn timed(from: u64, to: u64, ask: KeyRequest, heard: Observed) -> HistoryOperation {
        let time = JudgedTime { called_ms: from, answered_ms: to, falls: (0, 0) };
        HistoryOperation { time, ..op(from, to, ask, heard) }
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
        let history = |change: KeyRequest, heard, found: bool| {
            let value = found.then(|| b"a".to_vec());
            let write = timed(10, 20, KeyRequest::WriteExpiring(b"a".to_vec(), 100), Observed::Done);
            let read = timed(500, 510, KeyRequest::Read, Observed::Value(value));
            check(&[write, timed(30, 40, change, heard), read])
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
