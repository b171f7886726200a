//! Owns the protocol-independent requests on one key. Codecs produce them, heads evaluate them, peers forward them.
use crate::Version;

/// What a write does to a key's expiry. Absolute times are ms since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Expiry {
    /// The entry never expires (a plain `SET` clears the time).
    #[default]
    Never,
    /// Keeps what the entry has (`KEEPTTL`, memcached's `append`).
    Keep,
    /// Expires then; a time not after now deletes the key at once.
    AtMs(u64),
}

/// When a write applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Condition {
    /// Whatever is there.
    #[default]
    Always,
    /// Only if the key exists (`XX`, `replace`).
    Exists,
    /// Only if it does not (`NX`, `add`).
    Absent,
    /// Only if the key's version is this one (`cas`).
    VersionIs(Version),
}

/// When a new expiry time applies (`EXPIRE`'s options).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExpiryCondition {
    /// Whatever it had.
    #[default]
    Always,
    /// Only if it had none (`NX`).
    HasNone,
    /// Only if it had one (`XX`).
    HasOne,
    /// Only if the new one is later; none counts as infinitely late (`GT`).
    Later,
    /// Only if the new one is earlier; none counts as infinitely late (`LT`).
    Earlier,
    /// Only if it had one and the new one is earlier (`XX` with `LT`).
    EarlierThanOne,
}

/// A change of one key, evaluated at the head on the latest pending value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update<'a> {
    /// Sets the whole value. With `return_previous` the reply is [`crate::Reply::Previous`], whether or not it applied.
    Set {
        /// The new value.
        value: &'a [u8],
        /// Client flags.
        flags: u32,
        /// The new expiry.
        expiry: Expiry,
        /// When it applies.
        condition: Condition,
        /// Answer with what was there (`GETSET`, `SET … GET`).
        return_previous: bool,
    },
    /// Appends bytes. Absent key: created when `create` (Redis), else `NotStored` (memcached).
    Append {
        /// What is added.
        bytes: &'a [u8],
        /// Whether an absent key is created.
        create: bool,
        /// Only at this version (memcached meta's cas), if given.
        condition: Condition,
    },
    /// Prepends bytes; as [`Update::Append`].
    Prepend {
        /// What is added.
        bytes: &'a [u8],
        /// Whether an absent key is created.
        create: bool,
        /// Only at this version, if given.
        condition: Condition,
    },
    /// Redis's counters: a signed 64-bit decimal, absent counts as 0, overflow is an error.
    AddSigned {
        /// Added to the value.
        delta: i64,
    },
    /// memcached's `incr`: an unsigned 64-bit decimal that wraps; absent is `NotFound`.
    AddUnsigned {
        /// Added to the value.
        delta: u64,
    },
    /// memcached's `decr`: stops at 0; absent is `NotFound`; a shorter number is padded with spaces to its old length.
    SubtractUnsigned {
        /// Taken from the value.
        delta: u64,
    },
    /// Removes the key. With `return_previous` (`GETDEL`) the reply is `Previous`, else `Deleted` or `NotFound`.
    Delete {
        /// When it applies.
        condition: Condition,
        /// Answer with what was there.
        return_previous: bool,
    },
    /// Changes the expiry alone. With `return_value` (`GAT`, `GETEX`) the reply is the entry, else `Touched` or `NotFound`.
    Touch {
        /// The new expiry.
        expiry: Expiry,
        /// When it applies.
        condition: ExpiryCondition,
        /// Answer with the entry.
        return_value: bool,
    },
}

impl Update<'_> {
    /// Whether the outcome depends on what the key holds, so that the head must load it first.
    #[must_use]
    pub const fn needs_current(&self) -> bool {
        !matches!(
            self,
            Update::Set {
                expiry: Expiry::Never | Expiry::AtMs(_),
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
    /// The key it is about.
    #[must_use]
    pub const fn key(&self) -> &'a [u8] {
        match self {
            Request::Get { key } | Request::Update { key, .. } => key,
        }
    }

    /// Whether its reply holds the entry's value if there is one: then it may be long.
    #[must_use]
    pub const fn returns_value(&self) -> bool {
        match self {
            Request::Get { .. } => true,
            Request::Update { update, .. } => update.returns_value(),
        }
    }
}

impl Update<'_> {
    /// Whether its reply holds the entry's value if there is one: then it may be long.
    #[must_use]
    pub const fn returns_value(&self) -> bool {
        match self {
            Update::Set { return_previous, .. } | Update::Delete { return_previous, .. } => *return_previous,
            Update::Touch { return_value, .. } => *return_value,
            _ => false,
        }
    }
}
