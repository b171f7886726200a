//! Owns what one connection's decoder is: its protocol, its limits, and what a decoding step can find.
use crate::{Command, MemcachedState, NativeState, RespState, RespVersion};
use alloc::borrow::Cow;
use alloc::vec::Vec;
use fawn_types::{KeyHash, TimeMs, limits};

/// What a listener speaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// The memcached text protocol.
    Memcached,
    /// RESP2, and RESP3 after `HELLO 3`.
    Resp,
    /// FAWN's own, between shards; no client speaks it.
    Native,
}

/// What a client may send; the defaults are those of [`fawn_types::limits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest value, bytes.
    pub value_bytes_max: usize,
    /// Longest request in all, bytes: what a connection must be able to buffer.
    pub request_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { value_bytes_max: limits::VALUE_BYTES_MAX, request_bytes_max: limits::REQUEST_BYTES_MAX }
    }
}

/// What a decoding step found at the start of the input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    /// No whole request yet. Call again, with the same bytes in front, once at least `need_bytes` are there: sooner
    /// is allowed but finds nothing new. A large value is thus not parsed again for every read.
    Incomplete {
        /// Least length of the input, from its start, at which decoding can go on.
        need_bytes: usize,
    },
    /// One request.
    Command {
        /// What is asked.
        command: Command<'a>,
        /// Bytes of the input to drop.
        consumed: usize,
    },
    /// An inline RESP command with quotes, re-written as an array: decode `bytes`, a whole request, in its stead.
    Rewritten {
        /// The same request in canonical form.
        bytes: Vec<u8>,
        /// Bytes of the input to drop.
        consumed: usize,
    },
    /// Bytes without meaning: an empty line, the rest of a refused value.
    Skip {
        /// Bytes of the input to drop; at least 1.
        consumed: usize,
    },
    /// A request that is refused.
    Error {
        /// The reply, worded for the protocol, line end included; empty when the client wants none.
        message: Cow<'static, [u8]>,
        /// Bytes of the input to drop.
        consumed: usize,
        /// Whether the connection must be closed after the reply, the stream being out of step.
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

/// The decoder of one connection, whichever its protocol.
#[derive(Clone, Debug)]
pub enum Codec {
    /// memcached text.
    Memcached(MemcachedState),
    /// RESP.
    Resp(RespState),
    /// FAWN's own.
    Native(NativeState),
}

impl Codec {
    /// A fresh connection's.
    #[must_use]
    pub fn new(protocol: Protocol, limits: Limits) -> Self {
        match protocol {
            Protocol::Memcached => Codec::Memcached(MemcachedState::new(limits)),
            Protocol::Resp => Codec::Resp(RespState::new(limits)),
            Protocol::Native => Codec::Native(NativeState::new(limits)),
        }
    }

    /// What it speaks.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        match self {
            Codec::Memcached(_) => Protocol::Memcached,
            Codec::Resp(_) => Protocol::Resp,
            Codec::Native(_) => Protocol::Native,
        }
    }

    /// The version of RESP agreed upon; other connections count as 2.
    #[must_use]
    pub const fn resp_version(&self) -> RespVersion {
        match self {
            Codec::Memcached(_) | Codec::Native(_) => RespVersion::V2,
            Codec::Resp(state) => state.version,
        }
    }

    /// After `HELLO`: the version of RESP from here on.
    pub const fn set_resp_version(&mut self, version: RespVersion) {
        if let Codec::Resp(state) = self {
            state.version = version;
        }
    }

    /// Whether it remembers nothing of an unfinished or refused request: a copy decodes from here as it would itself.
    #[must_use]
    #[inline]
    pub const fn is_between_requests(&self) -> bool {
        match self {
            Codec::Memcached(state) => state.is_between_requests(),
            Codec::Resp(state) => state.is_between_requests(),
            Codec::Native(_) => true,
        }
    }

    /// What [`Codec::decode`] would return, where that is a whole plain request of the usual framing and between
    /// requests: then no state changes. `None` says nothing.
    #[must_use]
    #[inline]
    pub fn decode_plain<'a>(&self, input: &'a [u8]) -> Option<Decoded<'a>> {
        match self {
            Codec::Memcached(_) | Codec::Native(_) => None,
            Codec::Resp(state) => state.decode_plain(input),
        }
    }

    /// The key's hash, where the whole request at the start of `input` brings it along.
    #[must_use]
    #[inline]
    pub fn carried_hash(&self, input: &[u8]) -> Option<KeyHash> {
        match self {
            Codec::Memcached(_) | Codec::Resp(_) => None,
            Codec::Native(_) => crate::native::hash_of(input),
        }
    }

    /// Decodes the first request of `input`. Relative times become absolute by `now`.
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a [u8], now: TimeMs) -> Decoded<'a> {
        match self {
            Codec::Memcached(state) => state.decode(input, now),
            Codec::Resp(state) => state.decode(input, now),
            Codec::Native(state) => state.decode(input),
        }
    }
}
