//! Look-ahead: requests decoded before their turn, so that their keys can be prefetched together.
//!
//! Requests mostly wait for main memory. The accesses of a pipeline, or of many connections, overlap when they are
//! prefetched together. The look-ahead changes no state; its decoded and hashed requests are kept for execution.
use super::consume::Executor;
use super::{Session, SessionId, Sessions};
use fawn_ds::internals::WARM_KEYS_MAX;
use fawn_types::{KeyHash, Request, ShardId, TimeMs};
use fawn_wire::{Codec, Command, Decoded, Shape};
use smallvec::SmallVec;

/// A request on one key, decoded and hashed before its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) shape: Shape,
    pub(crate) hash: KeyHash,
    /// The shard that owns the key, unless it is this one.
    pub(crate) owner: Option<ShardId>,
    /// Length of the request in the input, bytes.
    pub(crate) consumed: usize,
}

/// Minimum number of sessions whose first requests are prefetched together: for fewer the cost exceeds the gain.
pub(crate) const FIRSTS_MIN: usize = 4;

/// The next requests of a session's input, in order.
#[derive(Debug, Default)]
pub(crate) struct Ahead<'a> {
    looked: SmallVec<[Looked<'a>; WARM_KEYS_MAX]>,
    taken: usize,
}

impl<'a> Ahead<'a> {
    /// The next request, if it was decoded ahead.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<&Looked<'a>> {
        let looked = self.looked.get(self.taken)?;
        self.taken += 1;
        Some(looked)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.looked.len()
    }

    /// Decodes the next requests, as far as they are on single keys, and prefetches those of this shard.
    #[inline]
    pub(crate) fn look(&mut self, executor: &impl Executor, session: &Session, input: &'a [u8], now: TimeMs) {
        assert!(self.is_empty(), "what was looked at has its turn first");
        self.looked.clear();
        self.taken = 0;
        if !session.codec.is_between_requests() {
            return;
        }
        // A copy: an incomplete request must leave the session's codec state untouched.
        let (mut codec, mut at) = (session.codec.clone(), 0);
        let mut own = OwnHashes::new();
        while self.looked.len() < WARM_KEYS_MAX && at < input.len() {
            let Some(looked) = look_at_one(executor, (session, &mut codec), &input[at..], now) else { break };
            own.add(&looked);
            at += looked.consumed;
            self.looked.push(looked);
        }
        debug_assert!(at <= input.len(), "what is decoded was there");
        if own.count > 1 {
            executor.warm(own.hashes());
        }
    }
}

/// Hashes of keys of this shard. Other shards' keys are in no cache here and would only evict this shard's.
struct OwnHashes {
    all: [KeyHash; WARM_KEYS_MAX],
    count: usize,
}

impl OwnHashes {
    #[inline]
    const fn new() -> Self {
        Self { all: [KeyHash(0); WARM_KEYS_MAX], count: 0 }
    }

    #[inline]
    fn add(&mut self, looked: &Looked<'_>) {
        self.all[self.count] = looked.hash;
        self.count += usize::from(looked.owner.is_none());
    }

    #[inline]
    fn hashes(&self) -> &[KeyHash] {
        &self.all[..self.count]
    }
}

/// The first request of each session's input, if it is on a single key; its key is prefetched.
///
/// Results are written in place: they are too large to be moved per iteration.
#[inline]
pub(crate) fn look_at_firsts<'a>(
    executor: &impl Executor,
    sessions: &Sessions,
    inputs: &[(SessionId, &'a [u8])],
    firsts: &mut [Option<Looked<'a>>; WARM_KEYS_MAX],
    now: TimeMs,
) {
    let mut own = OwnHashes::new();
    for (first, (id, input)) in firsts.iter_mut().zip(inputs) {
        let Some(session) = sessions.get(*id) else { continue };
        let decoded = match session.codec.decode_plain(input) {
            Some(decoded) => decoded,
            None if session.codec.is_between_requests() => session.codec.clone().decode(input, now),
            None => continue,
        };
        let Decoded::Command { command: Command::Single { request, shape }, consumed } = decoded else { continue };
        let (hash, owner) = executor.place(session, request.key(), input);
        own.add(first.insert(Looked { request, shape, hash, owner, consumed }));
    }
    debug_assert!(own.count <= inputs.len(), "one request of each");
    executor.warm(own.hashes());
}

#[inline]
fn look_at_one<'a>(
    executor: &impl Executor,
    (session, codec): (&Session, &mut Codec),
    input: &'a [u8],
    now: TimeMs,
) -> Option<Looked<'a>> {
    match codec.decode(input, now) {
        Decoded::Command { command: Command::Single { request, shape }, consumed } => {
            debug_assert!(codec.is_between_requests(), "a whole request leaves nothing for the next");
            let (hash, owner) = executor.place(session, request.key(), input);
            Some(Looked { request, shape, hash, owner, consumed })
        }
        _ => None,
    }
}
