//! Operations in flight on the simulated disk: time and order of their completion, and their effects.
//!
//! An operation takes effect only when its completion is delivered, so code that relies on data before reaping it fails
//! in tests. A crash may still apply any part of an operation (see `state`).
use super::directory::InodeId;
use super::faults::DeviceFault;
use super::state::{DiskState, exhausted, full, io};
use crate::buffer::SECTOR_BYTES;
use crate::request::{IoRequest, Work};
use crate::{AlignedBuf, Completion, DeviceError, IoOperation};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) device: u64,
    pub(super) inode: InodeId,
    pub(super) name: Arc<str>,
    pub(super) request: IoRequest,
    /// Sequence number of the last change before the submission. A sync covers changes up to and including it.
    pub(super) covered: u64,
    pub(super) fault: Option<DeviceFault>,
    /// An error determined at submission (poisoned or disconnected device).
    pub(super) refused: Option<DeviceError>,
    /// Tick of the completion; `None` until the device's next kick.
    pub(super) due: Option<u64>,
}

impl Ticket {
    /// Whether the operation stays in flight until it is released.
    pub(super) fn hangs(&self) -> bool {
        self.fault == Some(DeviceFault::Hang)
    }
}

impl DiskState {
    pub(super) fn kick(&mut self, device: u64) {
        let span = self.options.latency_ticks.end().saturating_sub(*self.options.latency_ticks.start());
        for ticket in self.queue.iter_mut().filter(|ticket| ticket.device == device && ticket.due.is_none()) {
            let mut latency = self.options.latency_ticks.start() + self.rng.below(span.saturating_add(1));
            if let Some(DeviceFault::Delay { ticks }) = ticket.fault {
                latency = ticks;
                ticket.fault = None;
            }
            ticket.due = Some(self.tick + latency);
        }
    }

    /// Ends the hang of operations in flight: they become due at the current tick at the earliest. Also ends the faults
    /// that hang every operation of a kind; a hang ordered for a later operation stays.
    pub(super) fn release_hung(&mut self) {
        self.faults.end_hanging();
        for ticket in self.queue.iter_mut().filter(|ticket| ticket.hangs()) {
            ticket.fault = None;
            ticket.due = ticket.due.map(|due| due.max(self.tick));
        }
    }

    /// The tick at which the next operation completes, of one device or of all.
    pub(super) fn next_due(&self, device: Option<u64>) -> Option<u64> {
        let mine = self.queue.iter().filter(|ticket| device.is_none_or(|device| ticket.device == device));
        mine.filter(|ticket| !ticket.hangs()).filter_map(|ticket| ticket.due).min()
    }

    /// Applies all due operations of `device`. Returns the device's first failed write or sync: `poison`, if it is set.
    pub(super) fn deliver(
        &mut self,
        device: u64,
        poison: Option<DeviceError>,
        out: &mut VecDeque<Completion>,
    ) -> Option<DeviceError> {
        let tick = self.tick;
        let is_due = |ticket: &mut Ticket| {
            ticket.device == device && !ticket.hangs() && ticket.due.is_some_and(|due| due <= tick)
        };
        let mut due: Vec<Ticket> = self.queue.extract_if(.., is_due).collect();
        if self.options.shuffle {
            for last in (1..due.len()).rev() {
                due.swap(last, self.rng.below(last as u64 + 1) as usize);
            }
        } else {
            due.sort_by_key(|ticket| ticket.due);
        }
        let mut failure = poison;
        for ticket in due {
            let poisons = ticket.request.work != Work::Read && ticket.refused.is_none();
            let mut completion = self.take_effect(ticket);
            if let (true, Err(error)) = (poisons, &completion.result) {
                failure.get_or_insert_with(|| error.clone());
            } else if let (true, Some(first)) = (poisons, &failure) {
                // As on real devices, no write or sync succeeds after a failed one.
                completion.result = Err(DeviceError::Poisoned { first: first.to_string() });
            }
            out.push_back(completion);
            self.count_op();
        }
        failure
    }

    fn take_effect(&mut self, mut ticket: Ticket) -> Completion {
        let IoRequest { work, offset, len_bytes, .. } = ticket.request;
        let mut memory = core::mem::take(&mut ticket.request.memory);
        let result = match (ticket.refused.take(), work, memory.buf_mut()) {
            (Some(refused), ..) => Err(refused),
            (None, Work::Read, Some(buf)) => self.read(&ticket, offset, buf),
            (None, Work::Read, None) => unreachable!("a read owns its buffer"),
            (None, Work::Write { durable }, _) => self.write(&ticket, offset, &memory.bytes()[..len_bytes], durable),
            (None, Work::Sync, _) => self.sync(&ticket),
        };
        IoRequest { memory, ..ticket.request }.completion(result)
    }

    fn read(&self, ticket: &Ticket, offset: u64, buf: &mut AlignedBuf) -> Result<(), DeviceError> {
        match &ticket.fault {
            Some(DeviceFault::Misdirect { name, offset }) => {
                let inode = name.as_ref().map_or(Some(ticket.inode), |name| self.directory.get(name));
                match inode.and_then(|id| self.inodes.get(&id)) {
                    Some(inode) => inode.read(*offset, buf),
                    None => buf.fill(0),
                }
            }
            Some(DeviceFault::Exhausted) => return Err(exhausted()),
            Some(_) => return Err(io(IoOperation::Read, &ticket.name, offset, "injected failure")),
            None if self.is_unreadable(ticket.inode, offset, buf.len()) => {
                return Err(io(IoOperation::Read, &ticket.name, offset, "unreadable place"));
            }
            None => self.inode(ticket.inode).read(offset, buf),
        }
        Ok(())
    }

    fn write(&mut self, ticket: &Ticket, offset: u64, bytes: &[u8], durable: bool) -> Result<(), DeviceError> {
        if ticket.fault == Some(DeviceFault::Full) || self.overflows(ticket.inode, offset, bytes.len() as u64) {
            return Err(full());
        }
        match &ticket.fault {
            Some(DeviceFault::Lose) => return Ok(()),
            Some(_) => {
                self.write_some(ticket.inode, offset, bytes);
                return Err(io(IoOperation::Write, &ticket.name, offset, "injected failure"));
            }
            None => (),
        }
        let (inode, seq) = self.change(ticket.inode);
        if durable {
            inode.write_durable(seq, offset, bytes)
        } else {
            inode.write(seq, offset, bytes)
        }
        Ok(())
    }

    /// Applies a failed write: a random subset of its sectors.
    fn write_some(&mut self, id: InodeId, offset: u64, bytes: &[u8]) {
        for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
            if self.rng.coin() {
                let (inode, seq) = self.change(id);
                inode.write(seq, offset + (index * SECTOR_BYTES) as u64, sector);
            }
        }
    }

    fn sync(&mut self, ticket: &Ticket) -> Result<(), DeviceError> {
        let covered = ticket.covered;
        let inode = self.change(ticket.inode).0;
        if ticket.fault.is_some() {
            inode.sync_failed(covered);
            return Err(io(IoOperation::Sync, &ticket.name, 0, "injected failure; its pages are marked clean"));
        }
        inode.sync(covered);
        Ok(())
    }
}
