//! Owns `PortableDevice`: positioned reads and writes on a small pool of threads, for macOS and for containers that
//! refuse io_uring. The same semantics as the ring's, at the price of two thread switches per operation.
mod pool;

use crate::place::{IN_FLIGHT_MAX, Place, assert_aligned, metadata_by_place};
use crate::{AlignedBuf, Cause, Completion, Device, DeviceError, DeviceOptions, FileId, IoStats, Operation, Token};
use pool::{Done, Job, Pool, Work};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;

/// A device of blocking calls on a pool.
pub struct PortableDevice {
    place: Place,
    pool: Pool,
    /// Submitted, not yet kicked.
    queued: Vec<Job>,
    /// Refused at submission; they come back with the next reap.
    refused: VecDeque<Completion>,
    in_flight: usize,
}

impl PortableDevice {
    /// Opens `dir`, creating it if missing. Bypasses the system's page cache where it can.
    ///
    /// # Errors
    /// When the directory cannot be opened or no thread started.
    pub fn open(dir: &Path, options: &DeviceOptions) -> Result<Self, DeviceError> {
        let mut place = Place::open(dir)?;
        if options.direct
            && let Err(reason) = place.try_direct().map(drop)
        {
            tracing::info!(dir = place.path(), reason, "reads and writes go through the system's page cache");
        }
        let pool = Pool::start(options.threads.max(1)).map_err(|error| DeviceError::Io {
            operation: Operation::Metadata("start the pool"),
            name: place.path().to_owned(),
            offset: 0,
            detail: error.to_string(),
        })?;
        Ok(Self { place, pool, queued: Vec::new(), refused: VecDeque::new(), in_flight: 0 })
    }

    fn submit(&mut self, file: FileId, work: Work, offset: u64, buf: Option<AlignedBuf>, token: Token) {
        assert!(self.in_flight < IN_FLIGHT_MAX, "the caller bounds what it submits");
        self.in_flight += 1;
        if work != Work::Read
            && let Err(poisoned) = self.place.healthy()
        {
            self.refused.push_back(Completion { token, result: Err(poisoned), buf });
            return;
        }
        let open = self.place.file_mut(file);
        open.in_flight += 1;
        self.queued.push(Job { fd: Arc::clone(&open.fd), file, work, offset, buf, token });
    }

    fn finish(&mut self, done: Done, out: &mut VecDeque<Completion>) {
        let Done { job, result } = done;
        self.place.file_mut(job.file).in_flight -= 1;
        let operation = match job.work {
            Work::Read => Operation::Read,
            Work::Write { .. } => Operation::Write,
            Work::Sync => Operation::Sync,
        };
        let name = &self.place.file(job.file).name;
        let result = result.map_err(|errno| self.place.error(errno, operation, name, job.offset));
        let result = if job.work == Work::Read { result } else { self.place.judge(result) };
        out.push_back(Completion { token: job.token, result, buf: job.buf });
    }

    fn collect(&mut self, done: VecDeque<Done>, out: &mut VecDeque<Completion>) {
        let before = out.len();
        out.append(&mut self.refused);
        for done in done {
            self.finish(done, out);
        }
        self.in_flight -= out.len() - before;
    }
}

impl Device for PortableDevice {
    metadata_by_place!();

    fn create(&mut self, name: &str) -> Result<FileId, DeviceError> {
        self.place.create(name)
    }

    fn open(&mut self, name: &str) -> Result<FileId, DeviceError> {
        self.place.open_file(name)
    }

    fn close(&mut self, file: FileId) {
        self.place.close(file);
    }

    fn submit_read(&mut self, file: FileId, offset: u64, buf: AlignedBuf, cause: Cause, token: Token) {
        assert_aligned(offset, buf.len());
        self.place.stats.count_read(cause, buf.len());
        self.submit(file, Work::Read, offset, Some(buf), token);
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
        assert_aligned(offset, len_bytes);
        assert!(len_bytes <= buf.len());
        self.place.stats.count_write(cause, len_bytes);
        self.submit(file, Work::Write { len_bytes, durable: false }, offset, Some(buf), token);
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
        assert_aligned(offset, len_bytes);
        assert!(len_bytes <= buf.len());
        self.place.stats.count_write(cause, len_bytes);
        self.place.stats.count_sync(cause);
        self.submit(file, Work::Write { len_bytes, durable: true }, offset, Some(buf), token);
    }

    fn submit_sync(&mut self, file: FileId, cause: Cause, token: Token) {
        self.place.stats.count_sync(cause);
        self.submit(file, Work::Sync, 0, None, token);
    }

    fn kick(&mut self) {
        if !self.queued.is_empty() {
            self.place.stats.system_calls += 1;
            self.pool.run(&mut self.queued);
        }
    }

    fn reap(&mut self, out: &mut VecDeque<Completion>) {
        let done = self.pool.take();
        self.collect(done, out);
    }

    fn wait(&mut self, out: &mut VecDeque<Completion>) {
        self.kick();
        let on_their_way = self.in_flight > self.refused.len();
        let done = if on_their_way && self.refused.is_empty() { self.pool.wait() } else { self.pool.take() };
        self.collect(done, out);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn wake_fd(&self) -> Option<RawFd> {
        Some(self.pool.wake_fd())
    }

    fn name(&self) -> &'static str {
        "portable"
    }
}
