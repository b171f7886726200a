//! Owns what a node tells its host: bytes for peers, answers of operations, links to be closed; and why it refuses.
use super::payload::EncodedReply;
use fawn_types::{NodeId, OperationError, Reply};

/// Names an operation that was submitted; dense from 1 within the life of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientOp(pub u64);

/// An effect for the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeOutput {
    /// Whole frames for a peer, in order. May be lost: everything is repeated until answered.
    Send {
        /// To whom.
        to: NodeId,
        /// One or more frames.
        bytes: Vec<u8>,
    },
    /// An operation is over. An `Unavailable` or `StoreFull` error leaves open whether a write happened.
    Done {
        /// Which.
        op: ClientOp,
        /// What came of it.
        reply: ClusterReply,
    },
    /// From a manager of [`super::MapPlace::Host`]: have this map on disks, then call `handle_map_kept(revision)`.
    KeepMap {
        /// To give back.
        revision: u64,
        /// The encoded map.
        image: Vec<u8>,
    },
    /// What came from this peer was corrupt: close the link, call `handle_link_reset`, connect again.
    Reset {
        /// Whose link.
        peer: NodeId,
    },
}

/// A reply that outlives the buffer it came in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterReply(pub(super) EncodedReply);

impl ClusterReply {
    /// The reply.
    #[must_use]
    pub fn as_reply(&self) -> Reply<'_> {
        self.0.as_reply()
    }

    pub(super) fn error(error: OperationError) -> Self {
        Self(EncodedReply::of(&Reply::Error(error)))
    }
}

/// Why an operation was not even begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError {
    /// Too many are unanswered: take their answers first.
    #[error("too many operations under way, try again")]
    Overloaded,
    /// It is past a limit.
    #[error("{0}")]
    Operation(#[from] OperationError),
}
