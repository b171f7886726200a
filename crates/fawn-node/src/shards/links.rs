//! Owns a shard's ends of the ways to the others: what is to be handed over, whose requests are away, what they hold.
use super::{Letter, Placement, letter::Kind};
use crate::SessionId;
use crate::options::ShardOptions;
use crate::shards::away::Away;
use crate::status::ShardStatus;
use crate::wide::Wide;
use fawn_types::{HashSecret, ShardId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use slab::Slab;
use std::collections::VecDeque;

/// Answers for one shard that wait to be handed over, bytes; beyond, they wait in their session, and it takes no more.
const ANSWERS_BYTES_MAX: usize = 256 << 10;

/// Memory of letters that is kept for later ones; what is beyond is given back to the system.
const SPARE_BYTES_MAX: usize = 2 * ANSWERS_BYTES_MAX;

/// The ways to the other shards of a node; a shard that is alone has none.
#[derive(Debug)]
pub(crate) struct Links {
    placement: Placement,
    secret: HashSecret,
    /// What is to be handed to each shard; to this one too: requests on all ranges treat all alike.
    outbox: Vec<Letter>,
    /// Memory of letters that were read, for those to be written.
    spare: Vec<Letter>,
    spare_bytes: usize,
    /// Per shard, the sessions here that stand for those of its sessions which ask something of this one.
    pub(super) peers: Vec<HashMap<SessionId, SessionId, FxBuildHasher>>,
    /// Of these, those with answers to be handed over, and those that take requests again.
    pub(super) speaking: VecDeque<SessionId>,
    pub(super) resumed: VecDeque<SessionId>,
    /// Requests that sessions of these could not take yet.
    pub(super) rests: HashMap<SessionId, Vec<u8>, FxBuildHasher>,
    /// Requests that are away, and what they were asked with.
    requests: usize,
    requests_bytes: usize,
    /// Sessions with reads whose answers found no room: to be asked again.
    pub(super) late: VecDeque<SessionId>,
    pub(super) wides: Slab<Wide>,
    /// Requests that no session waits for.
    pub(super) house: Away,
    /// What the other shards have counted.
    pub(crate) others: ShardStatus,
    /// A letter came in this turn.
    pub(super) has_moved: bool,
}

impl Links {
    pub(crate) fn new(placement: Placement, secret: HashSecret) -> Self {
        let count = usize::from(placement.count());
        assert!(count > 1, "a shard that is alone has nobody to write to");
        Self {
            placement,
            secret,
            outbox: vec![Letter::default(); count],
            spare: Vec::new(),
            spare_bytes: 0,
            peers: vec![HashMap::default(); count],
            speaking: VecDeque::new(),
            resumed: VecDeque::new(),
            rests: HashMap::default(),
            requests: 0,
            requests_bytes: 0,
            late: VecDeque::new(),
            wides: Slab::new(),
            house: Away::default(),
            others: ShardStatus::default(),
            has_moved: false,
        }
    }

    pub(crate) const fn placement(&self) -> Placement {
        self.placement
    }

    /// Shards of the node.
    pub(super) fn count(&self) -> usize {
        self.outbox.len()
    }

    /// The shard that the key belongs to, unless it is this one.
    #[inline]
    pub(crate) fn elsewhere(&self, key: &[u8]) -> Option<ShardId> {
        let owner = self.placement.owner(&self.secret, key);
        (owner != self.placement.shard()).then_some(owner)
    }

    /// Whether one more request may go away.
    pub(crate) const fn has_room(&self, options: &ShardOptions) -> bool {
        self.requests < options.pending_max && self.requests_bytes <= options.requests_bytes_max
    }

    /// Hands a request over; how many bytes it takes until it is answered.
    #[inline]
    pub(super) fn ask(&mut self, to: ShardId, session: SessionId, put: impl FnOnce(&mut Vec<u8>)) -> usize {
        let letter = &mut self.outbox[usize::from(to.0)];
        let before = letter.bytes();
        letter.add(Kind::Asked, session, put);
        let bytes = letter.bytes() - before;
        self.requests += 1;
        self.requests_bytes += bytes;
        bytes
    }

    /// A request is answered, or nobody waits for its answer any more.
    pub(super) const fn answered(&mut self, bytes: usize) {
        self.requests -= 1;
        self.requests_bytes -= bytes;
    }

    /// Tells all other shards.
    pub(crate) fn tell_all(&mut self, kind: Kind, session: SessionId) {
        let me = usize::from(self.placement.shard().0);
        let others = self.outbox.iter_mut().enumerate().filter(|(at, _)| *at != me);
        others.for_each(|(_, letter)| letter.add(kind, session, |_| {}));
    }

    /// Tells one shard.
    pub(super) fn tell(&mut self, to: ShardId, kind: Kind, session: SessionId) {
        self.outbox[usize::from(to.0)].add(kind, session, |_| {});
    }

    /// Answers of a session that stands for `of` of shard `to`; whether there was room.
    pub(super) fn answer(&mut self, (to, of): (ShardId, SessionId), frames: &[u8]) -> bool {
        let letter = &mut self.outbox[usize::from(to.0)];
        let has_room = letter.bytes() < ANSWERS_BYTES_MAX;
        if has_room {
            letter.add(Kind::Answered, of, |out| out.extend_from_slice(frames));
        }
        has_room
    }

    /// What is to be handed to that shard.
    pub(crate) fn take_letter(&mut self, to: ShardId) -> Option<Letter> {
        let at = usize::from(to.0);
        if self.outbox[at].is_empty() {
            return None;
        }
        let next = self.spare.pop().unwrap_or_default();
        self.spare_bytes -= next.room_bytes();
        Some(std::mem::replace(&mut self.outbox[at], next))
    }

    /// A letter is read.
    pub(super) fn keep_spare(&mut self, letter: Letter) {
        let spare_bytes = self.spare_bytes + letter.room_bytes();
        if self.spare.len() < self.outbox.len() && spare_bytes <= SPARE_BYTES_MAX {
            self.spare_bytes = spare_bytes;
            self.spare.push(letter.emptied());
        }
    }

    /// What it hands to itself.
    pub(super) fn take_own(&mut self) -> Option<Letter> {
        self.take_letter(self.placement.shard())
    }

    /// Requests away.
    pub(crate) const fn requests(&self) -> usize {
        self.requests
    }

    /// Sessions here that stand for others' sessions.
    pub(crate) fn standing(&self) -> usize {
        self.peers.iter().map(HashMap::len).sum()
    }

    /// Whether an answer came in this turn: there may be room for further requests.
    pub(crate) const fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Whether answers wait for room in a letter.
    pub(crate) fn has_unsaid(&self) -> bool {
        !self.speaking.is_empty()
    }

    /// Whether the next turn has something to do though nothing happens until then.
    pub(crate) fn is_due(&self) -> bool {
        !self.resumed.is_empty() || !self.outbox[usize::from(self.placement.shard().0)].is_empty()
    }

    /// Whether nothing is under way, neither here nor for others.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests == 0
            && self.wides.is_empty()
            && self.speaking.is_empty()
            && self.outbox.iter().all(Letter::is_empty)
    }
}
