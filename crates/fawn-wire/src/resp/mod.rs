//! RESP: the decoder of a connection, and the encoder of replies.
pub(crate) mod command_args;
pub mod decode;
pub mod encode;
pub(crate) mod fast_path;
pub(crate) mod frame;
pub(crate) mod parse_error;

use crate::CodecLimits;

/// The RESP version of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RespVersion {
    /// The initial version of every connection.
    #[default]
    V2 = 2,
    /// The version after `HELLO 3`.
    V3 = 3,
}

/// The decoder of a RESP connection.
#[derive(Clone, Debug)]
pub struct RespState {
    /// The version in which replies are encoded.
    pub version: RespVersion,
    limits: CodecLimits,
    resume: frame::ScanResume,
    discard: frame::Discard,
    /// Length of an incomplete inline command that is known to have no line end.
    searched_bytes: usize,
}

impl RespState {
    /// The decoder of a new connection.
    #[must_use]
    pub fn new(limits: CodecLimits) -> Self {
        // Positions within a request are stored in 32 bits.
        assert!(limits.request_bytes_max <= u32::MAX as usize, "request limit {}", limits.request_bytes_max);
        Self {
            version: RespVersion::V2,
            limits,
            resume: frame::ScanResume::default(),
            discard: frame::Discard::default(),
            searched_bytes: 0,
        }
    }

    pub(crate) const fn is_between_requests(&self) -> bool {
        self.resume.is_start() && !self.discard.is_active() && self.searched_bytes == 0
    }
}
