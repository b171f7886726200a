//! Evaluation of a write's condition, and the reply if the condition does not hold.
use fawn_types::{Condition, EntryRef, Reply};

/// `None` if `condition` holds for `current`, else the reply that rejects the write.
pub(crate) fn refusal<'a>(condition: Condition, current: Option<&EntryRef<'_>>) -> Option<Reply<'a>> {
    match (condition, current) {
        (Condition::Always, _) | (Condition::Exists, Some(_)) | (Condition::Absent, None) => None,
        (Condition::Exists, None) | (Condition::Absent, Some(_)) => Some(Reply::NotStored),
        // memcached distinguishes an absent key (NOT_FOUND) from a changed one (EXISTS).
        (Condition::VersionIs(_), None) => Some(Reply::NotFound),
        (Condition::VersionIs(version), Some(entry)) => (entry.version != version).then_some(Reply::VersionMismatch),
    }
}
