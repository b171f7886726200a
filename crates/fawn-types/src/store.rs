//! Owns the interface that every store of keys offers to a caller who may block: product stores and the model alike.
use crate::{Entry, TimeMs, Version};
use alloc::string::String;
use alloc::vec::Vec;

/// When a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When it is synced: survives power loss.
    #[default]
    Sync,
    /// When it is flushed, which survives `kill -9`; synced within a second.
    EverySec,
    /// When it is in memory: lost by `kill -9`.
    Memory,
}

/// Why a store refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The operation itself failed.
    #[error("{0}")]
    Operation(#[from] crate::OperationError),
    /// The device or its content failed; says where and what to do.
    #[error("{0}")]
    Device(String),
}

/// A map from keys to entries.
pub trait Store {
    /// The entry of `key`, if it is there at `now`.
    ///
    /// # Errors
    /// When stored bytes are damaged or unreadable; never for an absent key.
    fn get(&self, key: &[u8], now: TimeMs) -> Result<Option<Entry>, StoreError>;

    /// Writes unconditionally; returns the version assigned.
    ///
    /// # Errors
    /// Past a limit, when full, or when the device failed.
    fn put(&self, key: &[u8], value: &[u8], flags: u32, expires_at_ms: u64) -> Result<Version, StoreError>;

    /// Removes; whether the key was there at `now`.
    ///
    /// # Errors
    /// As [`Store::put`].
    fn delete(&self, key: &[u8], now: TimeMs) -> Result<bool, StoreError>;

    /// Number of keys, expired ones that were not met yet included.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys of one step of a scan and the cursor to continue with; start with 0, ends with 0. Visits every key that
    /// was there throughout at least once.
    ///
    /// # Errors
    /// As [`Store::get`].
    fn scan(&self, cursor: u64, count: usize, now: TimeMs) -> Result<(u64, Vec<Vec<u8>>), StoreError>;
}
