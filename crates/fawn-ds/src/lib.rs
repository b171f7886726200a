//! A durable key-value store for programs with far more data than memory: a log on flash, an index of seven bytes a key
//! in memory, and at most one device read per lookup [FAWN09 §3.3].
//!
//! [`Store`] is a map from byte strings to byte strings in one directory, with conditional writes, expiry, atomic
//! batches and one memory budget. It is a hash table: iteration has no order, and there are no range scans.
//!
//! ```
//! use fawn_ds::{Durability, PutOptions, Store};
//! use std::time::Duration;
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path();
//! let store = Store::builder(path).memory(64 << 20).durability(Durability::EverySecond).open()?;
//!
//! let version = store.put("key", "value")?;
//! let value = store.get("key")?.ok_or("just written")?;
//! assert_eq!((&*value, value.version()), (&b"value"[..], version));
//!
//! let options = PutOptions::new().if_version(version).ttl(Duration::from_secs(60));
//! assert!(store.put_with("key", "other", options)?.is_some());
//!
//! let mut batch = store.batch();
//! batch.put("a", "1").delete("key");
//! batch.commit()?;
//!
//! for entry in &store {
//!     let (key, value) = entry?;
//!     assert_eq!((&*key, &*value), (&b"a"[..], &b"1"[..]));
//! }
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Durability`] says when a write returns, [`Error`] why an operation was refused, and [`sim`] holds a simulated
//! device for crash tests of the program around the store.
#![forbid(unsafe_code)]

mod backup;
mod check;
mod engine;
mod error;
mod format;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod index;
mod log;
mod manifest_file;
mod options;
mod overlay;
mod range;
mod record_cache;
mod recovery;
mod sorted;
mod stats;
mod store;

#[doc(inline)]
pub use fawn_types::{Durability, Version};
pub use options::RecordLayout;
pub use store::{
    Builder, Clock, Error, Iter, KeyBytes, Keys, ManualClock, PutOptions, Result, Stats, Store, Value, WriteBatch,
    backup,
};

/// A simulated device for crash tests: it loses unsynced bytes at a crash, and fails on request.
///
/// ```
/// use fawn_ds::Builder;
/// use fawn_ds::sim::{Loss, SimDevice, SimDisk, SimOptions};
///
/// let disk = SimDisk::new(SimOptions::default());
/// let store = Builder::new().open_on(SimDevice::attach(&disk))?;
/// store.put("key", "value")?;
///
/// // The disk as a power loss at this moment may leave it; the number seeds what the loss spares.
/// let after_power_loss = disk.image(Loss::Power, 1);
/// let store = Builder::new().open_on(SimDevice::attach(&after_power_loss))?;
/// assert!(store.contains_key("key")?);
/// # Ok::<(), fawn_ds::Error>(())
/// ```
pub mod sim {
    #[doc(inline)]
    pub use fawn_flash::sim::{Capture, DeviceFault, Image, Loss, OpKind, SimDevice, SimDisk, SimOptions};
    #[doc(inline)]
    pub use fawn_flash::{Device, DeviceError};
}

/// The engine for FAWN's own servers and tools. Not part of the public API: it changes without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::engine::{
        BlobTicket, CorruptRecord, DumpError, DumpReport, Engine, Event, KeepReason, Lookup, LookupPlan, LostPart,
        OpenResult, PREFETCH_KEYS_MAX, ReadPlace, Replay, Scan, ScanItem, ScanStep, ScrubFinding, TransferPlace,
        TransferScan, TransferStep, TransferredResults, View, Watermarks,
    };
    pub use crate::error::{EngineError, OpenError};
    pub use crate::format::record::{RecordKind, RecordRef};
    pub use crate::index::Pointer;
    pub use crate::log::LogPosition;
    pub use crate::log::failures::HANGING_MS;
    pub use crate::options::{CAPACITY_SEGMENTS_MIN, Options, RecordLayout, segment_bytes_for};
    pub use crate::range::RangeProgress;
    pub use crate::record_cache::{CacheSplit, RecordCache};
    pub use crate::recovery::{Damage, OpenProgress, OpenReport, RangeReport, SalvageReport, open_for_salvage};
    pub use crate::stats::{EngineStats, LogReport, MemoryReport};

    /// Copies of a store that is in use.
    pub mod backup {
        pub use crate::backup::*;
        pub use crate::store::partial_copy::*;
    }
    /// Offline verification.
    pub mod check {
        pub use crate::check::*;
    }
    /// Bytes on flash.
    pub mod format {
        pub use crate::format::*;
    }
    /// The index of the log.
    pub mod index {
        pub use crate::index::*;
    }
    /// The sorted tier's files.
    pub mod sorted {
        pub use crate::sorted::*;
    }
}
