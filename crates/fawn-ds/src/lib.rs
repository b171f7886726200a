//! Owns FAWN-DS: a log-structured hash store that answers a lookup with at most one flash read [FAWN09 §3.3].
//!
//! `format` is what lies on flash, byte for byte, and pure; `docs/formats/fawn-ds.md` describes it. `index` maps key
//! hashes to records in six bytes. [`Engine`] is the store as a state machine over a `fawn_flash::Device`: it never
//! blocks (but to open), is told the time, and gives the same answers for the same inputs.
#![forbid(unsafe_code)]

pub mod check;
pub mod engine;
pub mod error;
pub mod format;
pub mod fuzz;
pub mod index;
mod log;
mod manifest_file;
pub mod options;
mod overlay;
mod range;
pub mod recovery;
pub mod stats;
mod store;

pub use engine::{
    BlobTicket, CopiedResults, CopyScan, CopyStep, DamagedRecord, Engine, Event, Kept, Lookup, LookupPlan, Replay,
    Scan, ScanItem, ScanStep, View, WARM_KEYS_MAX, Watermarks,
};
pub use error::{EngineError, OpenError};
pub use format::record::{RecordKind, RecordRef};
pub use index::Pointer;
pub use log::LogPosition;
pub use options::Options;
pub use range::Progress;
pub use recovery::{Damage, OpenReport, RangeReport};
pub use stats::{EngineStats, LogReport, MemoryReport};
pub use store::{
    Batch, Builder, Clock, Durability, Error, Iter, Key, Keys, ManualClock, PutOptions, Result, Stats, Store, Value,
};

/// A simulated device for crash tests.
pub mod sim {
    pub use fawn_flash::sim::{Capture, Fault, Image, Loss, OpKind, SimDevice, SimDisk, SimOptions};
}
