//! Owns requests on the connection itself: the codec words them, this keeps them in order.
use super::Flow;
use crate::session::Session;
use fawn_wire::{After, Connection};

/// Answers it.
pub(crate) fn execute(session: &mut Session, connection: &Connection<'_>) -> Flow {
    let Session { codec, identity, replies, .. } = session;
    let mut after = After::GoOn;
    replies.respond(|out| after = connection.answer(codec, identity, out));
    match after {
        After::GoOn => Flow::Next,
        After::Close => Flow::End,
    }
}
