//! `QueuedDevice`: one directory of the file system, with data operations through a [`IoQueue`].
//!
//! Names, metadata, accounting and poisoning are the same for all real devices. Only the path of reads, writes and
//! syncs to the system differs: that is the [`IoQueue`].
use crate::data_dir::DataDir;
use crate::mapping::FileMapping;
use crate::request::{IoRequest, Work};
use crate::{Completion, Device, DeviceError, FileId, IoStats};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Duration;

/// Operations in flight in one device; exceeding it means that the caller does not bound them.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// The path of data operations to the system. The methods correspond to those of [`Device`].
pub trait IoQueue {
    /// Called after a file got a descriptor.
    fn opened(&mut self, _: FileId, _: &OwnedFd) {}
    /// Called after a file's descriptor was closed; nothing is in flight on it.
    fn closed(&mut self, _: FileId) {}
    /// Queues an operation on an open file; its alignment is already checked.
    fn submit(&mut self, data_dir: &mut DataDir, request: IoRequest);
    /// Submits the queued operations to the system.
    fn kick(&mut self, data_dir: &mut DataDir);
    /// Appends completed operations to `out`.
    fn reap(&mut self, data_dir: &mut DataDir, out: &mut VecDeque<Completion>);
    /// Submits the queued operations. If any operation is in flight, waits for a completion, or until the limit.
    fn wait_at_most(&mut self, data_dir: &mut DataDir, limit: Option<Duration>, out: &mut VecDeque<Completion>);
    /// Operations submitted but not reaped.
    fn in_flight(&self) -> usize;
    /// A descriptor that becomes readable when an idle loop should reap.
    fn wake_fd(&self) -> RawFd;
    /// Whether the system did not accept all kicked operations; the next reap submits them again.
    fn is_overdue(&self) -> bool {
        false
    }
    /// The queue's name for logs.
    fn name(&self) -> &'static str;
}

/// A directory of the file system, accessed through a queue.
pub struct QueuedDevice<Q> {
    // First, so that it is dropped first: its drop waits until the system no longer uses the buffers and files.
    pub(crate) queue: Q,
    pub(crate) data_dir: DataDir,
    mappings: Vec<(FileId, FileMapping)>,
    /// Writes and syncs rejected after a failure, and operations on a file that could not be opened; the next reap
    /// returns them.
    refused: VecDeque<Completion>,
}

impl<Q: IoQueue> QueuedDevice<Q> {
    pub(crate) fn new(data_dir: DataDir, queue: Q) -> Self {
        Self { queue, data_dir, mappings: Vec::new(), refused: VecDeque::new() }
    }

    /// Makes a call that needs another descriptor, after closing others if there are too many.
    fn with_descriptor<T>(&mut self, call: impl Fn(&mut DataDir) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        while self.data_dir.is_crowded() && self.evict() {}
        loop {
            match call(&mut self.data_dir) {
                // The process is at its limit: close another descriptor of this device, and retry.
                Err(DeviceError::Exhausted { .. }) if self.evict() => {}
                result => return result,
            }
        }
    }

    /// Closes the descriptor of a file that is not in use; false if there is none.
    fn evict(&mut self) -> bool {
        let evicted = self.data_dir.evict();
        if let Some(file) = evicted {
            self.queue.closed(file);
        }
        evicted.is_some()
    }

    /// Sees to the file's descriptor before it is used.
    fn ready(&mut self, file: FileId) -> Result<(), DeviceError> {
        if self.data_dir.has_descriptor(file) {
            return Ok(());
        }
        self.with_descriptor(|data_dir| data_dir.reopen(file))?;
        self.queue.opened(file, self.data_dir.fd(file));
        Ok(())
    }

    /// Files of a name that goes away are opened while it leads to them.
    fn ready_named(&mut self, name: &str) -> Result<(), DeviceError> {
        self.data_dir.named(name).into_iter().try_for_each(|file| self.ready(file))
    }

    fn opened(&mut self, file: FileId) -> FileId {
        self.queue.opened(file, self.data_dir.fd(file));
        file
    }
}

impl<Q: IoQueue> Device for QueuedDevice<Q> {
    fn list(&mut self) -> Result<Vec<String>, DeviceError> {
        self.data_dir.list()
    }

    fn lock(&mut self) -> Result<(), DeviceError> {
        self.data_dir.lock()
    }

    fn create(&mut self, name: &str) -> Result<FileId, DeviceError> {
        self.with_descriptor(|data_dir| data_dir.create(name)).map(|file| self.opened(file))
    }

    fn open(&mut self, name: &str) -> Result<FileId, DeviceError> {
        self.with_descriptor(|data_dir| data_dir.open_file(name)).map(|file| self.opened(file))
    }

    fn begin_writes(&mut self, file: FileId) -> Result<(), DeviceError> {
        self.ready(file)?;
        self.data_dir.set_writable(file, true);
        Ok(())
    }

    fn end_writes(&mut self, file: FileId) {
        self.data_dir.set_writable(file, false);
    }

    fn close(&mut self, file: FileId) {
        self.mappings.retain(|(mapped, _)| *mapped != file);
        self.data_dir.close(file);
        self.queue.closed(file);
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.ready_named(to)?;
        self.data_dir.rename(from, to)
    }

    fn exchange(&mut self, one: &str, other: &str) -> Result<bool, DeviceError> {
        self.data_dir.exchange(one, other)
    }

    fn link(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.data_dir.link(from, to)
    }

    fn unlink(&mut self, name: &str) -> Result<(), DeviceError> {
        self.ready_named(name)?;
        self.data_dir.unlink(name)
    }

    fn sync_dir(&mut self) -> Result<(), DeviceError> {
        self.data_dir.sync_dir()
    }

    fn len(&mut self, file: FileId) -> Result<u64, DeviceError> {
        self.ready(file)?;
        self.data_dir.len(file)
    }

    fn truncate(&mut self, file: FileId, len_bytes: u64) -> Result<(), DeviceError> {
        self.ready(file)?;
        self.data_dir.truncate(file, len_bytes)
    }

    fn allocate(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.ready(file)?;
        self.data_dir.allocate(file, offset, len_bytes)
    }

    fn punch(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.ready(file)?;
        self.data_dir.punch(file, offset, len_bytes)
    }

    fn map(&mut self, file: FileId, len_bytes: usize) -> Result<(), DeviceError> {
        self.ready(file)?;
        let mapping = self.data_dir.map(file, len_bytes)?;
        self.mappings.retain(|(mapped, _)| *mapped != file);
        self.mappings.push((file, mapping));
        Ok(())
    }

    fn store(&mut self, file: FileId, offset: u64, bytes: &[u8]) {
        let mapping = self.mappings.iter_mut().find(|(mapped, _)| *mapped == file);
        let Some((_, mapping)) = mapping else { panic!("{file:?} is not mapped") };
        mapping.store(offset as usize, bytes);
    }

    fn free_bytes(&mut self) -> Result<u64, DeviceError> {
        self.data_dir.free_bytes()
    }

    fn submit(&mut self, request: IoRequest) {
        assert!(self.in_flight() < IN_FLIGHT_MAX, "the caller must bound its operations in flight");
        self.data_dir.stats.count(&request);
        if request.work != Work::Read
            && let Err(poisoned) = self.data_dir.healthy()
        {
            self.refused.push_back(request.completion(Err(poisoned)));
            return;
        }
        if request.work != Work::SyncDir
            && let Err(refused) = self.ready(request.file)
        {
            self.refused.push_back(request.completion(Err(refused)));
            return;
        }
        self.data_dir.begin(&request);
        self.queue.submit(&mut self.data_dir, request);
    }

    fn kick(&mut self) {
        self.queue.kick(&mut self.data_dir);
    }

    fn reap(&mut self, out: &mut VecDeque<Completion>) {
        out.append(&mut self.refused);
        self.queue.reap(&mut self.data_dir, out);
    }

    fn wait_at_most(&mut self, limit: Option<Duration>, out: &mut VecDeque<Completion>) {
        if self.refused.is_empty() {
            self.queue.wait_at_most(&mut self.data_dir, limit, out);
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

    fn has_unsignalled(&self) -> bool {
        !self.refused.is_empty() || self.queue.is_overdue()
    }

    fn stats(&self) -> &IoStats {
        &self.data_dir.stats
    }

    fn poisoned(&self) -> Option<&DeviceError> {
        self.data_dir.poison.as_ref()
    }

    fn name(&self) -> &'static str {
        self.queue.name()
    }
}
