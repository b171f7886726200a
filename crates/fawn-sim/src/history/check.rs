//! Linearizability checker for one key: a search over orders that remembers visited states (Wing and Gong's algorithm
//! with Lowe's memoization).
use super::{HistoryOperation, Observed};
use std::collections::{HashMap, HashSet};

/// Maximum number of states to visit; beyond it the result is "undecided", because the search could take forever.
const STATES_MAX: usize = 2_000_000;

/// Result of the check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A valid order exists.
    Linearizable,
    /// No valid order exists. Contains the operations in the order of their calls.
    Violation(Vec<HistoryOperation>),
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
    let mut search = Search { operations: &operations, before, visited: HashSet::new() };
    match search.run() {
        Some(true) => Verdict::Linearizable,
        Some(false) => Verdict::Violation(operations),
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

struct Search<'a> {
    operations: &'a [HistoryOperation],
    /// The operation that must precede each.
    before: Vec<Option<usize>>,
    visited: HashSet<(Vec<u64>, Option<Vec<u8>>)>,
}

/// One choice of the search: operation `chosen` comes next; `before` is the register's value before it.
struct HistoryEvent {
    chosen: usize,
    before: Option<Vec<u8>>,
}

impl Search<'_> {
    /// Searches depth-first; `None` if there are too many states.
    fn run(&mut self) -> Option<bool> {
        let count = self.operations.len();
        let mut done = vec![0_u64; count.div_ceil(64)];
        let mut value = None;
        let mut steps: Vec<HistoryEvent> = Vec::new();
        let mut from = 0;
        loop {
            if self.all_answered_are_done(&done) {
                return Some(true);
            }
            match self.next_choice(&done, from, value.as_deref()) {
                Some((chosen, after)) => {
                    done[chosen / 64] |= 1 << (chosen % 64);
                    if self.visited.len() > STATES_MAX {
                        return None;
                    }
                    if self.visited.insert((done.clone(), after.clone())) {
                        steps.push(HistoryEvent { chosen, before: std::mem::replace(&mut value, after) });
                        from = 0;
                    } else {
                        done[chosen / 64] &= !(1 << (chosen % 64));
                        from = chosen + 1;
                    }
                }
                None => {
                    let Some(step) = steps.pop() else { return Some(false) };
                    done[step.chosen / 64] &= !(1 << (step.chosen % 64));
                    value = step.before;
                    from = step.chosen + 1;
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

    /// The first operation from `from` on that may come next and whose reply matches.
    fn next_choice(&self, done: &[u64], from: usize, value: Option<&[u8]>) -> Option<(usize, Option<Vec<u8>>)> {
        let open = || self.operations.iter().enumerate().filter(|(at, _)| !Self::is_done(done, *at));
        // The operation with the first reply must precede all operations called after that reply.
        let first_answer = open().map(|(_, operation)| operation.answered).min()?;
        let may_be_next = |at: usize, operation: &HistoryOperation| {
            let is_after_its_predecessor = self.before[at].is_none_or(|before| Self::is_done(done, before));
            at >= from && operation.called < first_answer && is_after_its_predecessor
        };
        open().filter(|(at, operation)| may_be_next(*at, operation)).find_map(|(at, operation)| {
            let (after, outcome) = operation.ask.apply(value);
            operation.permits(&outcome).then_some((at, after))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::KeyRequest;
    use super::*;

    fn op(called: u64, answered: u64, ask: KeyRequest, heard: Observed) -> HistoryOperation {
        HistoryOperation { called, answered, ask, heard, connection: 0 }
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
}
