//! Owns what a key holds: value bytes with client flags, expiry and version; owned and borrowed.
use crate::{TimeMs, Version};
use alloc::vec::Vec;

/// A key's content.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// The value, arbitrary bytes, possibly none.
    pub value: Vec<u8>,
    /// memcached's client flags; 0 from Redis clients.
    pub flags: u32,
    /// When it ceases to exist, ms since the Unix epoch; 0: never.
    pub expires_at_ms: u64,
    /// The write that produced it.
    pub version: Version,
}

impl Entry {
    /// Borrows it.
    #[must_use]
    pub fn as_ref(&self) -> EntryRef<'_> {
        EntryRef { value: &self.value, flags: self.flags, expires_at_ms: self.expires_at_ms, version: self.version }
    }
}

/// A borrowed [`Entry`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryRef<'a> {
    /// The value, arbitrary bytes, possibly none.
    pub value: &'a [u8],
    /// memcached's client flags; 0 from Redis clients.
    pub flags: u32,
    /// When it ceases to exist, ms since the Unix epoch; 0: never.
    pub expires_at_ms: u64,
    /// The write that produced it.
    pub version: Version,
}

impl EntryRef<'_> {
    /// Whether it has ceased to exist at `now`: from its expiry time on, inclusive, as Redis does.
    #[must_use]
    pub const fn is_expired(&self, now: TimeMs) -> bool {
        self.expires_at_ms != 0 && now.0 >= self.expires_at_ms
    }

    /// An owned copy.
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
