//! Look-ahead: requests decoded before their turn, so that their keys can be prefetched together.
//!
//! Requests mostly wait for main memory. The accesses of a pipeline, or of many connections, overlap when they are
//! prefetched together. The look-ahead changes no state; its decoded and hashed requests are kept for execution.
use super::consume::Dispatch;
use super::{Session, Sessions};
use crate::request::{Destination, SessionId};
use fawn_ds::internals::PREFETCH_KEYS_MAX;
use fawn_types::{KeyHash, Request, TimeMs};
use fawn_wire::{Codec, Command, Decoded, ReplyFormat};
use smallvec::SmallVec;

/// A request on one key, decoded and hashed before its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetched<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) format: ReplyFormat,
    pub(crate) hash: KeyHash,
    /// Its destination, unless this shard executes it.
    pub(crate) owner: Option<Destination>,
    /// Length of the request in the input, bytes.
    pub(crate) consumed: usize,
}

/// Minimum number of sessions whose first requests are prefetched together: for fewer the cost exceeds the gain.
pub(crate) const FIRSTS_MIN: usize = 4;

/// The next requests of a session's input, in order.
#[derive(Debug, Default)]
pub(crate) struct Lookahead<'a> {
    prefetched: SmallVec<[Prefetched<'a>; PREFETCH_KEYS_MAX]>,
    taken: usize,
}

impl<'a> Lookahead<'a> {
    /// The next request, if it was decoded ahead.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<&Prefetched<'a>> {
        let prefetched = self.prefetched.get(self.taken)?;
        self.taken += 1;
        Some(prefetched)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.prefetched.len()
    }

    /// Decodes the next requests, as far as they are on single keys, and prefetches those of this shard.
    #[inline]
    pub(crate) fn fill(&mut self, executor: &impl Dispatch, session: &Session, input: &'a [u8], now: TimeMs) {
        assert!(self.is_empty(), "requests decoded ahead are executed first");
        self.prefetched.clear();
        self.taken = 0;
        if !session.codec.is_between_requests() {
            return;
        }
        // A copy: an incomplete request must leave the session's codec state untouched.
        let (mut codec, mut at) = (session.codec.clone(), 0);
        let mut own = OwnHashes::new();
        while self.prefetched.len() < PREFETCH_KEYS_MAX && at < input.len() {
            let Some(prefetched) = peek_one(executor, &mut codec, &input[at..], now) else { break };
            own.add(&prefetched);
            at += prefetched.consumed;
            self.prefetched.push(prefetched);
        }
        debug_assert!(at <= input.len(), "decoded requests lie within the input");
        if own.count > 1 {
            executor.prefetch(own.hashes());
        }
    }
}

/// Hashes of keys of this shard. Other shards' keys are in no cache here and would only evict this shard's.
struct OwnHashes {
    all: [KeyHash; PREFETCH_KEYS_MAX],
    count: usize,
}

impl OwnHashes {
    #[inline]
    const fn new() -> Self {
        Self { all: [KeyHash(0); PREFETCH_KEYS_MAX], count: 0 }
    }

    #[inline]
    fn add(&mut self, prefetched: &Prefetched<'_>) {
        self.all[self.count] = prefetched.hash;
        self.count += usize::from(prefetched.owner.is_none());
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
pub(crate) fn peek_firsts<'a>(
    executor: &impl Dispatch,
    sessions: &Sessions,
    inputs: &[(SessionId, &'a [u8])],
    firsts: &mut [Option<Prefetched<'a>>; PREFETCH_KEYS_MAX],
    now: TimeMs,
) {
    let mut own = OwnHashes::new();
    for (first, (id, input)) in firsts.iter_mut().zip(inputs) {
        let Some(session) = sessions.get(*id) else { continue };
        let decoded = match session.codec.decode_fast(input) {
            Some(decoded) => decoded,
            None if session.codec.is_between_requests() => session.codec.clone().decode(input, now),
            None => continue,
        };
        let Decoded::Command { command: Command::Single { request, format }, consumed } = decoded else { continue };
        let (hash, owner) = executor.locate_key(request.key());
        own.add(first.insert(Prefetched { request, format, hash, owner, consumed }));
    }
    debug_assert!(own.count <= inputs.len(), "one request of each");
    executor.prefetch(own.hashes());
}

#[inline]
fn peek_one<'a>(executor: &impl Dispatch, codec: &mut Codec, input: &'a [u8], now: TimeMs) -> Option<Prefetched<'a>> {
    match codec.decode(input, now) {
        Decoded::Command { command: Command::Single { request, format }, consumed } => {
            debug_assert!(codec.is_between_requests(), "a whole request leaves nothing for the next");
            let (hash, owner) = executor.locate_key(request.key());
            Some(Prefetched { request, format, hash, owner, consumed })
        }
        _ => None,
    }
}
