//! Owns memcached text: what a connection's decoder remembers between reads.
pub(crate) mod commands;
pub mod decode;
pub mod encode;
pub(crate) mod line;

use crate::Limits;

pub(crate) const ERROR: &[u8] = b"ERROR\r\n";
pub(crate) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(crate) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";

/// A memcached connection's decoder.
#[derive(Clone, Debug)]
pub struct MemcachedState {
    limits: Limits,
    /// Bytes still to come of a refused value's block; they are dropped as they arrive, never buffered.
    swallow_bytes: u64,
    /// Bytes of an unfinished line known to hold no line end.
    searched_bytes: usize,
}

impl MemcachedState {
    /// A fresh connection's.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self { limits, swallow_bytes: 0, searched_bytes: 0 }
    }

    pub(crate) const fn is_between_requests(&self) -> bool {
        self.swallow_bytes == 0 && self.searched_bytes == 0
    }
}
