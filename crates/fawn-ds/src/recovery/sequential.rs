//! Sequential reads of a file with several in flight; pages that cannot be read become bytes that no record has.
use super::io::Io;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Completion, Device, FileId, IoClass, Token};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// Length of one read, bytes.
const READ_BYTES: u64 = 1 << 20;

/// A part of a file, read in order.
#[derive(Debug)]
pub(crate) struct SequentialRead {
    file: FileId,
    next: u64,
    end: u64,
    depth: usize,
    class: IoClass,
    /// Reads in flight, in the order of the file: token, offset, length.
    started: VecDeque<(u64, u64, u64)>,
    done: HashMap<u64, Completion, FxBuildHasher>,
    last_token: u64,
}

impl SequentialRead {
    /// Reads from `from`, a multiple of a page, to the page in which `end` is, with up to `depth` reads in flight.
    /// Between two calls of [`SequentialRead::next`] only a `depth` of 1 leaves the device to others.
    pub(crate) fn new(file: FileId, (from, end): (u64, u64), depth: usize, class: IoClass) -> Self {
        let end = end.next_multiple_of(PAGE_BYTES as u64);
        let (started, done) = (VecDeque::new(), HashMap::default());
        Self { file, next: from, end, depth, class, started, done, last_token: 0 }
    }

    /// The next bytes; `None` at the end.
    pub(crate) fn next<D: Device>(&mut self, device: &mut D) -> Option<AlignedBuf> {
        self.start(device);
        let (token, offset, len) = self.started.pop_front()?;
        let buf = self.finish(device, token).unwrap_or_else(|| self.read_pages(device, offset, len));
        if self.depth > 1 {
            // The next reads run while the caller works on these bytes.
            self.start(device);
        }
        Some(buf)
    }

    /// Gives the device back before the end of the file.
    pub(crate) fn end<D: Device>(&mut self, device: &mut D) {
        while device.in_flight() > 0 {
            self.wait(device);
        }
    }

    fn start<D: Device>(&mut self, device: &mut D) {
        while self.started.len() < self.depth && self.next < self.end {
            let len = (self.end - self.next).min(READ_BYTES);
            self.last_token += 1;
            let buf = AlignedBuf::zeroed(len as usize);
            device.submit_read(self.file, self.next, buf, self.class, Token(self.last_token));
            self.started.push_back((self.last_token, self.next, len));
            self.next += len;
        }
        device.kick();
    }

    /// The bytes of a read; `None` if it failed.
    fn finish<D: Device>(&mut self, device: &mut D, token: u64) -> Option<AlignedBuf> {
        let completion = loop {
            if let Some(completion) = self.done.remove(&token) {
                break completion;
            }
            self.wait(device);
        };
        completion.result.ok().and(completion.buf)
    }

    fn wait<D: Device>(&mut self, device: &mut D) {
        assert!(device.in_flight() > 0, "waiting for a read that was never started");
        let mut reaped = VecDeque::new();
        device.wait(&mut reaped);
        self.done.extend(reaped.into_iter().map(|completion| (completion.token.0, completion)));
    }

    /// Reads page by page what could not be read at once.
    fn read_pages<D: Device>(&mut self, device: &mut D, offset: u64, len: u64) -> AlignedBuf {
        // The completions of later reads are kept: the page reads have tokens of their own.
        while device.in_flight() > 0 {
            self.wait(device);
        }
        Io::new(device).read_pages(self.file, offset, len as usize, self.class)
    }
}
