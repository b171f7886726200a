//! Owns `PortableDevice`: positioned reads and writes on a small pool of threads, for macOS and for containers that
//! refuse io_uring. The same semantics as the ring's, at the price of two thread switches per operation.
mod pool;

use crate::place::Place;
use crate::real::{Queue, RealDevice};
use crate::{Completion, DeviceError, DeviceOptions, Operation, Request};
use pool::{Done, Job, Pool};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;

/// A device of blocking calls on a pool.
pub type PortableDevice = RealDevice<PoolQueue>;

/// Operations that a pool's threads run.
pub struct PoolQueue {
    pool: Pool,
    /// Submitted, not yet kicked.
    queued: Vec<Job>,
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
        Ok(Self::new(place, PoolQueue { pool, queued: Vec::new(), in_flight: 0 }))
    }
}

impl PoolQueue {
    fn collect(&mut self, place: &mut Place, done: VecDeque<Done>, out: &mut VecDeque<Completion>) {
        self.in_flight -= done.len();
        out.extend(
            done.into_iter().map(|Done { job, result }| place.end(job.request, result.map_err(|errno| (errno, 0)))),
        );
    }
}

impl Queue for PoolQueue {
    fn submit(&mut self, place: &mut Place, request: Request) {
        self.in_flight += 1;
        let fd = Arc::clone(&place.file(request.file).fd);
        self.queued.push(Job { fd, request });
    }

    fn kick(&mut self, place: &mut Place) {
        if !self.queued.is_empty() {
            place.stats.system_calls += 1;
            self.pool.run(&mut self.queued);
        }
    }

    fn reap(&mut self, place: &mut Place, out: &mut VecDeque<Completion>) {
        let done = self.pool.take();
        self.collect(place, done, out);
    }

    fn wait(&mut self, place: &mut Place, out: &mut VecDeque<Completion>) {
        self.kick(place);
        let done = if self.in_flight > 0 { self.pool.wait() } else { self.pool.take() };
        self.collect(place, done, out);
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
