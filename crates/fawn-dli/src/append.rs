//! `APPEND` and `prepend`: extend the value at one end; flags and expiry do not change.
use crate::condition::refusal;
use crate::string::{too_long, unchanged};
use alloc::vec::Vec;
use fawn_types::operation::{Effect, Outcome, ValueCow};
use fawn_types::{Condition, EntryRef, Reply, Version};

#[derive(Clone, Copy)]
pub(crate) enum AppendEnd {
    Start,
    End,
}

/// Evaluates the operation on `current`.
pub(crate) fn apply<'a>(
    place: AppendEnd,
    bytes: &'a [u8],
    create: bool,
    condition: Condition,
    current: Option<EntryRef<'a>>,
    value_bytes_max: u32,
) -> Outcome<'a> {
    if current.is_none() && !create {
        // Regardless of the condition: memcached replies NOT_STORED, not NOT_FOUND, to an append with a cas.
        return unchanged(Reply::NotStored);
    }
    if let Some(reply) = refusal(condition, current.as_ref()) {
        return unchanged(reply);
    }
    let old: &[u8] = current.as_ref().map_or(&[], |entry| entry.value);
    let value_bytes = old.len() + bytes.len();
    if let Some(refused) = too_long(value_bytes, value_bytes_max) {
        return refused;
    }
    let value = match current {
        None => ValueCow::Borrowed(bytes),
        Some(_) => ValueCow::Owned(joined(place, old, bytes)),
    };
    let flags = current.map_or(0, |entry| entry.flags);
    let expires_at_ms = current.map_or(0, |entry| entry.expires_at_ms);
    Outcome {
        effect: Effect::Put { value, flags, expires_at_ms },
        reply: Reply::Stored { version: Version::ZERO, value_bytes: value_bytes as u32 },
    }
}

fn joined(place: AppendEnd, old: &[u8], added: &[u8]) -> Vec<u8> {
    let (first, second) = match place {
        AppendEnd::Start => (added, old),
        AppendEnd::End => (old, added),
    };
    let mut value = Vec::with_capacity(first.len() + second.len());
    value.extend_from_slice(first);
    value.extend_from_slice(second);
    value
}
