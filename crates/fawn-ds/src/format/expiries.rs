//! Histogram of the puts of a segment or run by expiry time: how much of it has expired, without reading it.
use fawn_types::TimeMs;

/// Time from the base to the end of the first step, ms.
const FIRST_STEP_MS: u64 = 60_000;
/// Steps: each ends four times as long after the base as the one before; the last ends at the latest expiry.
pub(super) const STEPS: usize = 8;

/// Bytes of puts that expire, by the time from a base to their expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expiries {
    /// Time of the expiry clock when the first of them was counted.
    pub(super) base: TimeMs,
    pub(super) bytes: [u32; STEPS],
}

/// Time from the base to the end of a step, ms.
const fn end_ms(step: usize) -> u64 {
    if step + 1 < STEPS { FIRST_STEP_MS << (2 * step) } else { u64::MAX }
}

impl Expiries {
    /// Counts a put that expires.
    #[inline(never)]
    pub(crate) fn add(&mut self, len_bytes: u32, expires_at_ms: u64, now: TimeMs) {
        if self.bytes == [0; STEPS] {
            self.base = now;
        }
        let after_ms = expires_at_ms.saturating_sub(self.base.0);
        let step = (0..STEPS).find(|&step| after_ms <= end_ms(step)).unwrap_or(STEPS - 1);
        self.bytes[step] = self.bytes[step].saturating_add(len_bytes);
    }

    /// Bytes that have expired at this time, of steps that have ended. `latest_ms` is the latest expiry of all.
    pub(crate) fn expired_bytes(&self, at: TimeMs, latest_ms: u64) -> u64 {
        let ended = self.ends(latest_ms).filter(|&(_, ends_at_ms)| ends_at_ms <= at.0);
        ended.map(|(step, _)| u64::from(self.bytes[step])).sum()
    }

    /// Bytes of all puts that expire.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.bytes.iter().copied().map(u64::from).sum()
    }

    /// Bytes of the steps of which a part may have expired at this time: no others have.
    pub(crate) fn begun_bytes(&self, at: TimeMs) -> u64 {
        let has_begun = |step: usize| step == 0 || self.base.0.saturating_add(end_ms(step - 1)) < at.0;
        (0..STEPS).filter(|&step| has_begun(step)).map(|step| u64::from(self.bytes[step])).sum()
    }

    /// Time after `at` when the next step has expired.
    pub(crate) fn next_end(&self, at: TimeMs, latest_ms: u64) -> Option<TimeMs> {
        self.ends(latest_ms).map(|(_, ends_at_ms)| TimeMs(ends_at_ms)).filter(|&ends_at| ends_at > at).min()
    }

    /// The steps that are not empty, with the times by which each has wholly expired.
    fn ends(&self, latest_ms: u64) -> impl Iterator<Item = (usize, u64)> {
        let used = (0..STEPS).filter(|&step| self.bytes[step] > 0);
        used.map(move |step| (step, self.base.0.saturating_add(end_ms(step)).min(latest_ms)))
    }

    /// Time from which the steps are counted.
    pub(crate) const fn base(&self) -> TimeMs {
        self.base
    }

    /// The base, and the steps that are not empty with their bytes.
    pub(crate) fn counts(&self) -> (TimeMs, Vec<(u32, u32)>) {
        let used = self.bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        (self.base, used.map(|(step, &bytes)| (step as u32, bytes)).collect())
    }

    /// Counts that a checkpoint has.
    pub(crate) fn load(base: TimeMs, counts: &[(u32, u32)]) -> Self {
        let mut loaded = Self { base, ..Self::default() };
        for &(step, bytes) in counts {
            let counted = &mut loaded.bytes[(step as usize).min(STEPS - 1)];
            *counted = counted.saturating_add(bytes);
        }
        loaded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None has expired of a step that has not begun.
    #[test]
    fn bytes_may_have_expired_once_their_step_begins() {
        let now = TimeMs(1_000_000);
        let mut expiries = Expiries::default();
        for (len_bytes, ttl_ms) in [(1, 30_000), (10, 60_000), (100, 61_000), (1000, u64::MAX / 2)] {
            expiries.add(len_bytes, now.0 + ttl_ms, now);
        }
        let begun_after = |ms| expiries.begun_bytes(TimeMs(now.0 + ms));
        assert_eq!([0, 60_000, 60_001].map(begun_after), [11, 11, 111]);
        let last_ms = end_ms(STEPS - 2);
        assert_eq!([last_ms, last_ms + 1].map(begun_after), [111, 1111]);
    }

    /// Steps end at one minute, four, sixteen and so on; the last one at the latest expiry.
    #[test]
    fn bytes_expire_when_their_step_ends_and_never_before() {
        let (now, hour_ms) = (TimeMs(1_000_000), 3_600_000);
        let mut expiries = Expiries::default();
        for (len_bytes, ttl_ms) in [(1, 30_000), (10, 60_000), (100, 61_000), (1000, 2000 * hour_ms)] {
            expiries.add(len_bytes, now.0 + ttl_ms, now);
        }
        let latest_ms = now.0 + 2000 * hour_ms;
        let expired_after = |ms| expiries.expired_bytes(TimeMs(now.0 + ms), latest_ms);
        assert_eq!([30_000, 59_999, 60_000, 239_999, 240_000].map(expired_after), [0, 0, 11, 11, 111]);
        assert_eq!([2000 * hour_ms - 1, 2000 * hour_ms].map(expired_after), [111, 1111]);
        let next_after = |ms| expiries.next_end(TimeMs(now.0 + ms), latest_ms).map(|at| at.0 - now.0);
        assert_eq!([0, 60_000, 240_000].map(next_after), [Some(60_000), Some(240_000), Some(2000 * hour_ms)]);
        assert_eq!(next_after(2000 * hour_ms), None);
        let (base, counts) = expiries.counts();
        assert_eq!(Expiries::load(base, &counts), expiries);
    }

    /// One time to live for all: nothing waits for the end of a step.
    #[test]
    fn the_latest_expiry_ends_all_steps() {
        let now = TimeMs(1_000_000);
        let mut expiries = Expiries::default();
        (0..100).for_each(|i| expiries.add(100, now.0 + 100_000 + i, TimeMs(now.0 + i)));
        let latest_ms = now.0 + 100_099;
        let expired_at = |ms| expiries.expired_bytes(TimeMs(ms), latest_ms);
        assert_eq!([latest_ms - 1, latest_ms].map(expired_at), [0, 10_000]);
        assert_eq!(Expiries::default().next_end(now, 0), None);
    }
}
