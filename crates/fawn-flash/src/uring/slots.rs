//! Operations in flight on a ring, by number: the request with the buffer that the kernel uses, and its progress.
use crate::request::{IoRequest, Work};
use rustix::io::Errno;

/// One operation. Its buffer stays here until the kernel completes the operation.
pub(super) struct UringSlot {
    pub(super) request: IoRequest,
    pub(super) done_bytes: usize,
}

/// Effect of a completion on its operation.
pub(super) enum NextStep {
    /// Completed, with success or failure.
    Done,
    /// Moved part of the bytes. A read may have reached the end of the file.
    Short,
    /// Interrupted; this attempt moved no bytes.
    Retry,
}

impl UringSlot {
    /// Applies the kernel's result.
    pub(super) fn advance(&mut self, result: i32) -> NextStep {
        match usize::try_from(result) {
            Ok(_) if matches!(self.request.work, Work::Sync | Work::SyncDir) => NextStep::Done,
            Ok(moved) => {
                self.done_bytes += moved;
                assert!(self.done_bytes <= self.request.len_bytes, "the kernel moved more bytes than requested");
                // A write that moves nothing would be retried for ever; the caller turns it into an error.
                let stuck_write = moved == 0 && self.request.work != Work::Read;
                if self.done_bytes == self.request.len_bytes || stuck_write { NextStep::Done } else { NextStep::Short }
            }
            // A sync is never retried: a second one could succeed without the data, which the kernel may have marked clean.
            // An interrupted write moves the same bytes again, as on the thread pool, and if it is durable syncs these.
            Err(_) => match (self.request.work, Errno::from_raw_os_error(-result)) {
                (Work::Read | Work::Write { .. }, Errno::INTR) | (Work::Read, Errno::AGAIN) => NextStep::Retry,
                _ => NextStep::Done,
            },
        }
    }
}

/// Operations by number. The number of a completed operation is reused.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Option<UringSlot>>,
    free: Vec<u32>,
}

impl Slots {
    pub(super) const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, slot: UringSlot) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = Some(slot);
            return index;
        }
        self.slots.push(Some(slot));
        self.slots.len() as u32 - 1
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut UringSlot {
        let slot = self.slots[index as usize].as_mut();
        slot.unwrap_or_else(|| unreachable!("a completion without an operation"))
    }

    pub(super) fn remove(&mut self, index: u32) -> UringSlot {
        self.free.push(index);
        let slot = self.slots[index as usize].take();
        slot.unwrap_or_else(|| unreachable!("a second completion of an operation"))
    }
}
