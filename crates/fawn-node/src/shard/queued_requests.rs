//! Beginning of requests that waited for their session's earlier request on the key.
use super::ShardContext;
use crate::exec::refusal_error;
use crate::forward::{QueuedRequest, SessionQueueName};
use crate::gateway::is_granted;
use crate::replica::RangeSlot;
use crate::request::{
    Destination, Execution, Origin, OutstandingOp, Parking, ReplyPlace, RequestBody, RequestKind, RequestMessage,
    StoredRequest,
};
use fawn_flash::Device;
use fawn_types::{OperationError, Reply, Request, Update};
use fawn_wire::encode_reply;

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

    /// Tries blocked requests again.
    pub(crate) fn retry_blocked(&mut self) {
        let forward = &mut self.state.forward;
        forward.ready.extend(forward.blocked.drain(..));
    }

    /// Continues requests that were granted their length, or whose session has ended.
    pub(crate) fn run_granted(&mut self) {
        for _ in 0..self.state.forward.ungranted.len() {
            let Some((name, bytes)) = self.state.forward.ungranted.pop_front() else { break };
            let forward = &mut self.state.forward;
            let Some(first) = forward.key_queues.front(name) else { continue };
            if is_granted(self.sessions, &first.target, bytes) {
                forward.key_queues.set_waits_for_grant(name, false);
                forward.ready.push_back(name);
            } else {
                forward.ungranted.push_back((name, bytes));
            }
        }
        self.run_granted_multis();
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
            let may_continue = match self.state.elsewhere(first.request.request().key()) {
                Some(to) => self.forward_first(name, first, to, is_latest),
                None => self.execute_first(name, first, is_latest),
            };
            if !may_continue {
                return;
            }
        }
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

    /// Whether the request's slot has a grant of this length. If not, the request waits for it at the front of its queue.
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
        budget.queue_read(session, slot, bytes);
        self.put_back(name, first);
        self.state.forward.key_queues.set_waits_for_grant(name, true);
        self.state.forward.ungranted.push_back((name, bytes));
        None
    }

    /// Sends a request to its destination. Returns whether the queue's next request may begin.
    ///
    /// Reads of the key behind it share its reply: it is recent enough for each.
    fn forward_first(
        &mut self,
        name: SessionQueueName,
        first: QueuedRequest,
        to: Destination,
        is_latest: bool,
    ) -> bool {
        let (mut first, mut grant_bytes) = (first, 0);
        if self.sessions.get(name.0).is_none() {
            // No budget has bytes for a value that nobody reads.
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
        let op = OutstandingOp { joined, ..OutstandingOp::new(to, first.target, name.1, &body, grant_bytes) };
        let kind = op.kind;
        if let Some(session) = self.sessions.get_mut(name.0) {
            session.own_keys.begin(name.1, kind);
        }
        self.state.counters.forwarded += 1;
        self.state.forward.send(to, op, &body, is_latest);
        kind != RequestKind::Value
    }

    /// Executes a request on this shard's key. Returns whether the queue's next request may begin.
    fn execute_first(&mut self, name: SessionQueueName, first: QueuedRequest, is_latest: bool) -> bool {
        let execution = self.try_first(name, &first, is_latest);
        let returns_value = first.request.request().returns_value();
        let parking = match execution {
            Execution::Replied => return true,
            Execution::Blocked => return self.block(name, first),
            // A reply that waits for its client would block other clients' updates in the key's queue.
            Execution::Park(Parking::Queue) if returns_value => return self.block(name, first),
            Execution::Larger { bytes } => {
                return match self.grant_or_wait(name, first, bytes) {
                    Some(granted) => self.execute_first(name, granted, is_latest),
                    None => false,
                };
            }
            Execution::Refused(rejection) => return self.fail(name, &first, refusal_error(&rejection)),
            Execution::Park(_) if !self.state.host.exec.has_capacity() => {
                self.state.counters.overloaded += 1;
                return self.fail(name, &first, OperationError::Overloaded);
            }
            Execution::Park(parking) => parking,
        };
        let first = match &parking {
            Parking::Read(plan) if returns_value => match self.grant_or_wait(name, first, plan.read_bytes()) {
                Some(granted) => granted,
                None => return false,
            },
            _ => first,
        };
        let body = first.request.body();
        let kind = RequestKind::of(&body);
        if let Some(session) = self.sessions.get_mut(name.0) {
            session.own_keys.begin(name.1, kind);
        }
        let slot = RangeSlot::ONLY;
        let message = RequestMessage { slot, hash: name.1, tag: None, is_latest, grant_bytes: usize::MAX, body };
        self.state.host.park(parking, &message, Origin::Local(first.target));
        kind != RequestKind::Value
    }

    /// Executes a request unless it must wait; its reply fills its slot.
    fn try_first(&mut self, name: SessionQueueName, first: &QueuedRequest, is_latest: bool) -> Execution {
        let ReplyPlace::Slot(number) = first.target.place else { unreachable!("only single requests wait in queues") };
        let session = self.sessions.get(name.0);
        let returns_value = first.request.request().returns_value();
        let grant_bytes = match session {
            Some(session) if returns_value => session.replies.reserved_bytes(number),
            _ => usize::MAX,
        };
        let (slot, body) = (RangeSlot::ONLY, first.request.body());
        let message = RequestMessage { slot, hash: name.1, tag: None, is_latest, grant_bytes, body };
        let sessions = &mut *self.sessions;
        self.state.host.at(slot).execute(&message, |reply, wait| {
            if let Some(session) = sessions.get_mut(name.0) {
                session.note(name.1, wait);
                let key = first.request.request().key();
                session.replies.complete(number, wait, |out| encode_reply(first.target.format, key, reply, out));
            }
            sessions.schedule(name.0);
            sessions.update_budget(name.0);
        })
    }

    /// The request is tried again in the next iteration.
    fn block(&mut self, name: SessionQueueName, first: QueuedRequest) -> bool {
        self.put_back(name, first);
        self.state.forward.blocked.push(name);
        false
    }

    fn fail(&mut self, name: SessionQueueName, first: &QueuedRequest, error: OperationError) -> bool {
        self.deliver(&first.target, first.request.request().key(), &Reply::Error(error));
        self.sessions.update_budget(name.0);
        true
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
