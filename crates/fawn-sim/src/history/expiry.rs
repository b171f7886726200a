//! Expiry of a key in its history: when it must, may and must not have happened.
//!
//! The head gives a key its expiry by chain time, the tail judges it by chain time. An operation is between two values
//! of the tail's time, so each expiry is a window: before it the key is present, behind it the key is absent.
use crate::chain_time::TailTime;

/// Bounds of the time at which a key expires, ms of chain time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExpiryWindow {
    /// It does not expire before.
    pub from_ms: u64,
    /// It has expired then.
    pub until_ms: u64,
}

/// Chain time of a key's range while an operation was open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JudgedTime {
    /// The tail's time at the call, ms.
    pub called_ms: u64,
    /// The latest time of any serving member up to the reply, ms; `u64::MAX` without a reply.
    pub answered_ms: u64,
    /// The latest wall clock of a head up to the reply, if it is later.
    pub wall_ms: u64,
    /// How often time had fallen at the call and at the reply.
    pub falls: (u64, u64),
}

impl JudgedTime {
    /// Of an operation to which time means nothing.
    pub const ANY: Self = Self { called_ms: 0, answered_ms: u64::MAX, wall_ms: u64::MAX, falls: (0, 0) };

    /// Of an operation between two readings; without the second, it is open to the end.
    #[must_use]
    pub fn between(called: TailTime, answered: Option<TailTime>) -> Self {
        Self {
            called_ms: called.now.0,
            answered_ms: answered.map_or(u64::MAX, |answered| answered.latest.0),
            wall_ms: answered.map_or(u64::MAX, |answered| answered.latest_wall.0),
            falls: (called.falls, answered.map_or(u64::MAX, |answered| answered.falls)),
        }
    }

    const fn has_fallen(&self) -> bool {
        self.falls.0 != self.falls.1
    }

    /// When a key expires to which this operation gave `ms` to live.
    #[must_use]
    pub const fn window(&self, ms: u64) -> ExpiryWindow {
        if self.has_fallen() {
            // It may have been evaluated on either side of the fall.
            return ExpiryWindow { from_ms: 0, until_ms: u64::MAX };
        }
        ExpiryWindow { from_ms: self.called_ms.saturating_add(ms), until_ms: self.wall_ms.saturating_add(ms) }
    }

    /// Whether this operation may find a key with this expiry. `hidden_at` is the number of falls at the call of an
    /// operation that found it expired.
    #[must_use]
    pub fn may_find(&self, expires: Option<ExpiryWindow>, hidden_at: Option<u64>) -> bool {
        let is_young = expires.is_none_or(|window| self.called_ms < window.until_ms || self.has_fallen());
        // An expired key is there again only if time has fallen since.
        is_young && hidden_at.is_none_or(|falls| falls < self.falls.1)
    }

    /// Whether this operation may find a key with this expiry expired.
    #[must_use]
    pub fn may_miss(&self, expires: Option<ExpiryWindow>) -> bool {
        expires.is_some_and(|window| window.from_ms <= self.answered_ms)
    }
}
