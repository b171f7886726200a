//! Owns what clients saw, and the question whether one key's history is linearizable.
//!
//! Every operation has a call and, unless the client never heard, an answer. A history is linearizable when there is
//! an order of the operations, none moved before a call or after an answer, in which each answer is what a single
//! register would have said. An operation without an answer may stand anywhere after its call, or nowhere.
mod check;

pub use check::{Verdict, check};

/// What a client asked of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// The value.
    Read,
    /// Sets it.
    Write(Vec<u8>),
    /// Appends to it; an absent key counts as empty.
    Append(Vec<u8>),
    /// Adds to a decimal number; an absent key counts as 0.
    Add(i64),
    /// Removes it.
    Delete,
    /// Sets it if it is absent.
    WriteIfAbsent(Vec<u8>),
    /// Sets it if it is what the client saw: values are unique, so this is a compare-and-swap on the version.
    Swap {
        /// What it saw.
        expected: Vec<u8>,
        /// What it sets.
        new: Vec<u8>,
    },
}

/// What it heard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Observed {
    /// The value, if there is one.
    Value(Option<Vec<u8>>),
    /// Done.
    Done,
    /// Whether it was done ([`Ask::Delete`]: whether the key was there).
    DoneIf(bool),
    /// The length or number afterwards.
    Number(i64),
    /// It failed or nothing was heard: it may have happened, or may yet.
    Unknown,
    /// It was refused for certain: it has not happened and will not.
    Refused,
}

/// One operation on the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryOperation {
    /// When it was asked; a counter of the simulator, unique.
    pub called: u64,
    /// When the answer was heard; `u64::MAX` for [`Observed::Unknown`].
    pub answered: u64,
    /// What was asked.
    pub ask: Ask,
    /// What was heard.
    pub heard: Observed,
}

impl Ask {
    /// The register's value afterwards and what its client should hear.
    fn apply(&self, value: Option<&[u8]>) -> (Option<Vec<u8>>, Observed) {
        let same = || value.map(<[u8]>::to_vec);
        match self {
            Ask::Read => (same(), Observed::Value(same())),
            Ask::Write(new) => (Some(new.clone()), Observed::Done),
            Ask::Append(more) => {
                let joined = [value.unwrap_or_default(), more].concat();
                let len = joined.len() as i64;
                (Some(joined), Observed::Number(len))
            }
            Ask::Add(delta) => {
                let text = value.map_or("0", |value| std::str::from_utf8(value).unwrap_or("0"));
                let sum = text.parse::<i64>().unwrap_or(0) + delta;
                (Some(sum.to_string().into_bytes()), Observed::Number(sum))
            }
            Ask::Delete => (None, Observed::DoneIf(value.is_some())),
            Ask::WriteIfAbsent(new) => match value {
                Some(_) => (same(), Observed::DoneIf(false)),
                None => (Some(new.clone()), Observed::DoneIf(true)),
            },
            Ask::Swap { expected, new } => match value {
                Some(value) if value == expected.as_slice() => (Some(new.clone()), Observed::DoneIf(true)),
                _ => (same(), Observed::DoneIf(false)),
            },
        }
    }
}
