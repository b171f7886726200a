//! `StringOperation`: dispatches an `Update` to the module of its operation.
use crate::append::AppendEnd;
use crate::{append, counter, delete, set, touch};
use fawn_types::operation::{DataOperation, Effect, Outcome};
use fawn_types::{EntryRef, OperationError, Reply, TimeJump, TimeMs, Update};

/// One string command on one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StringOperation<'a> {
    update: Update<'a>,
    value_bytes_max: u32,
    jump: TimeJump,
}

impl<'a> StringOperation<'a> {
    /// An operation that applies `update`, and fails if the new value would be longer than `value_bytes_max`.
    #[must_use]
    pub const fn new(update: Update<'a>, value_bytes_max: u32) -> Self {
        Self { update, value_bytes_max, jump: TimeJump { in_ms: 0, to: TimeMs(0) } }
    }

    /// Expects this jump of the time of its evaluation.
    #[must_use]
    pub const fn before(self, jump: TimeJump) -> Self {
        Self { jump, ..self }
    }
}

impl<'a> DataOperation<'a> for StringOperation<'a> {
    fn needs_current(&self) -> bool {
        self.update.needs_current()
    }

    fn apply(&self, current: Option<EntryRef<'a>>, now: TimeMs) -> Outcome<'a> {
        // The caller may pass in an expired entry. Dropping it here makes every replica treat it as absent.
        let current = current.filter(|entry| !entry.is_expired(now));
        let (max, jump) = (self.value_bytes_max, self.jump);
        match self.update {
            Update::Set { value, flags, expiry, condition, return_previous } => {
                let expiry = expiry.absolute_before(jump, now);
                set::apply(&set::SetOperation { value, flags, expiry, condition, return_previous }, current, now, max)
            }
            Update::Append { bytes, create, condition } => {
                append::apply(AppendEnd::End, bytes, create, condition, current, max)
            }
            Update::Prepend { bytes, create, condition } => {
                append::apply(AppendEnd::Start, bytes, create, condition, current, max)
            }
            Update::AddSigned { delta } => counter::add_signed(delta, current),
            Update::AddUnsigned { delta } => counter::change_unsigned(current, |value| value.wrapping_add(delta)),
            Update::SubtractUnsigned { delta } => {
                counter::change_unsigned(current, |value| value.saturating_sub(delta))
            }
            Update::Delete { condition, return_previous } => delete::apply(condition, return_previous, current),
            Update::Touch { expiry, condition, return_value } => {
                touch::apply(expiry.absolute_before(jump, now), condition, return_value, current, now)
            }
        }
    }
}

/// An outcome without a write.
pub(crate) const fn unchanged(reply: Reply<'_>) -> Outcome<'_> {
    Outcome { effect: Effect::None, reply }
}

/// An error outcome if `value_bytes` exceeds the limit.
pub(crate) const fn too_long<'a>(value_bytes: usize, limit_bytes: u32) -> Option<Outcome<'a>> {
    if value_bytes > limit_bytes as usize {
        return Some(unchanged(Reply::Error(OperationError::ValueTooLong { limit_bytes })));
    }
    None
}
