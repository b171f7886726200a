//! Message batch between two shards: messages that each belong to a session of one of them.
use crate::SessionId;

/// Kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Requests of a sender's session: internal frames, in order.
    Asked,
    /// Replies to a receiver's session: internal frames, in the order of its requests.
    Answered,
    /// The sender's session has ended.
    Closed,
    /// A client has reset the counters.
    Reset,
}

/// A run of whole frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) kind: Kind,
    /// The asking session.
    pub(crate) session: SessionId,
    len: usize,
}

/// Messages from one shard to another, in order. Only these two shards interpret it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Letter {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

impl Letter {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Empties the batch, keeping its memory.
    pub(crate) fn emptied(mut self) -> Self {
        self.bytes.clear();
        self.pieces.clear();
        self
    }

    /// Bytes of its memory.
    pub(crate) fn room_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Appends the output of `put`; consecutive frames of one session and kind become one message.
    #[inline]
    pub(crate) fn add(&mut self, kind: Kind, session: SessionId, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        put(&mut self.bytes);
        let len = self.bytes.len() - before;
        match self.pieces.last_mut() {
            Some(last) if last.kind == kind && last.session == session => last.len += len,
            _ => self.pieces.push(Piece { kind, session, len }),
        }
    }

    /// Its messages with their bytes, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (Piece, &[u8])> {
        let mut rest = self.bytes.as_slice();
        self.pieces.iter().map(move |piece| {
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
        let mut letter = Letter::default();
        assert!(letter.is_empty());
        let session = SessionId::NOBODY;
        for (kind, bytes) in [(Kind::Asked, "a"), (Kind::Asked, "b"), (Kind::Closed, ""), (Kind::Asked, "c")] {
            letter.add(kind, session, |out| out.extend_from_slice(bytes.as_bytes()));
        }
        let found: Vec<_> = letter.pieces().map(|(piece, bytes)| (piece.kind, bytes)).collect();
        assert_eq!(found, [(Kind::Asked, &b"ab"[..]), (Kind::Closed, b""), (Kind::Asked, b"c")]);
        assert_eq!(letter.bytes(), 3);
    }
}
