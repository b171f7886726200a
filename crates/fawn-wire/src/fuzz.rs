//! Fuzz targets: functions of arbitrary bytes that panic if a decoder violates its contract.
//!
//! Usable with libFuzzer (`fuzz_target!(|data| fawn_wire::fuzz::resp(data))`) and by a seeded driver on stable Rust.
use crate::client::{self, ParsedReply};
use crate::internal::{Message, put_larger_message, put_notice, put_reply_message, put_request_message};
use crate::{ClientIdentity, Codec, CodecLimits, Command, Decoded, Protocol, ServerCommand, commands, encode_reply};
use crate::{MemcachedFormat, ReplyFormat, RespFormat};
use alloc::vec::Vec;
use fawn_types::{EntryRef, Reply, TimeMs, Version};

// Small limits, so that short inputs reach them.
const LIMITS: CodecLimits = CodecLimits { value_bytes_max: 1 << 10, request_bytes_max: 1 << 18 };
const NOW: TimeMs = TimeMs(1_700_000_000_000);

/// A RESP server's decoder.
pub fn resp(data: &[u8]) {
    server(Protocol::Resp, data);
}

/// A memcached server's decoder.
pub fn memcached(data: &[u8]) {
    server(Protocol::Memcached, data);
}

/// The internal protocol: a message that decodes is encoded to one that decodes to the same.
pub fn internal(data: &[u8]) {
    let mut input = data;
    while let Ok((message, rest)) = Message::read(input) {
        assert!(rest.len() < input.len(), "a message has a length");
        let mut again = Vec::new();
        match message {
            Message::Request { fields, body } => put_request_message(&fields, |out| body.put(out), &mut again),
            Message::Reply { op, reply } => put_reply_message(op, &reply, &mut again),
            Message::Larger { op, bytes, body } => put_larger_message(op, bytes, &body, &mut again),
            notice => put_notice(notice, &mut again),
        }
        assert_eq!(Message::read(&again), Ok((message, &[][..])));
        input = rest;
    }
}

/// A RESP client's parser: it never reads beyond the input, and always makes progress or stops.
pub fn client_resp(data: &[u8]) {
    let (mut input, mut parser) = (data, client::resp::ReplyParser::new());
    loop {
        match parser.parse(input) {
            ParsedReply::Reply { reply, consumed } => {
                assert!(consumed > 0 && consumed <= input.len());
                if let client::resp::RespReply::Array(items) | client::resp::RespReply::Map(items) = reply {
                    // The elements are verified, so iteration must find all of them.
                    assert_eq!(items.len(), items.count());
                }
                input = &input[consumed..];
            }
            ParsedReply::Incomplete { need_bytes } => return assert!(need_bytes > input.len()),
            ParsedReply::Malformed { at, .. } => return assert!(at <= input.len()),
        }
    }
}

/// A memcached client's parser.
pub fn client_memcached(data: &[u8]) {
    let mut input = data;
    while let ParsedReply::Reply { consumed, .. } = client::memcached::parse_reply(input) {
        assert!(consumed > 0 && consumed <= input.len());
        input = &input[consumed..];
    }
}

/// A glob pattern, up to the first NUL byte, and a text.
pub fn glob(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let _ = crate::glob::matches(&data[..at], &data[at..]);
}

/// Decodes and answers all requests in `data`. Decoding must make progress, and replies must be well formed.
fn server(protocol: Protocol, data: &[u8]) {
    let (mut codec, mut identity) = (Codec::new(protocol, LIMITS), ClientIdentity::default());
    let (mut input, mut out) = (data, Vec::new());
    loop {
        let consumed = match codec.decode(input, NOW) {
            Decoded::Incomplete { need_bytes } => {
                assert!(need_bytes > input.len(), "need {need_bytes} of {}", input.len());
                assert!(need_bytes <= LIMITS.request_bytes_max + (1 << 16), "{need_bytes}");
                return check(protocol, &out);
            }
            Decoded::Command { command, consumed } => {
                answer(&command, &mut codec, &mut identity, &mut out);
                consumed
            }
            Decoded::Rewritten { bytes, consumed } => {
                match codec.decode(&bytes, NOW) {
                    Decoded::Incomplete { .. } | Decoded::Rewritten { .. } => panic!("a rewritten request is complete"),
                    Decoded::Command { command, consumed } => {
                        assert_eq!(consumed, bytes.len());
                        answer(&command, &mut codec, &mut identity, &mut out);
                    }
                    Decoded::Error { message, .. } => out.extend_from_slice(&message),
                    Decoded::Skip { .. } => {}
                }
                consumed
            }
            Decoded::Skip { consumed } => consumed,
            Decoded::Error { message, consumed, fatal } => {
                out.extend_from_slice(&message);
                if fatal {
                    return check(protocol, &out);
                }
                consumed
            }
        };
        assert!(consumed > 0 && consumed <= input.len(), "consumed {consumed} of {}", input.len());
        input = &input[consumed..];
    }
}

/// Encodes a plausible reply to `command`, to exercise the encoders.
fn answer(command: &Command<'_>, codec: &mut Codec, identity: &mut ClientIdentity, out: &mut Vec<u8>) {
    let entry = EntryRef { value: b"value", flags: 7, expires_at_ms: 0, version: Version::from_u64(9) };
    match command {
        Command::Single { request, format } => encode_reply(*format, request.key(), &fitting(*format, entry), out),
        Command::Multi(multi) => {
            let mut gather = multi.multi_reply;
            assert_eq!(multi.requests().count(), multi.len());
            assert_eq!(multi.keys().count(), multi.len());
            gather.begin(out);
            multi.requests().for_each(|request| gather.add(request.key(), &Reply::Value(entry), out));
            gather.finish(out);
        }
        Command::Connection(connection) => {
            let _ = connection.answer(codec, identity, out);
        }
        Command::Server(ServerCommand::Command(query)) => commands::answer(query, codec.resp_version(), out),
        Command::Keyspace(_) | Command::Server(_) => {}
    }
}

/// A reply that is possible with the given `reply_format`.
fn fitting(format: ReplyFormat, entry: EntryRef<'_>) -> Reply<'_> {
    match format {
        ReplyFormat::Resp(RespFormat::Counter, _) => Reply::Signed(-5),
        ReplyFormat::Memcached(MemcachedFormat::Number) => Reply::Unsigned(5),
        ReplyFormat::Resp(RespFormat::OkOrNull | RespFormat::LengthWritten, _)
        | ReplyFormat::Memcached(MemcachedFormat::Stored) => Reply::Stored { version: entry.version, value_bytes: 5 },
        ReplyFormat::Memcached(MemcachedFormat::Deleted) => Reply::Deleted,
        ReplyFormat::Memcached(MemcachedFormat::Touched) => Reply::Touched,
        _ => Reply::Value(entry),
    }
}

/// Parses the replies as a client would.
fn check(protocol: Protocol, out: &[u8]) {
    let mut rest = out;
    while !rest.is_empty() {
        let consumed = match protocol {
            Protocol::Resp => match client::resp::parse_reply(rest) {
                ParsedReply::Reply { consumed, .. } => consumed,
                other => panic!("{other:?} in {:?}", rest.escape_ascii()),
            },
            Protocol::Memcached => match client::memcached::parse_reply(rest) {
                ParsedReply::Reply { consumed, .. } => consumed,
                other => panic!("{other:?} in {:?}", rest.escape_ascii()),
            },
        };
        rest = &rest[consumed..];
    }
}
