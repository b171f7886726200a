//! Admission of replies that arrive later: accepted, queued for a larger grant, or refused.
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

/// Whether the budget admits `reply`. A read that is not admitted is queued for a grant of the reply's length.
pub(crate) fn admit_reply(sessions: &mut Sessions, reply_target: &ReplyTarget<'_>, reply: &Reply<'_>) -> Admit {
    let Reply::Value(entry) = reply else { return Admit::Accept };
    let bytes = entry.value.len();
    let Some((session, _, budget)) = sessions.get_with_pool(reply_target.session) else { return Admit::Accept };
    match reply_target.target {
        // An update must not be executed twice, and an item in a key's queue keeps its place.
        _ if reply_target.is_queued => Admit::Accept,
        ReplyPlace::Slot(slot) if budget.grant(session, slot, bytes) => Admit::Accept,
        ReplyPlace::Slot(slot) => {
            budget.queue_read(session, slot, bytes);
            Admit::Retry
        }
        ReplyPlace::Item { .. } if budget.admits_partial(bytes) => Admit::Accept,
        ReplyPlace::Item { .. } => Admit::Reject,
    }
}

/// Whether a queued read has its grant of `bytes`, or needs none because its session has ended.
pub(crate) fn is_granted(sessions: &Sessions, reply_target: &ReplyTarget<'_>, bytes: usize) -> bool {
    let (ReplyPlace::Slot(slot), Some(session)) = (reply_target.target, sessions.get(reply_target.session)) else {
        return true;
    };
    session.replies.reserved_bytes(slot) >= bytes
}
