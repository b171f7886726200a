//! The queue of files to scrub: in the order of their last reading, with those apart whose reads failed.
use fawn_flash::DeviceError;
use fawn_types::MonoMs;
use std::collections::{BTreeMap, VecDeque};

/// Delays after failed reads, ms. After the last one, what cannot be read is lost.
const RETRY_DELAYS_MS: [u64; 3] = [10_000, 60_000, 600_000];
/// Dropped files that may be in the queue besides as many as there are others.
const DROPPED_MAX: usize = 64;

/// A file whose bytes do not change any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ScrubFile {
    /// A sealed segment. The slot may hold another one by now.
    Segment { sequence: u64, slot: u32 },
    /// A listed run, by its id in this opening.
    Run { id: u64 },
}

/// A file in the queue, and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueuedFile {
    pub(super) file: ScrubFile,
    /// Length in segments, rounded up.
    pub(super) segments: u64,
    /// Readings in a row that failed.
    pub(super) failures: u32,
    /// Records that the last reading found lost. Only more of them are reported, not as many at other places.
    pub(super) lost_records: u64,
    /// A reading found more of them lost. Another one decides.
    pub(super) is_suspect: bool,
}

impl QueuedFile {
    pub(super) const fn segment(sequence: u64, slot: u32) -> Self {
        Self::new(ScrubFile::Segment { sequence, slot }, 1)
    }

    pub(super) const fn run(id: u64, segments: u64) -> Self {
        Self::new(ScrubFile::Run { id }, segments)
    }

    const fn new(file: ScrubFile, segments: u64) -> Self {
        Self { file, segments, failures: 0, lost_records: 0, is_suspect: false }
    }

    /// A read of it that was left in flight has failed. The last attempt is left to a reading that ends.
    pub(super) fn note_left_failure(&mut self, error: &DeviceError) {
        let failures = self.failures + u32::from(!error.is_retryable());
        self.failures = failures.min(RETRY_DELAYS_MS.len() as u32);
    }

    /// Time until it is read again. `None`: that has failed often enough.
    pub(super) fn retry_delay_ms(&self) -> Option<u64> {
        RETRY_DELAYS_MS.get(self.failures.saturating_sub(1) as usize).copied()
    }
}

#[derive(Debug, Default)]
pub(super) struct ScrubQueue {
    queue: VecDeque<QueuedFile>,
    /// By the time of the next attempt.
    retries: BTreeMap<(MonoMs, ScrubFile), QueuedFile>,
    /// Files that are not dropped, and their length in segments.
    files: usize,
    segments: u64,
    /// The last file was one of `retries`: they do not hold up others.
    was_retry: bool,
}

impl ScrubQueue {
    /// The queue of an opening, which begins at another of the files each time: at multiples of the golden ratio, which
    /// are spread evenly however many there are.
    pub(super) fn begin(mut files: Vec<QueuedFile>, generation: u32) -> Self {
        files.sort_unstable_by_key(|queued| queued.file);
        let part = u64::from(generation).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let first = (u128::from(part) * files.len() as u128) >> 64;
        let mut queue = VecDeque::from(files);
        queue.rotate_left(first as usize);
        let segments = queue.iter().map(|queued| queued.segments).sum();
        Self { files: queue.len(), segments, queue, ..Self::default() }
    }

    /// Length of the files that are not dropped, in segments.
    pub(super) const fn segments(&self) -> u64 {
        self.segments
    }

    pub(super) fn add(&mut self, added: QueuedFile) {
        self.files += 1;
        self.segments += added.segments;
        self.push(added);
    }

    /// A file of this length was dropped.
    pub(super) const fn dropped_one(&mut self, segments: u64) {
        self.files = self.files.saturating_sub(1);
        self.segments = self.segments.saturating_sub(segments);
    }

    /// Bounds the entries of dropped files; costs a walk over the queue once in as many additions as it is long.
    pub(super) fn forget_dropped(&mut self, is_there: impl Fn(&QueuedFile) -> bool) {
        if self.queue.len() + self.retries.len() > 2 * self.files + DROPPED_MAX {
            self.queue.retain(&is_there);
            self.retries.retain(|_, queued| is_there(queued));
        }
    }

    pub(super) fn push(&mut self, queued: QueuedFile) {
        self.queue.push_back(queued);
    }

    pub(super) fn retry(&mut self, queued: QueuedFile, at: MonoMs) {
        self.retries.insert((at, queued.file), queued);
    }

    /// Time of the first of the files that are to be read again.
    pub(super) fn first_retry(&self) -> Option<MonoMs> {
        self.retries.keys().next().map(|(at, _)| *at)
    }

    /// Takes a file whose reads failed if one is due again. If another of the queue `is_due` too, they take turns.
    pub(super) fn take_retry(
        &mut self,
        now: MonoMs,
        is_due: bool,
        is_there: impl Fn(&QueuedFile) -> bool,
    ) -> Option<QueuedFile> {
        if core::mem::replace(&mut self.was_retry, false) && is_due {
            return None;
        }
        while self.first_retry().is_some_and(|at| at <= now) {
            let (_, queued) = self.retries.pop_first()?;
            if is_there(&queued) {
                self.was_retry = true;
                return Some(queued);
            }
        }
        None
    }

    /// Takes the next file of the queue.
    pub(super) fn take(&mut self, is_there: impl Fn(&QueuedFile) -> bool) -> Option<QueuedFile> {
        while let Some(queued) = self.queue.pop_front() {
            if is_there(&queued) {
                return Some(queued);
            }
        }
        None
    }

    pub(super) fn resident_bytes(&self) -> usize {
        (self.queue.capacity() + self.retries.len()) * size_of::<QueuedFile>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn sequence_of(queued: &QueuedFile) -> u64 {
        match queued.file {
            ScrubFile::Segment { sequence, .. } => sequence,
            ScrubFile::Run { .. } => u64::MAX,
        }
    }

    fn segments(count: u64) -> Vec<QueuedFile> {
        (0..count).map(|at| QueuedFile::segment(at, at as u32)).collect()
    }

    #[test]
    fn openings_begin_at_segments_that_are_spread_evenly() {
        let first_of = |generation| ScrubQueue::begin(segments(100), generation).queue[0];
        let mut firsts: Vec<u64> = (1..=100).map(|generation| sequence_of(&first_of(generation))).collect();
        firsts.sort_unstable();
        let widest = firsts.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(widest <= Some(3), "{firsts:?}");
    }

    #[test]
    fn dropped_files_do_not_fill_the_queue_and_do_not_count() {
        let mut queue = ScrubQueue::default();
        for sequence in 0..100_000 {
            queue.add(QueuedFile::segment(sequence, sequence as u32));
            if sequence >= 10 {
                queue.dropped_one(1);
            }
            queue.forget_dropped(|queued| sequence_of(queued) + 10 > sequence);
            assert!(queue.queue.len() <= 2 * 11 + DROPPED_MAX, "{} at {sequence}", queue.queue.len());
        }
        assert_eq!(queue.segments(), 10);
        queue.add(QueuedFile::run(1, 7));
        assert_eq!(queue.segments(), 17);
        queue.dropped_one(7);
        assert_eq!((queue.segments(), queue.files), (10, 10));
    }

    #[test]
    fn segments_that_fail_do_not_hold_up_others() {
        let mut queue = ScrubQueue::begin(segments(4), 0);
        for sequence in 10..14 {
            queue.retry(QueuedFile::segment(sequence, 0), MonoMs(5));
        }
        let is_there = |queued: &QueuedFile| sequence_of(queued) != 12;
        assert_eq!(queue.take_retry(MonoMs(4), true, is_there), None, "none is due again yet");
        let mut next = |is_due: bool| {
            let retried = queue.take_retry(MonoMs(5), is_due, is_there);
            retried.or_else(|| is_due.then(|| queue.take(is_there)).flatten()).map(|queued| sequence_of(&queued))
        };
        let order: Vec<_> = (0..5).map_while(|_| next(true)).collect();
        assert_eq!(order, [10, 0, 11, 1, 13]);
        assert_eq!(next(false), None, "none failed, and no other is due");
        assert_eq!((next(true), next(true), next(true)), (Some(2), Some(3), None));
    }
}
