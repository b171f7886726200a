//! Operations at the chains of a cluster: routed by the map, repeated until a reply or the timeout.
//!
//! Retries may overtake each other, so a session never has two operations on one key here; `OwnKeys` orders them.
use crate::cluster::payload::{decode_reply, encode_request};
use crate::cluster::{NodeConfig, PeerLinks, session_of};
use crate::request::{OutstandingOp, RequestBody, SessionId};
use fawn_chain::message::{FRAME_BYTES_MAX, RefusedReason};
use fawn_chain::router::Intent;
use fawn_chain::{Body, ClusterMap, Frame, OpId, RangeEntry, Router, RouterOutput};
use fawn_types::{Epoch, MemberId, MonoMs, Now, OperationError, RangeId, Reply, RingKey};
use fawn_wire::internal::KeyspaceRequest;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::{BTreeMap, VecDeque};

/// Minimum interval between requests for a range's entry.
const REFRESH_MS: u64 = 50;
/// Interval between checks for operations without a reply.
const CHECK_MS: u64 = 20;

/// An operation with its encoded request, the same for every retry.
#[derive(Debug)]
struct ClusterOp {
    op: OutstandingOp,
    ring_key: RingKey,
    payload: Box<[u8]>,
    intent: Intent,
    begun_at: MonoMs,
    /// Receiver and epoch of the last copy that was sent.
    sent_to: Option<(MemberId, Epoch)>,
    is_sent_again: bool,
    /// Reason of the last refusal.
    refused: Option<RefusedReason>,
}

impl ClusterOp {
    /// Whether an update was sent more than once, so that a reply does not show which copy of it was executed.
    fn may_come_again(&self) -> bool {
        self.intent == Intent::Write && self.is_sent_again
    }

    fn timeout_error(&self) -> OperationError {
        match self.refused {
            Some(RefusedReason::TooFewCopies) => OperationError::TooFewCopies,
            _ => OperationError::Unavailable,
        }
    }
}

/// Whether a head reports that its store failed, which it does without a record.
const fn is_failure(reply: &Reply<'_>) -> bool {
    matches!(reply, Reply::Error(OperationError::StoreFull | OperationError::Corrupt | OperationError::Poisoned))
}

/// All operations of a shard's sessions at the chains of a cluster. Bounded with the forwarder's other requests.
#[derive(Debug)]
pub(crate) struct ClusterOps {
    router: Router,
    session: u64,
    timeout_ms: u64,
    /// By their number at the router.
    ops: HashMap<u64, ClusterOp, FxBuildHasher>,
    /// Operations that found the window of their range full, in order.
    unstarted: BTreeMap<RangeId, VecDeque<ClusterOp>>,
    unstarted_len: usize,
    refreshed: Vec<(RangeId, MonoMs)>,
    checked_at: MonoMs,
    /// An operation ended since the last flush.
    has_ended: bool,
    pub(crate) now: Now,
}

impl ClusterOps {
    pub(crate) fn new(config: &NodeConfig) -> Self {
        let session = session_of(config.id, config.boot);
        Self {
            router: Router::new(session, config.limits.router, config.map.clone()),
            session,
            timeout_ms: config.limits.router.timeout_ms,
            ops: HashMap::default(),
            unstarted: BTreeMap::new(),
            unstarted_len: 0,
            refreshed: Vec::new(),
            checked_at: MonoMs(0),
            has_ended: false,
            now: Now::default(),
        }
    }

    /// The last known map; it may be out of date.
    pub(crate) const fn map(&self) -> &ClusterMap {
        self.router.map()
    }

    /// Longest wait for the reply to an operation.
    pub(crate) const fn timeout_ms(&self) -> u64 {
        self.timeout_ms
    }

    /// A ring key that the request is on.
    fn ring_key_of(&self, range: RangeId, body: &RequestBody<'_>) -> RingKey {
        let of_key = |key| RingKey::of(&self.map().secret, key);
        let of_range = || self.map().range(range).map_or(RingKey::MIN, |entry| entry.keys.start);
        match body {
            RequestBody::Key(request) => of_key(request.key()),
            RequestBody::Keyspace(KeyspaceRequest::SetAll(pairs)) => {
                pairs.iter().next().map_or_else(of_range, |(key, _)| of_key(key))
            }
            RequestBody::Keyspace(_) => of_range(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.len() + self.unstarted_len
    }

    /// Operations at chains.
    pub(crate) fn started(&self) -> usize {
        self.ops.len()
    }

    pub(crate) fn has_unstarted(&self) -> bool {
        !self.unstarted.is_empty()
    }

    /// Whether operations wait for a window that may have space now.
    pub(crate) fn can_start(&self) -> bool {
        self.has_ended && self.has_unstarted()
    }

    /// Whether the window of the range accepts operations.
    pub(crate) fn has_capacity(&self, range: RangeId) -> bool {
        self.unstarted.is_empty() || !self.unstarted.contains_key(&range)
    }

    /// Whether an acknowledgement may begin: the range's window has space, and has no update that acknowledges as well.
    pub(crate) fn may_acknowledge(&self, range: RangeId) -> bool {
        let is_known = self.map().range(range).is_some();
        is_known && self.has_capacity(range) && !self.router.has_unanswered_update(range)
    }

    /// Bytes granted to the session's operations.
    pub(crate) fn granted_bytes(&self, session: SessionId) -> usize {
        let all = self.ops.values().chain(self.unstarted.values().flatten());
        all.filter(|op| op.op.target.session == session).map(|op| op.op.granted_bytes()).sum()
    }

    /// Begins an operation, at once or when the window of its range has space.
    pub(crate) fn start(&mut self, range: RangeId, mut op: OutstandingOp, body: &RequestBody<'_>) -> usize {
        let ring_key = self.ring_key_of(range, body);
        let intent = if body.is_update() { Intent::Write } else { Intent::Read };
        let grant_bytes = match body {
            RequestBody::Key(request) if request.returns_value() => u32::try_from(op.grant_bytes).unwrap_or(u32::MAX),
            _ => u32::MAX,
        };
        let mut payload = Vec::new();
        encode_request(self.session, grant_bytes, body, &mut payload);
        op.request_bytes = payload.len();
        let bytes = op.request_bytes;
        let payload = payload.into_boxed_slice();
        let (begun_at, sent_to, is_sent_again, refused) = (self.now.mono, None, false, None);
        let op = ClusterOp { op, ring_key, payload, intent, begun_at, sent_to, is_sent_again, refused };
        let refused = if self.has_capacity(range) { self.try_start(op).err() } else { Some(Box::new(op)) };
        if let Some(op) = refused {
            self.unstarted_len += 1;
            self.unstarted.entry(range).or_default().push_back(*op);
        }
        bytes
    }

    fn try_start(&mut self, op: ClusterOp) -> Result<(), Box<ClusterOp>> {
        let Some(OpId(number)) = self.router.start(self.now, op.ring_key, op.intent) else { return Err(Box::new(op)) };
        self.ops.insert(number, op);
        Ok(())
    }

    /// Starts operations for which the windows of their ranges have space now.
    fn start_waiting(&mut self) {
        for (range, mut waiting) in std::mem::take(&mut self.unstarted) {
            while let Some(op) = waiting.pop_front() {
                match self.try_start(op) {
                    Ok(()) => self.unstarted_len -= 1,
                    Err(op) => {
                        waiting.push_front(*op);
                        break;
                    }
                }
            }
            if !waiting.is_empty() {
                self.unstarted.insert(range, waiting);
            }
        }
    }

    /// Ends the operations that waited for their window as long as a started one waits for its reply.
    ///
    /// A range without a chain frees its window only by timeouts. Without this, a long queue would fail one window
    /// after the other, each after another timeout.
    fn expire_unstarted(&mut self) -> Vec<(OutstandingOp, OperationError)> {
        let Self { unstarted, unstarted_len, now, timeout_ms, .. } = self;
        let mut failed = Vec::new();
        unstarted.retain(|_, waiting| {
            while let Some(op) = waiting.pop_front_if(|op| now.mono.ms_since(op.begun_at) >= *timeout_ms) {
                *unstarted_len -= 1;
                failed.push((op.op, OperationError::Unavailable));
            }
            !waiting.is_empty()
        });
        failed
    }

    /// Sends due requests. Returns the operations whose time is over, with their errors.
    pub(crate) fn flush(&mut self, links: &mut PeerLinks) -> Vec<(OutstandingOp, OperationError)> {
        self.has_ended = false;
        let mut failed = self.expire_unstarted();
        self.start_waiting();
        while let Some(output) = self.router.poll_output() {
            match output {
                RouterOutput::Send { op: OpId(number), to, range, epoch, tag, first_incomplete } => {
                    // The operation may have been answered since the output was queued.
                    let Some(op) = self.ops.get_mut(&number) else { continue };
                    let again = op.sent_to.replace((to, epoch)).is_some();
                    op.is_sent_again |= again;
                    let body = Body::Request { op: number, tag, first_incomplete, payload: &op.payload };
                    links.send(to, &Frame { header: links.header(range, epoch), body });
                    if again {
                        // A dead shard sends no refusal, so a missing reply may mean that the map is out of date.
                        self.refresh(range, links);
                    }
                }
                RouterOutput::Failed { op: OpId(number) } => {
                    self.has_ended = true;
                    if let Some(op) = self.ops.remove(&number) {
                        let error = op.timeout_error();
                        failed.push((op.op, error));
                    }
                }
                RouterOutput::RefreshMap { range } => self.refresh(range, links),
            }
        }
        failed
    }

    /// Requests a range's entry from the manager; one request serves all operations of the range.
    fn refresh(&mut self, range: RangeId, links: &mut PeerLinks) {
        let now = self.now.mono;
        match self.refreshed.iter_mut().find(|(asked, _)| *asked == range) {
            Some((_, at)) if now.ms_since(*at) < REFRESH_MS => return,
            Some((_, at)) => *at = now,
            None => self.refreshed.push((range, now)),
        }
        let epoch = self.map().range(range).map(|entry| entry.epoch).unwrap_or_default();
        links.send_manager(&Frame { header: links.header(range, epoch), body: Body::EntryWanted });
    }

    /// Handles a reply; returns the operation that it ends. A reply that is corrupt, of another boot of this shard, or
    /// of an operation that has ended is dropped.
    pub(crate) fn handle_reply<'a>(&mut self, number: u64, payload: &'a [u8]) -> Option<(OutstandingOp, Reply<'a>)> {
        let (_, reply) = decode_reply(payload).ok().filter(|(session, _)| *session == self.session)?;
        let op = self.end(number)?;
        // Such a failure leaves no record, so a copy of the request still in flight would be executed as a new one.
        let is_open = op.may_come_again() && is_failure(&reply);
        Some((op.op, if is_open { Reply::Error(OperationError::Unavailable) } else { reply }))
    }

    /// Handles a refusal by a member in an epoch. An operation that needs a larger grant ends here; returns it with
    /// its request's payload and the length.
    pub(crate) fn handle_refused(
        &mut self,
        number: u64,
        by: (MemberId, Epoch),
        reason: RefusedReason,
    ) -> Option<(OutstandingOp, Box<[u8]>, usize)> {
        if let RefusedReason::Larger { bytes } = reason {
            let ClusterOp { op, sent_to, .. } = self.ops.get(&number)?;
            let bytes = (bytes as usize).min(FRAME_BYTES_MAX);
            // This head evaluates no copy any more, and no older head can commit one. A newer head still may.
            let is_final = *sent_to == Some(by);
            // Otherwise the peer is broken: such a value was granted, or the reply has none.
            let is_longer = op.grant_bytes > 0 && bytes > op.grant_bytes;
            let op = if is_final && is_longer { self.end(number)? } else { return None };
            return Some((op.op, op.payload, bytes));
        }
        self.ops.get_mut(&number)?.refused = Some(reason);
        self.router.handle_refused(self.now, OpId(number));
        None
    }

    fn end(&mut self, number: u64) -> Option<ClusterOp> {
        let op = self.ops.remove(&number)?;
        self.router.handle_reply(OpId(number));
        self.has_ended = true;
        Some(op)
    }

    pub(crate) fn handle_entry(&mut self, entry: &RangeEntry) {
        self.router.handle_entry(self.now, entry);
    }

    pub(crate) fn handle_timeout(&mut self) {
        if !self.ops.is_empty() && self.now.mono.ms_since(self.checked_at) >= CHECK_MS {
            self.checked_at = self.now.mono;
            self.router.handle_timeout(self.now);
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<MonoMs> {
        (!self.ops.is_empty()).then(|| self.checked_at.plus_ms(CHECK_MS))
    }
}
