//! Requests at other shards, as the shard that asks keeps them.
use super::{ReplyTarget, RequestBody, RequestKind, StoredRequest};
use fawn_types::KeyHash;

/// A request at a shard. The request itself is there; it comes back if it has to be repeated.
#[derive(Debug)]
pub(crate) struct OutstandingOp {
    pub(crate) target: ReplyTarget,
    pub(crate) hash: KeyHash,
    pub(crate) kind: RequestKind,
    /// Longest value that the reply may have.
    pub(crate) grant_bytes: usize,
    /// Length of the request's message.
    pub(crate) request_bytes: usize,
    /// The key, if the reply's encoding contains it.
    pub(crate) key: Box<[u8]>,
    /// Further reads of the key that wait for the same reply.
    pub(crate) joined: Vec<ReplyTarget>,
}

impl OutstandingOp {
    pub(crate) fn new(target: ReplyTarget, hash: KeyHash, body: &RequestBody<'_>, grant_bytes: usize) -> Self {
        let kind = RequestKind::of(body);
        let key = match body {
            RequestBody::Key(request) if kind == RequestKind::Value && target.format.contains_key() => {
                request.key().into()
            }
            _ => Box::default(),
        };
        Self { target, hash, kind, grant_bytes, request_bytes: 0, key, joined: Vec::new() }
    }

    /// Bytes granted to its replies.
    pub(crate) fn granted_bytes(&self) -> usize {
        if self.kind == RequestKind::Value { self.grant_bytes * (1 + self.joined.len()) } else { 0 }
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
