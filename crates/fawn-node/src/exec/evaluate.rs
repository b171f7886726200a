//! Evaluation of an update against the key's latest pending entry.
//!
//! The entry is borrowed from the engine and an append changes the engine, so borrowed parts of the outcome
//! are copied to the executor's scratch buffers first.
use super::EvaluationScratch;
use fawn_dli::StringOperation;
use fawn_types::operation::{DataOperation, Effect, Outcome};
use fawn_types::{EntryRef, TimeMs, Update};
use fawn_wire::internal::put_result;

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

/// Evaluates `update` on `current`; returns its effect. The reply is in [`EvaluationScratch::reply`].
pub(super) fn evaluate<'a>(
    scratch: &mut EvaluationScratch,
    update: Update<'a>,
    value_bytes_max: u32,
    current: Option<EntryRef<'a>>,
    now: TimeMs,
) -> Write {
    let Outcome { effect, reply } = StringOperation::new(update, value_bytes_max).apply(current, now);
    scratch.reply.clear();
    put_result(&mut scratch.reply, &reply);
    match effect {
        Effect::None => Write::None,
        Effect::Delete => Write::Delete,
        Effect::Put { value, flags, expires_at_ms } => {
            scratch.value.clear();
            scratch.value.extend_from_slice(value.as_slice());
            Write::Put { flags, expires_at_ms }
        }
    }
}
