//! Replies that arrive without budget: they are requested again, or refused.
use crate::pending::{Asker, Target};
use crate::session::Sessions;
use fawn_types::{OperationError, Reply};

/// Whether the budget admits a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    Yes,
    /// Not now; the read can be repeated.
    Later,
    /// Not now; it is part of a reply whose other parts wait for it.
    Never,
}

impl Fit {
    /// Replacement reply, if the reply is not admitted.
    pub(crate) const fn reply<'a>(self, reply: &'a Reply<'a>) -> &'a Reply<'a> {
        match self {
            Self::Yes | Self::Later => reply,
            Self::Never => &Reply::Error(OperationError::Overloaded),
        }
    }
}

/// Whether the budget admits `reply` for `asker`. Its length was an estimate until now.
pub(crate) fn fits(sessions: &mut Sessions, asker: &Asker<'_>, reply: &Reply<'_>) -> Fit {
    let Reply::Value(entry) = reply else { return Fit::Yes };
    let bytes = entry.value.len();
    let Some((session, _, room)) = sessions.get_with_pool(asker.session) else { return Fit::Yes };
    match asker.target {
        // An update must not be executed twice, and a read in a key's queue keeps its place.
        _ if asker.is_queued => Fit::Yes,
        Target::Slot(slot) if room.takes(session, slot, bytes, 0) => Fit::Yes,
        Target::Slot(slot) => {
            session.replies.expect(slot, bytes);
            room.note(session);
            Fit::Later
        }
        Target::Item { .. } if room.takes_part(bytes) => Fit::Yes,
        Target::Item { .. } => Fit::Never,
    }
}

/// Whether the budget now admits a deferred reply; `promised_bytes` is reserved for others.
pub(crate) fn is_due(sessions: &Sessions, asker: &Asker<'_>, promised_bytes: &mut usize) -> bool {
    let (Target::Slot(slot), Some(session)) = (asker.target, sessions.get(asker.session)) else { return true };
    let bytes = session.replies.expected_bytes(slot);
    let is_due = sessions.room_of(session).takes(session, slot, bytes, *promised_bytes);
    if is_due {
        *promised_bytes += bytes;
    }
    is_due
}
