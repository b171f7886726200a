//! Resumption of parked requests: their device read has ended, they are first in their key's queue, or they are granted
//! their length.
use super::message::{Execution, Origin, Parking, RequestHead};
use super::read::{reply_to, view};
use super::update::UpdateJob;
use super::wait_queue::{QueueName, UngrantedRead, WaitingBody};
use super::{Admit, Executor, ReplySink, operation_error};
use crate::replica::{MemberTable, RangeSlot};
use fawn_chain::Rejection;
use fawn_ds::internals::{Engine, Lookup, LookupPlan, Scan};
use fawn_flash::Device;
use fawn_types::{Now, OperationError, Reply, Request, Update};

/// The executor with the engine, the members, and the receiver of replies.
pub(crate) struct Resumption<'a, D: Device, S> {
    pub(crate) exec: &'a mut Executor,
    pub(crate) engine: &'a mut Engine<D>,
    pub(crate) members: &'a mut MemberTable,
    pub(crate) now: Now,
    pub(crate) sink: S,
}

impl<D: Device, S: ReplySink> Resumption<'_, D, S> {
    /// A device read of the request `id` has ended.
    pub(crate) fn handle_read(&mut self, id: usize, plan: LookupPlan) {
        let head = *self.exec.wait_queue.head(id);
        match self.resume(id, Some(plan)) {
            false => {}
            true if head.is_queued => self.run_queue((head.slot, head.hash)),
            true => self.run_followers(head.next),
        }
    }

    /// Runs reads of one key and session up to the first that must wait.
    fn run_followers(&mut self, mut next: Option<usize>) {
        while let Some(id) = next {
            next = self.exec.wait_queue.head(id).next;
            if !self.resume(id, None) {
                return;
            }
        }
    }

    /// Runs a key's queue up to the first request that must wait.
    fn run_queue(&mut self, name: QueueName) {
        while let Some(id) = self.exec.wait_queue.front(name)
            && self.resume(id, None)
        {}
    }

    /// Retries requests that found the log's buffers full.
    pub(crate) fn retry(&mut self) {
        for name in self.exec.wait_queue.take_retries() {
            self.run_queue(name);
        }
    }

    /// Continues the reads that were granted their length.
    pub(crate) fn run_granted(&mut self) {
        for _ in 0..self.exec.wait_queue.deferred.len() {
            let Some(read) = self.exec.wait_queue.deferred.pop_front() else { return };
            if !self.sink.is_granted(self.exec.wait_queue.head(read.id), read.bytes) {
                self.exec.wait_queue.deferred.push_back(read);
            } else if let Some(plan) = read.plan {
                self.exec.start_read(self.engine, read.id, plan);
            } else {
                self.run_followers(Some(read.id));
            }
        }
    }

    /// A member stopped serving: none of its waiting requests is executed.
    pub(crate) fn handle_stopped(&mut self, slot: RangeSlot) {
        for (id, head) in self.exec.wait_queue.take_range(slot) {
            self.sink.refuse(id, &head, &Rejection::NotServing);
        }
    }

    /// Runs a request, with the plan that its device read filled. Returns whether it is done.
    fn resume(&mut self, id: usize, plan: Option<LookupPlan>) -> bool {
        let head = *self.exec.wait_queue.head(id);
        let (execution, body) = match self.exec.wait_queue.take(id) {
            WaitingBody::Request(request) => {
                let execution = match request.request() {
                    Request::Get { key } => self.resume_read(id, &head, key, plan),
                    Request::Update { key, update } => self.resume_update(id, &head, key, update, plan),
                };
                (execution, WaitingBody::Request(request))
            }
            WaitingBody::Scan(scan) => (self.resume_scan(id, &head, scan, plan), WaitingBody::Taken),
            WaitingBody::Taken => unreachable!("a request runs once at a time"),
        };
        self.conclude(id, &head, body, execution)
    }

    fn resume_read(&mut self, id: usize, head: &RequestHead, key: &[u8], plan: Option<LookupPlan>) -> Execution {
        let Self { exec, engine, members, sink, .. } = self;
        let member = &mut members[head.slot];
        let time = match member.replica.admit_read(self.now) {
            Ok(time) => time,
            Err(rejection) => return Execution::Refused(rejection),
        };
        let lookup = match plan {
            Some(plan) => engine.resume(plan, time),
            None => engine.lookup(member.id, head.hash, key, view(head.is_latest), time),
        };
        // A read in its key's queue keeps its place: its reply is accepted as it is.
        if let (Ok(Lookup::Found(entry)), false) = (&lookup, head.is_queued) {
            match sink.admit_value(head, entry.value.len()) {
                Admit::Accept => {}
                Admit::Retry => return Execution::Larger { bytes: entry.value.len() },
                Admit::Reject => {
                    sink.reply(id, head, key, &Reply::Error(OperationError::Overloaded), None);
                    return Execution::Replied;
                }
            }
        }
        reply_to(lookup, &mut exec.counters, &member.replica, head.is_latest, |reply, wait| {
            sink.reply(id, head, key, reply, wait);
        })
    }

    fn resume_update(
        &mut self,
        id: usize,
        head: &RequestHead,
        key: &[u8],
        update: Update<'_>,
        plan: Option<LookupPlan>,
    ) -> Execution {
        // It was granted before it was parked, and it holds its key's queue.
        let job = UpdateJob { hash: head.hash, key, tag: head.tag, update: &update, grant_bytes: usize::MAX };
        let Self { exec, engine, members, sink, .. } = self;
        let mut context = exec.head(engine, &mut members[head.slot], self.now);
        context.run(&job, plan, |reply, wait| sink.reply(id, head, key, reply, wait))
    }

    fn resume_scan(
        &mut self,
        id: usize,
        head: &RequestHead,
        mut scan: Box<Scan>,
        plan: Option<LookupPlan>,
    ) -> Execution {
        let Self { exec, engine, members, sink, .. } = self;
        let Some(plan) = plan else { unreachable!("a scan waits for device reads only") };
        let mut emit = |reply: &Reply<'_>, wait| sink.reply(id, head, &[], reply, wait);
        if let Err(error) = engine.absorb_scan(&mut scan, plan) {
            emit(&Reply::Error(operation_error(&error)), None);
            return Execution::Replied;
        }
        exec.scan_step(engine, &mut members[head.slot], scan, self.now, emit)
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
            (Execution::Refused(rejection), _) => return self.refuse(id, head, &rejection),
            (Execution::Blocked, Origin::Local(_)) => wait_queue.retry_later((head.slot, head.hash)),
            (Execution::Larger { bytes }, _) => wait_queue.deferred.push_back(UngrantedRead { id, plan: None, bytes }),
            (Execution::Park(Parking::Read(plan)), _) => {
                let bytes = plan.read_bytes();
                if self.sink.admit_read(head, bytes) {
                    self.exec.start_read(self.engine, id, plan);
                } else {
                    wait_queue.deferred.push_back(UngrantedRead { id, plan: Some(plan), bytes });
                }
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
        self.sink.refuse(id, head, rejection);
        true
    }
}
