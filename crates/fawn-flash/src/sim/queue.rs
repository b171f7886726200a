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
pub(super) struct SimOperation {
    pub(super) device: u64,
    pub(super) inode: InodeId,
    pub(super) name: Arc<str>,
    pub(super) request: IoRequest,
    /// Sequence number of the last change before the submission, of the directory's edits for a sync of it. A sync covers changes
    /// up to and including it.
    pub(super) covered_seq: u64,
    pub(super) fault: Option<DeviceFault>,
    /// An error determined at submission (poisoned or disconnected device).
    pub(super) refused: Option<DeviceError>,
    /// Tick of the completion; `None` until the device's next kick.
    pub(super) due: Option<u64>,
}

impl SimOperation {
    /// Whether the operation stays in flight until it is released.
    pub(super) fn hangs(&self) -> bool {
        self.fault == Some(DeviceFault::Hang)
    }
}

impl DiskState {
    pub(super) fn kick(&mut self, device: u64) {
        let span = self.options.latency_ticks.end().saturating_sub(*self.options.latency_ticks.start());
        for operation in self.queue.iter_mut().filter(|operation| operation.device == device && operation.due.is_none())
        {
            let mut latency = self.options.latency_ticks.start() + self.rng.below(span.saturating_add(1));
            if let Some(DeviceFault::Delay { ticks }) = operation.fault {
                latency = ticks;
                operation.fault = None;
            }
            operation.due = Some(self.tick + latency);
        }
    }

    /// Ends the hang of operations in flight: they become due at the current tick at the earliest. Also ends the faults
    /// that hang every operation of a kind; a hang ordered for a later operation stays.
    pub(super) fn release_hung(&mut self) {
        self.faults.end_hanging();
        for operation in self.queue.iter_mut().filter(|operation| operation.hangs()) {
            operation.fault = None;
            operation.due = operation.due.map(|due| due.max(self.tick));
        }
    }

    /// The tick at which the next operation completes, of one device or of all.
    pub(super) fn next_due(&self, device: Option<u64>) -> Option<u64> {
        let mine = self.queue.iter().filter(|operation| device.is_none_or(|device| operation.device == device));
        mine.filter(|operation| !operation.hangs()).filter_map(|operation| operation.due).min()
    }

    /// Applies all due operations of `device`. Returns the device's first failed write or sync: `poison`, if it is set.
    pub(super) fn deliver(
        &mut self,
        device: u64,
        poison: Option<DeviceError>,
        out: &mut VecDeque<Completion>,
    ) -> Option<DeviceError> {
        let tick = self.tick;
        let is_due = |operation: &mut SimOperation| {
            operation.device == device && !operation.hangs() && operation.due.is_some_and(|due| due <= tick)
        };
        let mut due: Vec<SimOperation> = self.queue.extract_if(.., is_due).collect();
        if self.options.shuffle {
            for last in (1..due.len()).rev() {
                due.swap(last, self.rng.below(last as u64 + 1) as usize);
            }
        } else {
            due.sort_by_key(|operation| operation.due);
        }
        let mut failure = poison;
        for operation in due {
            let poisons = operation.request.work != Work::Read && operation.refused.is_none();
            let mut completion = self.take_effect(operation);
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

    fn take_effect(&mut self, mut operation: SimOperation) -> Completion {
        let IoRequest { work, offset, len_bytes, .. } = operation.request;
        let mut memory = core::mem::take(&mut operation.request.memory);
        let result = match (operation.refused.take(), work, memory.buf_mut()) {
            (Some(refused), ..) => Err(refused),
            (None, Work::Read, Some(buf)) => self.read(&operation, offset, buf),
            (None, Work::Read, None) => unreachable!("a read owns its buffer"),
            (None, Work::Write { durable }, _) => self.write(&operation, offset, &memory.bytes()[..len_bytes], durable),
            (None, Work::Sync, _) => self.sync(&operation),
            (None, Work::SyncDir, _) => self.sync_dir(&operation),
        };
        IoRequest { memory, ..operation.request }.completion(result)
    }

    fn read(&self, operation: &SimOperation, offset: u64, buf: &mut AlignedBuf) -> Result<(), DeviceError> {
        match &operation.fault {
            Some(DeviceFault::Misdirect { name, offset }) => {
                let inode = name.as_ref().map_or(Some(operation.inode), |name| self.directory.get(name));
                match inode.and_then(|id| self.inodes.get(&id)) {
                    Some(inode) => inode.read(*offset, buf),
                    None => buf.fill(0),
                }
            }
            Some(DeviceFault::Exhausted) => return Err(exhausted()),
            Some(_) => return Err(io(IoOperation::Read, &operation.name, offset, "injected failure")),
            None if self.is_unreadable(operation.inode, offset, buf.len()) => {
                return Err(io(IoOperation::Read, &operation.name, offset, "unreadable place"));
            }
            None => self.inode(operation.inode).read(offset, buf),
        }
        Ok(())
    }

    fn write(&mut self, operation: &SimOperation, offset: u64, bytes: &[u8], durable: bool) -> Result<(), DeviceError> {
        let lacks_space = self.overflows(operation.inode, offset, bytes.len() as u64);
        self.writes_without_space += u64::from(lacks_space);
        if operation.fault == Some(DeviceFault::Full) || lacks_space {
            return Err(full());
        }
        match &operation.fault {
            Some(DeviceFault::Lose) => return Ok(()),
            Some(_) => {
                self.write_some(operation.inode, offset, bytes);
                return Err(io(IoOperation::Write, &operation.name, offset, "injected failure"));
            }
            None => (),
        }
        let (inode, seq) = self.change(operation.inode);
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

    fn sync_dir(&mut self, operation: &SimOperation) -> Result<(), DeviceError> {
        if operation.fault.is_some() {
            return Err(io(IoOperation::Sync, &operation.name, 0, "injected failure"));
        }
        self.directory.sync_through(operation.covered_seq);
        self.collect();
        Ok(())
    }

    fn sync(&mut self, operation: &SimOperation) -> Result<(), DeviceError> {
        let covered_seq = operation.covered_seq;
        let inode = self.change(operation.inode).0;
        if operation.fault.is_some() {
            inode.sync_failed(covered_seq);
            return Err(io(IoOperation::Sync, &operation.name, 0, "injected failure; its pages are marked clean"));
        }
        inode.sync(covered_seq);
        Ok(())
    }
}
