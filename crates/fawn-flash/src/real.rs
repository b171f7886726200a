//! `RealDevice`: one directory of the file system, with data operations through a [`Queue`].
//!
//! Names, metadata, accounting and poisoning are the same for all real devices. Only the path of reads, writes and
//! syncs to the system differs: that is the [`Queue`].
use crate::place::Place;
use crate::request::{Request, Work};
use crate::{Completion, Device, DeviceError, FileId, IoStats};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::os::fd::RawFd;

/// Operations in flight in one device; exceeding it means that the caller does not bound them.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// The path of data operations to the system. The methods correspond to those of [`Device`].
pub trait Queue {
    /// Called after a file got a descriptor.
    fn opened(&mut self, _: FileId, _: &OwnedFd) {}
    /// Called after a file's descriptor was closed; nothing is in flight on it.
    fn closed(&mut self, _: FileId) {}
    /// Queues an operation on an open file; its alignment is already checked.
    fn submit(&mut self, place: &mut Place, request: Request);
    /// Submits the queued operations to the system.
    fn kick(&mut self, place: &mut Place);
    /// Appends completed operations to `out`.
    fn reap(&mut self, place: &mut Place, out: &mut VecDeque<Completion>);
    /// Submits the queued operations, and waits for at least one completion if any operation is in flight.
    fn wait(&mut self, place: &mut Place, out: &mut VecDeque<Completion>);
    /// Operations submitted but not reaped.
    fn in_flight(&self) -> usize;
    /// A descriptor that becomes readable when an idle loop should reap.
    fn wake_fd(&self) -> RawFd;
    /// The queue's name for logs.
    fn name(&self) -> &'static str;
}

/// A directory of the file system, accessed through a queue.
pub struct RealDevice<Q> {
    // First, so that it is dropped first: its drop waits until the system no longer uses the buffers and files.
    pub(crate) queue: Q,
    pub(crate) place: Place,
    /// Writes and syncs rejected after a failure, and operations on a file that could not be opened; the next reap
    /// returns them.
    refused: VecDeque<Completion>,
}

impl<Q: Queue> RealDevice<Q> {
    pub(crate) fn new(place: Place, queue: Q) -> Self {
        Self { queue, place, refused: VecDeque::new() }
    }

    /// Makes a call that needs a descriptor more, after closing others where there are too many.
    fn with_descriptor<T>(&mut self, call: impl Fn(&mut Place) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        while self.place.is_crowded() && self.evict() {}
        loop {
            match call(&mut self.place) {
                // The process as a whole is at its limit: another of this device's own makes room.
                Err(DeviceError::Exhausted { .. }) if self.evict() => {}
                result => return result,
            }
        }
    }

    /// Closes the descriptor of a file that is not in use; false if there is none.
    fn evict(&mut self) -> bool {
        let evicted = self.place.evict();
        if let Some(file) = evicted {
            self.queue.closed(file);
        }
        evicted.is_some()
    }

    /// Sees to the file's descriptor before it is used.
    fn ready(&mut self, file: FileId) -> Result<(), DeviceError> {
        if self.place.has_descriptor(file) {
            return Ok(());
        }
        self.with_descriptor(|place| place.reopen(file))?;
        self.queue.opened(file, self.place.fd(file));
        Ok(())
    }

    /// Files of a name that goes away are opened while it leads to them.
    fn ready_named(&mut self, name: &str) -> Result<(), DeviceError> {
        self.place.named(name).into_iter().try_for_each(|file| self.ready(file))
    }

    fn opened(&mut self, file: FileId) -> FileId {
        self.queue.opened(file, self.place.fd(file));
        file
    }
}

impl<Q: Queue> Device for RealDevice<Q> {
    fn list(&mut self) -> Result<Vec<String>, DeviceError> {
        self.place.list()
    }

    fn lock(&mut self) -> Result<(), DeviceError> {
        self.place.lock()
    }

    fn create(&mut self, name: &str) -> Result<FileId, DeviceError> {
        self.with_descriptor(|place| place.create(name)).map(|file| self.opened(file))
    }

    fn open(&mut self, name: &str) -> Result<FileId, DeviceError> {
        self.with_descriptor(|place| place.open_file(name)).map(|file| self.opened(file))
    }

    fn close(&mut self, file: FileId) {
        self.place.close(file);
        self.queue.closed(file);
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.ready_named(to)?;
        self.place.rename(from, to)
    }

    fn link(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.place.link(from, to)
    }

    fn unlink(&mut self, name: &str) -> Result<(), DeviceError> {
        self.ready_named(name)?;
        self.place.unlink(name)
    }

    fn sync_dir(&mut self) -> Result<(), DeviceError> {
        self.place.sync_dir()
    }

    fn len(&mut self, file: FileId) -> Result<u64, DeviceError> {
        self.ready(file)?;
        self.place.len(file)
    }

    fn truncate(&mut self, file: FileId, len_bytes: u64) -> Result<(), DeviceError> {
        self.ready(file)?;
        self.place.truncate(file, len_bytes)
    }

    fn allocate(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.ready(file)?;
        self.place.allocate(file, offset, len_bytes)
    }

    fn punch(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.ready(file)?;
        self.place.punch(file, offset, len_bytes)
    }

    fn free_bytes(&mut self) -> Result<u64, DeviceError> {
        self.place.free_bytes()
    }

    fn submit(&mut self, request: Request) {
        assert!(self.in_flight() < IN_FLIGHT_MAX, "the caller must bound its operations in flight");
        self.place.stats.count(&request);
        if request.work != Work::Read
            && let Err(poisoned) = self.place.healthy()
        {
            self.refused.push_back(request.completion(Err(poisoned)));
            return;
        }
        if let Err(refused) = self.ready(request.file) {
            self.refused.push_back(request.completion(Err(refused)));
            return;
        }
        self.place.begin(&request);
        self.queue.submit(&mut self.place, request);
    }

    fn kick(&mut self) {
        self.queue.kick(&mut self.place);
    }

    fn reap(&mut self, out: &mut VecDeque<Completion>) {
        out.append(&mut self.refused);
        self.queue.reap(&mut self.place, out);
    }

    fn wait(&mut self, out: &mut VecDeque<Completion>) {
        if self.refused.is_empty() {
            self.queue.wait(&mut self.place, out);
        } else {
            self.kick();
            self.reap(out);
        }
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight() + self.refused.len()
    }

    fn wake_fd(&self) -> Option<RawFd> {
        Some(self.queue.wake_fd())
    }

    fn stats(&self) -> &IoStats {
        &self.place.stats
    }

    fn poisoned(&self) -> Option<&DeviceError> {
        self.place.poison.as_ref()
    }

    fn name(&self) -> &'static str {
        self.queue.name()
    }
}
