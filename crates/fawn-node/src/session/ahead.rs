//! Owns looking ahead in a session's input: the keys that its next requests are about, to be fetched together.
//!
//! A pipeline's requests are independent of each other until they write; what they wait for is main memory, and that
//! can be waited for once instead of once each. Looking changes nothing: every request is decoded again in its turn.
use super::consume::Executor;
use fawn_ds::WARM_KEYS_MAX;
use fawn_types::TimeMs;
use fawn_wire::{Codec, Command, Decoded};
use smallvec::SmallVec;

/// Warms what the next requests on single keys touch; returns how far it looked, bytes, at least 1.
#[inline]
pub(super) fn look_ahead(executor: &impl Executor, codec: &Codec, input: &[u8], now: TimeMs) -> usize {
    // A copy: the state that a decoding step leaves behind is that of the step, not of the look.
    let mut codec = codec.clone();
    let mut keys: SmallVec<[&[u8]; WARM_KEYS_MAX]> = SmallVec::new();
    let mut at = 0;
    while keys.len() < WARM_KEYS_MAX && at < input.len() {
        let decoded = codec.decode(&input[at..], now);
        let Decoded::Command { command: Command::Single { request, .. }, consumed } = decoded else { break };
        keys.push(request.key());
        at += consumed;
    }
    debug_assert!(at <= input.len(), "what is decoded was there");
    if keys.len() > 1 {
        executor.warm(&keys);
    }
    at.max(1)
}
