//! Owns RESP: what a connection's decoder remembers between reads.
pub mod decode;
pub mod encode;
pub(crate) mod frame;
pub(crate) mod invocation;
pub(crate) mod refusal;
pub(crate) mod shortcut;

use crate::Limits;

/// The version of RESP a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RespVersion {
    /// Every connection's start.
    #[default]
    V2,
    /// After `HELLO 3`.
    V3,
}

impl RespVersion {
    /// 2 or 3.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            RespVersion::V2 => 2,
            RespVersion::V3 => 3,
        }
    }
}

/// A RESP connection's decoder.
#[derive(Clone, Debug)]
pub struct RespState {
    /// The version that replies are worded in.
    pub version: RespVersion,
    limits: Limits,
    resume: frame::Resume,
    discard: frame::Discard,
    /// Bytes of an unfinished inline line known to hold no line end.
    searched_bytes: usize,
}

impl RespState {
    /// A fresh connection's.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        // Places within a request are kept in 32 bits.
        assert!(limits.request_bytes_max <= u32::MAX as usize, "request limit {}", limits.request_bytes_max);
        Self {
            version: RespVersion::V2,
            limits,
            resume: frame::Resume::default(),
            discard: frame::Discard::default(),
            searched_bytes: 0,
        }
    }

    pub(crate) const fn is_between_requests(&self) -> bool {
        self.resume.is_start() && !self.discard.is_active() && self.searched_bytes == 0
    }
}
