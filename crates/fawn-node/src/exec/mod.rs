//! Executor: evaluates and reads for the members of a shard, whatever their role, with the replica as sequencer.
//!
//! ```text
//! execute → [read]   admit_read → lookup → reply
//!         → [update] completions → wait queue → lookup → evaluate → assign → append ┄ commit → reply
//! ```
//! A request that needs the device, or that follows such a request on its key, is parked with its origin. It replies to
//! a [`ReplySink`] when it is resumed. The executor knows neither sessions nor links.
mod keyspace_op;
mod read;
mod reads;
mod resume;
mod update;
mod wait_queue;

use crate::request::{Execution, Origin, Parking, RequestBody, RequestHead, RequestMessage, StoredRequest};
pub(crate) use keyspace_op::HashedPair;
pub(crate) use reads::ReadWaiter;
pub(crate) use resume::Resumption;

use self::keyspace_op::hash_pairs;
use self::reads::Reads;
use self::wait_queue::{WaitQueue, WaitingBody};
use crate::replica::HostedMember;
use crate::status::ShardCounters;
use fawn_chain::Rejection;
use fawn_ds::internals::{Engine, EngineError, LookupPlan};
use fawn_flash::Device;
use fawn_types::{Now, OperationError, Reply, Request, TimeJump, Version};
use fawn_wire::internal::KeyspaceRequest;

/// Buffers that are reused between requests.
#[derive(Debug, Default)]
struct EvaluationScratch {
    /// Value produced by an operation.
    value: Vec<u8>,
    /// The encoded reply, without a version that is not assigned yet.
    reply: Vec<u8>,
}

/// A larger scratch buffer is released after use.
pub(crate) const SCRATCH_BYTES_KEPT: usize = 1 << 20;

/// Receiver of the replies to parked requests.
pub(crate) trait ReplySink {
    /// Whether a reply of this length is granted, or can be granted at once.
    fn admit(&mut self, head: &RequestHead, bytes: usize) -> bool;

    /// The request is not executed now: the reply has a value of this length.
    fn give_back(&mut self, head: &RequestHead, bytes: usize, body: &RequestBody<'_>);

    /// Delivers the reply of a request; it may leave once `wait` is committed.
    fn reply(&mut self, head: &RequestHead, reply: &Reply<'_>, wait: Option<Version>);

    /// The request was not executed, and never will be.
    fn refuse(&mut self, head: &RequestHead, rejection: &Rejection);
}

/// Emission of a reply, with the version that it must wait for.
pub(crate) trait Emit: FnOnce(&Reply<'_>, Option<Version>) {}

impl<F: FnOnce(&Reply<'_>, Option<Version>)> Emit for F {}

/// The executor at one member: its log, its sequencer.
pub(crate) struct ExecContext<'a, D: Device> {
    pub(crate) exec: &'a mut Executor,
    pub(crate) engine: &'a mut Engine<D>,
    pub(crate) member: &'a mut HostedMember,
    pub(crate) now: Now,
}

impl<D: Device> ExecContext<'_, D> {
    /// Executes a request, and replies by `emit`.
    #[inline]
    pub(crate) fn execute(&mut self, message: &RequestMessage<'_>, emit: impl Emit) -> Execution {
        match &message.body {
            RequestBody::Key(Request::Get { key }) => self.read(message, key, emit),
            RequestBody::Key(Request::Update { key, update }) => self.update(message, (key, update), emit),
            RequestBody::Keyspace(request) => self.keyspace_op(message, request, emit),
        }
    }
}

/// Executor of a shard.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) wait_queue: WaitQueue,
    pub(crate) reads: Reads,
    /// Of its requests; all others are counted where they are handled.
    pub(crate) counters: ShardCounters,
    /// The jump of the store's expiry time to expect, which the time of a chain follows at its head.
    pub(crate) jump: TimeJump,
    scratch: EvaluationScratch,
    /// Buffer for the encoded result of a tagged update.
    result: Vec<u8>,
    value_bytes_max: u32,
    /// Maximum number of waiting requests.
    waiting_max: usize,
}

impl Executor {
    pub(crate) fn new(value_bytes_max: u32, waiting_max: usize, reads_in_flight_max: usize) -> Self {
        Self {
            wait_queue: WaitQueue::default(),
            reads: Reads::new(reads_in_flight_max),
            counters: ShardCounters::default(),
            jump: TimeJump::default(),
            scratch: EvaluationScratch::default(),
            result: Vec::new(),
            value_bytes_max,
            waiting_max,
        }
    }

    /// Whether one more request may wait.
    pub(crate) fn has_capacity(&self) -> bool {
        self.wait_queue.len() < self.waiting_max
    }

    /// Parks a request. Returns the bytes that it is stored in.
    pub(crate) fn park<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        parking: Parking,
        message: &RequestMessage<'_>,
        origin: Origin,
    ) -> usize {
        let mut head = RequestHead::new(message, origin);
        if let Parking::Scan(plan, scan) = parking {
            let id = self.wait_queue.insert(head, WaitingBody::Scan(scan), Box::default());
            self.reads.start(engine, plan, self.wait_queue.waiter(id));
            return 0;
        }
        // A queued read sees the updates before it.
        let follows_updates = matches!(parking, Parking::Queue | Parking::Retry);
        head.is_latest |= follows_updates;
        head.is_queued |= follows_updates;
        let batch = match message.body {
            RequestBody::Keyspace(KeyspaceRequest::SetAll(pairs)) => hash_pairs(engine, pairs),
            _ => Vec::new(),
        };
        let mut hashes = batch.into_iter().map(|(hash, ..)| hash);
        head.hash = hashes.next().unwrap_or(head.hash);
        let request = StoredRequest::new(&message.body);
        let stored_bytes = request.len_bytes();
        let id = self.wait_queue.insert(head, WaitingBody::Request(request), hashes.collect());
        match parking {
            Parking::Read(plan) => {
                assert!(!head.is_queued || self.wait_queue.is_first(id), "only the first of a key reads");
                self.start_read(engine, id, plan);
            }
            Parking::Retry if self.wait_queue.is_first(id) => self.wait_queue.retries.push((head.slot, head.hash)),
            Parking::Queue | Parking::Retry | Parking::Scan(..) => {}
        }
        stored_bytes
    }

    fn start_read<D: Device>(&mut self, engine: &mut Engine<D>, id: usize, plan: LookupPlan) {
        self.counters.cold += 1;
        self.reads.start(engine, plan, self.wait_queue.waiter(id));
    }

    /// Releases the memory of large requests.
    pub(crate) fn trim(&mut self) {
        let EvaluationScratch { value, reply } = &mut self.scratch;
        for buffer in [value, reply, &mut self.result] {
            if buffer.capacity() > SCRATCH_BYTES_KEPT {
                *buffer = Vec::new();
            }
        }
    }
}

/// Error reply for a request that the member refuses.
#[cold]
pub(crate) const fn refusal_error(rejection: &Rejection) -> OperationError {
    match rejection {
        Rejection::TooFewCopies => OperationError::TooFewCopies,
        Rejection::Overloaded | Rejection::EpochFull => OperationError::Overloaded,
        Rejection::NotServing | Rejection::StaleEpoch { .. } | Rejection::WrongMember { .. } => {
            OperationError::Unavailable
        }
    }
}

/// Error reply for an engine's error.
#[cold]
pub(crate) fn operation_error(error: &EngineError) -> OperationError {
    match error {
        EngineError::Overloaded => OperationError::Overloaded,
        EngineError::StoreFull => OperationError::StoreFull,
        EngineError::Poisoned { .. } => OperationError::Poisoned,
        EngineError::KeyTooLong { .. } => OperationError::KeyTooLong,
        EngineError::TooLarge { limit_bytes, .. } => {
            OperationError::RecordsTooLong { limit_bytes: u32::try_from(*limit_bytes).unwrap_or(u32::MAX) }
        }
        EngineError::Corrupt { .. } | EngineError::TooCorrupt { .. } => {
            tracing::error!(%error, "stored data is corrupt");
            OperationError::Corrupt
        }
        EngineError::UnknownRange { .. }
        | EngineError::RangeExists { .. }
        | EngineError::NotSplit { .. }
        | EngineError::NotChained { .. }
        | EngineError::Device(_) => {
            tracing::error!(%error, "request failed");
            OperationError::Unavailable
        }
    }
}
