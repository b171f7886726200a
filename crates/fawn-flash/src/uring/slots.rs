//! Owns operations in flight: the buffer the kernel works on, how far it has come, and the numbers that name them.
use crate::request::{Request, Work};
use rustix::io::Errno;

/// One operation; its buffer stays here until the kernel has answered.
pub(super) struct Slot {
    pub(super) request: Request,
    pub(super) done_bytes: usize,
}

/// What a completion means for its operation.
pub(super) enum Step {
    /// Ended, well or badly.
    Done,
    /// Moved a part; for a read perhaps all there is.
    Short,
    /// Interrupted before anything happened.
    Again,
}

impl Slot {
    /// Takes the kernel's result into account.
    pub(super) fn advance(&mut self, result: i32) -> Step {
        match usize::try_from(result) {
            Ok(_) if self.request.work == Work::Sync => Step::Done,
            Ok(moved) => {
                self.done_bytes += moved;
                assert!(self.done_bytes <= self.request.len_bytes, "the kernel moves no more than asked");
                let stuck_write = moved == 0 && self.request.work != Work::Read;
                if self.done_bytes == self.request.len_bytes || stuck_write { Step::Done } else { Step::Short }
            }
            // Only reads: a write or sync that failed is never tried again.
            Err(_) if self.request.work == Work::Read && is_interruption(result) => Step::Again,
            Err(_) => Step::Done,
        }
    }
}

fn is_interruption(result: i32) -> bool {
    matches!(Errno::from_raw_os_error(-result), Errno::INTR | Errno::AGAIN)
}

/// Operations by number; numbers are reused.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
}

impl Slots {
    pub(super) const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, slot: Slot) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = Some(slot);
            return index;
        }
        self.slots.push(Some(slot));
        self.slots.len() as u32 - 1
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut Slot {
        let slot = self.slots[index as usize].as_mut();
        slot.unwrap_or_else(|| unreachable!("the kernel answers only what it was asked"))
    }

    pub(super) fn remove(&mut self, index: u32) -> Slot {
        self.free.push(index);
        let slot = self.slots[index as usize].take();
        slot.unwrap_or_else(|| unreachable!("the kernel answers each operation once"))
    }
}
