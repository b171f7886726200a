//! Resumption of parked requests: their device read has ended, or they are first in their key's queue.
use super::read::{is_unsettled, look_up_newest, lookup_time, reply_to, view};
use super::update::UpdateJob;
use super::wait_queue::{QueueName, WaitingBody};
use super::{ExecContext, Executor, ReplySink, operation_error};
use crate::replica::{MemberTable, RangeSlot};
use crate::request::{Execution, Origin, Parking, RequestBody, RequestHead, RequestMessage};
use fawn_chain::Rejection;
use fawn_ds::internals::{Engine, Lookup, LookupPlan, Scan, View};
use fawn_flash::Device;
use fawn_types::{Now, Reply, Request};
use smallvec::SmallVec;

/// The executor with the engine, the members, and the receiver of replies.
pub(crate) struct Resumption<'a, D: Device, S> {
    pub(crate) exec: &'a mut Executor,
    pub(crate) engine: &'a mut Engine<D>,
    pub(crate) members: &'a mut MemberTable,
    pub(crate) now: Now,
    pub(crate) sink: S,
}

/// A device read up to this length needs no grant: such reads are bounded by their number, and the reply has the value
/// only, which may be much shorter than its pages.
const UNGRANTED_BYTES: usize = 8 << 10;

impl<D: Device, S: ReplySink> Resumption<'_, D, S> {
    /// Executes a request of another shard or node. It is parked if it must wait.
    pub(crate) fn begin(&mut self, message: &RequestMessage<'_>, origin: Origin) {
        let head = RequestHead::new(message, origin);
        let is_of_node = matches!(origin, Origin::Node { .. });
        let is_read_of_node = is_of_node && matches!(message.body, RequestBody::Key(Request::Get { .. }));
        let (mut context, sink) = self.at(head.slot);
        let mut withheld = None;
        let execution = context.execute(message, |reply, wait| {
            withheld = (is_read_of_node && wait.is_some()).then_some(matches!(reply, Reply::Value(_)));
            sink.reply(&head, reply, wait);
        });
        if let Some(is_hit) = withheld {
            self.exec.counters.uncount_read(is_hit);
        }
        let parking = match execution {
            Execution::Replied => return,
            Execution::Refused(rejection) => return self.sink.refuse(&head, &rejection),
            Execution::Larger { bytes } => return self.give_back(&head, bytes, &message.body),
            Execution::Park(Parking::Read(plan)) if plan.read_bytes() > head.grant_bytes.max(UNGRANTED_BYTES) => {
                return self.give_back(&head, plan.read_bytes(), &message.body);
            }
            Execution::Park(parking) if !is_of_node || self.exec.has_capacity() => parking,
            Execution::Blocked if !is_of_node => Parking::Retry,
            // The front-end sends it again.
            Execution::Park(_) | Execution::Blocked => return self.sink.refuse(&head, &Rejection::Overloaded),
        };
        self.exec.park(self.engine, parking, message, origin);
    }

    /// A device read of the request `id` has ended.
    pub(crate) fn handle_read(&mut self, id: usize, plan: LookupPlan) {
        let RequestHead { slot, hash, is_queued, .. } = *self.exec.wait_queue.head(id);
        if self.resume(id, Some(plan)) && is_queued {
            self.run_queue((slot, hash));
        }
    }

    /// Runs a key's queue up to the first request that must wait, then the other queues that a batch in it was in.
    fn run_queue(&mut self, name: QueueName) {
        let mut names: SmallVec<[QueueName; 4]> = SmallVec::new();
        names.push(name);
        while let Some(name) = names.pop() {
            while let Some(id) = self.exec.wait_queue.front(name)
                && self.exec.wait_queue.is_first(id)
            {
                let others = self.exec.wait_queue.batch_queues(id);
                if !self.resume(id, None) {
                    break;
                }
                names.extend(others);
            }
        }
    }

    /// Retries requests that found the log's buffers full.
    pub(crate) fn retry(&mut self) {
        for name in std::mem::take(&mut self.exec.wait_queue.retries) {
            self.run_queue(name);
        }
    }

    /// A member stopped serving: none of its waiting requests is executed.
    pub(crate) fn handle_stopped(&mut self, slot: RangeSlot) {
        for head in self.exec.wait_queue.take_range(slot) {
            self.sink.refuse(&head, &Rejection::NotServing);
        }
    }

    /// Runs a request, with the plan that its device read filled. Returns whether it is done.
    fn resume(&mut self, id: usize, plan: Option<LookupPlan>) -> bool {
        let head = *self.exec.wait_queue.head(id);
        let (execution, body) = match self.exec.wait_queue.take(id) {
            WaitingBody::Request(request) => {
                (self.resume_request(&head, &request.body(), plan), WaitingBody::Request(request))
            }
            WaitingBody::Scan(scan) => (self.resume_scan(&head, scan, plan), WaitingBody::Taken),
            WaitingBody::Taken => unreachable!("a request runs once at a time"),
        };
        self.conclude(id, &head, body, execution)
    }

    /// The executor at a member, and the receiver of replies.
    fn at(&mut self, slot: RangeSlot) -> (ExecContext<'_, D>, &mut S) {
        let Self { exec, engine, members, now, sink } = self;
        (ExecContext { exec, engine, member: &mut members[slot], now: *now }, sink)
    }

    fn resume_request(&mut self, head: &RequestHead, body: &RequestBody<'_>, plan: Option<LookupPlan>) -> Execution {
        let RequestHead { slot, hash, tag, grant_bytes, .. } = *head;
        let (mut context, sink) = self.at(slot);
        let emit = |reply: &Reply<'_>, wait| sink.reply(head, reply, wait);
        match body {
            RequestBody::Key(Request::Get { key }) => self.resume_read(head, key, plan),
            RequestBody::Key(Request::Update { key, update }) => {
                context.run(&UpdateJob { hash, key, tag, update, grant_bytes }, plan, emit)
            }
            RequestBody::Keyspace(request) => context.run_range_update(tag, request, emit),
        }
    }

    fn resume_read(&mut self, head: &RequestHead, key: &[u8], plan: Option<LookupPlan>) -> Execution {
        let Self { exec, engine, members, sink, .. } = self;
        let member = &mut members[head.slot];
        let time = match member.replica.admit_read(self.now) {
            Ok(time) => time,
            Err(rejection) => return Execution::Refused(rejection),
        };
        let mut is_latest = head.is_latest || plan.as_ref().is_some_and(|plan| plan.view() == View::Latest);
        let mut lookup = match plan {
            Some(plan) => engine.resume(plan, lookup_time(time, is_latest)),
            None => engine.lookup(member.id, head.hash, key, view(is_latest), lookup_time(time, is_latest)),
        };
        if let Ok(Lookup::Unsettled) = lookup {
            (is_latest, lookup) = (true, look_up_newest(engine, member.id, head.hash, key, time));
        }
        match &lookup {
            Ok(Lookup::Found(entry)) if !is_latest && is_unsettled(entry, time) => return Execution::Blocked,
            Ok(Lookup::Found(entry)) if !sink.admit(head, entry.value.len()) => {
                return Execution::Larger { bytes: entry.value.len() };
            }
            _ => {}
        }
        reply_to(lookup, &mut exec.counters, &member.replica, is_latest, |reply, wait| {
            sink.reply(head, reply, wait);
        })
    }

    fn resume_scan(&mut self, head: &RequestHead, mut scan: Box<Scan>, plan: Option<LookupPlan>) -> Execution {
        let Some(plan) = plan else { unreachable!("a scan waits for device reads only") };
        let (mut context, sink) = self.at(head.slot);
        if let Err(error) = context.engine.absorb_scan(&mut scan, plan) {
            sink.reply(head, &Reply::Error(operation_error(&error)), None);
            return Execution::Replied;
        }
        context.scan_step(scan, |reply, wait| sink.reply(head, reply, wait))
    }

    /// Removes a request that is done; stores any other again. Returns whether it is done.
    fn conclude(&mut self, id: usize, head: &RequestHead, mut body: WaitingBody, execution: Execution) -> bool {
        let wait_queue = &mut self.exec.wait_queue;
        match (execution, head.origin) {
            (Execution::Replied, _) => {
                wait_queue.remove(id);
                return true;
            }
            // The front-end sends it again.
            (Execution::Blocked, Origin::Node { .. }) => return self.refuse(id, head, &Rejection::Overloaded),
            // A scan, which is in no queue that runs again.
            (Execution::Blocked, _) if matches!(body, WaitingBody::Taken) => {
                return self.refuse(id, head, &Rejection::Overloaded);
            }
            (Execution::Refused(rejection), _) => return self.refuse(id, head, &rejection),
            (Execution::Blocked, Origin::Shard { .. }) => wait_queue.retries.push((head.slot, head.hash)),
            (Execution::Larger { bytes }, _) => return self.remove_larger(id, head, &body, bytes),
            (Execution::Park(Parking::Read(plan)), _) => {
                let bytes = plan.read_bytes();
                if !self.sink.admit(head, bytes) {
                    return self.remove_larger(id, head, &body, bytes);
                }
                self.exec.wait_queue.raise_grant(id, bytes);
                self.exec.start_read(self.engine, id, plan);
            }
            (Execution::Park(Parking::Scan(plan, scan)), _) => {
                body = WaitingBody::Scan(scan);
                self.exec.reads.start(self.engine, plan, wait_queue.waiter(id));
            }
            (Execution::Park(_), _) => unreachable!("a request that runs waits for nothing but its value"),
        }
        self.exec.wait_queue.put_back(id, body);
        false
    }

    fn refuse(&mut self, id: usize, head: &RequestHead, rejection: &Rejection) -> bool {
        self.exec.wait_queue.remove(id);
        self.sink.refuse(head, rejection);
        true
    }

    fn remove_larger(&mut self, id: usize, head: &RequestHead, body: &WaitingBody, bytes: usize) -> bool {
        let WaitingBody::Request(request) = body else { unreachable!("a scan has no grant") };
        self.exec.wait_queue.remove(id);
        self.give_back(head, bytes, &request.body());
        true
    }

    /// The reply has a value of this length, which is not granted: the request is not executed here.
    fn give_back(&mut self, head: &RequestHead, bytes: usize, body: &RequestBody<'_>) {
        self.members[head.slot].completions.refuse_larger(head.tag, bytes);
        self.sink.give_back(head, bytes, body);
    }
}
