//! Errors of the embedded store.
use crate::error::{EngineError, OpenError};
use crate::format::manifest;
use fawn_flash::{DeviceError, IoOperation};
use std::sync::Arc;
use std::time::Duration;

/// The result of a store's operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The lower error that [`std::error::Error::source`] returns.
type ErrorSource = Arc<dyn std::error::Error + Send + Sync>;

/// Why a store did not open, or refused an operation.
///
/// [`std::error::Error::source`] leads to the details: the file, the place in it, the expectation that was not met and
/// what to do about it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory is open already, in this process or another.
    #[error("{dir} is open already{holder}: share one store by cloning it, or choose another directory")]
    InUse {
        /// The directory.
        dir: String,
        /// ` (pid N)` of the process that holds it, where known.
        holder: String,
    },
    /// A setting is out of bounds.
    #[error("option {name}: {found}, expected {expected}")]
    InvalidOption {
        /// Its name.
        name: &'static str,
        /// The value that was given.
        found: String,
        /// The values that are taken.
        expected: &'static str,
    },
    /// The directory holds a store that was not made by this library's `Store`, with another secret, or in a format that this
    /// version does not read.
    #[error("the directory holds a store of another program")]
    Foreign {
        /// The difference.
        #[source]
        source: ErrorSource,
    },
    /// Stored bytes are not what was written there.
    #[error("{file} is corrupt at byte {offset_bytes}")]
    Corrupt {
        /// The file's name in the directory.
        file: String,
        /// Where the damage begins.
        offset_bytes: u64,
        /// The expectation that was not met, and what to do.
        #[source]
        source: ErrorSource,
    },
    /// More overwritten keys have a corrupt or unreadable old value than memory can hold.
    #[error("the old values of {keys} overwritten keys are corrupt: replace the disk, or raise the store's memory")]
    TooCorrupt {
        /// Keys with such a value.
        keys: u64,
    },
    /// A device operation failed.
    #[error("a device operation failed")]
    Device {
        /// The operation, its file and place, and the system's reason.
        #[source]
        source: DeviceError,
    },
    /// An earlier write or sync failed, or a thread panicked inside the store. Nothing is written any more.
    #[error("the store takes no more writes: {first}; close it and open it again")]
    Poisoned {
        /// The first failure.
        first: String,
    },
    /// The store was opened read-only.
    #[error("the store is open read-only")]
    ReadOnly,
    /// No space for another segment. Reads and deletes continue; writes resume once there is space.
    #[error("the store is full: delete keys or add space, then retry")]
    Full,
    /// More writes are in flight than memory can hold.
    #[error("too many writes in flight; retry")]
    Overloaded,
    /// The key is longer than a record can hold.
    #[error("key of {found_bytes} bytes, at most {limit_bytes} are taken")]
    KeyTooLong {
        /// Its length.
        found_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The value or batch is longer than a segment can take.
    #[error("value or batch of {found_bytes} bytes, at most {limit_bytes} are taken; store it in pieces")]
    TooLarge {
        /// Its length.
        found_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The device did not complete what closing needs. A thread goes on with it.
    #[error(
        "the store is not closed after {after:?}: its device does not answer; what was not durable yet may be lost"
    )]
    StillClosing {
        /// Time that passed.
        after: Duration,
    },
    /// [`crate::Store::close`] was called on a clone. Whether a write that was in flight will be there after a restart is unknown.
    #[error("the store is closed")]
    Closed,
}

impl Error {
    /// The error of every operation after a panic inside the store.
    pub(super) fn panicked() -> Self {
        Self::Poisoned { first: "a thread panicked inside the store".to_owned() }
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Locked { dir, holder } => Self::InUse { dir, holder },
            DeviceError::Full { .. } => Self::Full,
            DeviceError::Poisoned { first } => Self::Poisoned { first },
            source => Self::Device { source },
        }
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Overloaded => Self::Overloaded,
            EngineError::StoreFull => Self::Full,
            EngineError::Poisoned { first } => Self::Poisoned { first },
            EngineError::KeyTooLong { found_bytes, limit_bytes } => Self::KeyTooLong { found_bytes, limit_bytes },
            EngineError::TooLarge { found_bytes, limit_bytes } => Self::TooLarge { found_bytes, limit_bytes },
            EngineError::UnknownRange { .. }
            | EngineError::RangeExists { .. }
            | EngineError::NotSplit { .. }
            | EngineError::NotChained { .. } => Self::Foreign { source: Arc::new(error) },
            EngineError::TooCorrupt { keys } => Self::TooCorrupt { keys },
            EngineError::Corrupt { ref file, offset_bytes, .. } => Self::corrupt(file.clone(), offset_bytes, error),
            EngineError::Device(error) => error.into(),
        }
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Device(error) => error.into(),
            OpenError::Engine(error) => error.into(),
            OpenError::Option { name, found, expected } => {
                Self::InvalidOption { name, found: found.to_string(), expected }
            }
            OpenError::Format { .. } | OpenError::SecretMissing | OpenError::SecretDiffers => {
                Self::Foreign { source: Arc::new(error) }
            }
            OpenError::Manifest { ref file, .. }
            | OpenError::ManifestTailLost { ref file, .. }
            | OpenError::FileMissing { ref file } => Self::corrupt(file.clone(), 0, error),
            OpenError::NothingLeft => Self::corrupt(manifest::FILE_NAME.to_owned(), 0, error),
            OpenError::Corrupt { ref file, from_bytes, .. } => Self::corrupt(file.clone(), from_bytes, error),
            OpenError::ReadsDiffer { ref file, from_bytes } => {
                let (name, offset) = (file.clone(), u64::from(from_bytes));
                DeviceError::Io { operation: IoOperation::Read, name, offset, detail: error.to_string() }.into()
            }
        }
    }
}

impl Error {
    fn corrupt(file: String, offset_bytes: u32, error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Corrupt { file, offset_bytes: u64::from(offset_bytes), source: Arc::new(error) }
    }
}
