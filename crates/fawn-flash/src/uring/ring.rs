//! Owns the ring: its setup with fallbacks, the registered files, pushing entries and taking completions.
use super::slots::Slot;
use crate::buffer::PAGE_BYTES;
use crate::request::Work;
use crate::{AlignedBuf, FileId};
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};

/// Files known to the ring by number, which spares the kernel a look-up per operation; others go by descriptor.
const FIXED_FILES: u32 = 512;
/// Completion entries per submission entry.
const COMPLETIONS_PER_ENTRY: u32 = 4;

/// Bytes that one operation may move; the rest follows. The kernel's own limit is just below 2 GiB.
const MOVE_MAX: u32 = 1 << 30;

/// The entry for the part that is not done yet. A macro, because the two kinds of descriptor share no public trait.
macro_rules! entry_for {
    ($slot:expr, $fd:expr) => {{
        let Slot { request, done_bytes }: &mut Slot = $slot;
        let at = request.offset + *done_bytes as u64;
        let len = u32::try_from(request.len_bytes - *done_bytes).unwrap_or(MOVE_MAX).min(MOVE_MAX);
        // Within the memory: see `push`. A sync has none.
        let start = request.memory.address(*done_bytes);
        match request.work {
            Work::Read => opcode::Read::new($fd, start, len).offset(at).build(),
            Work::Write { durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new($fd, start, len).offset(at).rw_flags(flags).build()
            }
            Work::Sync => opcode::Fsync::new($fd).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }};
}

/// An io_uring and what is in it.
pub(super) struct Ring {
    ring: IoUring,
    setup: String,
    /// Entries handed to the ring whose completion was not taken yet; never more than its completion entries.
    in_ring: usize,
    in_ring_max: usize,
    /// Registered number by file, and the numbers that are free.
    fixed: Vec<Option<u32>>,
    fixed_free: Vec<u32>,
}

impl Ring {
    /// A ring of `entries`, with the best options that the kernel grants.
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
        Ok(Self { ring, setup, in_ring: 0, in_ring_max, fixed: Vec::new(), fixed_free })
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

    /// Reads a block of `file` through the ring: does it work at all here?
    pub(super) fn try_read(&mut self, file: &OwnedFd) -> Result<(), String> {
        let mut buf = AlignedBuf::zeroed(PAGE_BYTES);
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), buf.as_mut_ptr(), PAGE_BYTES as u32).build();
        // SAFETY: (1) `buf` and `file` live until the completion is taken below, or `settle` has waited for it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|error| error.to_string())?;
        self.in_ring += 1;
        let answer = loop {
            self.enter(1);
            if let Some((_, answer)) = self.pop() {
                break answer;
            }
        };
        if answer < 0 { Err(std::io::Error::from_raw_os_error(-answer).to_string()) } else { Ok(()) }
    }

    /// Tells the ring of a file.
    pub(super) fn register(&mut self, file: FileId, fd: &OwnedFd) {
        self.fixed.resize(self.fixed.len().max(file.0 as usize + 1), None);
        let Some(number) = self.fixed_free.pop() else { return };
        if self.ring.submitter().register_files_update(number, &[fd.as_raw_fd()]).is_ok() {
            self.fixed[file.0 as usize] = Some(number);
        }
    }

    /// Lets the ring forget a closed file, so that an unlinked one gives its space back.
    pub(super) fn unregister(&mut self, file: FileId) {
        if let Some(number) = self.fixed[file.0 as usize].take()
            && self.ring.submitter().register_files_update(number, &[-1]).is_ok()
        {
            self.fixed_free.push(number);
        }
    }

    /// Queues the rest of an operation; false when the ring is full.
    pub(super) fn push(&mut self, index: u32, slot: &mut Slot, fd: &OwnedFd) -> bool {
        if self.in_ring == self.in_ring_max {
            return false;
        }
        let entry = match self.fixed[slot.request.file.0 as usize] {
            Some(number) => entry_for!(slot, types::Fixed(number)),
            None => entry_for!(slot, types::Fd(fd.as_raw_fd())),
        };
        let entry = entry.user_data(u64::from(index));
        // SAFETY: (1) the memory is kept by the slot, stays where it is when the slot moves, and leaves the slot only
        // with its completion; (2) the range is within it: `done_bytes <= len_bytes <=` its length; (3) the file is
        // open until then, for closing asserts that nothing is in flight; (4) dropping the ring waits for the kernel;
        // (5) the kernel writes only where a read owns its buffer alone; shared memory nobody writes to.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        self.in_ring += usize::from(pushed.is_ok());
        pushed.is_ok()
    }

    /// Entries that the kernel has not seen yet.
    pub(super) fn unsubmitted(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// Completions exist that only an entry into the kernel delivers.
    pub(super) fn has_pending_work(&mut self) -> bool {
        let submission = self.ring.submission();
        self.in_ring > 0 && (submission.taskrun() || submission.cq_overflow())
    }

    pub(super) fn is_ready(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Submits all and waits for `want` completions. An error (interrupted, busy) leaves the entries where they are, to
    /// go with the next call: callers look at `unsubmitted`.
    pub(super) fn enter(&mut self, want: usize) -> bool {
        self.ring.submit_and_wait(want).is_ok()
    }

    /// The next completion: which operation, and the kernel's result.
    pub(super) fn pop(&mut self) -> Option<(u32, i32)> {
        let completion = self.ring.completion().next()?;
        self.in_ring -= 1;
        Some((completion.user_data() as u32, completion.result()))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still write to buffers that are freed after this.
        while self.in_ring > 0 {
            while self.pop().is_some() {}
            if self.in_ring > 0 && !self.enter(1) && self.unsubmitted() > 0 {
                // It takes no more entries; those it never saw never complete. Wait for the others alone.
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
        // No interrupt to this thread per completion: the next system call delivers them, or the flag asks for one.
        // Not SINGLE_ISSUER nor DEFER_TASKRUN: a store may be used by one thread after another.
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    builder.build(entries)
}
