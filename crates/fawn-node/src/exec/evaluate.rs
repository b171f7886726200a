//! Evaluation of an update against the key's latest pending entry.
//!
//! The entry is borrowed from the engine and an append changes the engine, so borrowed parts of the outcome
//! are copied to the executor's scratch buffers first.
use super::EvaluationScratch;
use fawn_dli::StringOperation;
use fawn_types::operation::{DataOperation, Effect, Outcome};
use fawn_types::{EntryRef, Reply, TimeMs, Update, Version};

/// Effect of an evaluation on the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Write {
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
pub(super) struct EvaluatedReply(EvaluatedForm);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EvaluatedForm {
    Plain(Reply<'static>),
    Value(KeptEntry),
    Previous { entry: KeptEntry, applied: bool },
}

/// Evaluates `update` on `current`; returns its effect and its reply.
pub(super) fn evaluate<'a>(
    scratch: &mut EvaluationScratch,
    update: Update<'a>,
    value_bytes_max: u32,
    current: Option<EntryRef<'a>>,
    now: TimeMs,
) -> (Write, EvaluatedReply) {
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
    (write, EvaluatedReply::keep(&mut scratch.previous, &reply))
}

impl EvaluatedReply {
    fn keep(previous: &mut Vec<u8>, reply: &Reply<'_>) -> Self {
        Self(match *reply {
            Reply::Value(entry) => EvaluatedForm::Value(kept(previous, &entry)),
            Reply::Previous { entry: Some(entry), applied } => {
                EvaluatedForm::Previous { entry: kept(previous, &entry), applied }
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
    pub(super) fn reply<'a>(&self, previous: &'a [u8], assigned: Version) -> Reply<'a> {
        let entry = |kept: KeptEntry| EntryRef {
            value: previous,
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

fn kept(previous: &mut Vec<u8>, entry: &EntryRef<'_>) -> KeptEntry {
    previous.clear();
    previous.extend_from_slice(entry.value);
    KeptEntry { flags: entry.flags, expires_at_ms: entry.expires_at_ms, version: entry.version }
}
