//! Deletion: `DEL`, `delete`, `GETDEL`.
use crate::condition::refusal;
use crate::string::unchanged;
use fawn_types::operation::{Effect, Outcome};
use fawn_types::{Condition, EntryRef, Reply};

/// Evaluates the deletion on `current`. Deleting an absent key writes nothing, not even a tombstone.
pub(crate) fn apply(condition: Condition, return_previous: bool, current: Option<EntryRef<'_>>) -> Outcome<'_> {
    if let Some(reply) = absent_or_refused(condition, current.as_ref()) {
        let previous = Reply::Previous { entry: current, applied: false };
        return unchanged(if return_previous { previous } else { reply });
    }
    let previous = Reply::Previous { entry: current, applied: true };
    let reply = if return_previous { previous } else { Reply::Deleted };
    Outcome { effect: Effect::Delete, reply }
}

fn absent_or_refused<'a>(condition: Condition, current: Option<&EntryRef<'_>>) -> Option<Reply<'a>> {
    if current.is_none() {
        return Some(Reply::NotFound);
    }
    refusal(condition, current)
}
