//! Wait queue of a back-end: requests that wait for device reads, in order per key, and the limit of concurrent reads.
use crate::options::READS_IN_FLIGHT_BYTES_MAX;
use fawn_ds::internals::{Engine, LookupPlan};
use fawn_flash::Device;
use fawn_types::{ClientTag, KeyHash, NodeId, RangeId};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use slab::Slab;
use std::collections::VecDeque;

/// Receiver of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    pub(super) node: NodeId,
    pub(super) op: u64,
    pub(super) session: u64,
}

/// A request that waits for a device read.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) origin: Origin,
    pub(super) tag: ClientTag,
    pub(super) range: RangeId,
    pub(super) hash: KeyHash,
    /// The encoded request; decoded again when it resumes.
    pub(super) payload: Box<[u8]>,
    generation: u32,
}

/// Purpose of a device read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadPurpose {
    /// The waiting request in this slot, if its generation matches: the slot may have been reused.
    Parked {
        at: usize,
        generation: u32,
    },
    /// A replay of the log for a peer.
    Replay {
        at: usize,
    },
    Scan {
        at: usize,
    },
    /// A chunk of a transfer.
    Copy {
        at: usize,
    },
}

const REPLAY_BIT: u64 = 1 << 63;
const SCAN_BIT: u64 = 1 << 62;
const COPY_BIT: u64 = 1 << 61;
const STAMP_BITS: u32 = 29;

impl ReadPurpose {
    const fn to_token(self) -> u64 {
        match self {
            Self::Parked { at, generation } => (generation as u64) << 32 | at as u64,
            Self::Replay { at } => REPLAY_BIT | at as u64,
            Self::Scan { at } => SCAN_BIT | at as u64,
            Self::Copy { at } => COPY_BIT | at as u64,
        }
    }

    pub(super) const fn from_token(user: u64) -> Self {
        let at = (user & u32::MAX as u64) as usize;
        match user {
            _ if user & REPLAY_BIT != 0 => Self::Replay { at },
            _ if user & SCAN_BIT != 0 => Self::Scan { at },
            _ if user & COPY_BIT != 0 => Self::Copy { at },
            _ => Self::Parked { at, generation: (user >> 32) as u32 },
        }
    }
}

/// Requests and device reads that wait at a back-end.
#[derive(Debug)]
pub(super) struct ClusterWaitQueue {
    requests: Slab<WaitingRequest>,
    /// Updates by key; the first one reads the value, the others wait until it is evaluated.
    queues: HashMap<(RangeId, KeyHash), VecDeque<usize>, FxBuildHasher>,
    /// Tags of waiting updates, to drop their retries.
    tags: HashSet<ClientTag, FxBuildHasher>,
    reads_in_flight: usize,
    reads_in_flight_bytes: usize,
    reads_in_flight_max: usize,
    reads_waiting: VecDeque<(LookupPlan, ReadPurpose)>,
    requests_max: usize,
    generation: u32,
}

impl ClusterWaitQueue {
    pub(super) fn new(requests_max: usize, reads_in_flight_max: usize) -> Self {
        assert!(reads_in_flight_max > 0, "a bound of 0 reads would answer no cold key");
        Self {
            requests: Slab::new(),
            queues: HashMap::default(),
            tags: HashSet::default(),
            reads_in_flight: 0,
            reads_in_flight_bytes: 0,
            reads_in_flight_max,
            reads_waiting: VecDeque::new(),
            requests_max,
            generation: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.requests.len() >= self.requests_max
    }

    pub(super) fn holds_tag(&self, tag: ClientTag) -> bool {
        !self.tags.is_empty() && self.tags.contains(&tag)
    }

    pub(super) fn has_queue(&self, range: RangeId, hash: KeyHash) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&(range, hash))
    }

    /// Queues a read until its device read ends.
    pub(super) fn park_read(
        &mut self,
        (origin, range, hash): (Origin, RangeId, KeyHash),
        payload: &[u8],
    ) -> ReadPurpose {
        let at = self.insert(origin, ClientTag::NONE, range, hash, payload);
        self.purpose(at)
    }

    /// Queues an update behind others of its key. Returns the purpose of its device read if it is the first.
    pub(super) fn park_update(
        &mut self,
        (origin, range, hash): (Origin, RangeId, KeyHash),
        tag: ClientTag,
        payload: &[u8],
    ) -> Option<ReadPurpose> {
        let at = self.insert(origin, tag, range, hash, payload);
        self.tags.insert(tag);
        let queue = self.queues.entry((range, hash)).or_default();
        queue.push_back(at);
        (queue.len() == 1).then(|| self.purpose(at))
    }

    fn insert(&mut self, origin: Origin, tag: ClientTag, range: RangeId, hash: KeyHash, payload: &[u8]) -> usize {
        assert!(!self.is_full(), "callers check `is_full` first");
        self.generation = self.generation.wrapping_add(1) & ((1 << STAMP_BITS) - 1);
        self.requests.insert(WaitingRequest {
            origin,
            tag,
            range,
            hash,
            payload: payload.into(),
            generation: self.generation,
        })
    }

    pub(super) fn purpose(&self, at: usize) -> ReadPurpose {
        ReadPurpose::Parked { at, generation: self.requests[at].generation }
    }

    /// Whether the slot still holds the request of this generation.
    pub(super) fn is_there(&self, at: usize, generation: u32) -> bool {
        self.requests.get(at).is_some_and(|parked| parked.generation == generation)
    }

    /// Removes a request, also from its key's queue, where it must be the first.
    pub(super) fn take(&mut self, at: usize) -> WaitingRequest {
        let parked = self.requests.remove(at);
        if self.tags.remove(&parked.tag) {
            let name = (parked.range, parked.hash);
            let Some(queue) = self.queues.get_mut(&name) else { unreachable!("a waiting update is in a queue") };
            assert_eq!(queue.pop_front(), Some(at), "operations on a key resume in order");
            if queue.is_empty() {
                self.queues.remove(&name);
            }
        }
        parked
    }

    /// Returns a request that was just taken and needs another device read to the front of its key's queue.
    pub(super) fn put_back(&mut self, parked: WaitingRequest) -> ReadPurpose {
        let (tag, name) = (parked.tag, (parked.range, parked.hash));
        let at = self.requests.insert(parked);
        if tag.is_some() {
            self.tags.insert(tag);
            self.queues.entry(name).or_default().push_front(at);
        }
        self.purpose(at)
    }

    /// The first waiting update of a key.
    pub(super) fn front(&self, range: RangeId, hash: KeyHash) -> Option<usize> {
        self.queues.get(&(range, hash))?.front().copied()
    }

    /// Removes all requests of a range that stopped, in no particular order. None of them was executed.
    pub(super) fn take_range(&mut self, range: RangeId) -> Vec<WaitingRequest> {
        let of_range = |(_, parked): &(usize, &WaitingRequest)| parked.range == range;
        let taken: Vec<usize> = self.requests.iter().filter(of_range).map(|(at, _)| at).collect();
        self.queues.retain(|(of, _), _| *of != range);
        let parked: Vec<WaitingRequest> = taken.into_iter().map(|at| self.requests.remove(at)).collect();
        parked.iter().for_each(|parked| {
            self.tags.remove(&parked.tag);
        });
        parked
    }

    /// Starts a device read, or queues it if too many are in flight.
    pub(super) fn read<D: Device>(&mut self, engine: &mut Engine<D>, plan: LookupPlan, purpose: ReadPurpose) {
        self.reads_waiting.push_back((plan, purpose));
        self.refill(engine);
    }

    /// Notes the end of a device read of this many bytes; starts queued reads.
    pub(super) fn read_ended<D: Device>(&mut self, engine: &mut Engine<D>, bytes: usize) {
        assert!(self.reads_in_flight > 0, "a read ends once");
        self.reads_in_flight -= 1;
        self.reads_in_flight_bytes -= bytes;
        self.refill(engine);
    }

    fn refill<D: Device>(&mut self, engine: &mut Engine<D>) {
        while self.reads_in_flight < self.reads_in_flight_max
            && (self.reads_in_flight == 0 || self.reads_in_flight_bytes < READS_IN_FLIGHT_BYTES_MAX)
            && let Some((plan, purpose)) = self.reads_waiting.pop_front()
        {
            self.reads_in_flight += 1;
            self.reads_in_flight_bytes += plan.read_bytes();
            engine.read(plan, purpose.to_token());
        }
    }
}
