//! Choice of the device at start: io_uring if a probe succeeds, else the thread pool; logged with the reason.
use crate::data_dir::DataDir;
use crate::portable::{PoolQueue, PortableDevice};
use crate::queued_device::{IoQueue, QueuedDevice};
#[cfg(target_os = "linux")]
use crate::uring::UringQueue;
use crate::{Completion, DeviceError, FileId, IoRequest};
use rustix::fd::OwnedFd;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::Duration;

/// Default number of open descriptors: below the usual soft limit of 1,024, even for two devices.
const DESCRIPTORS_MIN: usize = 384;
/// With a higher limit: one in so many of it, because connections and other stores need some, too.
const DESCRIPTORS_SHARE: usize = 64;
/// As many as a store has segments at most.
const DESCRIPTORS_MAX: usize = 1 << 14;

/// Descriptors that the process may have; `None`: any number.
#[must_use]
pub fn descriptors_limit() -> Option<usize> {
    getrlimit(Resource::Nofile).current.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Default number of open descriptors if the process may have `limit`; `None`: any number. Opening a file again takes longer than a
/// read from it, so a large store should keep all its segments open.
fn descriptors_of(limit: Option<usize>) -> usize {
    let share = limit.map_or(DESCRIPTORS_MAX, |limit| limit / DESCRIPTORS_SHARE);
    share.clamp(DESCRIPTORS_MIN, DESCRIPTORS_MAX)
}

/// The requested kind of device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceKind {
    /// io_uring with direct I/O where both work, else the portable device.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// The thread pool.
    Portable,
}

/// Options for opening a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Entries of the submission ring. More operations may be in flight; they are submitted by later calls.
    pub queue_depth: u32,
    /// Threads of the portable device.
    pub threads: usize,
    /// Bypass the system's page cache where possible. io_uring always does. Otherwise cached data is in memory twice.
    pub direct: bool,
    /// Files that have a descriptor at a time; others are opened again when they are used. More have one while they are
    /// in use, are still to be written, or are not synced; fewer where the process has no descriptor left. By default a
    /// sixty-fourth of the process's limit, 384 at least.
    pub descriptors_max: usize,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        let descriptors_max = descriptors_of(descriptors_limit());
        Self { kind: DeviceKind::Auto, queue_depth: 256, threads: 8, direct: true, descriptors_max }
    }
}

/// A device whose queue is chosen at run time.
pub type FileDevice = QueuedDevice<AnyQueue>;

/// Any of the queues, dispatched by a branch.
#[expect(
    clippy::large_enum_variant,
    reason = "one per shard, moved once; a box would cost an indirection per operation"
)]
pub enum AnyQueue {
    /// io_uring.
    #[cfg(target_os = "linux")]
    Uring(UringQueue),
    /// A thread pool.
    Portable(PoolQueue),
}

impl FileDevice {
    /// Opens `dir`, creating it if missing, with the best device that works there.
    ///
    /// # Errors
    /// If the directory cannot be used, or the requested kind does not work there.
    pub fn open(dir: &Path, options: &DeviceOptions) -> Result<Self, DeviceError> {
        if options.kind != DeviceKind::Portable {
            match Self::open_uring(dir, options)? {
                Ok(device) => return Ok(device),
                Err(reason) if options.kind == DeviceKind::Uring => return Err(refused(dir, reason)),
                Err(reason) => {
                    tracing::warn!(dir = %dir.display(), device = "portable", reason, "device chosen");
                    return Self::portable(dir, options);
                }
            }
        }
        tracing::info!(dir = %dir.display(), device = "portable", reason = "requested", "device chosen");
        Self::portable(dir, options)
    }

    fn portable(dir: &Path, options: &DeviceOptions) -> Result<Self, DeviceError> {
        let QueuedDevice { queue, data_dir, .. } = PortableDevice::open(dir, options)?;
        Ok(Self::new(data_dir, AnyQueue::Portable(queue)))
    }

    #[cfg(target_os = "linux")]
    fn open_uring(dir: &Path, options: &DeviceOptions) -> Result<Result<Self, String>, DeviceError> {
        let probed = UringQueue::probe(dir, options)?;
        if let Ok((_, queue)) = &probed {
            let setup = queue.setup();
            tracing::info!(dir = %dir.display(), device = "io_uring", setup, reason = "works with O_DIRECT", "device chosen");
        }
        Ok(probed.map(|(data_dir, queue)| Self::new(data_dir, AnyQueue::Uring(queue))))
    }

    #[cfg(not(target_os = "linux"))]
    fn open_uring(_: &Path, _: &DeviceOptions) -> Result<Result<Self, String>, DeviceError> {
        Ok(Err("this system has no io_uring".to_owned()))
    }
}

pub(crate) fn refused(dir: &Path, detail: String) -> DeviceError {
    let operation = crate::IoOperation::Metadata("set up io_uring");
    let detail = format!("{detail}; choose `auto` or `portable` where the system refuses it");
    DeviceError::Io { operation, name: dir.display().to_string(), offset: 0, detail }
}

/// Calls the same method on the queue in use.
macro_rules! either {
    ($self:expr, $queue:ident => $call:expr) => {
        match $self {
            #[cfg(target_os = "linux")]
            AnyQueue::Uring($queue) => $call,
            AnyQueue::Portable($queue) => $call,
        }
    };
}

impl IoQueue for AnyQueue {
    fn opened(&mut self, file: FileId, fd: &OwnedFd) {
        either!(self, queue => queue.opened(file, fd));
    }
    fn closed(&mut self, file: FileId) {
        either!(self, queue => queue.closed(file));
    }
    fn submit(&mut self, data_dir: &mut DataDir, request: IoRequest) {
        either!(self, queue => queue.submit(data_dir, request));
    }
    fn kick(&mut self, data_dir: &mut DataDir) {
        either!(self, queue => queue.kick(data_dir));
    }
    fn reap(&mut self, data_dir: &mut DataDir, out: &mut VecDeque<Completion>) {
        either!(self, queue => queue.reap(data_dir, out));
    }
    fn wait_at_most(&mut self, data_dir: &mut DataDir, limit: Option<Duration>, out: &mut VecDeque<Completion>) {
        either!(self, queue => queue.wait_at_most(data_dir, limit, out));
    }
    fn in_flight(&self) -> usize {
        either!(self, queue => queue.in_flight())
    }
    fn wake_fd(&self) -> RawFd {
        either!(self, queue => queue.wake_fd())
    }
    fn is_overdue(&self) -> bool {
        either!(self, queue => queue.is_overdue())
    }
    fn name(&self) -> &'static str {
        either!(self, queue => queue.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    /// A device lives as long as its process, and a full store creates a file that it cannot allocate again and again.
    #[test]
    fn files_that_are_gone_take_no_memory() {
        for kind in [DeviceKind::Auto, DeviceKind::Portable] {
            let Ok(dir) = tempfile::tempdir() else { panic!("no directory for the test") };
            let options = DeviceOptions { kind, ..DeviceOptions::default() };
            let Ok(mut device) = FileDevice::open(dir.path(), &options) else { panic!("no device") };
            let mut last = None;
            for _ in 0..3000 {
                let Ok(file) = device.create("f") else { panic!("a directory without the file") };
                assert!(last < Some(file), "an ID is used twice");
                last = Some(file);
                device.close(file);
                assert!(device.unlink("f").is_ok());
            }
            assert!(device.data_dir.file_slots() <= 64, "{kind:?}: {}", device.data_dir.file_slots());
            #[cfg(target_os = "linux")]
            if let AnyQueue::Uring(queue) = &device.queue {
                assert!(queue.file_slots() <= 64, "{}", queue.file_slots());
            }
        }
    }

    #[test]
    fn a_high_limit_lets_a_store_keep_all_its_segments_open() {
        assert_eq!([Some(256), Some(1024), Some(20_000)].map(descriptors_of), [384; 3]);
        assert_eq!(descriptors_of(Some(65_536)), 1024);
        assert_eq!([Some(1 << 20), Some(1 << 30), None].map(descriptors_of), [16_384; 3]);
    }
}
