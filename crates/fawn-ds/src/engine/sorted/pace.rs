//! Pace of the sorted tier: when a search for segments to sort or runs to merge is due, and when puts wait for a job.
use super::super::Engine;
use super::SortedTier;
use super::job::{SortJob, SortStep};
use super::sweep::RunSweep;
use fawn_flash::Device;
use fawn_types::MonoMs;

/// Delay of the next search if the last one found work that something holds up, ms; each further one doubles it.
const SEARCH_MS: u64 = 1;
/// Longest such delay, ms.
const SEARCH_MS_MAX: u64 = 1024;
/// Checks whether puts are ahead of a merge or a sort, for each segment of records that clients write.
const CHECKS_PER_SEGMENT: u64 = 32;
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

/// Progress of a merge against the space that puts have until it ends: only then are its runs given back, the later ones of a
/// sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct MergePace {
    /// Space that puts had at its start, bytes.
    pub(super) room_bytes: u64,
    /// Length of the runs that it reads, bytes, and what it has read of them. Of a sweep only the oldest ones count: pages of
    /// later ones may be read twice, at ends of parts.
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

    /// Whether puts that have so much space left should wait for the merge. Puts may be a quarter of the space ahead of it.
    pub(super) fn is_behind(&self, left_bytes: u64) -> bool {
        let [to_read, read] = [self.to_read_bytes, self.read_bytes.min(self.to_read_bytes)].map(u128::from);
        // Parts with new keys take space until the end.
        let growth_of = |bytes: u128| u128::from(self.grown_bytes()) * bytes / read.max(1);
        let left = u128::from(left_bytes).saturating_sub(growth_of(to_read - read));
        // At least a byte, if there was space: without any left, puts wait until the end.
        let room = u128::from(self.room_bytes);
        let room = room.saturating_sub(growth_of(to_read)).max(room.min(1));
        left * 4 * to_read < room * 3 * (to_read - read)
    }
}

/// Whether puts wait for the job in progress.
#[derive(Debug, Default)]
pub(super) struct PutHold {
    /// Puts are ahead of a sort or a merge: they wait.
    pub(super) is_on: bool,
    /// Time of the last poll, and record bytes of clients' writes at the last check.
    polled_at: MonoMs,
    checked_bytes: u64,
    /// The last begin of a job, or end of a read or write of one.
    pub(super) worked_at: MonoMs,
}

impl<D: Device> Engine<D> {
    /// Decides whether puts wait for the job in progress.
    pub(super) fn hold_puts_if_ahead(&mut self) {
        let PutHold { is_on: was_on, polled_at, checked_bytes, .. } = self.sorted.hold;
        let (now, written) = (self.now.mono, self.stats.record_bytes - checked_bytes);
        if was_on {
            self.stats.puts_held_ms += now.ms_since(polled_at);
        }
        // The sum over all runs is not for each poll.
        let check_bytes = u64::from(self.options.segment_bytes) / CHECKS_PER_SEGMENT;
        let is_ahead = (was_on || written >= check_bytes) && self.are_puts_ahead();
        if is_ahead || written >= check_bytes {
            self.sorted.hold.checked_bytes = self.stats.record_bytes;
        }
        self.progressed |= was_on && !is_ahead;
        (self.sorted.hold.is_on, self.sorted.hold.polled_at) = (is_ahead, now);
    }

    /// Whether puts are ahead of the job, or of the sweep that the job is a part of. Puts wait only for a job that continues.
    fn are_puts_ahead(&self) -> bool {
        let SortedTier { sweep, job, is_held, hold, .. } = &self.sorted;
        if self.now.mono.ms_since(hold.worked_at) > HOLD_MS_MAX {
            return false;
        }
        // A complete job may need further writes before it is listed: job and puts would wait for each other.
        let goes_on = |job: &&SortJob| !is_held && !job.is_complete() && job.step != SortStep::GivenUp;
        let Some(job) = job.as_deref().filter(goes_on) else { return false };
        // A merge of later runs has taken the space for all of it.
        let is_behind_merge = job.pace.is_some_and(|pace| pace.is_behind(self.room_for_runs(self.reserved_segments())));
        let is_behind = |sweep: &RunSweep| {
            // Until a sync, sorted segments and the next part may take all of the space together.
            let is_filled = self.room_for_runs(self.reserved_segments() + 2) == 0 && sweep.pace.room_bytes > 0;
            is_filled || sweep.pace.is_behind(self.room_for_puts(sweep.part_bytes))
        };
        self.has_much_to_sort() || is_behind_merge || sweep.as_ref().is_some_and(is_behind)
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
    fn puts_may_be_ahead_of_a_sweep_by_a_quarter_of_their_space() {
        let at = |read_bytes| MergePace { room_bytes: 400, to_read_bytes: 1_000, read_bytes, ..MergePace::default() };
        assert!(!at(0).is_behind(300) && at(0).is_behind(299));
        assert!(!at(500).is_behind(150) && at(500).is_behind(149));
        assert!(!at(1_000).is_behind(0), "the last part is read");
        let full = MergePace { room_bytes: 0, ..at(0) };
        assert!(!full.is_behind(0), "a full store refuses puts in any case");
        // Runs have grown by 30 B, and will by 10 B more: of the space at the start, 360 B are left to puts.
        let growing = MergePace { written_bytes: 780, replaced_bytes: 750, ..at(750) };
        assert!(!growing.is_behind(360 * 3 / 16 + 1 + 10) && growing.is_behind(360 * 3 / 16 + 9));
        let all = MergePace { written_bytes: 1_050, ..growing };
        assert!(all.is_behind(100) && !all.is_behind(101), "it takes all of the space, a quarter of it from now on");
        let shrinking = MergePace { written_bytes: 750, replaced_bytes: 780, ..at(750) };
        assert!(!shrinking.is_behind(75) && shrinking.is_behind(74));
    }
}
