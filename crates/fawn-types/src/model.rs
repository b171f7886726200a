//! The model store: a `BTreeMap` that tests use as the oracle. Not a product store.
use crate::{Effect, Entry, EntryRef, HashSecret, KeyHash, TimeMs, Version};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A map from keys to entries; the caller assigns increasing versions.
#[derive(Clone, Debug, Default)]
pub struct ModelStore {
    entries: BTreeMap<Vec<u8>, Entry>,
    last: Version,
}

impl ModelStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The entry of `key`, if present and not expired at `now`.
    #[must_use]
    pub fn get(&self, key: &[u8], now: TimeMs) -> Option<EntryRef<'_>> {
        self.entries.get(key).map(Entry::as_ref).filter(|entry| !entry.is_expired(now))
    }

    /// Applies `effect` to `key` as `version`. Panics if `version` is not above every earlier one.
    pub fn apply(&mut self, key: &[u8], effect: &Effect<'_>, version: Version) {
        assert!(version > self.last, "versions grow: {version:?} after {:?}", self.last);
        self.last = version;
        match effect {
            Effect::None => {}
            Effect::Put { value, flags, expires_at_ms } => {
                let value = value.as_slice().to_vec();
                let entry = Entry { value, flags: *flags, expires_at_ms: *expires_at_ms, version };
                self.entries.insert(key.to_vec(), entry);
            }
            Effect::Delete => {
                self.entries.remove(key);
            }
        }
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// All keys present and not expired at `now`, in key order.
    pub fn iter(&self, now: TimeMs) -> impl Iterator<Item = (&[u8], EntryRef<'_>)> {
        self.entries
            .iter()
            .map(|(key, entry)| (key.as_slice(), entry.as_ref()))
            .filter(move |(_, entry)| !entry.is_expired(now))
    }

    /// A digest of the keys and values present at `now`; independent of the order of insertion.
    #[must_use]
    pub fn digest(&self, secret: &HashSecret, now: TimeMs) -> u64 {
        self.iter(now).fold(0, |sum, (key, entry)| {
            let place = KeyHash::of(secret, key).0;
            sum.wrapping_add(crate::checksum::checksum64(entry.value).wrapping_mul(place | 1))
        })
    }
}
