//! Protocol-independent requests on one key: decoded by codecs, evaluated by heads, forwarded between peers.
use crate::{TimeJump, TimeMs, Version};

/// The effect of a write on the key's expiry. Absolute times are ms since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Expiry {
    /// The entry never expires (a plain `SET` removes the expiry).
    #[default]
    Never,
    /// The entry keeps its expiry (`KEEPTTL`, memcached's `append`).
    Keep,
    /// The entry expires at this time; if the time is not in the future, the key is deleted at once.
    AtMs(u64),
    /// Expires so many ms after the head evaluates it; 0 deletes the key at once.
    InMs(u64),
}

impl Expiry {
    /// A relative time becomes absolute: at the head alone, so that no other clock decides how long an entry lives.
    #[must_use]
    pub const fn absolute(self, now: TimeMs) -> Self {
        match self {
            Self::InMs(ms) => Self::AtMs(now.plus_ms(ms).0),
            Self::Never | Self::Keep | Self::AtMs(_) => self,
        }
    }

    /// As [`Expiry::absolute`], for a time that may soon jump.
    #[must_use]
    pub fn absolute_before(self, jump: TimeJump, now: TimeMs) -> Self {
        match self {
            Self::InMs(ms) if ms > 0 => self.absolute(jump.begin_of(ms, now)),
            _ => self.absolute(now),
        }
    }
}

/// The condition under which a write applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Condition {
    /// Unconditionally.
    #[default]
    Always,
    /// Only if the key is present (`XX`, `replace`).
    Exists,
    /// Only if the key is absent (`NX`, `add`).
    Absent,
    /// Only if the key has this version (`cas`).
    VersionIs(Version),
}

/// The condition under which a new expiry applies (`EXPIRE`'s options). The numbers are those of encoded requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExpiryCondition {
    /// Unconditionally.
    #[default]
    Always = 0,
    /// Only if the key has no expiry (`NX`).
    HasNone = 1,
    /// Only if the key has an expiry (`XX`).
    HasOne = 2,
    /// Only if the new expiry is later; no expiry counts as infinitely late (`GT`).
    Later = 3,
    /// Only if the new expiry is earlier; no expiry counts as infinitely late (`LT`).
    Earlier = 4,
    /// Only if the key has an expiry and the new one is earlier (`XX` with `LT`).
    EarlierThanOne = 5,
}

/// A change of one key, evaluated at the head on the latest pending value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update<'a> {
    /// Stores a value. With `return_previous`, the reply is [`crate::Reply::Previous`] even if the condition fails.
    Set {
        /// The new value.
        value: &'a [u8],
        /// Client flags.
        flags: u32,
        /// The new expiry.
        expiry: Expiry,
        /// The condition for the write.
        condition: Condition,
        /// Whether the reply holds the previous entry (`GETSET`, `SET … GET`).
        return_previous: bool,
    },
    /// Appends bytes. An absent key is created if `create` is set (Redis); otherwise `NotStored` (memcached).
    Append {
        /// The bytes to append.
        bytes: &'a [u8],
        /// Whether an absent key is created.
        create: bool,
        /// [`Condition::Always`], or a version that the key must have (cas of memcached's meta commands).
        condition: Condition,
    },
    /// Prepends bytes; otherwise like [`Update::Append`].
    Prepend {
        /// The bytes to prepend.
        bytes: &'a [u8],
        /// Whether an absent key is created.
        create: bool,
        /// As in [`Update::Append`].
        condition: Condition,
    },
    /// Redis counters: a signed 64-bit decimal; an absent key counts as 0; overflow is an error.
    AddSigned {
        /// Added to the value.
        delta: i64,
    },
    /// memcached's `incr`: an unsigned 64-bit decimal that wraps around; `NotFound` if the key is absent.
    AddUnsigned {
        /// Added to the value.
        delta: u64,
    },
    /// memcached's `decr`: stops at 0; `NotFound` if the key is absent. A shorter result is padded with spaces to the
    /// length of the old value.
    SubtractUnsigned {
        /// Subtracted from the value.
        delta: u64,
    },
    /// Removes the key. The reply is `Previous` with `return_previous` (`GETDEL`), otherwise `Deleted` or `NotFound`.
    Delete {
        /// The condition for the removal.
        condition: Condition,
        /// Whether the reply holds the removed entry.
        return_previous: bool,
    },
    /// Changes only the expiry. With `return_value` (`GAT`, `GETEX`) the reply is the entry, otherwise `Touched`,
    /// `NotTouched` or `NotFound`.
    Touch {
        /// The new expiry.
        expiry: Expiry,
        /// The condition for the change.
        condition: ExpiryCondition,
        /// Whether the reply holds the entry.
        return_value: bool,
    },
}

impl Update<'_> {
    /// Whether the outcome depends on the key's current entry, so that the head must load it first.
    #[must_use]
    pub const fn needs_current(&self) -> bool {
        !matches!(
            self,
            Update::Set {
                expiry: Expiry::Never | Expiry::AtMs(_) | Expiry::InMs(_),
                condition: Condition::Always,
                return_previous: false,
                ..
            }
        )
    }
}

/// A request on one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// Reads the committed entry.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Changes the entry.
    Update {
        /// The key.
        key: &'a [u8],
        /// The change.
        update: Update<'a>,
    },
}

impl<'a> Request<'a> {
    /// The key of the request.
    #[must_use]
    pub const fn key(&self) -> &'a [u8] {
        match self {
            Request::Get { key } | Request::Update { key, .. } => key,
        }
    }

    /// Whether the reply may contain the entry's value, which can be long.
    #[must_use]
    pub const fn returns_value(&self) -> bool {
        match self {
            Request::Get { .. } => true,
            Request::Update { update, .. } => update.returns_value(),
        }
    }
}

impl Update<'_> {
    /// Whether the reply may contain the entry's value, which can be long.
    #[must_use]
    pub const fn returns_value(&self) -> bool {
        match self {
            Update::Set { return_previous, .. } | Update::Delete { return_previous, .. } => *return_previous,
            Update::Touch { return_value, .. } => *return_value,
            _ => false,
        }
    }
}
