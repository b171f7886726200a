//! Decoding of RESP requests: framing, command lookup, and dispatch to the command's parser.
use super::frame::{self, Frame, Stop};
use super::invocation::Invocation;
use super::refusal::{self, Refusal};
use super::shortcut;
use crate::args::Framing;
use crate::commands::{self, Parse};
use crate::{Command, Decoded, Protocol, RespState, inline};
use fawn_types::TimeMs;

/// Result of a command's parser.
pub(crate) type Parsed<'a> = Result<Command<'a>, Refusal>;

impl RespState {
    /// Fast path for a complete common request; see [`Codec::decode_plain`](crate::Codec::decode_plain).
    #[must_use]
    #[inline]
    pub fn decode_plain<'a>(&self, input: &'a [u8]) -> Option<Decoded<'a>> {
        if !self.is_between_requests() {
            return None;
        }
        shortcut::decode(input, &self.limits, self.version)
    }

    /// Decodes the first request of `input`. `now` serves replies with times in them, and delays.
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a [u8], now: TimeMs) -> Decoded<'a> {
        if self.discard.is_active() {
            return self.drop_refused(input);
        }
        if self.resume.is_start()
            && let Some(decoded) = shortcut::decode(input, &self.limits, self.version)
        {
            return decoded;
        }
        match input.first() {
            Some(b'*') => self.decode_array(input, now),
            Some(_) => self.decode_inline(input, now),
            None => Decoded::Incomplete { need_bytes: 1 },
        }
    }

    fn decode_array<'a>(&mut self, input: &'a [u8], now: TimeMs) -> Decoded<'a> {
        match frame::scan(input, &self.limits, &mut self.resume) {
            Ok(Frame { spans, count, body, consumed }) => {
                let (input, version) = (&input[..consumed], self.version);
                let request = Invocation { input, spans, count, body, framing: Framing::Bulk, version, now };
                dispatch(&request, consumed)
            }
            Err(stop) => self.stopped(stop, input.len()),
        }
    }

    fn decode_inline<'a>(&mut self, input: &'a [u8], now: TimeMs) -> Decoded<'a> {
        match inline::split(input, &mut self.searched_bytes) {
            Ok(inline::Line { count: 0, consumed, .. }) => Decoded::Skip { consumed },
            Ok(inline::Line { spans, count, line_bytes, consumed }) => {
                let (input, version) = (&input[..line_bytes], self.version);
                let request = Invocation { input, spans, count, body: 0, framing: Framing::Words, version, now };
                dispatch(&request, consumed)
            }
            Err(inline::Stop::Need(need_bytes)) => Decoded::Incomplete { need_bytes },
            Err(inline::Stop::Quoted { bytes, consumed }) => Decoded::Rewritten { bytes, consumed },
            Err(inline::Stop::TooLong) => {
                Decoded::fatal(&b"-ERR Protocol error: too big inline request\r\n"[..], input.len())
            }
            Err(inline::Stop::Unbalanced { consumed }) => {
                Decoded::fatal(&b"-ERR Protocol error: unbalanced quotes in request\r\n"[..], consumed)
            }
        }
    }

    #[cold]
    fn stopped(&mut self, stop: Stop, input_bytes: usize) -> Decoded<'static> {
        match stop {
            Stop::Need(need_bytes) => Decoded::Incomplete { need_bytes },
            Stop::Empty(consumed) => Decoded::Skip { consumed },
            Stop::Protocol(error) => Decoded::fatal(refusal::protocol(error), input_bytes),
            Stop::TooLong { len, at, discard } => {
                self.discard.start(discard);
                Decoded::refuse(refusal::too_long(len, self.limits.value_bytes_max), at)
            }
        }
    }

    #[cold]
    fn drop_refused(&mut self, input: &[u8]) -> Decoded<'static> {
        match self.discard.step(input) {
            Ok(consumed) => Decoded::Skip { consumed },
            Err(stop) => self.stopped(stop, input.len()),
        }
    }
}

#[inline]
fn dispatch<'a>(request: &Invocation<'a>, consumed: usize) -> Decoded<'a> {
    match parse(request) {
        Ok(command) => Decoded::Command { command, consumed },
        Err(refusal) => Decoded::refuse(refusal.message(), consumed),
    }
}

#[inline]
fn parse<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let name = invocation.arg(0);
    let Some(spec) = commands::find(Protocol::Resp, name) else {
        return Err(refusal::unknown(name, invocation.rest(1)));
    };
    if !spec.takes(invocation.count) {
        return Err(Refusal::Arity(spec.name));
    }
    match spec.parse {
        Parse::Resp(parse) => parse(invocation),
        Parse::Container => parse_subcommand(spec.name, invocation),
        Parse::Memcached(_) => unreachable!("the lookup is by protocol"),
    }
}

pub(crate) fn parse_subcommand<'a>(container: &'static str, invocation: &Invocation<'a>) -> Parsed<'a> {
    let Some(name) = invocation.get(1) else { return Err(Refusal::Arity(container)) };
    let Some(spec) = commands::find_subcommand(container, name) else {
        return Err(refusal::unknown_subcommand(container, name));
    };
    if !spec.takes(invocation.count) {
        return Err(Refusal::Arity(spec.name));
    }
    match spec.parse {
        Parse::Resp(parse) => parse(invocation),
        Parse::Container | Parse::Memcached(_) => unreachable!("a subcommand is neither"),
    }
}
