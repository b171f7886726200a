//! Changes of the expiry only: the `EXPIRE` family, `PERSIST`, `GETEX`, `touch`, `gat`.
use crate::string::unchanged;
use fawn_types::operation::{Effect, Outcome, ValueCow};
use fawn_types::request::ExpiryCondition;
use fawn_types::{EntryRef, Expiry, Reply, TimeMs, Version};

/// Evaluates the operation on `current`, which is not expired at `now`.
pub(crate) fn apply(
    expiry: Expiry,
    condition: ExpiryCondition,
    return_value: bool,
    current: Option<EntryRef<'_>>,
    now: TimeMs,
) -> Outcome<'_> {
    let Some(entry) = current else {
        return unchanged(if return_value { Reply::Absent } else { Reply::NotFound });
    };
    let new_ms = match expiry {
        Expiry::Never => 0,
        Expiry::Keep => entry.expires_at_ms,
        Expiry::AtMs(at) | Expiry::InMs(at) => at,
    };
    let gone = matches!(expiry, Expiry::AtMs(at) if at <= now.0);
    // `finite` would read a time of 0 as "never", but `AtMs(0)` is in the past.
    if !holds(condition, entry.expires_at_ms, if gone { Some(new_ms) } else { finite(new_ms) }) {
        return unchanged(if return_value { Reply::Value(entry) } else { Reply::NotTouched });
    }
    if gone {
        let reply = if return_value { Reply::Value(entry) } else { Reply::Touched };
        return Outcome { effect: Effect::Delete, reply };
    }
    changed(entry, new_ms, return_value)
}

fn changed(entry: EntryRef<'_>, new_ms: u64, return_value: bool) -> Outcome<'_> {
    // An equal expiry is no change: nothing is written, and the key keeps its version.
    if new_ms == entry.expires_at_ms {
        return unchanged(if return_value { Reply::Value(entry) } else { Reply::Touched });
    }
    // The changed entry is a new write, and the cas that `gats` returns must match it. Hence the placeholder version.
    let touched = EntryRef { expires_at_ms: new_ms, version: Version::ZERO, ..entry };
    let effect = Effect::Put { value: ValueCow::Borrowed(entry.value), flags: entry.flags, expires_at_ms: new_ms };
    Outcome { effect, reply: if return_value { Reply::Value(touched) } else { Reply::Touched } }
}

const fn finite(expires_at_ms: u64) -> Option<u64> {
    if expires_at_ms == 0 { None } else { Some(expires_at_ms) }
}

/// Whether `condition` holds; a time of `None` is infinitely late.
fn holds(condition: ExpiryCondition, old_ms: u64, new: Option<u64>) -> bool {
    let old = finite(old_ms).unwrap_or(u64::MAX);
    let new = new.unwrap_or(u64::MAX);
    match condition {
        ExpiryCondition::Always => true,
        ExpiryCondition::HasNone => old_ms == 0,
        ExpiryCondition::HasOne => old_ms != 0,
        ExpiryCondition::Later => new > old,
        ExpiryCondition::Earlier => new < old,
        ExpiryCondition::EarlierThanOne => old_ms != 0 && new < old,
    }
}
