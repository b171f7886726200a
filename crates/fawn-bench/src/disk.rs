//! The device of the in-process levels: the one that a server on this machine would choose.
use crate::BenchError;
use fawn_flash::{DeviceOptions, FileDevice};
use std::path::Path;

/// Opens the device of `dir` for up to `depth` requests in flight.
///
/// # Errors
/// If the directory cannot be used.
pub fn open(dir: &Path, depth: usize) -> Result<FileDevice, BenchError> {
    let mut options = DeviceOptions::default();
    options.queue_depth = options.queue_depth.max(u32::try_from(depth).unwrap_or(u32::MAX));
    Ok(FileDevice::open(dir, &options)?)
}
