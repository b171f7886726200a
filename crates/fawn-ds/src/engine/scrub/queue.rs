//! The queue of segments to scrub: in the order of their last reading, with those apart whose reads failed.
use crate::log::segments::SegmentTable;
use fawn_types::MonoMs;
use std::collections::{BTreeMap, VecDeque};

/// Delays after failed reads, ms. After the last one, what cannot be read is lost.
const RETRY_DELAYS_MS: [u64; 3] = [10_000, 60_000, 600_000];
/// Dropped segments that may be in the queue besides as many as there are others.
const DROPPED_MAX: usize = 64;

/// A segment in the queue, and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ScrubbedSegment {
    /// The slot may hold another segment by now.
    sequence: u64,
    pub(super) slot: u32,
    /// Readings in a row that failed.
    pub(super) failures: u32,
    /// Records reported as lost.
    pub(super) lost_records: u64,
}

impl ScrubbedSegment {
    const fn new(sequence: u64, slot: u32) -> Self {
        Self { sequence, slot, failures: 0, lost_records: 0 }
    }

    pub(super) fn is_in(&self, segments: &SegmentTable) -> bool {
        segments.get(self.slot).is_some_and(|segment| segment.sequence == self.sequence)
    }

    /// Time until it is read again. `None`: that has failed often enough.
    pub(super) fn retry_delay_ms(&self) -> Option<u64> {
        RETRY_DELAYS_MS.get(self.failures.saturating_sub(1) as usize).copied()
    }
}

#[derive(Debug, Default)]
pub(super) struct ScrubQueue {
    queue: VecDeque<ScrubbedSegment>,
    /// By the time of the next attempt.
    retries: BTreeMap<(MonoMs, u64), ScrubbedSegment>,
    /// Segments that are sealed and not dropped.
    sealed: u64,
    /// The last segment was one of `retries`: they do not hold up others.
    was_retry: bool,
}

impl ScrubQueue {
    /// The queue of an opening, which begins at another of the segments each time: at multiples of the golden ratio, which
    /// are spread evenly however many there are.
    pub(super) fn begin(mut names: Vec<(u64, u32)>, generation: u32) -> Self {
        names.sort_unstable();
        let part = u64::from(generation).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let first = (u128::from(part) * names.len() as u128) >> 64;
        let mut queue: VecDeque<_> =
            names.into_iter().map(|(sequence, slot)| ScrubbedSegment::new(sequence, slot)).collect();
        queue.rotate_left(first as usize);
        Self { sealed: queue.len() as u64, queue, ..Self::default() }
    }

    pub(super) fn sealed(&self) -> u64 {
        self.sealed
    }

    pub(super) fn sealed_another(&mut self, sequence: u64, slot: u32) {
        self.sealed += 1;
        self.push(ScrubbedSegment::new(sequence, slot));
    }

    pub(super) fn dropped_one(&mut self) {
        self.sealed = self.sealed.saturating_sub(1);
    }

    /// Bounds the entries of dropped segments; costs a walk over the queue once in as many seals as it is long.
    pub(super) fn forget_dropped(&mut self, is_there: impl Fn(&ScrubbedSegment) -> bool) {
        if self.queue.len() + self.retries.len() > 2 * self.sealed as usize + DROPPED_MAX {
            self.queue.retain(&is_there);
            self.retries.retain(|_, segment| is_there(segment));
        }
    }

    pub(super) fn push(&mut self, segment: ScrubbedSegment) {
        self.queue.push_back(segment);
    }

    pub(super) fn retry(&mut self, segment: ScrubbedSegment, at: MonoMs) {
        self.retries.insert((at, segment.sequence), segment);
    }

    /// Time of the first of the segments that are to be read again.
    pub(super) fn first_retry(&self) -> Option<MonoMs> {
        self.retries.keys().next().map(|(at, _)| *at)
    }

    /// Takes a segment whose reads failed if one is due again. If another of the queue `is_due` too, they take turns.
    pub(super) fn take_retry(
        &mut self,
        now: MonoMs,
        is_due: bool,
        is_there: impl Fn(&ScrubbedSegment) -> bool,
    ) -> Option<ScrubbedSegment> {
        if core::mem::replace(&mut self.was_retry, false) && is_due {
            return None;
        }
        while self.first_retry().is_some_and(|at| at <= now) {
            let (_, segment) = self.retries.pop_first()?;
            if is_there(&segment) {
                self.was_retry = true;
                return Some(segment);
            }
        }
        None
    }

    /// Takes the next segment of the queue.
    pub(super) fn take(&mut self, is_there: impl Fn(&ScrubbedSegment) -> bool) -> Option<ScrubbedSegment> {
        while let Some(segment) = self.queue.pop_front() {
            if is_there(&segment) {
                return Some(segment);
            }
        }
        None
    }

    pub(super) fn resident_bytes(&self) -> usize {
        (self.queue.capacity() + self.retries.len()) * size_of::<ScrubbedSegment>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_begin_at_segments_that_are_spread_evenly() {
        let names: Vec<_> = (0..100).map(|at| (at, at as u32)).collect();
        let mut firsts: Vec<u64> =
            (1..=100).map(|generation| ScrubQueue::begin(names.clone(), generation).queue[0].sequence).collect();
        firsts.sort_unstable();
        let widest = firsts.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(widest <= Some(3), "{firsts:?}");
    }

    #[test]
    fn dropped_segments_do_not_fill_the_queue() {
        let mut queue = ScrubQueue::default();
        for sequence in 0..100_000 {
            queue.sealed_another(sequence, sequence as u32);
            if sequence >= 10 {
                queue.dropped_one();
            }
            queue.forget_dropped(|segment| segment.sequence + 10 > sequence);
            assert!(queue.queue.len() <= 2 * 11 + DROPPED_MAX, "{} at {sequence}", queue.queue.len());
        }
    }

    #[test]
    fn segments_that_fail_do_not_hold_up_others() {
        let mut queue = ScrubQueue::begin((0..4).map(|at| (at, at as u32)).collect(), 0);
        for sequence in 10..14 {
            queue.retry(ScrubbedSegment::new(sequence, 0), MonoMs(5));
        }
        let is_there = |segment: &ScrubbedSegment| segment.sequence != 12;
        assert_eq!(queue.take_retry(MonoMs(4), true, is_there), None, "none is due again yet");
        let mut next = |is_due: bool| {
            let retried = queue.take_retry(MonoMs(5), is_due, is_there);
            retried.or_else(|| is_due.then(|| queue.take(is_there)).flatten()).map(|segment| segment.sequence)
        };
        let order: Vec<_> = (0..5).map_while(|_| next(true)).collect();
        assert_eq!(order, [10, 0, 11, 1, 13]);
        assert_eq!(next(false), None, "none failed, and no other is due");
        assert_eq!((next(true), next(true), next(true)), (Some(2), Some(3), None));
    }
}
