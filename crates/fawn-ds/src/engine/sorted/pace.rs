//! Pace of the sorted tier: when a search for segments to sort or runs to merge is due, and when puts wait for a job.
use super::super::Engine;
use super::SortedTier;
use super::job::{SortJob, SortStep};
use fawn_flash::Device;
use fawn_types::MonoMs;

/// Delay of the next search if the last one found work that something holds up, ms; each further one doubles it.
const SEARCH_MS: u64 = 1;
/// Longest such delay, ms.
const SEARCH_MS_MAX: u64 = 1024;
/// Checks of the credit of puts for each segment that they write. While work is scarce there are more: puts wait for all that
/// they have written beyond their credit since the last one.
const CHECKS_PER_SEGMENT: u64 = 32;
const SCARCE_CHECKS_PER_SEGMENT: u64 = 256;
/// Share of what puts have left, one in so many, that they may write without work in between.
const CREDITS_PER_SPACE: u64 = 8;
/// Bytes that a merge of later runs reads and writes for each one that it reads.
const WORK_PER_READ_OF_MERGE: u64 = 2;
/// Bytes that are read and written for each one of the oldest runs that a sweep reads: it writes them and those of the later
/// runs, and sorts take turns with its parts.
const WORK_PER_READ_OF_SWEEP: u64 = 3;
/// Time for which puts wait without a read or write of the job that ends, ms: a read may hang for good.
const HOLD_MS_MAX: u64 = 1_000;

/// A search that visits all segments or all runs. A poll searches only if the result can differ from the last one.
#[derive(Debug, Default)]
pub(super) struct JobSearch {
    /// Nothing that the search asks for has changed since the last one: false at first.
    is_unchanged: bool,
    /// Time by which it is repeated without a change.
    repeat_at: Option<MonoMs>,
    /// Searches since the last change that found work held up.
    repeats: u32,
}

impl JobSearch {
    pub(super) const fn note_change(&mut self) {
        (self.is_unchanged, self.repeats) = (false, 0);
    }

    pub(super) fn is_due(&self, now: MonoMs) -> bool {
        !self.is_unchanged || self.repeat_at.is_some_and(|at| now >= at)
    }

    /// Time by which it is repeated without a change.
    pub(super) const fn repeat_at(&self) -> Option<MonoMs> {
        self.repeat_at
    }

    /// A search begins now.
    pub(super) const fn begin(&mut self) {
        (self.is_unchanged, self.repeat_at) = (true, None);
    }

    /// Searches again in a while: no event reports the end of what holds work up, which is seldom more than a commit.
    pub(super) fn repeat_soon(&mut self, now: MonoMs) {
        self.repeat_by(now.plus_ms((SEARCH_MS << self.repeats.min(16)).min(SEARCH_MS_MAX)));
        self.repeats += 1;
    }

    /// The work that was found could not be done: other work is likely to fail, too.
    pub(super) fn put_off(&mut self, now: MonoMs) {
        self.begin();
        self.repeat_by(now.plus_ms(SEARCH_MS_MAX));
    }

    pub(super) fn repeat_by(&mut self, at: MonoMs) {
        self.repeat_at = Some(self.repeat_at.map_or(at, |before| before.min(at)));
    }
}

/// Bytes that puts may write while jobs read and write so many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PutRate {
    pub(super) puts_bytes: u64,
    pub(super) work_bytes: u64,
}

impl PutRate {
    /// Bytes that puts may write for that much work.
    fn earned_bytes(self, work_bytes: u64) -> i64 {
        let earned = u128::from(self.puts_bytes) * u128::from(work_bytes) / u128::from(self.work_bytes.max(1));
        i64::try_from(earned).unwrap_or(i64::MAX)
    }

    /// The lower one.
    fn min(self, other: Self) -> Self {
        let scaled = |of: Self, by: Self| u128::from(of.puts_bytes) * u128::from(by.work_bytes);
        if scaled(self, other) <= scaled(other, self) { self } else { other }
    }
}

/// Progress of a merge against the space that puts have until it gives some back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct MergePace {
    /// Bytes that it will have read when it next gives back runs, and that it has read so far. Of a sweep only the oldest runs
    /// count: pages of later ones may be read twice, at ends of parts.
    pub(super) to_read_bytes: u64,
    pub(super) read_bytes: u64,
    /// Length of what parts of a sweep have written, and of the oldest runs that they have replaced, bytes.
    pub(super) written_bytes: u64,
    pub(super) replaced_bytes: u64,
}

impl MergePace {
    pub(super) const fn grown_bytes(&self) -> u64 {
        self.written_bytes.saturating_sub(self.replaced_bytes)
    }

    /// The rate of puts that have so much space left, if jobs read and write `work_per_read` bytes for each one that counts
    /// as read: with a quarter of the space to spare.
    pub(super) fn rate(&self, left_bytes: u64, work_per_read: u64) -> PutRate {
        let to_read = self.to_read_bytes.saturating_sub(self.read_bytes);
        // Parts with new keys take space until the end.
        let growth = u128::from(self.grown_bytes()) * u128::from(to_read) / u128::from(self.read_bytes.max(1));
        let left_bytes = left_bytes.saturating_sub(u64::try_from(growth).unwrap_or(u64::MAX));
        PutRate { puts_bytes: left_bytes / 4 * 3, work_bytes: to_read * work_per_read }
    }
}

/// Puts that wait for jobs.
#[derive(Debug, Default)]
pub(super) struct PutHold {
    /// Puts wait for work of the job in progress.
    pub(super) is_on: bool,
    /// Work is less than puts could use.
    pub(super) is_scarce: bool,
    /// Time of the last poll.
    polled_at: MonoMs,
    /// Bytes that puts have written since the last check, and those that they might write then before they wait.
    pub(super) put_bytes: u64,
    credit_bytes: i64,
    /// The last begin of a job, or end of a read or write of one, and bytes of these since the last check.
    pub(super) worked_at: MonoMs,
    pub(super) work_bytes: u64,
}

impl<D: Device> Engine<D> {
    /// Decides whether puts wait for the job in progress. Its reads and writes give them credit.
    pub(super) fn hold_puts_if_ahead(&mut self) {
        let now = self.now.mono;
        let hold = &mut self.sorted.hold;
        let checks = if hold.is_scarce { SCARCE_CHECKS_PER_SEGMENT } else { CHECKS_PER_SEGMENT };
        let check_bytes = u64::from(self.options.segment_bytes) / checks;
        let was_on = hold.is_on;
        self.stats.puts_held_ms += if was_on { now.ms_since(hold.polled_at) } else { 0 };
        hold.polled_at = now;
        // The sum over all runs is not for each poll.
        if !was_on && hold.put_bytes < check_bytes {
            return;
        }
        let rate = self.put_rate();
        let hold = &mut self.sorted.hold;
        let [work, put_bytes] = [&mut hold.work_bytes, &mut hold.put_bytes].map(core::mem::take);
        let least = check_bytes as i64;
        (hold.is_on, hold.is_scarce, hold.credit_bytes) = match rate {
            None => (false, false, least),
            Some(rate) => {
                let most = i64::try_from(rate.puts_bytes / CREDITS_PER_SPACE).unwrap_or(i64::MAX).max(least);
                let credit = hold.credit_bytes.saturating_add(rate.earned_bytes(work)).min(most);
                let credit = credit.saturating_sub(i64::try_from(put_bytes).unwrap_or(i64::MAX));
                (credit < 0 || rate.puts_bytes == 0, credit < most / 2, credit)
            }
        };
        self.progressed |= was_on && !self.sorted.hold.is_on;
    }

    /// The rate of puts, if there is a limit. Puts wait only for a job that continues.
    pub(super) fn put_rate(&self) -> Option<PutRate> {
        let SortedTier { sweep, job, is_held, hold, .. } = &self.sorted;
        // A full store refuses puts itself.
        if self.full || self.now.mono.ms_since(hold.worked_at) > HOLD_MS_MAX {
            return None;
        }
        // A complete job may need further writes before it is listed: job and puts would wait for each other.
        let goes_on = |job: &&SortJob| !is_held && !job.is_complete() && job.step != SortStep::GivenUp;
        let job = job.as_deref().filter(goes_on)?;
        // A merge of later runs has taken the space for all of it.
        let left_bytes = || self.room_for_runs(self.reserved_segments());
        let of_merge = job.pace.map(|pace| pace.rate(left_bytes(), WORK_PER_READ_OF_MERGE));
        let of_sweep = sweep.as_ref().map(|sweep| {
            // Until a sync, sorted segments and the next part may take all of the space together.
            let is_filled = self.room_for_runs(self.reserved_segments() + 2) == 0;
            let left_bytes = if is_filled { 0 } else { self.room_for_puts(sweep.part_bytes) };
            sweep.pace.rate(left_bytes, WORK_PER_READ_OF_SWEEP)
        });
        [self.rate_of_sorts(), of_merge, of_sweep].into_iter().flatten().reduce(PutRate::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_waits_for_a_change_or_its_time() {
        let mut search = JobSearch::default();
        assert!(search.is_due(MonoMs(0)), "an opening changes everything");
        search.begin();
        assert!(!search.is_due(MonoMs(u64::MAX)));
        search.note_change();
        assert!(search.is_due(MonoMs(0)));
        search.begin();
        search.repeat_soon(MonoMs(5));
        search.repeat_by(MonoMs(9_000));
        assert!(!search.is_due(MonoMs(5)) && search.is_due(MonoMs(6)));
        search.begin();
        assert!(!search.is_due(MonoMs(6)), "a search forgets the time of the last one");
        (0..20).for_each(|_| search.repeat_soon(MonoMs(50)));
        search.begin();
        search.repeat_soon(MonoMs(100));
        assert!(!search.is_due(MonoMs(1123)) && search.is_due(MonoMs(1124)), "delays grow");
        search.note_change();
        search.begin();
        search.repeat_soon(MonoMs(200));
        assert!(search.is_due(MonoMs(201)), "a change begins with a short one");
    }

    #[test]
    fn puts_have_three_quarters_of_their_space_until_a_merge_gives_some_back() {
        let at = |read_bytes| MergePace { to_read_bytes: 1_000, read_bytes, ..MergePace::default() };
        let rate = |pace: MergePace, left_bytes| {
            let PutRate { puts_bytes, work_bytes } = pace.rate(left_bytes, 3);
            (puts_bytes, work_bytes)
        };
        assert_eq!(rate(at(0), 400), (300, 3_000));
        assert_eq!(rate(at(900), 40), (30, 300));
        assert_eq!(rate(at(900), 0), (0, 300), "without any left, they wait");
        assert_eq!(rate(at(2_000), 40), (30, 0), "it has read more than was expected");
        // Runs have grown by 30 B, and will by 10 B more.
        let growing = MergePace { written_bytes: 780, replaced_bytes: 750, ..at(750) };
        assert_eq!(rate(growing, 50), (30, 750));
        let shrinking = MergePace { written_bytes: 750, replaced_bytes: 780, ..at(750) };
        assert_eq!(rate(shrinking, 40), (30, 750));
    }

    #[test]
    fn the_lowest_rate_counts() {
        let rate = |puts_bytes, work_bytes| PutRate { puts_bytes, work_bytes };
        assert_eq!(rate(300, 3_000).min(rate(1, 11)), rate(1, 11));
        assert_eq!(rate(1, 11).min(rate(300, 3_000)), rate(1, 11));
        assert_eq!(rate(0, 5).min(rate(3, 0)), rate(0, 5));
        assert_eq!(rate(300, 3_000).earned_bytes(99), 9);
        assert_eq!(rate(u64::MAX, 0).earned_bytes(u64::MAX), i64::MAX, "nothing is left to do");
    }
}
