//! Owns the choice between the real devices: a probe at start, its result and reason in the log.
use crate::portable::PortableDevice;
#[cfg(target_os = "linux")]
use crate::uring::UringDevice;
use crate::{AlignedBuf, Cause, Completion, Device, DeviceError, FileId, IoStats, Token};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::path::Path;

/// Which device is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceKind {
    /// io_uring with direct I/O where both work, else the portable one.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// The pool of threads.
    Portable,
}

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Which one.
    pub kind: DeviceKind,
    /// Entries of the submission ring. More operations may be in flight; they go in further turns.
    pub queue_depth: u32,
    /// Threads of the portable device.
    pub threads: usize,
    /// Bypass the system's page cache where that works. The ring always does; without it memory is used twice.
    pub direct: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { kind: DeviceKind::Auto, queue_depth: 256, threads: 8, direct: true }
    }
}

/// One of the real devices, dispatched by a branch.
#[expect(clippy::large_enum_variant, reason = "one per shard, moved once; a box would cost a look-up per operation")]
pub enum AnyDevice {
    /// io_uring.
    #[cfg(target_os = "linux")]
    Uring(UringDevice),
    /// A pool of threads.
    Portable(PortableDevice),
}

impl AnyDevice {
    /// Opens `dir`, creating it if missing, with the best device that works there.
    ///
    /// # Errors
    /// When the directory cannot be used, or the kind that was asked for does not work there.
    pub fn open(dir: &Path, options: &DeviceOptions) -> Result<Self, DeviceError> {
        if options.kind != DeviceKind::Portable {
            match Self::open_uring(dir, options)? {
                Ok(device) => return Ok(device),
                Err(reason) if options.kind == DeviceKind::Uring => return Err(refused(dir, reason)),
                Err(reason) => {
                    tracing::warn!(dir = %dir.display(), device = "portable", reason, "device chosen");
                    return PortableDevice::open(dir, options).map(Self::Portable);
                }
            }
        }
        tracing::info!(dir = %dir.display(), device = "portable", reason = "asked for", "device chosen");
        PortableDevice::open(dir, options).map(Self::Portable)
    }

    #[cfg(target_os = "linux")]
    fn open_uring(dir: &Path, options: &DeviceOptions) -> Result<Result<Self, String>, DeviceError> {
        let device = UringDevice::probe(dir, options)?;
        if let Ok(device) = &device {
            let setup = device.setup();
            tracing::info!(dir = %dir.display(), device = "io_uring", setup, reason = "works with O_DIRECT", "device chosen");
        }
        Ok(device.map(Self::Uring))
    }

    #[cfg(not(target_os = "linux"))]
    fn open_uring(_: &Path, _: &DeviceOptions) -> Result<Result<Self, String>, DeviceError> {
        Ok(Err("this system has no io_uring".to_owned()))
    }
}

pub(crate) fn refused(dir: &Path, detail: String) -> DeviceError {
    let operation = crate::Operation::Metadata("set up io_uring");
    let detail = format!("{detail}; choose `auto` or `portable` where the system refuses it");
    DeviceError::Io { operation, name: dir.display().to_string(), offset: 0, detail }
}

/// Calls the same method of whichever it is.
macro_rules! either {
    ($self:expr, $device:ident => $call:expr) => {
        match $self {
            #[cfg(target_os = "linux")]
            AnyDevice::Uring($device) => $call,
            AnyDevice::Portable($device) => $call,
        }
    };
}

impl Device for AnyDevice {
    fn list(&mut self) -> Result<Vec<String>, DeviceError> {
        either!(self, device => device.list())
    }
    fn lock(&mut self) -> Result<(), DeviceError> {
        either!(self, device => device.lock())
    }
    fn create(&mut self, name: &str) -> Result<FileId, DeviceError> {
        either!(self, device => device.create(name))
    }
    fn open(&mut self, name: &str) -> Result<FileId, DeviceError> {
        either!(self, device => Device::open(device, name))
    }
    fn close(&mut self, file: FileId) {
        either!(self, device => device.close(file));
    }
    fn rename(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        either!(self, device => device.rename(from, to))
    }
    fn link(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        either!(self, device => device.link(from, to))
    }
    fn unlink(&mut self, name: &str) -> Result<(), DeviceError> {
        either!(self, device => device.unlink(name))
    }
    fn sync_dir(&mut self) -> Result<(), DeviceError> {
        either!(self, device => device.sync_dir())
    }
    fn len(&mut self, file: FileId) -> Result<u64, DeviceError> {
        either!(self, device => device.len(file))
    }
    fn truncate(&mut self, file: FileId, len_bytes: u64) -> Result<(), DeviceError> {
        either!(self, device => device.truncate(file, len_bytes))
    }
    fn allocate(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        either!(self, device => device.allocate(file, offset, len_bytes))
    }
    fn punch(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        either!(self, device => device.punch(file, offset, len_bytes))
    }
    fn free_bytes(&mut self) -> Result<u64, DeviceError> {
        either!(self, device => device.free_bytes())
    }
    fn submit_read(&mut self, file: FileId, offset: u64, buf: AlignedBuf, cause: Cause, token: Token) {
        either!(self, device => device.submit_read(file, offset, buf, cause, token));
    }
    fn submit_write(
        &mut self,
        file: FileId,
        offset: u64,
        buf: AlignedBuf,
        len_bytes: usize,
        cause: Cause,
        token: Token,
    ) {
        either!(self, device => device.submit_write(file, offset, buf, len_bytes, cause, token));
    }
    fn submit_write_durable(
        &mut self,
        file: FileId,
        offset: u64,
        buf: AlignedBuf,
        len_bytes: usize,
        cause: Cause,
        token: Token,
    ) {
        either!(self, device => device.submit_write_durable(file, offset, buf, len_bytes, cause, token));
    }
    fn submit_sync(&mut self, file: FileId, cause: Cause, token: Token) {
        either!(self, device => device.submit_sync(file, cause, token));
    }
    fn kick(&mut self) {
        either!(self, device => device.kick());
    }
    fn reap(&mut self, out: &mut VecDeque<Completion>) {
        either!(self, device => device.reap(out));
    }
    fn wait(&mut self, out: &mut VecDeque<Completion>) {
        either!(self, device => device.wait(out));
    }
    fn in_flight(&self) -> usize {
        either!(self, device => device.in_flight())
    }
    fn wake_fd(&self) -> Option<RawFd> {
        either!(self, device => device.wake_fd())
    }
    fn stats(&self) -> &IoStats {
        either!(self, device => device.stats())
    }
    fn poisoned(&self) -> Option<&DeviceError> {
        either!(self, device => device.poisoned())
    }
    fn name(&self) -> &'static str {
        either!(self, device => device.name())
    }
}
