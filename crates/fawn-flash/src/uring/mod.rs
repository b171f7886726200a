//! `UringDevice`: one io_uring per shard, over files opened with `O_DIRECT`.
//!
//! Submissions are written into the ring and submitted by one `io_uring_enter` per kick. They are submitted before the
//! kick if the kernel has few left: otherwise an iteration that collects many reads would leave the device idle.
//! Completions are taken from the completion ring without a system call. The ring's own descriptor becomes readable
//! when completions wait. An idle loop polls it, and no counter is written or read per completion, as with an eventfd.
mod ring;
mod slots;
#[cfg(test)]
mod tests;

use crate::data_dir::DataDir;
use crate::file_device::refused;
use crate::queued_device::{IoQueue, QueuedDevice};
use crate::request::{IoRequest, Work};
use crate::{Completion, DeviceError, DeviceOptions, FileId};
use ring::UringRing;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use slots::{Slots, UringSlot};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::Duration;

/// Minimum number of waiting entries to submit ahead of the kick; fewer are not worth a system call.
const AHEAD_MIN: usize = 4;

/// A device on one ring.
pub type UringDevice = QueuedDevice<UringQueue>;

/// Operations in one ring.
pub struct UringQueue {
    // First, so that it is dropped first: its drop waits until the kernel no longer uses the buffers in `slots`.
    ring: UringRing,
    slots: Slots,
    /// Operations that found the ring full or moved only part of their bytes; they enter the ring first at the next
    /// kick.
    backlog: VecDeque<u32>,
    /// Whether the backlog contains an operation that was already kicked.
    overdue: bool,
}

impl UringDevice {
    /// Opens `dir`, creating it if missing.
    ///
    /// # Errors
    /// If the directory cannot be used, or io_uring or direct I/O does not work there.
    pub fn open(dir: &Path, options: &DeviceOptions) -> Result<Self, DeviceError> {
        let (data_dir, queue) = UringQueue::probe(dir, options)?.map_err(|reason| refused(dir, reason))?;
        Ok(Self::new(data_dir, queue))
    }
}

impl UringQueue {
    /// A ring for `dir`, which is created if missing. The inner error is the reason to use another device.
    pub(crate) fn probe(dir: &Path, options: &DeviceOptions) -> Result<Result<(DataDir, Self), String>, DeviceError> {
        let mut data_dir = DataDir::open(dir, options.descriptors_max)?;
        let probe = match data_dir.try_direct() {
            Ok(probe) => probe,
            Err(reason) => return Ok(Err(reason)),
        };
        let ring = UringRing::new(options.queue_depth).and_then(|mut ring| ring.try_read(&probe).map(|()| ring));
        Ok(ring.map_err(|reason| format!("io_uring does not work: {reason}")).map(|ring| {
            let (slots, backlog) = (Slots::default(), VecDeque::new());
            (data_dir, Self { ring, slots, backlog, overdue: false })
        }))
    }

    /// The kernel options of the ring, for logs.
    pub(crate) fn setup(&self) -> &str {
        self.ring.setup()
    }

    /// Files for which there is memory.
    #[cfg(test)]
    pub(crate) fn file_slots(&self) -> usize {
        self.ring.fixed.slots()
    }

    /// Submits early if half of the ring's entries are waiting, since the device then has less work than it could take.
    /// A queue of `n` operations that complete together thus refills in `log n` calls, each as large as all before it
    /// together.
    fn hand_over_ahead(&mut self, data_dir: &mut DataDir) {
        let waiting = self.ring.unsubmitted();
        if waiting >= AHEAD_MIN && 2 * waiting >= self.ring.in_ring() {
            self.enter(data_dir, 0, None);
        }
    }

    fn push(&mut self, data_dir: &DataDir, index: u32) -> bool {
        let slot = self.slots.get_mut(index);
        let fd = data_dir.fd(slot.request.file);
        self.ring.push(index, slot, fd)
    }

    /// Moves as much of the backlog into the ring as fits.
    fn refill(&mut self, data_dir: &DataDir) {
        while let Some(&index) = self.backlog.front() {
            if !self.push(data_dir, index) {
                break;
            }
            self.backlog.pop_front();
        }
    }

    fn enter(&mut self, data_dir: &mut DataDir, want: usize, limit: Option<Duration>) {
        data_dir.stats.system_calls += 1;
        self.ring.enter(want, limit);
        self.overdue = !self.backlog.is_empty() || self.ring.unsubmitted() > 0;
    }

    /// Submits at once if completions are ready; otherwise the wait that follows submits and waits in one call.
    fn kick_unless_waiting(&mut self, data_dir: &mut DataDir) {
        self.refill(data_dir);
        if self.ring.unsubmitted() > 0 && self.ring.is_ready() {
            self.enter(data_dir, 0, None);
        }
    }

    /// Takes all completions in the completion ring.
    fn drain(&mut self, data_dir: &mut DataDir, out: &mut VecDeque<Completion>) -> usize {
        let before = out.len();
        while let Some((index, result)) = self.ring.pop() {
            self.finish(data_dir, index, result, out);
        }
        out.len() - before
    }

    fn finish(&mut self, data_dir: &mut DataDir, index: u32, result: i32, out: &mut VecDeque<Completion>) {
        let slot = self.slots.get_mut(index);
        let must_resubmit = match slot.advance(result) {
            slots::NextStep::Done => false,
            slots::NextStep::Short => !fill_at_end(data_dir, slot),
            slots::NextStep::Retry => true,
        };
        if must_resubmit {
            self.backlog.push_back(index);
            self.overdue = true;
            return;
        }
        let UringSlot { request, done_bytes } = self.slots.remove(index);
        let failure = match result {
            ..0 => Some(Errno::from_raw_os_error(-result)),
            // A write that moved nothing returns no error code, so it gets a generic one.
            0 if matches!(request.work, Work::Write { .. }) => Some(Errno::IO),
            // A short read is complete only at the end of the file; the rest of its buffer is zeroed.
            0.. => None,
        };
        out.push_back(data_dir.end(request, failure.map_or(Ok(()), |errno| Err((errno, done_bytes)))));
    }
}

/// Completes a short read at the end of the file by zeroing the rest. Returns `false` if there is more to read.
fn fill_at_end(data_dir: &DataDir, slot: &mut UringSlot) -> bool {
    let UringSlot { request, done_bytes } = slot;
    if request.work != Work::Read {
        return false;
    }
    let reached = request.offset + *done_bytes as u64;
    let at_end = data_dir.len(request.file).is_ok_and(|len| reached >= len);
    let stuck = !reached.is_multiple_of(crate::buffer::SECTOR_BYTES as u64);
    if let (true, Some(buf)) = (at_end || stuck, request.memory.buf_mut()) {
        buf[*done_bytes..].fill(0);
    }
    at_end || stuck
}

impl IoQueue for UringQueue {
    fn opened(&mut self, file: FileId, fd: &OwnedFd) {
        self.ring.register(file, fd);
    }

    fn closed(&mut self, file: FileId) {
        self.ring.unregister(file);
    }

    fn submit(&mut self, data_dir: &mut DataDir, request: IoRequest) {
        let index = self.slots.insert(UringSlot { request, done_bytes: 0 });
        if !self.backlog.is_empty() || !self.push(data_dir, index) {
            self.backlog.push_back(index);
        }
        self.hand_over_ahead(data_dir);
    }

    fn kick(&mut self, data_dir: &mut DataDir) {
        self.refill(data_dir);
        if self.ring.unsubmitted() > 0 {
            self.enter(data_dir, 0, None);
        }
    }

    fn reap(&mut self, data_dir: &mut DataDir, out: &mut VecDeque<Completion>) {
        if self.drain(data_dir, out) == 0 && self.ring.has_pending_work() {
            // The kernel delivers these completions only on a system call.
            self.enter(data_dir, 0, None);
            self.drain(data_dir, out);
        }
        if self.overdue {
            self.kick(data_dir);
        }
    }

    fn wait_at_most(&mut self, data_dir: &mut DataDir, limit: Option<Duration>, out: &mut VecDeque<Completion>) {
        self.kick_unless_waiting(data_dir);
        // Ready completions come first. Only if there are none, the system call that submits also waits.
        while self.drain(data_dir, out) == 0 && self.ring.in_ring() > 0 {
            self.refill(data_dir);
            self.enter(data_dir, 1, limit);
            if limit.is_some() {
                self.drain(data_dir, out);
                break;
            }
        }
        if self.overdue {
            self.kick(data_dir);
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.len()
    }

    fn wake_fd(&self) -> RawFd {
        self.ring.fd()
    }

    fn is_overdue(&self) -> bool {
        self.overdue
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}
