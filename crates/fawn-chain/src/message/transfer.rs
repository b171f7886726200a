//! Copy cursor: the position in a copy (results of operations, then keys) and its encoding.
use alloc::vec::Vec;
use fawn_types::bytes::{DecodeError, FrameReader, PutFields};

/// The start of a chunk of a transfer. Another tail can continue a copy: if a place means something else there, it sends
/// the keys again in a higher pass.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TransferCursor {
    /// Results of this session's operations from this one on, those of greater sessions, and all keys.
    Results {
        /// The session.
        session: u64,
        /// The operation's sequence number.
        seq: u64,
    },
    /// Keys from a place on.
    Keys {
        /// The sender's pass over the keys; 0 if its places mean the same at every member.
        pass: u64,
        /// The place in the pass; 0 is its start.
        place: u64,
    },
    /// Nothing is left.
    End,
}

impl TransferCursor {
    /// The start of a copy.
    pub const START: Self = Self::Results { session: 0, seq: 0 };

    pub(super) fn put(self, out: &mut Vec<u8>) {
        let (part, first, second) = match self {
            Self::Results { session, seq } => (0, session, seq),
            Self::Keys { pass, place } => (1, place, pass),
            Self::End => (2, 0, 0),
        };
        out.put_u8(part);
        out.put_u64(first);
        out.put_u64(second);
    }

    pub(super) fn read(reader: &mut FrameReader<'_>) -> Result<Self, DecodeError> {
        let part = reader.u8("copy cursor's part")?;
        let (first, second) = (reader.u64("copy cursor")?, reader.u64("copy cursor")?);
        match (part, first, second) {
            (0, session, seq) => Ok(Self::Results { session, seq }),
            (1, place, pass) => Ok(Self::Keys { pass, place }),
            (2, 0, 0) => Ok(Self::End),
            _ => Err(DecodeError::Value { what: "copy cursor's part", found: u64::from(part) }),
        }
    }
}
