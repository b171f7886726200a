//! Requests on the connection itself: the codec encodes their replies, this module orders them.
use super::Flow;
use crate::session::Session;
use fawn_wire::{After, ConnectionCommand};

pub(crate) fn execute(session: &mut Session, connection: &ConnectionCommand<'_>) -> Flow {
    let Session { codec, identity, replies, .. } = session;
    let mut after = After::GoOn;
    replies.respond(|out| after = connection.answer(codec, identity, out));
    match after {
        After::GoOn => Flow::Continue,
        After::Close => Flow::End,
    }
}
