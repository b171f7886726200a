//! Owns memcached's framing.
use crate::{Decoded, MemcachedState};
use fawn_types::TimeMs;

impl MemcachedState {
    /// Decodes the first request of `input`.
    pub fn decode<'a>(&mut self, input: &'a [u8], _now: TimeMs) -> Decoded<'a> {
        let _ = (&self.limits, self.swallow_bytes, self.searched_bytes);
        Decoded::Incomplete { need_bytes: input.len() + 1 }
    }
}
