//! Errors of the store: each reports what was expected, what was found, where, and what to do.
use crate::format::{HeaderError, segment};
use fawn_flash::DeviceError;
use fawn_types::{OperationError, RangeId, StoreError};

/// Error of an engine operation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineError {
    /// A bounded buffer is full; retry after a poll.
    #[error("too many operations in flight; poll, then retry")]
    Overloaded,
    /// No space, or no descriptor, for another segment. Reads and deletes continue; later appends try again. Where the
    /// file system cannot reserve space ahead, a full disk may also fail a write: that is [`EngineError::Poisoned`].
    #[error("store full: delete keys or add space, then retry; where the log says so, raise the limit on open files")]
    StoreFull,
    /// A write or sync failed earlier, or the store is read-only: all writes are refused.
    #[error("store takes no more writes: {first}; restart and run `fawn check`")]
    Poisoned {
        /// The first failure.
        first: String,
    },
    /// The key exceeds the maximum key length.
    #[error("key of {found_bytes} bytes, at most {limit_bytes} are taken")]
    KeyTooLong {
        /// Length of the key.
        found_bytes: usize,
        /// Maximum length.
        limit_bytes: usize,
    },
    /// The value, record or batch exceeds its maximum length.
    #[error("record or batch of {found_bytes} bytes, at most {limit_bytes} are taken; store it in pieces")]
    TooLarge {
        /// Length found.
        found_bytes: usize,
        /// Maximum length.
        limit_bytes: usize,
    },
    /// The range was never added.
    #[error("range {} is not in this store; add it first", range.0)]
    UnknownRange {
        /// The unknown range.
        range: RangeId,
    },
    /// The range exists with other boundaries.
    #[error("range {} exists with other boundaries; split or merge it instead", range.0)]
    RangeExists {
        /// The range that exists.
        range: RangeId,
    },
    /// The boundary is not within the range, or the one range does not end where the other begins.
    #[error("range {} cannot be split or merged there: the boundary is not within it, or not its start", range.0)]
    NotSplit {
        /// The range.
        range: RangeId,
    },
    /// The store has no chains: the next open commits all appended records, so that none can be rolled back.
    #[error("the store has no chains: what was appended to range {} cannot be rolled back", range.0)]
    NotChained {
        /// The range of the rollback.
        range: RangeId,
    },
    /// The write needs an unverified old version, and memory for keys with unreadable old versions is used up.
    #[error(
        "the old versions of {keys} overwritten keys are corrupt or cannot be read, and memory has no room for more; \
         replace the store's disk, or raise its memory"
    )]
    TooCorrupt {
        /// Keys whose old version is unreadable or corrupt.
        keys: u64,
    },
    /// Stored bytes differ from those that were written.
    #[error("corrupt record in {file} at byte {offset_bytes}: {detail}; run `fawn check` on the data directory")]
    Corrupt {
        /// Name of the segment's file.
        file: String,
        /// Offset of the record in the file.
        offset_bytes: u32,
        /// Description of the fault.
        detail: String,
    },
    /// A read failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

impl EngineError {
    /// Whether a lookup failed because a record of the log is corrupt to which the key's index entry points. A plain delete of its
    /// key needs no lookup. One that cannot be read may be another key's, and readable later. A corrupt page of a run has records of
    /// many keys, so the key may be absent.
    pub fn is_of_lost_record(&self) -> bool {
        matches!(self, Self::Corrupt { file, .. } if segment::is_file_name(file))
    }
}

impl From<EngineError> for StoreError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Overloaded => OperationError::Overloaded.into(),
            EngineError::StoreFull => OperationError::StoreFull.into(),
            EngineError::Poisoned { .. } => OperationError::Poisoned.into(),
            EngineError::KeyTooLong { .. } => OperationError::KeyTooLong.into(),
            EngineError::TooLarge { limit_bytes, .. } => {
                OperationError::RecordsTooLong { limit_bytes: u32::try_from(limit_bytes).unwrap_or(u32::MAX) }.into()
            }
            EngineError::Corrupt { .. } | EngineError::TooCorrupt { .. } => OperationError::Corrupt.into(),
            EngineError::UnknownRange { .. }
            | EngineError::RangeExists { .. }
            | EngineError::NotSplit { .. }
            | EngineError::NotChained { .. }
            | EngineError::Device(_) => Self::Device(error.to_string()),
        }
    }
}

/// Error of opening a store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// The device returned an error.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// An option is out of bounds.
    #[error("option {name} is {found}, expected {expected}")]
    Option {
        /// Name of the option.
        name: &'static str,
        /// Value given.
        found: u64,
        /// Accepted values.
        expected: &'static str,
    },
    /// A new store needs a secret.
    #[error("no store here and no hash secret given to create one; pass Options::secret")]
    SecretMissing,
    /// The store was created with another secret.
    #[error("the store was created with another hash secret; it belongs to another cluster or store")]
    SecretDiffers,
    /// The manifest is corrupt, or is not a manifest.
    #[error("{file}: {detail}; restore it from a backup, or save what is left with `fawn check --repair`")]
    Manifest {
        /// Name of the manifest's file.
        file: String,
        /// Description of the fault.
        detail: String,
    },
    /// A salvage found neither a manifest nor a segment that says what it is.
    #[error(
        "the manifest is missing or cannot be read, and no segment has an intact header: nothing is left to save; restore a backup"
    )]
    NothingLeft,
    /// A file is of a format that this code does not read. Nothing is damaged.
    #[error("{file}: {error}")]
    Format {
        /// Name of the file.
        file: String,
        /// The format, and what to do.
        error: HeaderError,
    },
    /// A segment proves that synced commits at the manifest's end are lost.
    #[error(
        "{file}: {detail}, so the manifest lost its synced end; nothing was changed: restore the file `manifest` from a \
         copy, or save what is left with `fawn check --repair` or a read-only open"
    )]
    ManifestTailLost {
        /// Name of that segment's file.
        file: String,
        /// The evidence.
        detail: String,
    },
    /// A listed segment or run is missing.
    #[error(
        "{file} is listed in the manifest but missing; restore it, or save what is left with `fawn check --repair`"
    )]
    FileMissing {
        /// Name of the segment's or the run's file.
        file: String,
    },
    /// Corruption below the synced watermark: acknowledged writes may be lost.
    #[error(
        "{file} is corrupt from byte {from_bytes} to {to_bytes}, below what was synced: {detail}; \
         restore a backup, or save what is left with `fawn check --repair` or a read-only open"
    )]
    Corrupt {
        /// Name of the segment's file.
        file: String,
        /// Start of the corruption.
        from_bytes: u32,
        /// Synced end of the segment; the corruption is before it.
        to_bytes: u32,
        /// Description of the fault.
        detail: String,
    },
    /// Two reads of a segment differ. It may be intact.
    #[error(
        "{file}: two reads of the bytes from {from_bytes} on differ; nothing was changed: open again, and check the disk \
         if that persists"
    )]
    ReadsDiffer {
        /// Name of the segment's file.
        file: String,
        /// Start of the part in which they differ.
        from_bytes: u32,
    },
    /// A record could not be read back for the index rebuild.
    #[error("while rebuilding the index: {0}")]
    Engine(#[from] EngineError),
}
