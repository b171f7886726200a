//! Rest: while clients write nothing, the tier sorts the records that sealed segments still have, and merges all later runs,
//! although they are few. Index entries and filters of both take memory, and lookups search each age of runs.
use super::super::Engine;
use super::SortedTier;
use super::job::{SortJob, SortStep};
use fawn_flash::Device;
use fawn_types::{MonoMs, TimeMs};

/// Time without a write before the tier rests, ms.
const REST_MS: u64 = 1_000;

/// Watch for a time without writes, and the credit of jobs for which only that is the reason.
///
/// They write at most as many bytes as clients have, so that writes with pauses between them do not wear the device out; after
/// an opening also as many as the runs have.
#[derive(Debug, Default)]
pub(super) struct RestWatch {
    /// Record bytes by the last write, and its time; until there is one, that of the first poll.
    written_bytes: u64,
    written_at: Option<MonoMs>,
    is_on: bool,
    credit_bytes: u64,
}

impl RestWatch {
    /// Takes in the record bytes of clients' writes so far. Returns whether a rest begins.
    pub(super) fn note(&mut self, now: MonoMs, record_bytes: u64) -> bool {
        if record_bytes != self.written_bytes {
            self.credit(record_bytes - self.written_bytes);
            (self.written_bytes, self.written_at, self.is_on) = (record_bytes, Some(now), false);
            return false;
        }
        let was_on = self.is_on;
        self.is_on = now.ms_since(*self.written_at.get_or_insert(now)) >= REST_MS;
        self.is_on && !was_on
    }

    /// Time of its next begin, if nothing is written until then.
    fn begins_at(&self) -> Option<MonoMs> {
        self.written_at.map(|at| at.plus_ms(REST_MS)).filter(|_| !self.is_on)
    }

    /// Allows jobs to write so many bytes more.
    pub(super) const fn credit(&mut self, bytes: u64) {
        self.credit_bytes = self.credit_bytes.saturating_add(bytes);
    }

    /// Bytes that a job may write only because of the rest.
    pub(super) const fn bytes_max(&self) -> u64 {
        if self.is_on { self.credit_bytes } else { 0 }
    }

    /// A job begins that writes so many bytes. Returns the credit that is taken for it, bytes.
    pub(super) fn pay(&mut self, bytes: u64) -> u64 {
        let paid_bytes = bytes.min(self.credit_bytes);
        self.credit_bytes -= paid_bytes;
        paid_bytes
    }
}

impl SortedTier {
    /// Gives back the credit that a failed job has not used, before its files are removed.
    pub(super) fn return_credit(&mut self, job: &SortJob) {
        let written_bytes = job.file_bytes();
        match &mut self.sweep {
            // The next part tries again what this one has not done.
            Some(sweep) if job.is_part() => sweep.failed_bytes += written_bytes,
            _ => self.rest.credit(job.paid_bytes.saturating_sub(written_bytes)),
        }
    }
}

impl<D: Device> Engine<D> {
    /// Begins or ends the rest.
    pub(super) fn watch_rest(&mut self) {
        // Puts that wait are no rest.
        let has_begun = !self.sorted.hold.is_on && self.sorted.rest.note(self.now.mono, self.stats.record_bytes);
        if has_begun {
            self.sorted.note_space();
        }
    }

    /// Time by which a poll begins or ends a job of the tier although nothing has happened. `None`: an event brings it about.
    pub(in crate::engine) fn sort_at(&self) -> Option<MonoMs> {
        let SortedTier { job, has_next_step, runs, segment_search, run_search, retry_at, rest, is_held, .. } =
            &self.sorted;
        let has_none = runs.is_empty() && job.is_none() && !self.sorts_all();
        if has_none || self.poisoned.is_some() || self.options.read_only {
            return None;
        }
        if let Some(job) = job {
            let is_removed = job.step == SortStep::GivenUp && job.is_idle();
            // Batches are gathered and written while the list of runs is held.
            let continues = !is_held || matches!(job.step, SortStep::Gather | SortStep::WriteBatch);
            let step = ((*has_next_step || is_removed) && continues).then_some(self.now.mono);
            return step.or_else(|| self.leave_sort_read_at());
        }
        let now = self.now.mono;
        let expires_at = Some(self.sorted.expires_at).filter(|at| *at < TimeMs(u64::MAX));
        let expiry = expires_at.map(|at| now.plus_ms(at.0.saturating_sub(self.clock.get().0)));
        let repeats = [run_search.repeat_at(), segment_search.repeat_at(), expiry].into_iter().flatten();
        let repeats = repeats.map(|at| at.max(*retry_at));
        let is_barred = run_search.is_due(now) || segment_search.is_due(now);
        let begin = rest.begins_at().map(|at| at.max(now.plus_ms(1)));
        // A time that has passed was used by the last poll, or the search waits for an event. A corrupt run is barred for ever.
        let times = repeats.chain(is_barred.then_some(*retry_at)).chain(begin);
        times.filter(|at| *at > now && *at < MonoMs(u64::MAX)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_begins_once_a_second_after_the_last_write() {
        let mut rest = RestWatch::default();
        rest.credit(5);
        assert!(!rest.note(MonoMs(5_000), 0) && !rest.note(MonoMs(5_999), 0), "an opening is as a write");
        assert!(rest.note(MonoMs(6_000), 0));
        let mut rest = RestWatch::default();
        rest.credit(5);
        assert!(!rest.note(MonoMs(10), 100));
        assert!(!rest.note(MonoMs(500), 100) && !rest.note(MonoMs(1_009), 100));
        assert_eq!(rest.bytes_max(), 0);
        assert!(rest.note(MonoMs(1_010), 100));
        assert_eq!(rest.bytes_max(), 105);
        assert!(!rest.note(MonoMs(1_011), 100), "it has begun before");
        rest.pay(100);
        assert_eq!(rest.bytes_max(), 5);
        assert!(!rest.note(MonoMs(1_020), 130));
        assert_eq!(rest.bytes_max(), 0, "a write ends it");
        assert!(!rest.note(MonoMs(2_019), 130) && rest.note(MonoMs(2_020), 130));
        assert_eq!(rest.bytes_max(), 35);
        rest.pay(36);
        assert_eq!(rest.bytes_max(), 0);
    }
}
