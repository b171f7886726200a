//! Requests at other shards or at chains, as the shard that asks keeps them.
use super::{Destination, ReplyTarget, RequestBody, RequestKind, StoredRequest};
use fawn_types::KeyHash;

/// A request elsewhere. The request itself is there; it comes back if it has to be repeated.
#[derive(Debug)]
pub(crate) struct OutstandingOp {
    pub(crate) target: ReplyTarget,
    pub(crate) hash: KeyHash,
    pub(crate) kind: RequestKind,
    /// Longest value that the reply may have; 0 if it has none.
    pub(crate) grant_bytes: usize,
    /// Length of the request's message.
    pub(crate) request_bytes: usize,
    /// The key, if the reply's encoding contains it.
    pub(crate) key: Box<[u8]>,
    /// Further reads of the key that wait for the same reply.
    pub(crate) joined: Vec<ReplyTarget>,
}

impl OutstandingOp {
    /// `grant_bytes`: longest value that the reply may have, if it has one.
    pub(crate) fn new(
        to: Destination,
        target: ReplyTarget,
        hash: KeyHash,
        body: &RequestBody<'_>,
        grant_bytes: usize,
    ) -> Self {
        let returns_value = matches!(body, RequestBody::Key(request) if request.returns_value());
        let key = match body {
            RequestBody::Key(request) if returns_value && target.format.contains_key() => request.key().into(),
            _ => Box::default(),
        };
        let kind = match (to, body) {
            // Repeated requests may overtake each other.
            (Destination::Chain(_), RequestBody::Key(_)) => RequestKind::Value,
            _ => RequestKind::of(body),
        };
        let grant_bytes = if returns_value { grant_bytes } else { 0 };
        Self { target, hash, kind, grant_bytes, request_bytes: 0, key, joined: Vec::new() }
    }

    /// Bytes granted to its replies.
    pub(crate) fn granted_bytes(&self) -> usize {
        self.grant_bytes * (1 + self.joined.len())
    }
}

/// An item that waits for its grant.
#[derive(Debug)]
pub(crate) struct LargerItem {
    pub(crate) op: OutstandingOp,
    /// Length of its value.
    pub(crate) bytes: usize,
    pub(crate) request: StoredRequest,
}
