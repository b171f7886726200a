//! Sequential reads of a file with several in flight. Pages that cannot be read are an error, or become bytes that no record
//! has.
use super::OpenProgress;
use super::io::Io;
use super::left_tail::SegmentTail;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Completion, Device, DeviceError, FileId, IoClass, Token};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;
use std::sync::Arc;

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
    progress: Option<Arc<OpenProgress>>,
    /// Frames that are laid over the bytes read.
    tail: Option<Arc<SegmentTail>>,
    changed_from: Option<u32>,
    /// The bytes that the caller has.
    current: Option<AlignedBuf>,
    /// Buffers for the next reads: the memory of a new one costs as much time as the read of its bytes from a fast device.
    spare: Vec<AlignedBuf>,
}

impl SequentialRead {
    /// Reads from `from`, a multiple of a page, to the page in which `end` is, with up to `depth` reads in flight.
    /// Between two calls of [`SequentialRead::next`] only a `depth` of 1 leaves the device to others.
    pub(crate) fn new(file: FileId, (from, end): (u64, u64), depth: usize, class: IoClass) -> Self {
        let end = end.next_multiple_of(PAGE_BYTES as u64);
        let (started, done) = (VecDeque::new(), HashMap::default());
        let (progress, tail, changed_from) = (None, None, None);
        let (current, spare, last_token) = (None, Vec::new(), 0);
        Self {
            file,
            next: from,
            end,
            depth,
            class,
            started,
            done,
            last_token,
            progress,
            tail,
            changed_from,
            current,
            spare,
        }
    }

    /// Reads into the buffers of an earlier read.
    pub(crate) fn reusing(mut self, buffers: Vec<AlignedBuf>) -> Self {
        self.spare = buffers;
        self
    }

    /// The buffers, for [`SequentialRead::reusing`].
    pub(crate) fn into_buffers(mut self) -> Vec<AlignedBuf> {
        self.release();
        self.spare
    }

    /// Lays the frames of a tail file over the bytes, up to the end of its last one.
    pub(crate) fn overlaid_by(mut self, tail: Option<Arc<SegmentTail>>) -> Self {
        self.tail = tail;
        self
    }

    /// Offset of the first byte that the file does not have as the tail file does; `u32::MAX` without one.
    pub(crate) fn changed_from(&self) -> u32 {
        self.changed_from.unwrap_or(u32::MAX)
    }

    /// Counts the bytes read.
    pub(crate) fn counted_by(mut self, progress: Option<&Arc<OpenProgress>>) -> Self {
        self.progress = progress.cloned();
        self
    }

    /// The next bytes; `None` at the end. After an error nothing is in flight.
    ///
    /// # Errors
    /// If the system cannot read for now.
    pub(crate) fn next<D: Device>(&mut self, device: &mut D) -> Result<Option<&[u8]>, DeviceError> {
        let Some((offset, len, read)) = self.next_read(device) else { return Ok(None) };
        let buf = read.or_else(|_| self.read_pages(device, offset, len))?;
        Ok(Some(self.hand_out(device, offset, buf)))
    }

    /// As [`SequentialRead::next`], but the caller may return the bytes with [`SequentialRead::give_back`].
    pub(crate) fn take<D: Device>(&mut self, device: &mut D) -> Result<Option<AlignedBuf>, DeviceError> {
        self.next(device)?;
        Ok(self.current.take())
    }

    /// As [`SequentialRead::take`], but bytes that cannot be read are an error.
    pub(crate) fn try_take<D: Device>(&mut self, device: &mut D) -> Result<Option<AlignedBuf>, DeviceError> {
        let Some((offset, _, read)) = self.next_read(device) else { return Ok(None) };
        let buf = read?;
        self.hand_out(device, offset, buf);
        Ok(self.current.take())
    }

    /// Takes a buffer for the next reads.
    pub(crate) fn give_back(&mut self, buf: AlignedBuf) {
        if buf.len() as u64 == READ_BYTES {
            self.spare.push(buf);
        }
    }

    /// The bytes that the last call of [`SequentialRead::next`] returned.
    pub(crate) fn current(&self) -> &[u8] {
        self.current.as_deref().unwrap_or_default()
    }

    /// The next reads run while the caller works on these bytes.
    fn hand_out<D: Device>(&mut self, device: &mut D, offset: u64, mut buf: AlignedBuf) -> &[u8] {
        self.lay_over(offset, &mut buf);
        self.current = Some(buf);
        if self.depth > 1 {
            self.start(device);
        }
        self.current()
    }

    /// Takes back the bytes that the caller had.
    fn release(&mut self) {
        self.current.take().into_iter().for_each(|buf| self.give_back(buf));
    }

    fn lay_over(&mut self, offset: u64, buf: &mut AlignedBuf) {
        if let Some(tail) = &self.tail {
            self.changed_from = self.changed_from.or(tail.lay_over(offset, buf));
        }
    }

    /// The next read: its offset, length and result.
    fn next_read<D: Device>(&mut self, device: &mut D) -> Option<(u64, u64, Result<AlignedBuf, DeviceError>)> {
        self.release();
        self.start(device);
        let (token, offset, len) = self.started.pop_front()?;
        let read = self.finish(device, token);
        self.progress.iter().for_each(|progress| progress.add(len));
        Some((offset, len, read))
    }

    /// Waits for the reads in flight, so that the caller can use the device between two calls or after the last one.
    pub(crate) fn settle<D: Device>(&mut self, device: &mut D) {
        while device.in_flight() > 0 {
            self.wait(device);
        }
    }

    fn start<D: Device>(&mut self, device: &mut D) {
        while self.started.len() < self.depth && self.next < self.end {
            let len = (self.end - self.next).min(READ_BYTES);
            self.last_token += 1;
            let spare = if len == READ_BYTES { self.spare.pop() } else { None };
            let buf = spare.unwrap_or_else(|| AlignedBuf::zeroed(len as usize));
            device.submit_read(self.file, self.next, buf, self.class, Token(self.last_token));
            self.started.push_back((self.last_token, self.next, len));
            self.next += len;
        }
        device.kick();
    }

    fn finish<D: Device>(&mut self, device: &mut D, token: u64) -> Result<AlignedBuf, DeviceError> {
        let completion = loop {
            if let Some(completion) = self.done.remove(&token) {
                break completion;
            }
            self.wait(device);
        };
        completion.result?;
        let Some(buf) = completion.buf else { unreachable!("a read brings its buffer back") };
        Ok(buf)
    }

    fn wait<D: Device>(&mut self, device: &mut D) {
        assert!(device.in_flight() > 0, "waiting for a read that was never started");
        let mut reaped = VecDeque::new();
        device.wait(&mut reaped);
        self.done.extend(reaped.into_iter().map(|completion| (completion.token.0, completion)));
    }

    /// Reads page by page what could not be read at once.
    fn read_pages<D: Device>(&mut self, device: &mut D, offset: u64, len: u64) -> Result<AlignedBuf, DeviceError> {
        // The completions of later reads are kept: the page reads have tokens of their own.
        self.settle(device);
        Io::new(device).read_pages(self.file, offset, len as usize, self.class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_flash::{SimDevice, SimDisk, SimOptions};

    /// Reads whole files one after the other into the same buffers, and returns the bytes of each.
    fn read_all(device: &mut SimDevice, files: &[(&str, u64)]) -> Vec<Vec<u8>> {
        let mut buffers = Vec::new();
        let read = |&(name, end): &(&str, u64)| {
            let file = device.open(name).unwrap();
            let mut reads = SequentialRead::new(file, (0, end), 2, IoClass::Recovery).reusing(buffers.split_off(0));
            let mut bytes = Vec::new();
            while let Some(read) = reads.next(device).unwrap() {
                bytes.extend_from_slice(read);
            }
            buffers = reads.into_buffers();
            assert!(!buffers.is_empty(), "no buffer is reused");
            bytes
        };
        files.iter().map(read).collect()
    }

    /// A segment that was cut short is read to the end that the manifest lists.
    #[test]
    fn no_bytes_of_an_earlier_read_follow_the_short_end_of_a_file() {
        let disk = SimDisk::new(SimOptions::instant(1));
        let whole = vec![0xAA; 3 * READ_BYTES as usize];
        let short = vec![0x55; READ_BYTES as usize + 5_000];
        disk.put("whole", &whole);
        disk.put("short", &short);
        let mut device = SimDevice::attach(&disk);
        // The last read of the third one is shorter than the others: its buffer is too short for the fourth.
        let ends = [3 * READ_BYTES, 3 * READ_BYTES, 2 * READ_BYTES - 4096, 3 * READ_BYTES];
        let files = [("whole", ends[0]), ("short", ends[1]), ("short", ends[2]), ("whole", ends[3])];
        let read = read_all(&mut device, &files);
        assert_eq!(ends.map(|end| end as usize), [0, 1, 2, 3].map(|at| read[at].len()));
        assert!(read[0] == whole && read[3] == whole);
        for bytes in &read[1..3] {
            assert!(bytes[..short.len()] == short && bytes[short.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
