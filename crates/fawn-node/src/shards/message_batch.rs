//! Message batch between two shards: messages that each belong to a session of one of them.
use crate::SessionId;

/// Kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MessageKind {
    /// Requests of a sender's session: internal frames, in order.
    Requests,
    /// Replies to a receiver's session: internal frames, in the order of its requests.
    Replies,
    /// The sender's session has ended.
    SessionClosed,
    /// A client has reset the counters.
    ResetStats,
}

/// A run of whole frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) kind: MessageKind,
    /// The requesting session.
    pub(crate) session: SessionId,
    len: usize,
}

/// Messages from one shard to another, in order. Only these two shards interpret it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MessageBatch {
    bytes: Vec<u8>,
    messages: Vec<Message>,
}

impl MessageBatch {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Empties the batch, keeping its memory.
    pub(crate) fn emptied(mut self) -> Self {
        self.bytes.clear();
        self.messages.clear();
        self
    }

    /// Bytes of its memory.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Appends the output of `put`; consecutive frames of one session and kind become one message.
    #[inline]
    pub(crate) fn add(&mut self, kind: MessageKind, session: SessionId, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        put(&mut self.bytes);
        let len = self.bytes.len() - before;
        match self.messages.last_mut() {
            Some(last) if last.kind == kind && last.session == session => last.len += len,
            _ => self.messages.push(Message { kind, session, len }),
        }
    }

    /// Its messages with their bytes, in order.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (Message, &[u8])> {
        let mut rest = self.bytes.as_slice();
        self.messages.iter().map(move |piece| {
            let (bytes, after) = rest.split_at(piece.len);
            rest = after;
            (*piece, bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_become_pieces_in_their_order() {
        let mut batch = MessageBatch::default();
        assert!(batch.is_empty());
        let session = SessionId::NOBODY;
        for (kind, bytes) in [
            (MessageKind::Requests, "a"),
            (MessageKind::Requests, "b"),
            (MessageKind::SessionClosed, ""),
            (MessageKind::Requests, "c"),
        ] {
            batch.add(kind, session, |out| out.extend_from_slice(bytes.as_bytes()));
        }
        let found: Vec<_> = batch.messages().map(|(piece, bytes)| (piece.kind, bytes)).collect();
        assert_eq!(
            found,
            [(MessageKind::Requests, &b"ab"[..]), (MessageKind::SessionClosed, b""), (MessageKind::Requests, b"c")]
        );
        assert_eq!(batch.bytes(), 3);
    }
}
