//! Requests on several keys at a front-end: one operation per key, gathered in order; `MSET` as one batch of a range.
use super::desk::Desk;
use crate::cluster::WideRequest;
use crate::cluster::payload::{Pairs, put_pair};
use crate::execute::{Flow, Stall};
use crate::pending::{Batch, Gathered, Target};
use crate::session::Session;
use crate::wide::{CROSS_SLOT, Form};
use fawn_flash::Device;
use fawn_types::{Now, OperationError, Reply, Request, RingKey, Update, limits};
use fawn_wire::{Fold, Multi, Shape, encode_error};

impl<D: Device> Desk<D> {
    pub(super) fn multi(&mut self, session: &mut Session, multi: &Multi<'_>, now: Now) -> Flow {
        assert!(!multi.is_empty(), "the decoder refuses requests on no key");
        if !self.has_room(multi.requests().map(|request| request.key())) {
            return Flow::Stall(Stall::Shard);
        }
        match multi.gather.fold {
            Fold::Atomic(shape) => self.set_all(session, multi, shape, now),
            Fold::Each(_) | Fold::Count => {
                self.gather(session, multi, now);
                Flow::Next
            }
        }
    }

    fn gather(&mut self, session: &mut Session, multi: &Multi<'_>, now: Now) {
        let mut gathered = Gathered::new(multi.gather, Vec::new(), self.options.reply_bytes_max);
        // The slot is reserved before the replies exist: operations refer to it.
        let batch = self.batches.insert(Batch::unfilled());
        for request in multi.requests() {
            let item = gathered.push_unknown(request.key());
            if let Err(error) = self.begin(session, &request, Target::Item { batch, item }, Shape::Silent, now) {
                gathered.complete(item, &Reply::Error(error), None);
            }
        }
        if gathered.is_complete() {
            self.batches.remove(batch);
            gathered.finish();
            return session.replies.respond(|out| out.extend_from_slice(&gathered.bytes));
        }
        let slot = session.replies.reserve(gathered.values());
        self.batches[batch] = Batch { session: session.id, slot, gathered: Some(gathered) };
    }

    /// A barrier for its session: its keys are in no queue.
    fn set_all(&mut self, session: &mut Session, multi: &Multi<'_>, shape: Shape, now: Now) -> Flow {
        if !session.is_quiet() {
            return Flow::Stall(Stall::Quiet);
        }
        let (mut pairs, mut place) = (Vec::new(), None);
        for request in multi.requests() {
            let Request::Update { key, update: Update::Set { value, .. } } = request else {
                unreachable!("an atomic batch consists of plain sets")
            };
            if key.len() > limits::KEY_BYTES_MAX {
                session.replies.respond(|out| encode_error(shape, OperationError::KeyTooLong, out));
                return Flow::Next;
            }
            let ring_key = RingKey::of(&self.node.map().secret, key);
            let range = |key: &RingKey| self.node.map().range_of(key).map(|entry| entry.range);
            let first = *place.get_or_insert(ring_key);
            if range(&first) != range(&ring_key) {
                session.replies.respond(|out| out.extend_from_slice(CROSS_SLOT));
                return Flow::Next;
            }
            put_pair(&mut pairs, key, value);
        }
        let (Ok(pairs), Some(place)) = (Pairs::new(&pairs), place) else {
            unreachable!("pairs that were just encoded decode")
        };
        self.begin_wide(session, Form::SetAll(shape), &[(place, WideRequest::SetAll(pairs))], now);
        Flow::Next
    }
}
