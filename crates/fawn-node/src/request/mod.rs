//! Requests: as messages to the executor, with the origin that the reply returns to, the outcome, and the owned form of
//! a request that waits.
mod destination;
mod outstanding_op;
mod session_id;

pub use session_id::SessionId;

pub(crate) use destination::Destination;
pub(crate) use outstanding_op::{LargerItem, OutstandingOp};

use crate::replica::RangeSlot;
use fawn_chain::Rejection;
use fawn_ds::internals::{LookupPlan, Scan};
use fawn_types::{ClientTag, Epoch, KeyHash, MemberId, RangeId, Request, ShardId};
use fawn_wire::ReplyFormat;
use fawn_wire::internal::KeyspaceRequest;
pub(crate) use fawn_wire::internal::RequestBody;

/// A request for the member in `slot`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestMessage<'a> {
    pub(crate) slot: RangeSlot,
    /// Of the key, if there is one.
    pub(crate) hash: KeyHash,
    /// Only updates that a link may lose have one, or updates of chains with several members.
    pub(crate) tag: Option<Tag>,
    /// A read of the newest value, pending or not; its reply waits for the commit of that value.
    pub(crate) is_latest: bool,
    /// Longest value in the reply.
    pub(crate) grant_bytes: usize,
    pub(crate) body: RequestBody<'a>,
}

/// Effect of an unfinished request on the later ones of its session, see `OwnKeys`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestKind {
    /// An update of one key whose reply has no value.
    Update,
    /// A read, or an update whose reply has a value: it may have to be repeated with a larger grant. Also each request
    /// on a key at a chain, which may be repeated when a member fails.
    Value,
    /// An update of several keys at once, or of all.
    Batch,
    /// A read of the whole range.
    Range,
}

impl RequestKind {
    pub(crate) const fn of(body: &RequestBody<'_>) -> Self {
        match body {
            RequestBody::Key(request) if request.returns_value() => Self::Value,
            RequestBody::Key(_) => Self::Update,
            RequestBody::Keyspace(_) if body.is_update() => Self::Batch,
            RequestBody::Keyspace(_) => Self::Range,
        }
    }
}

/// Number of an operation at the shard that awaits its reply; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ShardOpId(pub(crate) u64);

/// The request with at most so many keys in a step of a scan, whatever was requested: its sender continues from there.
pub(crate) fn bound_scan(body: RequestBody<'_>, keys_max: u32) -> RequestBody<'_> {
    match body {
        RequestBody::Keyspace(KeyspaceRequest::Scan { cursor, count }) => {
            RequestBody::Keyspace(KeyspaceRequest::Scan { cursor, count: count.clamp(1, keys_max) })
        }
        body => body,
    }
}

/// Identity of an update, for exactly-once execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag {
    pub(crate) client: ClientTag,
    /// The client has the replies to all of its operations below this number.
    pub(crate) first_incomplete: u64,
}

/// Place of a reply among a session's replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyPlace {
    /// The session's reserved slot of this number.
    Slot(u64),
    /// An item of a request on several keys.
    Item { multi: usize, item: u32 },
    /// A whole-keyspace operation.
    Part { operation: usize },
}

/// A session's reply: its place and format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReplyTarget {
    pub(crate) session: SessionId,
    pub(crate) place: ReplyPlace,
    pub(crate) format: ReplyFormat,
}

/// Source of a request, which receives the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// An operation of another shard of the node, or of this one.
    Shard { shard: ShardId, op: ShardOpId },
    /// An operation of a front-end in the cluster, with the front-end's session, on a member of this range.
    Node { from: MemberId, op: u64, session: u64, range: RangeId, epoch: Epoch },
}

/// Outcome of a request.
#[derive(Debug)]
pub(crate) enum Execution {
    /// The reply is emitted. The reply to a tagged update follows with its commit instead.
    Replied,
    /// Not executed yet: `Executor::park` it.
    Park(Parking),
    /// Nothing happened: the log's buffers are full, or too much is uncommitted.
    Blocked,
    /// Nothing happened: the reply has a value of this length, which is not granted.
    Larger { bytes: usize },
    /// Nothing happened: the member does not serve such requests now.
    Refused(Rejection),
}

/// The event that a request waits for.
#[derive(Debug)]
pub(crate) enum Parking {
    /// Its record is on flash.
    Read(LookupPlan),
    /// Earlier requests in its key's queue.
    Queue,
    /// The next iteration, and earlier requests in its key's queue.
    Retry,
    /// A record with a key of the scan.
    Scan(LookupPlan, Box<Scan>),
}

/// All of a waiting request except its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead {
    pub(crate) slot: RangeSlot,
    pub(crate) hash: KeyHash,
    /// [`ClientTag::NONE`] without a tag.
    pub(crate) tag: ClientTag,
    pub(crate) origin: Origin,
    /// Longest value in the reply.
    pub(crate) grant_bytes: usize,
    pub(crate) is_latest: bool,
    /// It is in its key's queue: updates, and reads behind them.
    pub(crate) is_queued: bool,
}

impl RequestHead {
    pub(crate) fn new(message: &RequestMessage<'_>, origin: Origin) -> Self {
        let RequestMessage { slot, hash, tag, is_latest, grant_bytes, body } = *message;
        let tag = tag.map_or(ClientTag::NONE, |tag| tag.client);
        Self { slot, hash, tag, origin, grant_bytes, is_latest, is_queued: body.is_update() }
    }
}

/// An owned request, in the internal encoding.
#[derive(Debug, Default)]
pub(crate) struct StoredRequest(Box<[u8]>);

impl StoredRequest {
    pub(crate) fn new(body: &RequestBody<'_>) -> Self {
        let mut bytes = Vec::new();
        body.put(&mut bytes);
        Self(bytes.into())
    }

    pub(crate) fn body(&self) -> RequestBody<'_> {
        let Ok(body) = RequestBody::read(&self.0) else { unreachable!("a request that was just encoded decodes") };
        body
    }

    /// The request, which is on one key.
    pub(crate) fn request(&self) -> Request<'_> {
        let RequestBody::Key(request) = self.body() else { unreachable!("no request on a range is stored here") };
        request
    }

    pub(crate) const fn len_bytes(&self) -> usize {
        self.0.len()
    }
}
