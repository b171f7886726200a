//! Owns the storage boundary: the `Device` trait, its real and simulated implementations, the page cache and the
//! accounting of requests and bytes by cause. The only crate with `unsafe`.

pub mod buffer;
pub mod cache;
pub mod device;
pub mod sim;
pub mod stats;

pub use buffer::AlignedBuf;
pub use cache::{CacheStats, PageCache};
pub use device::{Cause, Completion, Device, DeviceError, FileId, Operation, Token};
pub use sim::{SimDevice, SimDisk, SimOptions};
pub use stats::{CauseStats, IoStats};
