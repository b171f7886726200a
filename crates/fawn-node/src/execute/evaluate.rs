//! Evaluation of an update against the key's latest pending entry.
//!
//! The entry is borrowed from the engine and an append changes the engine, so borrowed parts of the outcome
//! are copied to the shard's scratch buffers first.
use super::EvaluationScratch;
use fawn_dli::StringOperation;
use fawn_types::operation::{DataOperation, Effect, Outcome};
use fawn_types::{EntryRef, OperationError, Reply, TimeMs, Update, Version};

/// Effect of an evaluation on the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Write {
    /// No record.
    None,
    /// A put of [`EvaluationScratch::value`].
    Put { flags: u32, expires_at_ms: u64 },
    /// A tombstone.
    Delete,
}

/// An entry whose value is in [`EvaluationScratch::previous`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct KeptEntry {
    flags: u32,
    expires_at_ms: u64,
    version: Version,
}

/// A reply whose entry, if any, is in the scratch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EvaluatedReply(EvaluatedForm);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EvaluatedForm {
    Plain(Reply<'static>),
    Value(KeptEntry),
    Previous { entry: KeptEntry, applied: bool },
}

/// The outcome of an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UpdateDecision {
    pub(crate) write: Write,
    pub(crate) answer: EvaluatedReply,
}

/// Evaluates `update` on `current`.
pub(crate) fn evaluate<'a>(
    scratch: &mut EvaluationScratch,
    update: Update<'a>,
    value_bytes_max: u32,
    current: Option<EntryRef<'a>>,
    now: TimeMs,
) -> UpdateDecision {
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
    UpdateDecision { write, answer: EvaluatedReply::keep(scratch, &reply) }
}

impl EvaluatedReply {
    pub(crate) const fn error(error: OperationError) -> Self {
        Self(EvaluatedForm::Plain(Reply::Error(error)))
    }

    /// A reply without an entry.
    pub(crate) const fn plain(reply: Reply<'static>) -> Self {
        Self(EvaluatedForm::Plain(reply))
    }

    fn keep(scratch: &mut EvaluationScratch, reply: &Reply<'_>) -> Self {
        Self(match *reply {
            Reply::Value(entry) => EvaluatedForm::Value(kept(scratch, &entry)),
            Reply::Previous { entry: Some(entry), applied } => {
                EvaluatedForm::Previous { entry: kept(scratch, &entry), applied }
            }
            Reply::Previous { entry: None, applied } => EvaluatedForm::Plain(Reply::Previous { entry: None, applied }),
            Reply::Absent => EvaluatedForm::Plain(Reply::Absent),
            Reply::Stored { version, value_bytes } => EvaluatedForm::Plain(Reply::Stored { version, value_bytes }),
            Reply::NotStored => EvaluatedForm::Plain(Reply::NotStored),
            Reply::VersionMismatch => EvaluatedForm::Plain(Reply::VersionMismatch),
            Reply::NotFound => EvaluatedForm::Plain(Reply::NotFound),
            Reply::Deleted => EvaluatedForm::Plain(Reply::Deleted),
            Reply::Touched => EvaluatedForm::Plain(Reply::Touched),
            Reply::NotTouched => EvaluatedForm::Plain(Reply::NotTouched),
            Reply::Signed(value) => EvaluatedForm::Plain(Reply::Signed(value)),
            Reply::Unsigned(value) => EvaluatedForm::Plain(Reply::Unsigned(value)),
            Reply::Error(error) => EvaluatedForm::Plain(Reply::Error(error)),
        })
    }

    /// The reply, completed with the assigned version.
    pub(crate) fn reply<'a>(&self, scratch: &'a EvaluationScratch, assigned: Version) -> Reply<'a> {
        let entry = |kept: KeptEntry| EntryRef {
            value: &scratch.previous,
            flags: kept.flags,
            expires_at_ms: kept.expires_at_ms,
            version: if kept.version == Version::ZERO { assigned } else { kept.version },
        };
        match self.0 {
            EvaluatedForm::Plain(Reply::Stored { value_bytes, .. }) => Reply::Stored { version: assigned, value_bytes },
            EvaluatedForm::Plain(reply) => reply,
            EvaluatedForm::Value(kept) => Reply::Value(entry(kept)),
            EvaluatedForm::Previous { entry: kept, applied } => Reply::Previous { entry: Some(entry(kept)), applied },
        }
    }
}

fn kept(scratch: &mut EvaluationScratch, entry: &EntryRef<'_>) -> KeptEntry {
    scratch.previous.clear();
    scratch.previous.extend_from_slice(entry.value);
    KeptEntry { flags: entry.flags, expires_at_ms: entry.expires_at_ms, version: entry.version }
}
