//! Replies to requests that this shard's sessions have elsewhere, and requests that come back for a larger grant.
use super::ShardContext;
use crate::forward::QueuedRequest;
use crate::gateway::deliver;
use crate::request::{LargerItem, OutstandingOp, ReplyPlace, ReplyTarget, RequestBody, RequestKind, StoredRequest};
use fawn_flash::Device;
use fawn_types::{OperationError, Reply};

impl<D: Device> ShardContext<'_, D> {
    /// Receives the reply to an operation that has ended.
    pub(super) fn handle_reply(&mut self, op: &OutstandingOp, reply: &Reply<'_>) {
        self.release(op);
        if let ReplyPlace::Part { operation } = op.target.place {
            return self.keyspace_op_replied(operation, reply);
        }
        self.end_on_key(op);
        if let ReplyPlace::Item { multi, .. } = op.target.place {
            self.state.multis[multi].note_end(op);
            self.deliver(&op.target, &op.key, reply);
            self.sessions.update_budget(op.target.session);
            if self.state.multis.contains(multi) {
                self.send_items(multi);
            }
            return;
        }
        let reply = match reply {
            Reply::Stored { .. } | Reply::Error(_) => reply,
            // The peer has another version, or is broken.
            _ if op.kind == RequestKind::Batch => &Reply::Error(OperationError::Unavailable),
            _ => reply,
        };
        self.deliver(&op.target, &op.key, reply);
        for target in &op.joined {
            self.deliver(target, &op.key, reply);
        }
        self.sessions.update_budget(op.target.session);
    }

    /// Receives a request that had no effect: its reply has a value of this length, which was not granted.
    pub(super) fn handle_larger(&mut self, op: OutstandingOp, bytes: usize, body: &RequestBody<'_>) {
        self.release(&op);
        self.state.counters.rereads += 1;
        let request = || StoredRequest::new(body);
        if let ReplyPlace::Item { multi, .. } = op.target.place {
            self.state.multis[multi].note_end(&op);
            return self.repeat_item(multi, LargerItem { op, bytes, request: request() });
        }
        self.end_on_key(&op);
        let (name, queued_at) = ((op.target.session, op.hash), self.state.host.now.mono);
        for target in op.joined.iter().rev() {
            self.put_back(name, QueuedRequest { target: *target, request: request(), queued_at });
        }
        let first = QueuedRequest { target: op.target, request: request(), queued_at };
        if let Some(granted) = self.grant_or_wait(name, first, bytes) {
            self.put_back(name, granted);
            self.state.forward.ready.push_back(name);
        }
    }

    /// Releases the memory of the operation's request, and its grants if its session ended before the reply arrived.
    fn release(&mut self, op: &OutstandingOp) {
        self.state.forward.note_end(op);
        if self.sessions.get(op.target.session).is_none() {
            self.sessions.budget.release(op.granted_bytes());
        }
    }

    /// A request on a key is at no shard any more.
    pub(super) fn end_on_key(&mut self, op: &OutstandingOp) {
        if let Some(session) = self.sessions.get_mut(op.target.session) {
            session.own_keys.end(op.hash, op.kind);
        }
        if op.kind == RequestKind::Value {
            self.state.forward.wake((op.target.session, op.hash));
        }
    }

    pub(super) fn deliver(&mut self, target: &ReplyTarget, key: &[u8], reply: &Reply<'_>) {
        let released_bytes = deliver(self.sessions, &mut self.state.multis, target, key, reply);
        self.state.forward.multis_bytes -= released_bytes;
    }
}
