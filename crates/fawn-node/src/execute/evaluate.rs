//! Evaluation of an update against the key's latest pending entry.
//!
//! The entry is borrowed from the engine and an append changes the engine, so borrowed parts of the outcome
//! are copied to the shard's scratch buffers first.
use super::Scratch;
use fawn_dli::StringOperation;
use fawn_types::operation::{Effect, Operation, Outcome};
use fawn_types::{EntryRef, OperationError, Reply, TimeMs, Update, Version};

/// Effect of an evaluation on the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Write {
    /// No record.
    None,
    /// A put of [`Scratch::value`].
    Put { flags: u32, expires_at_ms: u64 },
    /// A tombstone.
    Delete,
}

/// An entry whose value is in [`Scratch::previous`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kept {
    flags: u32,
    expires_at_ms: u64,
    version: Version,
}

/// A reply whose entry, if any, is in the scratch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer(Form);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Plain(Reply<'static>),
    Value(Kept),
    Previous { entry: Kept, applied: bool },
}

/// The outcome of an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Decision {
    pub(crate) write: Write,
    pub(crate) answer: Answer,
}

/// Evaluates `update` on `current`.
pub(crate) fn evaluate<'a>(
    scratch: &mut Scratch,
    update: Update<'a>,
    value_bytes_max: u32,
    current: Option<EntryRef<'a>>,
    now: TimeMs,
) -> Decision {
    let Outcome { effect, reply } = StringOperation::new(update, value_bytes_max).apply(current, now);
    let write = match effect {
        Effect::None => Write::None,
        Effect::Delete => Write::Delete,
        Effect::Put { value, flags, expires_at_ms } => {
            scratch.value.clear();
            scratch.value.extend_from_slice(value.as_slice());
            Write::Put { flags, expires_at_ms }
        }
    };
    Decision { write, answer: Answer::keep(scratch, &reply) }
}

impl Answer {
    pub(crate) const fn error(error: OperationError) -> Self {
        Self(Form::Plain(Reply::Error(error)))
    }

    /// A reply without an entry.
    pub(crate) const fn plain(reply: Reply<'static>) -> Self {
        Self(Form::Plain(reply))
    }

    fn keep(scratch: &mut Scratch, reply: &Reply<'_>) -> Self {
        Self(match *reply {
            Reply::Value(entry) => Form::Value(kept(scratch, &entry)),
            Reply::Previous { entry: Some(entry), applied } => Form::Previous { entry: kept(scratch, &entry), applied },
            Reply::Previous { entry: None, applied } => Form::Plain(Reply::Previous { entry: None, applied }),
            Reply::Absent => Form::Plain(Reply::Absent),
            Reply::Stored { version, value_bytes } => Form::Plain(Reply::Stored { version, value_bytes }),
            Reply::NotStored => Form::Plain(Reply::NotStored),
            Reply::VersionMismatch => Form::Plain(Reply::VersionMismatch),
            Reply::NotFound => Form::Plain(Reply::NotFound),
            Reply::Deleted => Form::Plain(Reply::Deleted),
            Reply::Touched => Form::Plain(Reply::Touched),
            Reply::NotTouched => Form::Plain(Reply::NotTouched),
            Reply::Signed(value) => Form::Plain(Reply::Signed(value)),
            Reply::Unsigned(value) => Form::Plain(Reply::Unsigned(value)),
            Reply::Error(error) => Form::Plain(Reply::Error(error)),
        })
    }

    /// The reply, completed with the assigned version.
    pub(crate) fn reply<'a>(&self, scratch: &'a Scratch, assigned: Version) -> Reply<'a> {
        let entry = |kept: Kept| EntryRef {
            value: &scratch.previous,
            flags: kept.flags,
            expires_at_ms: kept.expires_at_ms,
            version: if kept.version == Version::ZERO { assigned } else { kept.version },
        };
        match self.0 {
            Form::Plain(Reply::Stored { value_bytes, .. }) => Reply::Stored { version: assigned, value_bytes },
            Form::Plain(reply) => reply,
            Form::Value(kept) => Reply::Value(entry(kept)),
            Form::Previous { entry: kept, applied } => Reply::Previous { entry: Some(entry(kept)), applied },
        }
    }
}

fn kept(scratch: &mut Scratch, entry: &EntryRef<'_>) -> Kept {
    scratch.previous.clear();
    scratch.previous.extend_from_slice(entry.value);
    Kept { flags: entry.flags, expires_at_ms: entry.expires_at_ms, version: entry.version }
}
