//! Failed reads in the background: what could not be read is left alone for a while, and longer each time.
use fawn_types::MonoMs;

/// First delay, ms; each further failure doubles it.
const UNREADABLE_MS: u64 = 10_000;
/// Longest delay, ms.
const UNREADABLE_MS_MAX: u64 = 3_600_000;

/// Failed reads of a run or a segment in the background.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadFailures {
    unreadable: u32,
    /// Nothing reads it in the background before; `None`: no read has failed.
    pub(crate) barred_until: Option<MonoMs>,
}

impl ReadFailures {
    /// Whether it is left alone now.
    pub(crate) fn is_barred(&self, now: MonoMs) -> bool {
        self.barred_until.is_some_and(|until| now < until)
    }

    /// It was found corrupt: bytes that were written long ago do not change before the next opening.
    pub(crate) const fn note_corrupt(&mut self) {
        self.barred_until = Some(MonoMs(u64::MAX));
    }

    /// The device could not read it, which may pass.
    pub(crate) fn note_unreadable(&mut self, now: MonoMs) {
        let delay_ms = UNREADABLE_MS.saturating_mul(1 << self.unreadable.min(16)).min(UNREADABLE_MS_MAX);
        self.unreadable += 1;
        self.barred_until = Some(now.plus_ms(delay_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_after_failed_reads_grow_to_an_hour() {
        let (mut failures, mut now, mut attempts) = (ReadFailures::default(), MonoMs(7), 0);
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
