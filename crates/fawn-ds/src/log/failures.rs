//! Failed reads in the background: what could not be read is left alone for a while, and longer each time. So is a file of which
//! a read does not end.
use core::ops::Range;
use fawn_types::MonoMs;

/// First delay, ms; each further failure doubles it.
const UNREADABLE_MS: u64 = 10_000;
/// Longest delay, ms.
const UNREADABLE_MS_MAX: u64 = 3_600_000;
/// Longest delay while writes wait for space, ms. Reads that failed for ten minutes would otherwise stop the cleaning for ten more.
const UNREADABLE_FULL_MS_MAX: u64 = 30_000;
/// Time after which a read that has not ended is left in flight, ms; each further one of the same file doubles it.
pub const HANGING_MS: u64 = 500;
/// Such times for which work waits that has more to lose.
const LONG_PATIENCES: u64 = 20;
/// Longest time of such work, ms: reads that other work left of the same file count, too.
const LONG_PATIENCE_MS_MAX: u64 = 600_000;
/// Reads that cleaning, the scrub and jobs of the sorted tier leave in flight, together, each with its buffer. A device of
/// which no part can be read gets no more: each of them may take a thread that clients' writes and syncs need.
pub(crate) const READS_LEFT_MAX: u32 = 4;
/// With so many left, the scrub and merges leave no further one. A merge that has left one leaves all of its reads: otherwise it
/// would wait for them, and no other job would begin. Cleaning, for which writes wait, counts no more than so many of these
/// against its own, so that it can leave some in any case.
pub(crate) const IDLE_READS_LEFT_MAX: u32 = READS_LEFT_MAX / 2;

/// The end of the time for which a corrupt file is left alone.
const NEVER: MonoMs = MonoMs(u64::MAX);

/// Failed reads of a run or a segment in the background.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadFailures {
    unreadable: u32,
    /// Offset at which the last read that brought wrong bytes had them.
    wrong_at: Option<u64>,
    /// Time of the last failure.
    failed_at: MonoMs,
    /// Nothing reads it in the background before; `None`: no read has failed.
    barred_until: Option<MonoMs>,
    /// Reads that were left in flight, and those that still are.
    left: u32,
    hanging: u32,
}

impl ReadFailures {
    /// Whether it is left alone now.
    pub(crate) fn is_barred(&self, now: MonoMs, is_full: bool) -> bool {
        self.is_hanging() || self.barred_until(is_full).is_some_and(|until| now < until)
    }

    /// The end of the time for which it is left alone after failed reads, which is shorter while writes wait for space.
    pub(crate) fn barred_until(&self, is_full: bool) -> Option<MonoMs> {
        let until = self.barred_until?;
        let may_be_soon = is_full && until != NEVER;
        Some(if may_be_soon { until.min(self.failed_at.plus_ms(UNREADABLE_FULL_MS_MAX)) } else { until })
    }

    /// Whether a read of it was left in flight.
    pub(crate) const fn is_hanging(&self) -> bool {
        self.hanging > 0
    }

    /// Time that its next read may take before it is left in flight, ms.
    pub(crate) fn patience_ms(&self) -> u64 {
        // It grows until it is longer than reads of a slow device take. Otherwise a segment there would never be read to its end.
        HANGING_MS.saturating_mul(1 << self.left.min(16)).min(UNREADABLE_MS_MAX)
    }

    /// As [`ReadFailures::patience_ms`], of work for which no client waits, and which begins again from the start without its read.
    pub(crate) fn long_patience_ms(&self) -> u64 {
        LONG_PATIENCES.saturating_mul(self.patience_ms()).min(LONG_PATIENCE_MS_MAX)
    }

    /// A read of it is left in flight.
    pub(crate) const fn note_left(&mut self) {
        (self.left, self.hanging) = (self.left + 1, self.hanging + 1);
    }

    /// A read that was left has ended.
    pub(crate) const fn note_ended(&mut self) {
        self.hanging -= 1;
    }

    /// A read of it brought wrong bytes at this offset. Returns whether it is corrupt: the last wrong read had them at the same one.
    /// After the first it is left alone for a while, as an unreadable file is: the read may have been wrong, and not the file.
    pub(crate) fn note_wrong(&mut self, offset: u64, now: MonoMs) -> bool {
        let is_corrupt = self.wrong_at.replace(offset) == Some(offset);
        if is_corrupt {
            self.note_corrupt();
        } else {
            self.note_unreadable(now);
        }
        is_corrupt
    }

    /// These bytes were read. The last wrong read counts no more if it was among them, and `is_right` says that they are right there.
    pub(crate) fn note_read(&mut self, bytes: Range<u64>, is_right: impl FnOnce(u64) -> bool) {
        self.wrong_at.take_if(|at| bytes.contains(at) && is_right(*at));
    }

    /// All of it was read, and none was wrong.
    pub(crate) const fn note_whole(&mut self) {
        (self.wrong_at, self.unreadable) = (None, 0);
    }

    /// It is corrupt: bytes that were written long ago do not change before the next opening.
    pub(crate) const fn note_corrupt(&mut self) {
        self.barred_until = Some(NEVER);
    }

    /// The device could not read it, which may pass.
    pub(crate) fn note_unreadable(&mut self, now: MonoMs) {
        let delay_ms = UNREADABLE_MS.saturating_mul(1 << self.unreadable.min(16)).min(UNREADABLE_MS_MAX);
        (self.unreadable, self.failed_at) = (self.unreadable + 1, now);
        // A corrupt file stays so, whatever else fails.
        self.barred_until = self.barred_until.max(Some(now.plus_ms(delay_ms)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_after_failed_reads_grow_to_an_hour() {
        let (mut failures, mut now, mut attempts) = (ReadFailures::default(), MonoMs(7), 0);
        assert!(!failures.is_barred(now, false));
        while now.0 < 24 * 3_600_000 {
            failures.note_unreadable(now);
            let until = failures.barred_until(false).unwrap();
            assert!(failures.is_barred(MonoMs(until.0 - 1), false) && !failures.is_barred(until, false));
            assert!((10_000..=3_600_000).contains(&(until.0 - now.0)));
            let until_if_full = failures.barred_until(true).unwrap();
            assert_eq!(until_if_full.0 - now.0, (until.0 - now.0).min(30_000), "while writes wait for space");
            assert!(!failures.is_barred(until_if_full, true));
            (now, attempts) = (until, attempts + 1);
        }
        assert!((24..=34).contains(&attempts), "{attempts} attempts a day");
        failures.note_whole();
        failures.note_unreadable(now);
        assert_eq!(failures.barred_until, Some(now.plus_ms(10_000)), "it was read in between");
        failures.note_corrupt();
        failures.note_unreadable(now);
        assert!(failures.is_barred(now.plus_ms(1 << 40), false) && failures.is_barred(now.plus_ms(1 << 40), true));
    }

    #[test]
    fn a_file_is_corrupt_once_two_reads_are_wrong_at_one_offset() {
        let (mut failures, now) = (ReadFailures::default(), MonoMs(7));
        for (offset, delay_ms) in [(5, 10_000), (6, 20_000), (5, 40_000)] {
            assert!(!failures.note_wrong(offset, now));
            assert_eq!(failures.barred_until(false), Some(now.plus_ms(delay_ms)));
        }
        failures.note_whole();
        assert!(!failures.note_wrong(5, now), "it was read in between");
        assert!(failures.note_wrong(5, now));
        assert!(failures.is_barred(now.plus_ms(1 << 40), false));
    }

    #[test]
    fn a_file_is_left_alone_while_its_read_hangs_and_its_next_read_may_take_longer() {
        let mut failures = ReadFailures::default();
        for (patience_ms, long_ms) in [(500, 10_000), (1_000, 20_000), (2_000, 40_000), (4_000, 80_000)] {
            assert_eq!((failures.is_barred(MonoMs(7), false), failures.patience_ms()), (false, patience_ms));
            assert_eq!(failures.long_patience_ms(), long_ms);
            failures.note_left();
            assert!(failures.is_hanging() && failures.is_barred(MonoMs(u64::MAX), false));
            failures.note_ended();
        }
        (0..40).for_each(|_| failures.note_left());
        (1..40).for_each(|_| failures.note_ended());
        assert!(failures.is_hanging(), "one read has not ended");
        assert_eq!((failures.patience_ms(), failures.long_patience_ms()), (3_600_000, 600_000));
    }
}
