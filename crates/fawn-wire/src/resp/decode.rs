//! Owns decoding of RESP requests.
use crate::{Decoded, RespState};
use fawn_types::TimeMs;

impl RespState {
    /// Decodes the first request of `input`.
    pub fn decode<'a>(&mut self, input: &'a [u8], _now: TimeMs) -> Decoded<'a> {
        let _ = (&self.limits, &self.resume, &self.discard);
        Decoded::Incomplete { need_bytes: input.len() + 1 }
    }
}
