//! `PortableDevice`: positioned reads and writes on a thread pool, where io_uring is not available. For macOS, and for
//! containers that forbid io_uring. The semantics are those of the ring, at the cost of two thread switches per
//! operation.
mod pool;

use crate::data_dir::DataDir;
use crate::queued_device::{IoQueue, QueuedDevice};
use crate::{Completion, DeviceError, DeviceOptions, IoOperation, IoRequest};
use pool::{Pool, PoolCompletion, PoolJob};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A device that makes blocking calls on a thread pool.
pub type PortableDevice = QueuedDevice<PoolQueue>;

/// Operations executed by a thread pool.
pub struct PoolQueue {
    pool: Pool,
    /// Submitted, but not kicked.
    queued: Vec<PoolJob>,
    in_flight: usize,
}

impl PortableDevice {
    /// Opens `dir`, creating it if missing. Bypasses the system's page cache where possible.
    ///
    /// # Errors
    /// If the directory cannot be opened or a thread cannot be started.
    pub fn open(dir: &Path, options: &DeviceOptions) -> Result<Self, DeviceError> {
        let mut data_dir = DataDir::open(dir, options.descriptors_max)?;
        if options.direct
            && let Err(reason) = data_dir.try_direct().map(drop)
        {
            tracing::info!(dir = data_dir.path(), reason, "reads and writes go through the system's page cache");
        }
        let pool = Pool::start(options.threads.max(2)).map_err(|error| DeviceError::Io {
            operation: IoOperation::Metadata("start the pool"),
            name: data_dir.path().to_owned(),
            offset: 0,
            detail: error.to_string(),
        })?;
        Ok(Self::new(data_dir, PoolQueue { pool, queued: Vec::new(), in_flight: 0 }))
    }
}

impl PoolQueue {
    fn collect(&mut self, data_dir: &mut DataDir, done: VecDeque<PoolCompletion>, out: &mut VecDeque<Completion>) {
        self.in_flight -= done.len();
        out.extend(
            done.into_iter()
                .map(|PoolCompletion { job, result }| data_dir.end(job.request, result.map_err(|errno| (errno, 0)))),
        );
    }
}

impl IoQueue for PoolQueue {
    fn submit(&mut self, data_dir: &mut DataDir, request: IoRequest) {
        self.in_flight += 1;
        let fd = Arc::clone(data_dir.fd(request.file));
        self.queued.push(PoolJob { fd, request });
    }

    fn kick(&mut self, data_dir: &mut DataDir) {
        if !self.queued.is_empty() {
            data_dir.stats.system_calls += 1;
            self.pool.run(&mut self.queued);
        }
    }

    fn reap(&mut self, data_dir: &mut DataDir, out: &mut VecDeque<Completion>) {
        let done = self.pool.take();
        self.collect(data_dir, done, out);
    }

    fn wait_at_most(&mut self, data_dir: &mut DataDir, limit: Option<Duration>, out: &mut VecDeque<Completion>) {
        self.kick(data_dir);
        let done = if self.in_flight > 0 { self.pool.wait_at_most(limit) } else { self.pool.take() };
        self.collect(data_dir, done, out);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn wake_fd(&self) -> RawFd {
        self.pool.wake_fd()
    }

    fn name(&self) -> &'static str {
        "portable"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, Device, IoClass, Token};

    fn end(device: &mut PortableDevice) -> Completion {
        let mut out = VecDeque::new();
        while out.is_empty() {
            device.wait(&mut out);
        }
        out.pop_front().unwrap_or_else(|| panic!("an end"))
    }

    /// A check of a corrupt file system needs this: reads work, writes fail, and the errors state the reason.
    #[test]
    fn a_read_only_file_system_is_read() {
        let Ok(dir) = tempfile::tempdir() else { panic!("no directory for the test") };
        assert!(std::fs::write(dir.path().join("f"), [7; 4096]).is_ok());
        let Ok(mut device) = PortableDevice::open(dir.path(), &DeviceOptions::default()) else { panic!("no device") };
        device.data_dir.take_for_read_only();
        let Ok(file) = Device::open(&mut device, "f") else { panic!("the file must open for reading") };
        device.submit_read(file, 0, AlignedBuf::zeroed(4096), IoClass::Foreground, Token(1));
        let read = end(&mut device);
        assert!(read.result.is_ok() && read.buf.is_some_and(|buf| buf.iter().all(|byte| *byte == 7)));
        device.submit_write(file, 0, AlignedBuf::zeroed(4096), 4096, IoClass::Flush, Token(2));
        let refusals = [end(&mut device).result.map(drop), device.create("g").map(drop), device.truncate(file, 0)];
        for refusal in refusals {
            assert!(matches!(&refusal, Err(error) if error.to_string().contains("mounted read-only")), "{refusal:?}");
        }
        assert!(device.poisoned().is_none(), "no write was attempted");
    }
}
