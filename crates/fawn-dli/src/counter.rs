//! Counters: Redis's signed and memcached's unsigned ones, on the same values.
use crate::number::{parse_signed, parse_unsigned};
use crate::string::unchanged;
use alloc::vec::Vec;
use fawn_types::operation::{Effect, Outcome, ValueCow};
use fawn_types::{EntryRef, OperationError, Reply};

/// `INCRBY`: an absent key counts as 0; the result must fit 64 bits; flags and expiry do not change.
pub(crate) fn add_signed(delta: i64, current: Option<EntryRef<'_>>) -> Outcome<'_> {
    let old = match current {
        None => Some(0),
        Some(entry) => parse_signed(entry.value),
    };
    let Some(old) = old else { return unchanged(Reply::Error(OperationError::NotAnInteger)) };
    let Some(new) = old.checked_add(delta) else { return unchanged(Reply::Error(OperationError::Overflow)) };
    let value = itoa::Buffer::new().format(new).as_bytes().to_vec();
    Outcome { effect: put(value, current), reply: Reply::Signed(new) }
}

/// `incr` and `decr`: `NotFound` if the key is absent; the value never becomes shorter.
pub(crate) fn change_unsigned(current: Option<EntryRef<'_>>, change: impl Fn(u64) -> u64) -> Outcome<'_> {
    let Some(entry) = current else { return unchanged(Reply::NotFound) };
    let Some(old) = parse_unsigned(entry.value) else {
        return unchanged(Reply::Error(OperationError::NotANumber));
    };
    let new = change(old);
    let mut value: Vec<u8> = itoa::Buffer::new().format(new).as_bytes().to_vec();
    // memcached overwrites the number in place and pads with spaces, so clients expect a value of the old length.
    value.resize(value.len().max(entry.value.len()), b' ');
    Outcome { effect: put(value, current), reply: Reply::Unsigned(new) }
}

fn put<'a>(value: Vec<u8>, current: Option<EntryRef<'a>>) -> Effect<'a> {
    let flags = current.map_or(0, |entry| entry.flags);
    let expires_at_ms = current.map_or(0, |entry| entry.expires_at_ms);
    Effect::Put { value: ValueCow::Owned(value), flags, expires_at_ms }
}
