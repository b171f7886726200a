//! Beginning of requests that waited for their session's earlier request on the key.
use super::ShardContext;
use crate::forward::{QueuedRequest, SessionQueueName};
use crate::gateway::UngrantedRequest;
use crate::request::{OutstandingOp, ReplyPlace, RequestBody, RequestKind, StoredRequest};
use fawn_flash::Device;
use fawn_types::{OperationError, Reply, Request, Update};

impl<D: Device> ShardContext<'_, D> {
    /// Begins the first requests of all queues that are ready.
    pub(crate) fn run_ready(&mut self) {
        let before = self.state.forward.requests();
        while let Some(name) = self.state.forward.ready.pop_front() {
            self.run_key_queue(name);
        }
        // Requests that were executed here make space for further ones, like replies from other shards.
        self.state.forward.has_moved |= self.state.forward.requests() < before;
    }

    /// Continues requests that were granted their length, or whose session has ended.
    pub(crate) fn run_granted(&mut self) {
        for (session, request) in std::mem::take(&mut self.sessions.budget.granted) {
            match request {
                UngrantedRequest::InQueue(hash) => {
                    self.state.forward.key_queues.set_waits_for_grant((session, hash), false);
                    self.state.forward.ready.push_back((session, hash));
                }
                UngrantedRequest::Multi(multi) => {
                    self.state.multis[multi].waits_for_grant = false;
                    self.send_items(multi);
                }
            }
        }
    }

    fn run_key_queue(&mut self, name: SessionQueueName) {
        loop {
            let committed = self.state.committed();
            let own_keys = self.sessions.get(name.0).map(|session| &session.own_keys);
            let must_wait = own_keys.is_some_and(|own_keys| own_keys.must_wait_in_queue(name.1));
            if must_wait || self.state.forward.key_queues.waits_for_grant(name) {
                return;
            }
            let is_latest = own_keys.is_some_and(|own_keys| own_keys.reads_latest(name.1, committed));
            let Some(first) = self.pop(name) else { return };
            let is_read = matches!(first.request.request(), Request::Get { .. });
            if is_read && self.sessions.get(name.0).is_none() {
                continue;
            }
            if !self.send_first(name, first, is_latest) {
                return;
            }
        }
    }

    /// A request at a chain had no reply in time: those that have waited behind it as long fail too. Sent one after the
    /// other, a pipeline on one key would wait for a timeout each.
    pub(super) fn fail_queue(&mut self, name: SessionQueueName, error: OperationError) {
        let (Some(cluster), now) = (&self.state.forward.cluster, self.state.host.now.mono) else { return };
        let timeout_ms = cluster.timeout_ms();
        let is_late = |next: &QueuedRequest| now.ms_since(next.queued_at) >= timeout_ms;
        while self.state.forward.key_queues.front(name).is_some_and(is_late)
            && let Some(QueuedRequest { target, request, .. }) = self.pop(name)
        {
            self.deliver(&target, request.request().key(), &Reply::Error(error));
        }
        self.sessions.update_budget(name.0);
    }

    fn pop(&mut self, name: SessionQueueName) -> Option<QueuedRequest> {
        let (first, is_last) = self.state.forward.key_queues.pop(name)?;
        if let Some(session) = self.sessions.get_mut(name.0).filter(|_| is_last) {
            session.own_keys.close_queue(name.1);
        }
        Some(first)
    }

    /// Puts a request before all others of its queue.
    pub(super) fn put_back(&mut self, name: SessionQueueName, first: QueuedRequest) {
        let is_new = self.state.forward.key_queues.push_front(name, first);
        if let Some(session) = self.sessions.get_mut(name.0).filter(|_| is_new) {
            session.own_keys.open_queue(name.1);
        }
    }

    /// Whether the request's slot has a grant of this length. If not, the request waits for it at the front of its
    /// queue.
    pub(super) fn grant_or_wait(
        &mut self,
        name: SessionQueueName,
        first: QueuedRequest,
        bytes: usize,
    ) -> Option<QueuedRequest> {
        let ReplyPlace::Slot(slot) = first.target.place else { unreachable!("only single requests wait in queues") };
        let Some((session, _, budget)) = self.sessions.get_with_pool(name.0) else { return Some(first) };
        if budget.grant(session, slot, bytes) {
            return Some(first);
        }
        // It holds nothing until it is granted.
        session.replies.set_reserved(slot, 0);
        budget.update(session);
        budget.queue_slot(session, slot, UngrantedRequest::InQueue(name.1), bytes);
        self.put_back(name, first);
        self.state.forward.key_queues.set_waits_for_grant(name, true);
        None
    }

    /// Sends a request to its destination, which may be this shard. Returns whether the queue's next request may begin.
    ///
    /// Reads of the key behind it share its reply: it is recent enough for each.
    fn send_first(&mut self, name: SessionQueueName, first: QueuedRequest, is_latest: bool) -> bool {
        let (mut first, mut grant_bytes) = (first, 0);
        if self.sessions.get(name.0).is_none() {
            // The session has ended: no budget has bytes for the value, and no client reads it.
            first.request = StoredRequest::new(&RequestBody::Key(without_value(first.request.request())));
        }
        if first.request.request().returns_value() {
            let ReplyPlace::Slot(slot) = first.target.place else {
                unreachable!("only single requests wait in queues")
            };
            let reserved = self.sessions.get(name.0).map_or(0, |session| session.replies.reserved_bytes(slot));
            grant_bytes = reserved.max(self.sessions.budget.first_grant_bytes());
            match self.grant_or_wait(name, first, grant_bytes) {
                Some(granted) => first = granted,
                None => return false,
            }
        }
        let mut joined = Vec::new();
        if let Request::Get { key } = first.request.request() {
            while self.state.forward.key_queues.reads_next(name, key)
                && let Some(next) = self.state.forward.key_queues.front(name)
                && let ReplyPlace::Slot(slot) = next.target.place
                && let Some((session, _, budget)) = self.sessions.get_with_pool(name.0)
                && budget.grant(session, slot, grant_bytes)
                && let Some(next) = self.pop(name)
            {
                joined.push(next.target);
            }
        }
        let body = first.request.body();
        let to = self.state.forward.destination(first.request.request().key());
        let op = OutstandingOp { joined, ..OutstandingOp::new(to, first.target, name.1, &body, grant_bytes) };
        let kind = op.kind;
        if let Some(session) = self.sessions.get_mut(name.0) {
            session.own_keys.begin(name.1, kind);
        }
        self.state.counters.forwarded += u64::from(!self.state.forward.is_here(to));
        self.state.forward.send(to, op, &body, is_latest);
        kind != RequestKind::Value
    }
}

/// The request with the same effect and a reply without a value.
const fn without_value(request: Request<'_>) -> Request<'_> {
    let Request::Update { key, mut update } = request else { return request };
    match &mut update {
        Update::Set { return_previous: returns_value, .. }
        | Update::Delete { return_previous: returns_value, .. }
        | Update::Touch { return_value: returns_value, .. } => *returns_value = false,
        _ => {}
    }
    Request::Update { key, update }
}
