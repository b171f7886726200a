//! Owns looking ahead: requests decoded before their turn, so that what their keys need is fetched together.
//!
//! What requests wait for is main memory, and for those of a pipeline, or of many connections, that can be waited for
//! once instead of once each. Looking changes nothing; what it decoded and hashed is kept for the request's turn.
use super::Session;
use super::consume::Executor;
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

/// The next requests of a session's input, in order.
#[derive(Debug, Default)]
pub(crate) struct Ahead<'a> {
    looked: SmallVec<[Looked<'a>; WARM_KEYS_MAX]>,
    taken: usize,
}

impl<'a> Ahead<'a> {
    /// With its first request, if that was looked at already.
    pub(crate) fn from_first(first: Option<Looked<'a>>) -> Self {
        Self { looked: first.into_iter().collect(), taken: 0 }
    }

    /// The request whose turn it is, if it was looked at.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Looked<'a>> {
        let looked = self.looked.get(self.taken).copied();
        self.taken += usize::from(looked.is_some());
        looked
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
pub(crate) fn look_at_firsts<'a, 's>(
    executor: &impl Executor,
    inputs: impl Iterator<Item = (Option<&'s Session>, &'a [u8])>,
    now: TimeMs,
) -> SmallVec<[Option<Looked<'a>>; WARM_KEYS_MAX]> {
    let mut hashes: SmallVec<[KeyHash; WARM_KEYS_MAX]> = SmallVec::new();
    let look = |(session, input): (Option<&Session>, &'a [u8])| {
        let codec = &session?.codec;
        let looked = codec.is_between_requests().then(|| look_at_one(executor, &mut codec.clone(), input, now))?;
        looked.iter().for_each(|looked| hashes.push(looked.hash));
        looked
    };
    let firsts = inputs.map(look).collect();
    executor.warm(&hashes);
    firsts
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
