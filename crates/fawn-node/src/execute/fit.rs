//! Replies that arrive without budget: they are requested again, or refused.
use crate::pending::{ReplyPlace, ReplyTarget};
use crate::session::Sessions;
use fawn_types::{OperationError, Reply};

/// Whether the budget admits a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admit {
    Accept,
    /// Not now; the read can be repeated.
    Retry,
    /// Not now; it is part of a reply whose other parts wait for it.
    Reject,
}

impl Admit {
    /// Replacement reply, if the reply is not admitted.
    pub(crate) const fn reply<'a>(self, reply: &'a Reply<'a>) -> &'a Reply<'a> {
        match self {
            Self::Accept | Self::Retry => reply,
            Self::Reject => &Reply::Error(OperationError::Overloaded),
        }
    }
}

/// Whether the budget admits `reply` for `asker`. Its length was an estimate until now.
pub(crate) fn admit_reply(sessions: &mut Sessions, reply_target: &ReplyTarget<'_>, reply: &Reply<'_>) -> Admit {
    let Reply::Value(entry) = reply else { return Admit::Accept };
    let bytes = entry.value.len();
    let Some((session, _, room)) = sessions.get_with_pool(reply_target.session) else { return Admit::Accept };
    match reply_target.target {
        // An update must not be executed twice, and a read in a key's queue keeps its place.
        _ if reply_target.is_queued => Admit::Accept,
        ReplyPlace::Slot(slot) if room.admits(session, slot, bytes, 0) => Admit::Accept,
        ReplyPlace::Slot(slot) => {
            session.replies.reserve_bytes(slot, bytes);
            room.update(session);
            Admit::Retry
        }
        ReplyPlace::Item { .. } if room.admits_partial(bytes) => Admit::Accept,
        ReplyPlace::Item { .. } => Admit::Reject,
    }
}

/// Whether the budget now admits a deferred reply; `promised_bytes` is reserved for others.
pub(crate) fn is_due(sessions: &Sessions, reply_target: &ReplyTarget<'_>, promised_bytes: &mut usize) -> bool {
    let (ReplyPlace::Slot(slot), Some(session)) = (reply_target.target, sessions.get(reply_target.session)) else {
        return true;
    };
    let bytes = session.replies.reserved_bytes(slot);
    let is_due = sessions.budget_of(session).admits(session, slot, bytes, *promised_bytes);
    if is_due {
        *promised_bytes += bytes;
    }
    is_due
}
