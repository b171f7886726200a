//! Owns the letter: what one shard hands another at once, as pieces that each belong to a session of either.
use crate::SessionId;

/// What a piece is to its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Requests of a session of the sender's: native frames, in order.
    Asked,
    /// Answers to a session of the receiver's: native frames, in the order of its requests to the sender.
    Answered,
    /// The sender's session is gone.
    Closed,
    /// A client had the counters set to zero.
    Reset,
}

/// A run of frames; whole ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) kind: Kind,
    /// The session of whoever asked.
    pub(crate) session: SessionId,
    len: usize,
}

/// What one shard hands another at once, in the order of its pieces. Only the two shards look into it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Letter {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

impl Letter {
    /// Bytes in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The same memory, with nothing in it.
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

    /// Appends what `put` writes; a session's runs of one kind become one piece.
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

    /// Its pieces with their bytes, in order.
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
