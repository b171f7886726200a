//! memcached text: the decoder of a connection, and the encoder of replies.
pub(crate) mod commands;
pub mod decode;
pub mod encode;
pub(crate) mod line;

use crate::CodecLimits;

pub(crate) const ERROR: &[u8] = b"ERROR\r\n";
pub(crate) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(crate) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";

/// The decoder of a memcached connection.
#[derive(Clone, Debug)]
pub struct MemcachedState {
    limits: CodecLimits,
    /// Bytes left of a rejected value's block; dropped as they arrive, never buffered.
    discard_bytes: u64,
    /// Length of an incomplete line that is known to have no line end.
    searched_bytes: usize,
}

impl MemcachedState {
    /// The decoder of a new connection.
    #[must_use]
    pub const fn new(limits: CodecLimits) -> Self {
        Self { limits, discard_bytes: 0, searched_bytes: 0 }
    }

    pub(crate) const fn is_between_requests(&self) -> bool {
        self.discard_bytes == 0 && self.searched_bytes == 0
    }
}
