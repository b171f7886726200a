//! Decoding of RESP requests: framing, command lookup, and dispatch to the command's parser.
use super::command_args::CommandArgs;
use super::fast_path;
use super::frame::{self, FrameStop, RespFrame};
use super::parse_error::{self, ParseError};
use crate::args::Framing;
use crate::commands::{self, CommandSpec, Parse};
use crate::{Command, Decoded, Protocol, RespState, inline};
use fawn_types::TimeMs;

/// Result of a command's parser.
pub(crate) type ParseResult<'a> = Result<Command<'a>, ParseError>;

impl RespState {
    /// Fast path for a complete common request; see [`Codec::decode_fast`](crate::Codec::decode_fast).
    #[must_use]
    #[inline]
    pub fn decode_fast<'a>(&self, input: &'a [u8]) -> Option<Decoded<'a>> {
        if !self.is_between_requests() {
            return None;
        }
        fast_path::decode(input, &self.limits, self.version)
    }

    /// Decodes the first request of `input`; see [`Codec::decode`](crate::Codec::decode).
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a [u8], now: TimeMs) -> Decoded<'a> {
        if self.discard.is_active() {
            return self.drop_refused(input);
        }
        if self.resume.is_start()
            && let Some(decoded) = fast_path::decode(input, &self.limits, self.version)
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
            Ok(frame) => self.decode_frame(input, frame, Framing::Bulk, now),
            Err(stop) => self.stopped(stop, input.len()),
        }
    }

    fn decode_inline<'a>(&mut self, input: &'a [u8], now: TimeMs) -> Decoded<'a> {
        match inline::split(input, &mut self.searched_bytes) {
            Ok(RespFrame { count: 0, consumed, .. }) => Decoded::Skip { consumed },
            Ok(frame) => self.decode_frame(input, frame, Framing::Words, now),
            Err(decoded) => decoded,
        }
    }

    // A call would copy the frame of each request.
    #[inline(always)]
    fn decode_frame<'a>(&self, input: &'a [u8], frame: RespFrame, framing: Framing, now: TimeMs) -> Decoded<'a> {
        let RespFrame { spans, count, body, consumed } = frame;
        let (input, version) = (&input[..consumed], self.version);
        match parse(&CommandArgs { input, spans, count, body, framing, version, now }) {
            Ok(command) => Decoded::Command { command, consumed },
            Err(error) => Decoded::refuse(error, consumed),
        }
    }

    #[cold]
    fn stopped(&mut self, stop: FrameStop, input_bytes: usize) -> Decoded<'static> {
        match stop {
            FrameStop::Need(need_bytes) => Decoded::Incomplete { need_bytes },
            FrameStop::Empty(consumed) => Decoded::Skip { consumed },
            FrameStop::Protocol(error) => Decoded::fatal(parse_error::protocol(error), input_bytes),
            FrameStop::TooLong { len, at, discard } => {
                self.discard = discard;
                Decoded::refuse(parse_error::too_long(len, self.limits.value_bytes_max), at)
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
fn parse<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let name = args.arg(0);
    let Some(spec) = commands::find(Protocol::Resp, name) else {
        return Err(parse_error::unknown(name, args.from(1)));
    };
    parse_as(spec, args)
}

pub(crate) fn parse_subcommand<'a>(container: &'static str, args: &CommandArgs<'a>) -> ParseResult<'a> {
    let Some(name) = args.get(1) else { return Err(parse_error::arity(container)) };
    let Some(spec) = commands::find_subcommand(container, name) else {
        return Err(parse_error::unknown_subcommand(container, name));
    };
    parse_as(spec, args)
}

#[inline]
fn parse_as<'a>(spec: &CommandSpec, args: &CommandArgs<'a>) -> ParseResult<'a> {
    if !spec.takes(args.count) {
        return Err(parse_error::arity(spec.name));
    }
    match spec.parse {
        Parse::Resp(parse) => parse(args),
        Parse::Container => parse_subcommand(spec.name, args),
        Parse::Memcached(_) => unreachable!("the lookup is by protocol"),
    }
}
