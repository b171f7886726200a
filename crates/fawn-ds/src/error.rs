//! Owns why a store refuses: what was expected, what was found, where, and what to do.
use fawn_flash::DeviceError;
use fawn_types::{OperationError, RangeId, StoreError};

/// Why the engine refused an operation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineError {
    /// A bounded buffer is full; retry after a poll.
    #[error("too much under way; poll, then retry")]
    Overloaded,
    /// No space, or no descriptor, for another segment; reads and deletes go on, retried at later appends. Where the file
    /// system cannot reserve space ahead, a full disk may also fail a write: that is [`EngineError::Poisoned`].
    #[error("store full: delete keys or add space, then retry; where the log says so, raise the limit on open files")]
    StoreFull,
    /// A write or sync failed earlier, or the store is read-only: nothing more is written.
    #[error("store takes no more writes: {first}; restart and run `fawn check`")]
    Poisoned {
        /// The first failure.
        first: String,
    },
    /// A key past the record's 16-bit length.
    #[error("key of {found_bytes} bytes, at most {limit_bytes} are taken")]
    KeyTooLong {
        /// Its length.
        found_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// A value or batch that no segment takes.
    #[error("record or batch of {found_bytes} bytes, at most {limit_bytes} are taken; store it in pieces")]
    TooLarge {
        /// Its length.
        found_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The range was never added.
    #[error("range {range:?} is not in this store; add it first")]
    UnknownRange {
        /// Which.
        range: RangeId,
    },
    /// The range exists with other boundaries.
    #[error("range {range:?} exists with other boundaries; split or merge it instead")]
    RangeExists {
        /// Which.
        range: RangeId,
    },
    /// The store is without chains: all that it appends is committed at the next opening, so nothing can be taken back.
    #[error("the store has no chains: what was appended to range {range:?} cannot be rolled back")]
    NotChained {
        /// Which.
        range: RangeId,
    },
    /// The write would need an old version read, and as many of those are unreadable as memory has room for.
    #[error(
        "the old versions of {keys} overwritten keys are corrupt or cannot be read, and memory has no room for more; \
         replace the store's disk, or raise its memory"
    )]
    TooDamaged {
        /// Keys whose old version cannot be read.
        keys: u64,
    },
    /// Stored bytes are not what was written there.
    #[error("corrupt record in {file} at byte {offset_bytes}: {detail}; run `fawn check` on the data directory")]
    Corrupt {
        /// The segment's file.
        file: String,
        /// Where in it.
        offset_bytes: u32,
        /// What is wrong.
        detail: String,
    },
    /// A read failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

impl From<EngineError> for StoreError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Overloaded => OperationError::Overloaded.into(),
            EngineError::StoreFull => OperationError::StoreFull.into(),
            EngineError::Poisoned { .. } => OperationError::Poisoned.into(),
            EngineError::KeyTooLong { .. } => OperationError::KeyTooLong.into(),
            EngineError::TooLarge { limit_bytes, .. } => {
                OperationError::ValueTooLong { limit_bytes: u32::try_from(limit_bytes).unwrap_or(u32::MAX) }.into()
            }
            EngineError::Corrupt { .. } | EngineError::TooDamaged { .. } => OperationError::Corrupt.into(),
            EngineError::UnknownRange { .. }
            | EngineError::RangeExists { .. }
            | EngineError::NotChained { .. }
            | EngineError::Device(_) => Self::Device(error.to_string()),
        }
    }
}

/// Why a store did not open.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// The device refused.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// An option is out of bounds.
    #[error("option {name} is {found}, expected {expected}")]
    Option {
        /// Which.
        name: &'static str,
        /// What was asked.
        found: u64,
        /// What is taken.
        expected: &'static str,
    },
    /// A store cannot be created without a secret of its own.
    #[error("no store here and no hash secret given to create one; pass Options::secret")]
    SecretMissing,
    /// The store was created with another secret.
    #[error("the store was created with another hash secret; it belongs to another cluster or store")]
    SecretDiffers,
    /// The manifest is corrupt or of another kind.
    #[error("{file}: {detail}; restore it from a backup, `fawn check` tells what else is corrupt")]
    Manifest {
        /// The manifest's name.
        file: String,
        /// What is wrong.
        detail: String,
    },
    /// A segment shows that the manifest ended later once: commits that were synced are gone from it.
    #[error(
        "{file}: {detail}, so the manifest lost its synced end; nothing was changed: restore the file `manifest` from a \
         copy, or open the store read-only to export it"
    )]
    ManifestTailLost {
        /// The segment that shows it.
        file: String,
        /// How.
        detail: String,
    },
    /// A listed segment is missing.
    #[error("{file} is listed in the manifest but missing; restore it, `fawn check` tells what else is missing")]
    SegmentMissing {
        /// The segment's name.
        file: String,
    },
    /// Damage below the synced watermark: acknowledged writes may be gone.
    #[error(
        "{file} is corrupt from byte {from_bytes} to {to_bytes}, below what was synced: {detail}; \
         restore a backup, or open it read-only to export; `fawn check` tells what else is corrupt"
    )]
    Damaged {
        /// The segment's name.
        file: String,
        /// Where the damage starts.
        from_bytes: u32,
        /// Where intact frames go on.
        to_bytes: u32,
        /// What is wrong.
        detail: String,
    },
    /// Reading back a record while rebuilding the index failed.
    #[error("while rebuilding the index: {0}")]
    Engine(#[from] EngineError),
}
