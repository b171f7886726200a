//! Front-end library [FAWN09 §3.4]: routes operations, keeps their payloads for retries, and collects the replies.
use super::config::{NodeConfig, session_of};
use super::output::{ClientOp, ClusterReply, NodeOutput, SubmitError};
use super::payload::{EncodedReply, KeyspaceRequest, encode_keyspace, encode_request};
use super::peer_links::PeerLinks;
use fawn_chain::message::{FRAME_BYTES_MAX, RefusedReason};
use fawn_chain::router::Intent;
use fawn_chain::{Body, ClusterMap, Frame, OpId, RangeEntry, Router, RouterOutput};
use fawn_types::{MonoMs, Now, OperationError, RangeId, Reply, Request, RingKey, limits};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// Minimum interval between requests for a range's entry.
const REFRESH_MS: u64 = 50;
/// Interval between checks for operations without a reply.
const CHECK_MS: u64 = 20;
/// Upper bound for a frame's fields other than its payload.
const FRAME_OVERHEAD_BYTES: usize = 1 << 10;

/// Encoded request of an operation, the same for every retry.
#[derive(Debug)]
struct Payload {
    bytes: Box<[u8]>,
    intent: Intent,
    is_sent: bool,
    /// Reason of the last refusal.
    refused: Option<RefusedReason>,
    is_sent_again: bool,
}

impl Payload {
    /// Whether an update was sent more than once: which of the copies was answered is not known.
    fn may_come_again(&self) -> bool {
        self.intent == Intent::Write && self.is_sent_again
    }
}

/// Whether a head reports that its store failed, which it does without a record.
const fn is_failure(reply: &Reply<'_>) -> bool {
    matches!(reply, Reply::Error(OperationError::StoreFull | OperationError::Corrupt | OperationError::Poisoned))
}

/// A node's front-end.
#[derive(Debug)]
pub(super) struct ClusterClient {
    frontend: Router,
    session: u64,
    /// Payloads of operations in flight: at most `pending_ops_max`.
    payloads: HashMap<u64, Payload, FxBuildHasher>,
    refreshed: Vec<(RangeId, MonoMs)>,
    checked_at: MonoMs,
    scratch: Vec<u8>,
    pub(super) done: VecDeque<NodeOutput>,
}

impl ClusterClient {
    pub(super) fn new(config: &NodeConfig) -> Self {
        let session = session_of(config.node, config.boot);
        Self {
            frontend: Router::new(session, config.limits.router, config.map.clone()),
            session,
            payloads: HashMap::default(),
            refreshed: Vec::new(),
            checked_at: MonoMs(0),
            scratch: Vec::new(),
            done: VecDeque::new(),
        }
    }

    pub(super) fn submit(&mut self, now: Now, request: &Request<'_>) -> Result<ClientOp, SubmitError> {
        let key = request.key();
        if key.len() > limits::KEY_BYTES_MAX {
            return Err(OperationError::KeyTooLong.into());
        }
        self.scratch.clear();
        encode_request(self.session, request, &mut self.scratch);
        let intent = match request {
            Request::Get { .. } => Intent::Read,
            Request::Update { .. } => Intent::Write,
        };
        self.start(now, RingKey::of(&self.frontend.map().secret, key), intent)
    }

    /// Like [`ClusterClient::submit`], for the range that contains `place`.
    pub(super) fn submit_wide(
        &mut self,
        now: Now,
        place: RingKey,
        request: &KeyspaceRequest<'_>,
    ) -> Result<ClientOp, SubmitError> {
        self.scratch.clear();
        encode_keyspace(self.session, request, &mut self.scratch);
        let intent = match request {
            KeyspaceRequest::Count | KeyspaceRequest::Scan { .. } => Intent::Read,
            KeyspaceRequest::Clear | KeyspaceRequest::SetAll(_) => Intent::Write,
        };
        self.start(now, place, intent)
    }

    pub(super) const fn map(&self) -> &ClusterMap {
        self.frontend.map()
    }

    /// Begins the operation whose payload is in `scratch`.
    fn start(&mut self, now: Now, ring_key: RingKey, intent: Intent) -> Result<ClientOp, SubmitError> {
        if self.scratch.len() > FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES {
            let limit_bytes = (FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES - limits::KEY_BYTES_MAX) as u32;
            return Err(OperationError::ValueTooLong { limit_bytes }.into());
        }
        let OpId(op) = self.frontend.start(now, ring_key, intent).ok_or(SubmitError::Overloaded)?;
        let bytes = self.scratch.as_slice().into();
        let payload = Payload { bytes, intent, is_sent: false, refused: None, is_sent_again: false };
        self.payloads.insert(op, payload);
        Ok(ClientOp(op))
    }

    pub(super) fn under_way(&self) -> usize {
        self.payloads.len()
    }

    /// Sends due requests, and ends operations that failed.
    pub(super) fn flush(&mut self, now: Now, links: &mut PeerLinks) {
        while let Some(output) = self.frontend.poll_output() {
            match output {
                RouterOutput::Send { op: OpId(op), to, range, epoch, tag, first_incomplete } => {
                    // The operation may have been answered since the output was queued.
                    let Some(payload) = self.payloads.get_mut(&op) else { continue };
                    let again = std::mem::replace(&mut payload.is_sent, true);
                    payload.is_sent_again |= again;
                    links.send_request(to, links.header(range, epoch), (op, tag, first_incomplete), &payload.bytes);
                    if again {
                        // A dead node sends no refusal, so a missing reply may mean that the map is out of date.
                        self.refresh(now, range, links);
                    }
                }
                RouterOutput::Failed { op: OpId(op) } => {
                    self.end(op, ClusterReply::error(self.failure(op)));
                }
                RouterOutput::RefreshMap { range } => self.refresh(now, range, links),
            }
        }
    }

    /// Requests a range's entry from the manager; one request serves all operations of the range.
    fn refresh(&mut self, now: Now, range: RangeId, links: &mut PeerLinks) {
        let asked = self.refreshed.iter_mut().find(|(asked, _)| *asked == range);
        match asked {
            Some((_, at)) if now.mono.ms_since(*at) < REFRESH_MS => return,
            Some((_, at)) => *at = now.mono,
            None => self.refreshed.push((range, now.mono)),
        }
        let epoch = self.frontend.map().range(range).map(|entry| entry.epoch).unwrap_or_default();
        links.send_manager(Frame { header: links.header(range, epoch), body: Body::EntryWanted });
    }

    /// The error reply of an operation that timed out.
    fn failure(&self, op: u64) -> OperationError {
        match self.payloads.get(&op).and_then(|payload| payload.refused) {
            Some(RefusedReason::TooFewCopies) => OperationError::TooFewCopies,
            _ => OperationError::Unavailable,
        }
    }

    /// Handles a reply. Drops it if it is corrupt, of another session, or of an operation that is already answered.
    pub(super) fn handle_reply(&mut self, op: u64, payload: &[u8]) {
        let Some((session, result)) = payload.split_first_chunk::<8>() else { return };
        if u64::from_le_bytes(*session) != self.session {
            // A reply to an earlier boot of this node.
            return;
        }
        let Ok(form) = EncodedReply::new(result) else { return };
        if !self.frontend.handle_reply(OpId(op)) {
            return;
        }
        let reply = ClusterReply(form);
        // Such a failure leaves no record, so a copy of the request that is still on its way would be done as a new one.
        let is_open = self.payloads.get(&op).is_some_and(Payload::may_come_again) && is_failure(&reply.as_reply());
        self.end(op, if is_open { ClusterReply::error(OperationError::Unavailable) } else { reply });
    }

    pub(super) fn handle_refused(&mut self, now: Now, op: u64, reason: RefusedReason) {
        if let Some(payload) = self.payloads.get_mut(&op) {
            payload.refused = Some(reason);
        }
        self.frontend.handle_refused(now, OpId(op));
    }

    pub(super) fn handle_entry(&mut self, now: Now, entry: &RangeEntry) {
        self.frontend.handle_entry(now, entry);
    }

    pub(super) fn handle_timeout(&mut self, now: Now) {
        if !self.payloads.is_empty() && now.mono.ms_since(self.checked_at) >= CHECK_MS {
            self.checked_at = now.mono;
            self.frontend.handle_timeout(now);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<MonoMs> {
        (!self.payloads.is_empty()).then(|| self.checked_at.plus_ms(CHECK_MS))
    }

    fn end(&mut self, op: u64, reply: ClusterReply) {
        if self.payloads.remove(&op).is_some() {
            self.done.push_back(NodeOutput::Done { op: ClientOp(op), reply });
        }
    }
}
