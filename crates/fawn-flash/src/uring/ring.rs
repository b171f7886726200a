//! The ring itself: setup with fallbacks, registered files, submission and completion entries.
use super::slots::UringSlot;
use crate::buffer::PAGE_BYTES;
use crate::file_table::FileTable;
use crate::request::Work;
use crate::{AlignedBuf, FileId};
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Registered files, which save the kernel a look-up per operation; further files are passed by descriptor.
pub(super) const FIXED_FILES: u32 = 512;
const COMPLETIONS_PER_ENTRY: u32 = 4;

/// Maximum bytes moved by one submission; the rest follows. The kernel's own limit is just below 2 GiB.
const MOVE_MAX: u32 = 1 << 30;

/// The entry for the remaining part of an operation. A macro, because the two kinds of descriptor share no public
/// trait.
macro_rules! entry_for {
    ($slot:expr, $fd:expr) => {{
        let UringSlot { request, done_bytes }: &mut UringSlot = $slot;
        let at = request.offset + *done_bytes as u64;
        let len = u32::try_from(request.len_bytes - *done_bytes).unwrap_or(MOVE_MAX).min(MOVE_MAX);
        // Within the memory, as `push` argues. A sync has none.
        let start = request.memory.address(*done_bytes);
        match request.work {
            Work::Read => opcode::Read::new($fd, start, len).offset(at).build(),
            Work::Write { durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new($fd, start, len).offset(at).rw_flags(flags).build()
            }
            Work::Sync => opcode::Fsync::new($fd).flags(types::FsyncFlags::DATASYNC).build(),
            Work::SyncDir => opcode::Fsync::new($fd).build(),
        }
    }};
}

/// An io_uring and the number of its entries in flight.
pub(super) struct UringRing {
    ring: IoUring,
    setup: String,
    /// Entries pushed whose completions were not taken; never more than the completion ring holds.
    in_ring: usize,
    in_ring_max: usize,
    /// Registered number by file, the free numbers, and those of closed files that are still registered.
    pub(super) fixed: FileTable<u32>,
    fixed_free: Vec<u32>,
    fixed_closed: Vec<u32>,
}

impl UringRing {
    /// A ring of `entries`, with the best options that the kernel supports.
    pub(super) fn new(entries: u32) -> Result<Self, String> {
        let entries = entries.clamp(8, 4096);
        let (ring, mut setup) = match build(entries, true) {
            Ok(ring) => (ring, "cooperative".to_owned()),
            Err(_) => (build(entries, false).map_err(|error| error.to_string())?, "plain".to_owned()),
        };
        let mut fixed_free = Vec::new();
        if ring.submitter().register_files_sparse(FIXED_FILES).is_ok() {
            fixed_free.extend((0..FIXED_FILES).rev());
            setup.push_str(", registered files");
        }
        let in_ring_max = ring.params().cq_entries() as usize;
        Ok(Self { ring, setup, in_ring: 0, in_ring_max, fixed: FileTable::new(), fixed_free, fixed_closed: Vec::new() })
    }

    /// Numbers for further registered files.
    #[cfg(test)]
    pub(super) fn free_numbers(&self) -> usize {
        self.fixed_free.len()
    }

    pub(super) fn setup(&self) -> &str {
        &self.setup
    }

    pub(super) fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    pub(super) const fn in_ring(&self) -> usize {
        self.in_ring
    }

    /// Reads a block of `file` through the ring, to check that it works at all.
    pub(super) fn try_read(&mut self, file: &OwnedFd) -> Result<(), String> {
        let mut buf = AlignedBuf::zeroed(PAGE_BYTES);
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), buf.as_mut_ptr(), PAGE_BYTES as u32).build();
        // SAFETY: (1) `buf` and `file` live until the completion is taken below, or the kernel has refused to take the
        // entry, which it then never sees: see `drop`.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|error| error.to_string())?;
        self.in_ring += 1;
        let answer = loop {
            let entered = self.ring.submit_and_wait(1);
            if let Some((_, answer)) = self.pop() {
                break answer;
            }
            // Some sandboxes allow setting a ring up and refuse to enter it. A kernel that took the entry answers it.
            if let Err(error) = entered
                && error.kind() != std::io::ErrorKind::Interrupted
                && self.unsubmitted() > 0
            {
                return Err(format!("io_uring_enter is refused: {error}"));
            }
        };
        if answer < 0 { Err(std::io::Error::from_raw_os_error(-answer).to_string()) } else { Ok(()) }
    }

    pub(super) fn register(&mut self, file: FileId, fd: &OwnedFd) {
        self.unregister_closed();
        let Some(number) = self.fixed_free.pop() else { return };
        if self.update(number, fd.as_raw_fd()) {
            self.fixed.insert(file, number);
        } else {
            self.fixed_free.push(number);
        }
    }

    /// Unregisters a closed file, because a registered file keeps its space even after it is unlinked. If the kernel refuses
    /// that, the next call of this or of `register` tries again.
    pub(super) fn unregister(&mut self, file: FileId) {
        self.fixed_closed.extend(self.fixed.remove(file));
        self.unregister_closed();
    }

    fn unregister_closed(&mut self) {
        while let Some(&number) = self.fixed_closed.last()
            && self.update(number, -1)
        {
            self.fixed_free.extend(self.fixed_closed.pop());
        }
    }

    fn update(&self, number: u32, fd: RawFd) -> bool {
        self.ring.submitter().register_files_update(number, &[fd]).is_ok()
    }

    /// Queues the remaining part of an operation; `false` if the ring is full.
    pub(super) fn push(&mut self, index: u32, slot: &mut UringSlot, fd: &OwnedFd) -> bool {
        if self.in_ring == self.in_ring_max {
            return false;
        }
        let entry = match self.fixed.get(slot.request.file).copied() {
            Some(number) => entry_for!(slot, types::Fixed(number)),
            None => entry_for!(slot, types::Fd(fd.as_raw_fd())),
        };
        let entry = entry.user_data(u64::from(index));
        // SAFETY: (1) the slot keeps the memory, which does not move when the slot moves, and leaves the slot only with
        // its completion; (2) the range is within it: `done_bytes <= len_bytes <=` its length; (3) the file is open
        // until then, because closing asserts that nothing is in flight, and the directory is as long as the device;
        // (4) dropping the ring waits for the kernel; (5) the kernel writes only where a read exclusively owns its buffer;
        // shared memory is never written.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        self.in_ring += usize::from(pushed.is_ok());
        pushed.is_ok()
    }

    /// Entries not yet submitted to the kernel.
    pub(super) fn unsubmitted(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// Whether there are completions that only a system call delivers.
    pub(super) fn has_pending_work(&mut self) -> bool {
        let submission = self.ring.submission();
        self.in_ring > 0 && (submission.taskrun() || submission.cq_overflow())
    }

    pub(super) fn is_ready(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Submits all entries and waits for `want` completions, or for `limit` if the kernel knows limits. On an error
    /// (interrupted, busy) the entries stay in the ring for the next call, so callers check `unsubmitted`.
    pub(super) fn enter(&mut self, want: usize, limit: Option<Duration>) -> bool {
        match limit {
            Some(limit) if self.ring.params().is_feature_ext_arg() => {
                let limit = types::Timespec::from(limit);
                self.ring.submitter().submit_with_args(want, &types::SubmitArgs::new().timespec(&limit)).is_ok()
            }
            _ => self.ring.submit_and_wait(want).is_ok(),
        }
    }

    /// The next completion: the operation's number and the kernel's result.
    pub(super) fn pop(&mut self) -> Option<(u32, i32)> {
        let completion = self.ring.completion().next()?;
        self.in_ring -= 1;
        Some((completion.user_data() as u32, completion.result()))
    }
}

impl Drop for UringRing {
    fn drop(&mut self) {
        // The kernel may still write to buffers that are freed after this, so wait for all operations.
        while self.in_ring > 0 {
            while self.pop().is_some() {}
            if self.in_ring > 0 && !self.enter(1, None) && self.unsubmitted() > 0 {
                // The kernel accepts no more entries, and unsubmitted ones never complete. Wait for the submitted ones
                // only.
                let unseen = self.ring.submission().len();
                if self.in_ring <= unseen {
                    return;
                }
            }
        }
    }
}

fn build(entries: u32, cooperative: bool) -> std::io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(entries * COMPLETIONS_PER_ENTRY).setup_clamp();
    if cooperative {
        // Completions do not interrupt this thread: the next system call delivers them, or the flag requests one.
        // Neither SINGLE_ISSUER nor DEFER_TASKRUN: several threads may use a store in turn.
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    builder.build(entries)
}
