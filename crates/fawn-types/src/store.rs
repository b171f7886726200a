//! The blocking interface of a key-value store, implemented by product stores and by the test model.
use crate::{Entry, TimeMs, Version};
use alloc::string::String;
use alloc::vec::Vec;

/// The point at which a write is acknowledged; the strongest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Durability {
    /// After the sync: the write survives power loss.
    #[default]
    Sync,
    /// After the write to the operating system, which survives `kill -9`; synced within a second.
    EverySecond,
    /// Once it is in memory: the last writes are lost by `kill -9`; they reach the operating system within 50 ms.
    Memory,
}

impl Durability {
    /// The mode's name in settings and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::EverySecond => "everysec",
            Self::Memory => "memory",
        }
    }
}

/// The reason why a store rejected a call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The operation itself failed.
    #[error("{0}")]
    Operation(#[from] crate::OperationError),
    /// The device failed or its content is corrupt; the text has the location and the remedy.
    #[error("{0}")]
    Device(String),
}

/// A map from keys to entries.
pub trait KvStore {
    /// The entry of `key`, if present and not expired at `now`.
    ///
    /// # Errors
    /// If stored bytes are corrupt or unreadable. An absent key is no error.
    fn get(&self, key: &[u8], now: TimeMs) -> Result<Option<Entry>, StoreError>;

    /// Writes unconditionally; returns the version assigned.
    ///
    /// # Errors
    /// If a limit is exceeded, the store is full, or the device failed.
    fn put(&self, key: &[u8], value: &[u8], flags: u32, expires_at_ms: u64) -> Result<Version, StoreError>;

    /// Removes `key`; returns whether it was present at `now`.
    ///
    /// # Errors
    /// See [`KvStore::put`].
    fn delete(&self, key: &[u8], now: TimeMs) -> Result<bool, StoreError>;

    /// Number of keys, including expired ones that are not removed yet.
    fn len(&self) -> u64;

    /// Whether the store has no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One step of a scan: keys, and the cursor for the next step. The first cursor is 0; a returned 0 ends the scan.
    /// Every key that is present during the whole scan is returned at least once.
    ///
    /// # Errors
    /// See [`KvStore::get`].
    fn scan(&self, cursor: u64, count: usize, now: TimeMs) -> Result<(u64, Vec<Vec<u8>>), StoreError>;
}
