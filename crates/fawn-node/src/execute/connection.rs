//! Requests on the connection itself: the codec encodes their replies, this module orders them.
use super::Flow;
use crate::session::Session;
use fawn_wire::{After, Connection};

pub(crate) fn execute(session: &mut Session, connection: &Connection<'_>) -> Flow {
    let Session { codec, identity, replies, .. } = session;
    let mut after = After::GoOn;
    replies.respond(|out| after = connection.answer(codec, identity, out));
    match after {
        After::GoOn => Flow::Next,
        After::Close => Flow::End,
    }
}
