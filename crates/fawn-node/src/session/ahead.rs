//! Owns looking ahead: requests decoded before their turn, so that what their keys need is fetched together.
//!
//! What requests wait for is main memory, and for those of a pipeline, or of many connections, that can be waited for
//! once instead of once each. Looking changes nothing; what it decoded and hashed is kept for the request's turn.
use super::consume::Executor;
use super::{SessionId, Sessions};
use fawn_ds::WARM_KEYS_MAX;
use fawn_types::{KeyHash, Request, TimeMs};
use fawn_wire::{Codec, Command, Decoded, Shape};
use smallvec::SmallVec;

/// A request on one key, decoded and hashed before its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) shape: Shape,
    pub(crate) hash: KeyHash,
    /// Bytes of the input that it takes.
    pub(crate) consumed: usize,
}

/// Sessions whose first requests are looked at together at least: fewer wait for less than the look costs.
pub(crate) const FIRSTS_MIN: usize = 4;

/// The next requests of a session's input, in order.
#[derive(Debug, Default)]
pub(crate) struct Ahead<'a> {
    looked: SmallVec<[Looked<'a>; WARM_KEYS_MAX]>,
    taken: usize,
}

impl<'a> Ahead<'a> {
    /// The request whose turn it is, if it was looked at.
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

    /// Looks at the next requests, as many as are on single keys, and warms what they touch.
    #[inline]
    pub(crate) fn look(&mut self, executor: &impl Executor, codec: &Codec, input: &'a [u8], now: TimeMs) {
        assert!(self.is_empty(), "what was looked at has its turn first");
        self.looked.clear();
        self.taken = 0;
        if !codec.is_between_requests() {
            return;
        }
        // A copy: where a request does not end, its state is that of the look, not of the decoding in its turn.
        let (mut codec, mut at) = (codec.clone(), 0);
        let mut hashes = [KeyHash(0); WARM_KEYS_MAX];
        while self.looked.len() < WARM_KEYS_MAX && at < input.len() {
            let Some(looked) = look_at_one(executor, &mut codec, &input[at..], now) else { break };
            hashes[self.looked.len()] = looked.hash;
            at += looked.consumed;
            self.looked.push(looked);
        }
        debug_assert!(at <= input.len(), "what is decoded was there");
        if self.looked.len() > 1 {
            executor.warm(&hashes[..self.looked.len()]);
        }
    }
}

/// The first requests of several sessions' inputs, each where it is on a single key; what they touch is warmed.
///
/// Written where the caller keeps them: they are too large to be moved for every turn.
#[inline]
pub(crate) fn look_at_firsts<'a>(
    executor: &impl Executor,
    sessions: &Sessions,
    inputs: &[(SessionId, &'a [u8])],
    firsts: &mut [Option<Looked<'a>>; WARM_KEYS_MAX],
    now: TimeMs,
) {
    let mut hashes = [KeyHash(0); WARM_KEYS_MAX];
    let mut count = 0;
    for (first, (id, input)) in firsts.iter_mut().zip(inputs) {
        let Some(session) = sessions.get(*id) else { continue };
        let decoded = match session.codec.decode_plain(input) {
            Some(decoded) => decoded,
            None if session.codec.is_between_requests() => session.codec.clone().decode(input, now),
            None => continue,
        };
        let Decoded::Command { command: Command::Single { request, shape }, consumed } = decoded else { continue };
        let hash = executor.hash(request.key());
        hashes[count] = hash;
        count += 1;
        *first = Some(Looked { request, shape, hash, consumed });
    }
    debug_assert!(count <= inputs.len(), "one request of each");
    executor.warm(&hashes[..count]);
}

#[inline]
fn look_at_one<'a>(executor: &impl Executor, codec: &mut Codec, input: &'a [u8], now: TimeMs) -> Option<Looked<'a>> {
    match codec.decode(input, now) {
        Decoded::Command { command: Command::Single { request, shape }, consumed } => {
            debug_assert!(codec.is_between_requests(), "a whole request leaves nothing for the next");
            Some(Looked { request, shape, hash: executor.hash(request.key()), consumed })
        }
        _ => None,
    }
}
