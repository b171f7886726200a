//! Tests of the string operations: tables of the replies of Redis and memcached, and a random walk.
mod append;
mod counter;
mod delete;
mod set;
mod touch;
mod walk;

use fawn_dli::StringOperation;
use fawn_types::operation::{DataOperation, Effect, Outcome};
use fawn_types::{Entry, EntryRef, TimeMs, Update, Version};

pub(crate) const NOW: TimeMs = TimeMs(1_000_000);
pub(crate) const VALUE_BYTES_MAX: u32 = 64;

pub(crate) fn version(seq: u64) -> Version {
    Version::from_u64(seq)
}

pub(crate) fn entry(value: &[u8], expires_at_ms: u64) -> Entry {
    Entry { value: value.to_vec(), flags: 7, expires_at_ms, version: version(3) }
}

pub(crate) fn apply<'a>(update: Update<'a>, current: Option<EntryRef<'a>>) -> Outcome<'a> {
    StringOperation::new(update, VALUE_BYTES_MAX).apply(current, NOW)
}

/// The value, flags and expiry that the outcome writes.
pub(crate) fn written(outcome: &Outcome<'_>) -> (Vec<u8>, u32, u64) {
    match &outcome.effect {
        Effect::Put { value, flags, expires_at_ms } => (value.as_slice().to_vec(), *flags, *expires_at_ms),
        other => panic!("expected a put, found {other:?}"),
    }
}
