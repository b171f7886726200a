//! `SET` in all its forms: `NX`, `XX`, `GET`, `KEEPTTL`, `add`, `replace`, `cas`.
use crate::condition::refusal;
use crate::string::{too_long, unchanged};
use fawn_types::operation::{Effect, Outcome, ValueCow};
use fawn_types::{Condition, EntryRef, Expiry, Reply, TimeMs, Version};

/// The fields of `Update::SetOperation`.
pub(crate) struct SetOperation<'a> {
    pub(crate) value: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) expiry: Expiry,
    pub(crate) condition: Condition,
    pub(crate) return_previous: bool,
}

/// Evaluates the operation on `current`, which is not expired at `now`.
pub(crate) fn apply<'a>(
    set: &SetOperation<'a>,
    current: Option<EntryRef<'a>>,
    now: TimeMs,
    value_bytes_max: u32,
) -> Outcome<'a> {
    if let Some(refused) = too_long(set.value.len(), value_bytes_max) {
        return refused;
    }
    if let Some(reply) = refusal(set.condition, current.as_ref()) {
        let previous = Reply::Previous { entry: current, applied: false };
        return unchanged(if set.return_previous { previous } else { reply });
    }
    let reply = if set.return_previous {
        Reply::Previous { entry: current, applied: true }
    } else {
        Reply::Stored { version: Version::ZERO, value_bytes: set.value.len() as u32 }
    };
    Outcome { effect: effect(set, current.as_ref(), now), reply }
}

fn effect<'a>(set: &SetOperation<'a>, current: Option<&EntryRef<'a>>, now: TimeMs) -> Effect<'a> {
    let expires_at_ms = match set.expiry {
        Expiry::Never => 0,
        Expiry::Keep => current.map_or(0, |entry| entry.expires_at_ms),
        // A time in the past deletes the key, as if the new entry expired at once. Storing a time of 0 would mean
        // "never".
        Expiry::AtMs(at) if at <= now.0 => return Effect::Delete,
        Expiry::AtMs(at) | Expiry::InMs(at) => at,
    };
    Effect::Put { value: ValueCow::Borrowed(set.value), flags: set.flags, expires_at_ms }
}
