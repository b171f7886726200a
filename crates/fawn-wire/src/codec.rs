//! The decoder of one connection, for either protocol: its limits, and the result of a decoding step.
use crate::{Command, MemcachedState, RespState, RespVersion};
use alloc::borrow::Cow;
use alloc::vec::Vec;
use fawn_types::{TimeMs, limits};

/// The protocol of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// The memcached text protocol.
    Memcached,
    /// RESP2, and RESP3 after `HELLO 3`.
    Resp,
}

/// Limits on the requests of a client; the defaults are those of [`fawn_types::limits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodecLimits {
    /// Maximum value length, bytes.
    pub value_bytes_max: usize,
    /// Maximum length of a whole request, bytes; a connection may have to buffer this much.
    pub request_bytes_max: usize,
}

impl Default for CodecLimits {
    fn default() -> Self {
        Self { value_bytes_max: limits::VALUE_BYTES_MAX, request_bytes_max: limits::REQUEST_BYTES_MAX }
    }
}

/// Result of a decoding step at the start of the input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    /// The request is incomplete. Call again with the same bytes once the input has at least `need_bytes`. An earlier
    /// call is allowed and returns `Incomplete` again. The minimum spares a decoding step after every read of a large
    /// value.
    Incomplete {
        /// Minimum length of the input, from its start, with which decoding can continue.
        need_bytes: usize,
    },
    /// One request.
    Command {
        /// The decoded request.
        command: Command<'a>,
        /// Number of input bytes to remove.
        consumed: usize,
    },
    /// An inline RESP command with quotes, rewritten as an array. Decode `bytes`, a complete request, instead.
    Rewritten {
        /// The same request in canonical form.
        bytes: Vec<u8>,
        /// Number of input bytes to remove.
        consumed: usize,
    },
    /// Bytes without a request: an empty line, or the rest of a rejected request.
    Skip {
        /// Number of input bytes to remove; at least 1.
        consumed: usize,
    },
    /// A rejected request, with the reply to it.
    Error {
        /// The encoded reply, line end included; empty if the client wants no reply.
        message: Cow<'static, [u8]>,
        /// Number of input bytes to remove.
        consumed: usize,
        /// Whether to close the connection after the reply, because the next request cannot be located.
        fatal: bool,
    },
}

impl Decoded<'_> {
    pub(crate) fn refuse(message: impl Into<Cow<'static, [u8]>>, consumed: usize) -> Self {
        Decoded::Error { message: message.into(), consumed, fatal: false }
    }

    pub(crate) fn fatal(message: impl Into<Cow<'static, [u8]>>, consumed: usize) -> Self {
        Decoded::Error { message: message.into(), consumed, fatal: true }
    }
}

/// The decoder of one connection, for any protocol.
#[derive(Clone, Debug)]
pub enum Codec {
    /// memcached text.
    Memcached(MemcachedState),
    /// RESP.
    Resp(RespState),
}

impl Codec {
    /// The decoder of a new connection.
    #[must_use]
    pub fn new(protocol: Protocol, limits: CodecLimits) -> Self {
        match protocol {
            Protocol::Memcached => Codec::Memcached(MemcachedState::new(limits)),
            Protocol::Resp => Codec::Resp(RespState::new(limits)),
        }
    }

    /// The negotiated RESP version; `V2` for other protocols.
    #[must_use]
    pub const fn resp_version(&self) -> RespVersion {
        match self {
            Codec::Memcached(_) => RespVersion::V2,
            Codec::Resp(state) => state.version,
        }
    }

    /// Sets the RESP version negotiated by `HELLO`.
    pub const fn set_resp_version(&mut self, version: RespVersion) {
        if let Codec::Resp(state) = self {
            state.version = version;
        }
    }

    /// Whether the decoder holds no state of an unfinished or rejected request. If so, a copy decodes the same
    /// requests.
    #[must_use]
    #[inline]
    pub const fn is_between_requests(&self) -> bool {
        match self {
            Codec::Memcached(state) => state.is_between_requests(),
            Codec::Resp(state) => state.is_between_requests(),
        }
    }

    /// Fast path: the result of [`Codec::decode`] if the input starts with a complete common request and the decoder
    /// [is between requests](Self::is_between_requests). Changes no state. `None`: use [`Codec::decode`].
    #[must_use]
    #[inline]
    pub fn decode_fast<'a>(&self, input: &'a [u8]) -> Option<Decoded<'a>> {
        match self {
            Codec::Memcached(_) => None,
            Codec::Resp(state) => state.decode_fast(input),
        }
    }

    /// Decodes the first request of `input`. `now` is for the time left (`TTL`), the delay of `flush_all`, and overflow
    /// checks of expiries. A relative expiry stays relative: the head adds its own time.
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a [u8], now: TimeMs) -> Decoded<'a> {
        match self {
            Codec::Memcached(state) => state.decode(input, now),
            Codec::Resp(state) => state.decode(input, now),
        }
    }
}
