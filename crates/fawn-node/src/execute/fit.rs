//! Owns what becomes of a reply that comes when there is no room for it: it is asked for again, or refused.
use crate::pending::{Asker, Target};
use crate::session::Sessions;
use fawn_types::{OperationError, Reply};

/// Whether there is room for a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    Yes,
    /// It can be asked for again.
    Later,
    /// It is part of a reply whose other parts wait for it.
    Never,
}

impl Fit {
    /// What is told instead, if so.
    pub(crate) const fn reply<'a>(self, reply: &'a Reply<'a>) -> &'a Reply<'a> {
        match self {
            Self::Yes | Self::Later => reply,
            Self::Never => &Reply::Error(OperationError::Overloaded),
        }
    }
}

/// Whether there is room for `reply` where `asker` wants it. How long it would be was a guess until now.
pub(crate) fn fits(sessions: &mut Sessions, asker: &Asker<'_>, reply: &Reply<'_>) -> Fit {
    let Reply::Value(entry) = reply else { return Fit::Yes };
    let bytes = entry.value.len();
    let Some((session, _, room)) = sessions.get_with_pool(asker.session) else { return Fit::Yes };
    match asker.target {
        // An update is not done twice, and a read in a key's queue keeps its place.
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

/// Whether there is room now for what was too much before; `promised_bytes` counts what others were promised.
pub(crate) fn is_due(sessions: &Sessions, asker: &Asker<'_>, promised_bytes: &mut usize) -> bool {
    let (Target::Slot(slot), Some(session)) = (asker.target, sessions.get(asker.session)) else { return true };
    let bytes = session.replies.expected_bytes(slot);
    let is_due = sessions.room_of(session).takes(session, slot, bytes, *promised_bytes);
    if is_due {
        *promised_bytes += bytes;
    }
    is_due
}
