//! Histories of single keys as clients observed them, and their linearizability check.
//!
//! Every operation has a call and, unless it stayed unanswered, a reply. A history is linearizable if its operations
//! have an order, each between its call and its reply, in which every reply is that of a single register. An operation
//! without a reply may be anywhere after its call, or missing.
mod check;
mod expiry;

pub use check::{Verdict, check};
pub use expiry::{ExpiryWindow, JudgedTime};

/// A client's request on one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyRequest {
    /// Reads the value.
    Read,
    /// Sets the value.
    Write(Vec<u8>),
    /// Appends to the value; an absent key counts as empty.
    Append(Vec<u8>),
    /// Adds to a decimal number; an absent key counts as 0.
    Add(i64),
    /// Deletes the key.
    Delete,
    /// Sets the value if the key is absent.
    WriteIfAbsent(Vec<u8>),
    /// Sets the value if it is still the expected one. Values are unique, so this is a compare-and-swap on the version.
    Swap {
        /// The value that the client read before.
        expected: Vec<u8>,
        /// The new value.
        new: Vec<u8>,
    },
    /// Sets the value if the key is present.
    WriteIfPresent(Vec<u8>),
    /// Appends to the value if the key is present.
    AppendIfPresent(Vec<u8>),
    /// Adds to a decimal number if the key is present.
    AddIfPresent(i64),
    /// Sets the value and returns the previous one.
    Exchange(Vec<u8>),
    /// Whether the key is present, as a scan of all keys shows it.
    Exists,
    /// Sets the value, which expires after so many ms.
    WriteExpiring(Vec<u8>, u64),
    /// Lets the key expire after so many ms.
    Expire(u64),
    /// Removes the expiry.
    Persist,
    /// Reads the value, and lets the key expire after so many ms.
    ReadExpiring(u64),
    /// Reads the value, and removes the expiry.
    ReadPersistent,
}

/// The outcome that a client observed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Observed {
    /// The value, if there is one.
    Value(Option<Vec<u8>>),
    /// The operation succeeded; a delete may have found the key or not.
    Done,
    /// Whether the operation took effect ([`KeyRequest::Delete`]: whether the key existed).
    DoneIf(bool),
    /// The length or number afterwards.
    Number(i64),
    /// It failed or had no reply: it may have taken effect, or may still do so.
    Unknown,
    /// It was rejected: it has not taken effect and will not.
    Refused,
}

/// One operation on the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryOperation {
    /// When it was called: a unique value of the simulator's counter.
    pub called_at: u64,
    /// When the reply arrived; `u64::MAX` for [`Observed::Unknown`].
    pub replied_at: u64,
    /// The request.
    pub request: KeyRequest,
    /// The observed outcome.
    pub observed: Observed,
    /// The connection that sent it, whose operations take effect in the order of their calls; 0: no order.
    pub connection: u64,
    /// Chain time of the key's range, by which expiry is judged.
    pub time: JudgedTime,
    /// The `MSET` that it belongs to; 0: none.
    pub batch: u64,
}

/// A present key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PresentKey {
    /// Its value.
    pub value: Vec<u8>,
    /// When it expires, if it does.
    pub expires: Option<ExpiryWindow>,
    /// Its expiry was changed since the value was written, and with it the version: a swap of this value may fail.
    pub is_touched: bool,
}

impl KeyRequest {
    /// Whether the reply is the value.
    #[must_use]
    pub const fn returns_value(&self) -> bool {
        use KeyRequest::{Exchange, Read, ReadExpiring, ReadPersistent};
        matches!(self, Read | Exchange(_) | ReadExpiring(_) | ReadPersistent)
    }

    /// Whether the operation lets the key expire.
    #[must_use]
    pub const fn lets_expire(&self) -> bool {
        matches!(self, KeyRequest::Expire(_) | KeyRequest::ReadExpiring(_) | KeyRequest::WriteExpiring(..))
    }

    /// The register afterwards, and the outcome that its client should observe. `time` is that of the operation.
    fn apply(&self, key: Option<&PresentKey>, time: &JudgedTime) -> (Option<PresentKey>, Observed) {
        let same = || key.cloned();
        let value = || key.map(|key| key.value.clone());
        let plain = |new: &[u8]| Some(PresentKey { value: new.to_vec(), expires: None, is_touched: false });
        // A changed value keeps its expiry.
        let expires = key.and_then(|key| key.expires);
        let kept = |value: Vec<u8>| Some(PresentKey { value, expires, is_touched: false });
        let touched = |expires| value().map(|value| PresentKey { value, expires, is_touched: true });
        match self {
            KeyRequest::Read => (same(), Observed::Value(value())),
            KeyRequest::Write(new) => (plain(new), Observed::Done),
            KeyRequest::Append(more) => {
                let joined = [value().unwrap_or_default().as_slice(), more].concat();
                let len = joined.len() as i64;
                (kept(joined), Observed::Number(len))
            }
            KeyRequest::Add(delta) => {
                let old = key.and_then(|key| std::str::from_utf8(&key.value).ok()).unwrap_or("0");
                let sum = old.parse::<i64>().unwrap_or(0) + delta;
                (kept(sum.to_string().into_bytes()), Observed::Number(sum))
            }
            KeyRequest::Delete => (None, Observed::DoneIf(key.is_some())),
            KeyRequest::WriteIfAbsent(new) => match key {
                Some(_) => (same(), Observed::DoneIf(false)),
                None => (plain(new), Observed::DoneIf(true)),
            },
            KeyRequest::Swap { expected, new } => match key {
                Some(key) if key.value == *expected => (plain(new), Observed::DoneIf(true)),
                _ => (same(), Observed::DoneIf(false)),
            },
            KeyRequest::WriteIfPresent(new) => (key.and_then(|_| plain(new)), Observed::DoneIf(key.is_some())),
            KeyRequest::AppendIfPresent(more) => match key {
                Some(key) => (kept([key.value.as_slice(), more].concat()), Observed::DoneIf(true)),
                None => (None, Observed::DoneIf(false)),
            },
            KeyRequest::AddIfPresent(delta) => match key {
                Some(_) => KeyRequest::Add(*delta).apply(key, time),
                None => (None, Observed::DoneIf(false)),
            },
            KeyRequest::Exchange(new) => (plain(new), Observed::Value(value())),
            KeyRequest::Exists => (same(), Observed::DoneIf(key.is_some())),
            KeyRequest::WriteExpiring(new, ms) => {
                let expires = Some(time.window(*ms));
                (Some(PresentKey { value: new.clone(), expires, is_touched: false }), Observed::Done)
            }
            KeyRequest::Expire(ms) => (touched(Some(time.window(*ms))), Observed::DoneIf(key.is_some())),
            KeyRequest::ReadExpiring(ms) => (touched(Some(time.window(*ms))), Observed::Value(value())),
            KeyRequest::Persist => (touched(None), Observed::DoneIf(expires.is_some())),
            KeyRequest::ReadPersistent => (touched(None), Observed::Value(value())),
        }
    }
}

impl HistoryOperation {
    /// Whether its outcome shows that the key is present afterwards.
    #[must_use]
    pub fn shows_key(&self) -> bool {
        match (&self.request, &self.observed) {
            (_, Observed::Unknown | Observed::Refused) => false,
            (KeyRequest::Write(_) | KeyRequest::WriteIfAbsent(_) | KeyRequest::Exchange(_), _) => true,
            (_, Observed::Value(value)) => value.is_some(),
            (_, Observed::Number(_)) => true,
            (request, Observed::DoneIf(is_done)) => *is_done && *request != KeyRequest::Delete,
            (_, Observed::Done) => false,
        }
    }

    /// Whether the client may have observed this outcome.
    fn permits(&self, outcome: &Observed) -> bool {
        match (&self.observed, outcome) {
            (Observed::Unknown, _) | (Observed::Done, Observed::DoneIf(_)) => true,
            (observed, outcome) => observed == outcome,
        }
    }
}
