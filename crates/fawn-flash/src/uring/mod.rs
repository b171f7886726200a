//! Owns `UringDevice`: one io_uring per shard over files opened with `O_DIRECT`.
//!
//! Submissions are written into the ring and handed over by one `io_uring_enter` per kick, or before it when the kernel
//! has run low: a turn that gathers a whole queue's worth of reads would let the device idle meanwhile. Completions are
//! taken from the completion ring without a system call. The ring's own descriptor becomes readable when completions wait, so an
//! idle loop polls that and no counter has to be written or read per completion, as an eventfd would.
mod ring;
mod slots;
#[cfg(test)]
mod tests;

use crate::any::refused;
use crate::place::{Place, assert_aligned, metadata_by_place};
use crate::{AlignedBuf, Cause, Completion, Device, DeviceError, DeviceOptions, FileId, IoStats, Operation, Token};
use ring::Ring;
use rustix::io::Errno;
use slots::{Slot, Slots, Work};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::path::Path;

/// So many wait before they are handed over ahead of the kick: fewer are not worth a system call of their own.
const AHEAD_MIN: usize = 4;

/// A device of one ring.
pub struct UringDevice {
    // First, so that it is dropped first: it waits for the kernel to let go of the buffers in `slots`.
    ring: Ring,
    place: Place,
    slots: Slots,
    /// Operations that found the ring full, or that moved only a part; they go in first with the next turn.
    backlog: VecDeque<u32>,
    /// The backlog holds something that was kicked already.
    overdue: bool,
    refused: VecDeque<Completion>,
}

impl UringDevice {
    /// Opens `dir`, creating it if missing.
    ///
    /// # Errors
    /// When the directory cannot be used, or io_uring or direct I/O does not work there.
    pub fn open(dir: &Path, options: &DeviceOptions) -> Result<Self, DeviceError> {
        Self::probe(dir, options)?.map_err(|reason| refused(dir, reason))
    }

    /// As [`UringDevice::open`]; the inner error says why another device should be used here.
    pub(crate) fn probe(dir: &Path, options: &DeviceOptions) -> Result<Result<Self, String>, DeviceError> {
        let mut place = Place::open(dir)?;
        let probe = match place.try_direct() {
            Ok(probe) => probe,
            Err(reason) => return Ok(Err(reason)),
        };
        let ring = Ring::new(options.queue_depth).and_then(|mut ring| ring.try_read(&probe).map(|()| ring));
        Ok(ring.map_err(|reason| format!("io_uring does not work: {reason}")).map(|ring| Self {
            ring,
            place,
            slots: Slots::default(),
            backlog: VecDeque::new(),
            overdue: false,
            refused: VecDeque::new(),
        }))
    }

    /// Which of the kernel's options the ring got, for logs.
    #[must_use]
    pub fn setup(&self) -> &str {
        self.ring.setup()
    }

    fn submit(&mut self, slot: Slot) {
        if slot.work != Work::Read
            && let Err(poisoned) = self.place.healthy()
        {
            self.refused.push_back(Completion { token: slot.token, result: Err(poisoned), buf: slot.buf });
            return;
        }
        self.place.file_mut(slot.file).in_flight += 1;
        let index = self.slots.insert(slot);
        if !self.backlog.is_empty() || !self.push(index) {
            self.backlog.push_back(index);
        }
        self.hand_over_ahead();
    }

    /// Half of what is in the ring waits to be handed over: then the device has less than it could work on. So a queue
    /// of `n` that came back at once refills in `log n` calls, each as large as all before it together.
    fn hand_over_ahead(&mut self) {
        let waiting = self.ring.unsubmitted();
        if waiting >= AHEAD_MIN && 2 * waiting >= self.ring.in_ring() {
            self.enter(0);
        }
    }

    fn push(&mut self, index: u32) -> bool {
        let slot = self.slots.get_mut(index);
        let file = self.place.file(slot.file);
        self.ring.push(index, slot, &file.fd)
    }

    /// Moves the backlog into the ring as far as it goes.
    fn refill(&mut self) {
        while let Some(&index) = self.backlog.front() {
            if !self.push(index) {
                break;
            }
            self.backlog.pop_front();
        }
    }

    fn enter(&mut self, want: usize) {
        self.place.stats.system_calls += 1;
        self.ring.enter(want);
        self.overdue = !self.backlog.is_empty() || self.ring.unsubmitted() > 0;
    }

    /// Hands the queue over at once if completions are ready; else the wait that follows does both in one call.
    fn kick_unless_waiting(&mut self) {
        self.refill();
        if self.ring.unsubmitted() > 0 && (self.ring.is_ready() || !self.refused.is_empty()) {
            self.enter(0);
        }
    }

    /// Takes what is in the completion ring.
    fn drain(&mut self, out: &mut VecDeque<Completion>) -> usize {
        let before = out.len();
        out.append(&mut self.refused);
        while let Some((index, result)) = self.ring.pop() {
            self.finish(index, result, out);
        }
        out.len() - before
    }

    fn finish(&mut self, index: u32, result: i32, out: &mut VecDeque<Completion>) {
        let slot = self.slots.get_mut(index);
        let goes_on = match slot.advance(result) {
            slots::Step::Done => None,
            slots::Step::Short => Some(!self.fill_at_end(index)),
            slots::Step::Again => Some(true),
        };
        if goes_on == Some(true) {
            self.backlog.push_back(index);
            self.overdue = true;
            return;
        }
        let slot = self.slots.remove(index);
        let open = self.place.file_mut(slot.file);
        open.in_flight -= 1;
        // A short read ends here only at the end of the file, its rest zeroed.
        let failed = result < 0 || (result == 0 && matches!(slot.work, Work::Write { .. }));
        if !failed && slot.work == Work::Read {
            // The hot path: nothing to judge.
            out.push_back(Completion { token: slot.token, result: Ok(slot.len_bytes), buf: slot.buf });
            return;
        }
        let result = if failed { Err(self.failure(&slot, result)) } else { Ok(slot.len_bytes) };
        let result = if slot.work == Work::Read { result } else { self.place.judge(result) };
        out.push_back(Completion { token: slot.token, result, buf: slot.buf });
    }

    fn failure(&self, slot: &Slot, result: i32) -> DeviceError {
        let operation = match slot.work {
            Work::Read => Operation::Read,
            Work::Write { .. } => Operation::Write,
            Work::Sync => Operation::Sync,
        };
        // A write that moved nothing and named no reason.
        let errno = if result == 0 { Errno::IO } else { Errno::from_raw_os_error(-result) };
        self.place.error(errno, operation, &self.place.file(slot.file).name, slot.offset + slot.done_bytes as u64)
    }

    /// A short read at the end of the file is complete: zeroes the rest. False when there is more to read.
    fn fill_at_end(&mut self, index: u32) -> bool {
        let slot = self.slots.get_mut(index);
        if slot.work != Work::Read {
            return false;
        }
        let reached = slot.offset + slot.done_bytes as u64;
        let at_end = self.place.len(slot.file).is_ok_and(|len| reached >= len);
        let stuck = !reached.is_multiple_of(crate::buffer::SECTOR_BYTES as u64);
        if let (true, Some(buf)) = (at_end || stuck, &mut slot.buf) {
            buf[slot.done_bytes..].fill(0);
        }
        at_end || stuck
    }
}

impl Device for UringDevice {
    metadata_by_place!();

    fn create(&mut self, name: &str) -> Result<FileId, DeviceError> {
        let file = self.place.create(name)?;
        self.ring.register(file, &self.place.file(file).fd);
        Ok(file)
    }

    fn open(&mut self, name: &str) -> Result<FileId, DeviceError> {
        let file = self.place.open_file(name)?;
        self.ring.register(file, &self.place.file(file).fd);
        Ok(file)
    }

    fn close(&mut self, file: FileId) {
        self.place.close(file);
        self.ring.unregister(file);
    }

    fn submit_read(&mut self, file: FileId, offset: u64, buf: AlignedBuf, cause: Cause, token: Token) {
        let len_bytes = buf.len();
        assert_aligned(offset, len_bytes);
        self.place.stats.count_read(cause, len_bytes);
        self.submit(Slot { token, file, offset, len_bytes, done_bytes: 0, work: Work::Read, buf: Some(buf) });
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
        let work = Work::Write { durable: false };
        self.submit(Slot { token, file, offset, len_bytes, done_bytes: 0, work, buf: Some(buf) });
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
        let work = Work::Write { durable: true };
        self.submit(Slot { token, file, offset, len_bytes, done_bytes: 0, work, buf: Some(buf) });
    }

    fn submit_sync(&mut self, file: FileId, cause: Cause, token: Token) {
        self.place.stats.count_sync(cause);
        self.submit(Slot { token, file, offset: 0, len_bytes: 0, done_bytes: 0, work: Work::Sync, buf: None });
    }

    fn kick(&mut self) {
        self.refill();
        if self.ring.unsubmitted() > 0 {
            self.enter(0);
        }
    }

    fn reap(&mut self, out: &mut VecDeque<Completion>) {
        if self.drain(out) == 0 && self.ring.has_pending_work() {
            // Completions that the kernel finishes only when entered.
            self.enter(0);
            self.drain(out);
        }
        if self.overdue {
            self.kick();
        }
    }

    fn wait(&mut self, out: &mut VecDeque<Completion>) {
        self.kick_unless_waiting();
        // What is ready comes first; only when there is nothing, the submission's own system call also waits.
        while self.drain(out) == 0 && self.ring.in_ring() > 0 {
            self.refill();
            self.enter(1);
        }
        if self.overdue {
            self.kick();
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.len() + self.refused.len()
    }

    fn wake_fd(&self) -> Option<RawFd> {
        Some(self.ring.fd())
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}
