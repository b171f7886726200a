//! The content of a key: value bytes with client flags, expiry and version, owned and borrowed.
use crate::{TimeMs, Version};
use alloc::vec::Vec;

/// The content of a key, owned.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// The value: arbitrary bytes, possibly empty.
    pub value: Vec<u8>,
    /// memcached's client flags; 0 from Redis clients.
    pub flags: u32,
    /// Expiry time, ms since the Unix epoch; 0: never.
    pub expires_at_ms: u64,
    /// The version of the write that stored this entry.
    pub version: Version,
}

impl Entry {
    /// Borrows the entry.
    #[must_use]
    pub fn as_ref(&self) -> EntryRef<'_> {
        EntryRef { value: &self.value, flags: self.flags, expires_at_ms: self.expires_at_ms, version: self.version }
    }
}

/// A borrowed [`Entry`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryRef<'a> {
    /// The value: arbitrary bytes, possibly empty.
    pub value: &'a [u8],
    /// memcached's client flags; 0 from Redis clients.
    pub flags: u32,
    /// Expiry time, ms since the Unix epoch; 0: never.
    pub expires_at_ms: u64,
    /// The version of the write that stored this entry.
    pub version: Version,
}

impl EntryRef<'_> {
    /// Whether the entry is expired at `now`; the expiry time itself counts as expired, as in Redis.
    #[must_use]
    pub const fn is_expired(&self, now: TimeMs) -> bool {
        self.expires_at_ms != 0 && now.0 >= self.expires_at_ms
    }

    /// Copies the entry, its value included.
    #[must_use]
    pub fn to_owned(&self) -> Entry {
        Entry {
            value: self.value.to_vec(),
            flags: self.flags,
            expires_at_ms: self.expires_at_ms,
            version: self.version,
        }
    }
}
