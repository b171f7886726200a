//! Pace of the sorted tier: when a search for segments to sort or runs to merge is due, and when a run that failed is read again.
use fawn_types::MonoMs;

/// Delay of the next search if the last one found work that something holds up, ms; each further one doubles it.
const SEARCH_MS: u64 = 1;
/// Longest such delay, ms.
const SEARCH_MS_MAX: u64 = 1024;
/// First delay after a run that is merged could not be read, ms; each further failure doubles it.
const UNREADABLE_MS: u64 = 10_000;
/// Longest delay after such a failure, ms.
const UNREADABLE_MS_MAX: u64 = 3_600_000;

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

/// Failures of a run that was to be merged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunFailures {
    unreadable: u32,
    /// No merge reads it before; `None`: none has failed.
    pub(super) barred_until: Option<MonoMs>,
}

impl RunFailures {
    /// Whether merges leave the run alone now.
    pub(super) fn is_barred(&self, now: MonoMs) -> bool {
        self.barred_until.is_some_and(|until| now < until)
    }

    /// A merge found it corrupt: bytes that were written long ago do not change before the next opening.
    pub(super) const fn note_corrupt(&mut self) {
        self.barred_until = Some(MonoMs(u64::MAX));
    }

    /// The device could not read it, which may pass.
    pub(super) fn note_unreadable(&mut self, now: MonoMs) {
        let delay_ms = UNREADABLE_MS.saturating_mul(1 << self.unreadable.min(16)).min(UNREADABLE_MS_MAX);
        self.unreadable += 1;
        self.barred_until = Some(now.plus_ms(delay_ms));
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
    fn delays_of_an_unreadable_run_grow_to_an_hour() {
        let (mut failures, mut now, mut attempts) = (RunFailures::default(), MonoMs(7), 0);
        assert!(!failures.is_barred(now));
        while now.0 < 24 * 3_600_000 {
            failures.note_unreadable(now);
            let until = failures.barred_until.unwrap();
            assert!(failures.is_barred(MonoMs(until.0 - 1)) && !failures.is_barred(until));
            assert!((10_000..=3_600_000).contains(&(until.0 - now.0)));
            (now, attempts) = (until, attempts + 1);
        }
        assert!((24..=34).contains(&attempts), "{attempts} attempts a day");
        failures.note_corrupt();
        assert!(failures.is_barred(now.plus_ms(1 << 40)));
    }
}
