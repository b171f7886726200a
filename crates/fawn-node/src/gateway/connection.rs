//! Requests on the connection itself: the codec encodes their replies, this module orders them.
use super::Flow;
use super::Session;
use fawn_wire::{AfterReply, ConnectionCommand};

pub(crate) fn execute(session: &mut Session, connection: &ConnectionCommand<'_>) -> Flow {
    let Session { codec, identity, replies, .. } = session;
    let mut after = AfterReply::KeepOpen;
    replies.respond(|out| after = connection.answer(codec, identity, out));
    match after {
        AfterReply::KeepOpen => Flow::Continue,
        AfterReply::Close => Flow::End,
    }
}
