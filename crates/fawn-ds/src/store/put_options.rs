//! Expiry and condition of a write.
use fawn_types::limits::EXPIRES_AT_MS_MAX;
use fawn_types::{Condition, TimeJump, TimeMs, Version};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Expiry and condition of [`crate::Store::put_with`]. The last of several conditions counts, as does the last expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct PutOptions {
    pub(super) expiry: PutExpiry,
    pub(super) condition: Condition,
}

/// When a value ceases to exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PutExpiry {
    Never,
    After(Duration),
    At(SystemTime),
}

impl PutOptions {
    /// Never expires, written in any case.
    pub const fn new() -> Self {
        Self { expiry: PutExpiry::Never, condition: Condition::Always }
    }

    /// The value ceases to exist after this time, rounded up to a millisecond. If the wall clock stepped forward less than a minute
    /// ago, the value may live longer: by up to two minutes, and by that step, up to a day, if it proves wrong. So it may within a
    /// minute of an opening, by the error of the wall clock.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.expiry = PutExpiry::After(ttl);
        self
    }

    /// The value ceases to exist at this time of the store's clock.
    pub const fn expires_at(mut self, at: SystemTime) -> Self {
        self.expiry = PutExpiry::At(at);
        self
    }

    /// Written only if the key has no value.
    pub const fn if_absent(mut self) -> Self {
        self.condition = Condition::Absent;
        self
    }

    /// Written only if the key has a value.
    pub const fn if_present(mut self) -> Self {
        self.condition = Condition::Exists;
        self
    }

    /// Written only if the key's value is still the one that this write made.
    pub const fn if_version(mut self, version: Version) -> Self {
        self.condition = Condition::VersionIs(version);
        self
    }
}

impl Default for PutOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl PutExpiry {
    /// As records hold it: ms since the Unix epoch, 0 for never.
    pub(super) fn at_ms(self, now: TimeMs, jump: TimeJump) -> u64 {
        let at_ms = match self {
            Self::Never => return 0,
            Self::After(ttl) => {
                let life_ms = millis_up(ttl);
                jump.begin_of(life_ms, now).plus_ms(life_ms).0
            }
            Self::At(at) => millis_up(at.duration_since(UNIX_EPOCH).unwrap_or_default()),
        };
        at_ms.clamp(1, EXPIRES_AT_MS_MAX)
    }
}

fn millis_up(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A later expiry would be dumped, and refused by a load.
    #[test]
    fn an_expiry_without_end_is_the_latest_that_can_be_loaded() {
        let at_ms = |expiry: PutExpiry| expiry.at_ms(TimeMs(1_700_000_000_000), TimeJump::default());
        assert_eq!(at_ms(PutExpiry::After(Duration::MAX)), EXPIRES_AT_MS_MAX);
        assert_eq!(at_ms(PutExpiry::After(Duration::from_millis(i64::MAX as u64))), EXPIRES_AT_MS_MAX);
        assert_eq!(at_ms(PutExpiry::After(Duration::from_secs(1))), 1_700_000_001_000);
        assert_eq!((at_ms(PutExpiry::Never), at_ms(PutExpiry::At(UNIX_EPOCH))), (0, 1));
    }
}
