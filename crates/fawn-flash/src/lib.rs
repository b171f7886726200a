//! Storage boundary: the `Device` trait with its real and simulated implementations, the page cache, and I/O accounting
//! by I/O class. The only crate with `unsafe`.

mod append_buf;
mod blocks;
mod boxed;
pub mod buffer;
pub mod cache;
pub mod clock;
mod data_dir;
pub mod device;
mod file_device;
mod file_table;
mod lock;
mod mapping;
mod open_files;
mod portable;
mod prefetch;
mod queued_device;
mod region;
pub mod request;
pub mod sim;
pub mod stats;
mod unlinked;
#[cfg(target_os = "linux")]
mod uring;

pub use append_buf::{AppendBuf, FrozenBytes};
pub use blocks::Blocks;
pub use buffer::AlignedBuf;
pub use cache::{CacheStats, PageCache};
pub use data_dir::{create_dirs, hard_link, io_error};
pub use device::{Completion, Device, DeviceError, FileId, IoClass, IoOperation, Token};
pub use file_device::{DeviceKind, DeviceOptions, FileDevice, descriptors_limit};
pub use lock::DirLock;
pub use portable::PortableDevice;
pub use prefetch::prefetch;
pub use queued_device::QueuedDevice;
pub use region::prefer_huge_pages;
pub use request::IoRequest;
pub use sim::{SimDevice, SimDisk, SimOptions};
pub use stats::{IoClassStats, IoStats};
#[cfg(target_os = "linux")]
pub use uring::UringDevice;
