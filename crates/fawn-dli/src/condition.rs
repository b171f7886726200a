//! Owns how a write's condition is judged, and what the client hears when it does not hold.
use fawn_types::{Condition, EntryRef, Reply};

/// `None` when `condition` holds for `current`, else the refusal.
pub(crate) fn refusal<'a>(condition: Condition, current: Option<&EntryRef<'_>>) -> Option<Reply<'a>> {
    match (condition, current) {
        (Condition::Always, _) | (Condition::Exists, Some(_)) | (Condition::Absent, None) => None,
        (Condition::Exists, None) | (Condition::Absent, Some(_)) => Some(Reply::NotStored),
        // memcached tells a vanished key from a changed one: NOT_FOUND and EXISTS.
        (Condition::VersionIs(_), None) => Some(Reply::NotFound),
        (Condition::VersionIs(version), Some(entry)) => (entry.version != version).then_some(Reply::VersionMismatch),
    }
}
