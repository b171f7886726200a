//! Storage boundary: the `Device` trait with its real and simulated implementations, the page cache, and I/O accounting
//! by cause. The only crate with `unsafe`.

mod any;
mod append_buf;
mod blocks;
mod boxed;
pub mod buffer;
pub mod cache;
pub mod clock;
pub mod device;
mod lock;
mod open_files;
mod place;
mod portable;
mod prefetch;
mod real;
mod region;
pub mod request;
pub mod sim;
pub mod stats;
#[cfg(target_os = "linux")]
mod uring;

pub use any::{AnyDevice, DeviceKind, DeviceOptions};
pub use append_buf::{AppendBuf, FrozenBytes};
pub use blocks::Blocks;
pub use buffer::AlignedBuf;
pub use cache::{CacheStats, PageCache};
pub use device::{Cause, Completion, Device, DeviceError, FileId, Operation, Token};
pub use lock::DirLock;
pub use portable::PortableDevice;
pub use prefetch::prefetch;
pub use real::RealDevice;
pub use request::Request;
pub use sim::{SimDevice, SimDisk, SimOptions};
pub use stats::{CauseStats, IoStats};
#[cfg(target_os = "linux")]
pub use uring::UringDevice;
