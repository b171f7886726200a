//! Outputs of a node for its host: frames for peers, replies to operations, link resets; and submission errors.
use super::payload::EncodedReply;
use fawn_types::{NodeId, OperationError, Reply};

/// Identifier of a submitted operation; numbered from 1 without gaps per run of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientOp(pub u64);

/// An effect for the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeOutput {
    /// Whole frames for a peer, in order. They may be lost: all messages are repeated until a reply arrives.
    Send {
        /// The receiver.
        to: NodeId,
        /// One or more frames.
        bytes: Vec<u8>,
    },
    /// An operation has finished. After an `Unavailable` or `StoreFull` error a write may or may not have happened.
    Done {
        /// The operation.
        op: ClientOp,
        /// Its reply.
        reply: ClusterReply,
    },
    /// Store this map on the host's disks, then call `handle_map_kept(revision)`. Only with [`super::MapPlace::Host`].
    KeepMap {
        /// Revision of the map, the argument of `handle_map_kept`.
        revision: u64,
        /// The encoded map.
        image: Vec<u8>,
    },
    /// This peer's byte stream was corrupt: close the link, call `handle_link_reset`, connect again.
    Reset {
        /// The peer.
        peer: NodeId,
    },
}

/// An owned reply, independent of the receive buffer.
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

/// Why an operation was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError {
    /// Too many operations are in flight: receive their replies first.
    #[error("too many operations in flight, try again")]
    Overloaded,
    /// The operation exceeds a limit.
    #[error("{0}")]
    Operation(#[from] OperationError),
}
