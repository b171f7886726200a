//! Histories of single keys as clients observed them, and their linearizability check.
//!
//! Every operation has a call and, unless it stayed unanswered, a reply. A history is linearizable if its operations
//! have an order, each between its call and its reply, in which every reply is that of a single register. An operation
//! without a reply may be anywhere after its call, or missing.
mod check;

pub use check::{Verdict, check};

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
    pub called: u64,
    /// When the reply arrived; `u64::MAX` for [`Observed::Unknown`].
    pub answered: u64,
    /// The request.
    pub ask: KeyRequest,
    /// The observed outcome.
    pub heard: Observed,
    /// The connection that sent it, whose operations take effect in the order of their calls; 0: no order.
    pub connection: u64,
}

impl KeyRequest {
    /// The register's value afterwards, and the outcome that its client should observe.
    fn apply(&self, value: Option<&[u8]>) -> (Option<Vec<u8>>, Observed) {
        let same = || value.map(<[u8]>::to_vec);
        match self {
            KeyRequest::Read => (same(), Observed::Value(same())),
            KeyRequest::Write(new) => (Some(new.clone()), Observed::Done),
            KeyRequest::Append(more) => {
                let joined = [value.unwrap_or_default(), more].concat();
                let len = joined.len() as i64;
                (Some(joined), Observed::Number(len))
            }
            KeyRequest::Add(delta) => {
                let text = value.map_or("0", |value| std::str::from_utf8(value).unwrap_or("0"));
                let sum = text.parse::<i64>().unwrap_or(0) + delta;
                (Some(sum.to_string().into_bytes()), Observed::Number(sum))
            }
            KeyRequest::Delete => (None, Observed::DoneIf(value.is_some())),
            KeyRequest::WriteIfAbsent(new) => match value {
                Some(_) => (same(), Observed::DoneIf(false)),
                None => (Some(new.clone()), Observed::DoneIf(true)),
            },
            KeyRequest::Swap { expected, new } => match value {
                Some(value) if value == expected.as_slice() => (Some(new.clone()), Observed::DoneIf(true)),
                _ => (same(), Observed::DoneIf(false)),
            },
            KeyRequest::WriteIfPresent(new) => (value.map(|_| new.clone()), Observed::DoneIf(value.is_some())),
            KeyRequest::AppendIfPresent(more) => {
                (value.map(|value| [value, more].concat()), Observed::DoneIf(value.is_some()))
            }
            KeyRequest::AddIfPresent(delta) => match value {
                Some(_) => KeyRequest::Add(*delta).apply(value),
                None => (None, Observed::DoneIf(false)),
            },
            KeyRequest::Exchange(new) => (Some(new.clone()), Observed::Value(same())),
            KeyRequest::Exists => (same(), Observed::DoneIf(value.is_some())),
        }
    }
}

impl HistoryOperation {
    /// Whether the client may have observed this outcome.
    fn permits(&self, outcome: &Observed) -> bool {
        match (&self.heard, outcome) {
            (Observed::Unknown, _) | (Observed::Done, Observed::DoneIf(_)) => true,
            (heard, outcome) => heard == outcome,
        }
    }
}
