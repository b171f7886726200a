//! Chain time of a member, by which it judges expiry, and the part of it that its log has settled.
//!
//! The head evaluates an update at its chain time. A member may receive that time before the update: frames hold a part
//! of the head's log. An update evaluated before a key's expiry may keep the key, so a member knows that the key has
//! expired only once its log has every update that was evaluated before then.
use fawn_types::{MonoMs, Now, SteadyTime, TimeMs, Version};

/// The times by which a read judges expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadTime {
    /// Chain time: a key that expires later is there.
    pub now: TimeMs,
    /// A key that expired by then has expired, unless a pending record keeps it. Between both times the member cannot
    /// tell yet.
    pub settled: TimeMs,
}

#[derive(Clone, Debug)]
pub(super) struct ChainTime {
    steady: SteadyTime,
    /// The time at which the epoch began.
    began: TimeMs,
    /// The last version that was assigned when the head had this time.
    assigned: Version,
    settled: TimeMs,
    /// A time that settles once the log reaches its version. Without it, a log that never holds all that is assigned
    /// would settle nothing.
    sample: Option<(TimeMs, Version)>,
    /// When the head last advanced it.
    advanced_at: Option<Now>,
}

impl ChainTime {
    pub(super) const fn new(time: TimeMs) -> Self {
        let steady = SteadyTime::new(time, MonoMs(0));
        let settled = TimeMs(0);
        Self { steady, began: time, assigned: Version::ZERO, settled, sample: None, advanced_at: None }
    }

    #[inline]
    pub(super) const fn get(&self) -> TimeMs {
        self.steady.get()
    }

    /// The time, and the last version that was assigned then.
    pub(super) const fn announcement(&self) -> (TimeMs, Version) {
        (self.steady.get(), self.assigned)
    }

    /// Takes a later time that another member announced, with the last version assigned then.
    pub(super) fn raise(&mut self, (time, assigned): (TimeMs, Version), at: MonoMs) {
        // Of several announcements of one time, the first names the fewest versions.
        if time > self.steady.get() {
            self.assigned = assigned;
        }
        self.steady.raise(time, at);
    }

    /// Begins an epoch whose records all have later times than the reports' greatest, `time`. The log ends at `base`.
    pub(super) fn begin_epoch(&mut self, time: TimeMs, base: Version, at: MonoMs) {
        self.steady.raise(time, at);
        self.began = self.steady.get();
        (self.assigned, self.sample) = (base, None);
    }

    pub(super) const fn began(&self) -> TimeMs {
        self.began
    }

    #[inline]
    pub(super) fn is_advanced_to(&self, now: Now) -> bool {
        self.advanced_at == Some(now)
    }

    /// Advances the head's time to `now`.
    pub(super) fn advance(&mut self, now: Now) {
        self.steady.advance(now);
        self.steady.raise(now.wall, now.mono);
        self.advanced_at = Some(now);
    }

    /// This member may no longer advance it.
    pub(super) const fn end_epoch(&mut self) {
        self.advanced_at = None;
    }

    /// The times for a read at a member whose log ends at `last`.
    pub(super) fn for_read(&mut self, last: Version) -> ReadTime {
        let now = self.steady.get();
        if self.assigned <= last {
            (self.settled, self.sample) = (now, None);
        } else {
            if let Some((time, _)) = self.sample.take_if(|(_, assigned)| *assigned <= last) {
                self.settled = self.settled.max(time);
            }
            self.sample.get_or_insert((now, self.assigned));
        }
        ReadTime { now, settled: self.settled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::Epoch;

    fn version(seq: u64) -> Version {
        Epoch::new(1).and_then(|epoch| Version::new(epoch, seq)).unwrap_or_default()
    }

    fn judged(time: &mut ChainTime, last: u64) -> (u64, u64) {
        let ReadTime { now, settled } = time.for_read(version(last));
        (now.0, settled.0)
    }

    #[test]
    fn a_time_settles_with_the_records_assigned_before_it() {
        let mut time = ChainTime::new(TimeMs(5));
        time.begin_epoch(TimeMs(10), version(0), MonoMs(0));
        assert_eq!(judged(&mut time, 0), (10, 10));
        time.raise((TimeMs(20), version(3)), MonoMs(0));
        assert_eq!(judged(&mut time, 2), (20, 10));
        assert_eq!(judged(&mut time, 3), (20, 20));
        // Frames that come late or twice change nothing.
        time.raise((TimeMs(20), version(9)), MonoMs(0));
        time.raise((TimeMs(15), version(9)), MonoMs(0));
        assert_eq!(judged(&mut time, 3), (20, 20));
        // Records that the log had to give back are missing again.
        time.raise((TimeMs(30), version(6)), MonoMs(0));
        assert_eq!(judged(&mut time, 6), (30, 30));
        time.raise((TimeMs(40), version(8)), MonoMs(0));
        assert_eq!(judged(&mut time, 4), (40, 30));
    }

    #[test]
    fn of_several_announcements_of_a_time_the_first_counts() {
        let mut time = ChainTime::new(TimeMs(5));
        time.begin_epoch(TimeMs(10), version(0), MonoMs(0));
        time.raise((TimeMs(20), version(3)), MonoMs(0));
        time.raise((TimeMs(20), version(9)), MonoMs(0));
        assert_eq!(judged(&mut time, 3), (20, 20));
    }

    #[test]
    fn a_log_that_always_lacks_something_settles_earlier_times() {
        let mut time = ChainTime::new(TimeMs(0));
        let mut settled_last = 0;
        for step in 1..=100_u64 {
            time.raise((TimeMs(10 * step), version(5 * step)), MonoMs(0));
            // The log has half of what is assigned.
            let (now, settled) = judged(&mut time, 5 * step / 2);
            assert!(settled <= now / 2, "{settled} of {now} at {step}");
            settled_last = settled;
        }
        assert!(settled_last >= 200, "{settled_last} of 1000");
    }
}
