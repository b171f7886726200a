//! Functions of arbitrary bytes that panic if a decoder of `fawn-wire` violates its contract. The crate's public
//! interface is enough for them.
use fawn_types::{EntryRef, Reply, TimeMs, Version};
use fawn_wire::client::{self, ParsedReply};
use fawn_wire::internal::{Message, put_larger_message, put_notice, put_reply_message, put_request_message};
use fawn_wire::{
    ClientIdentity, Codec, CodecLimits, Command, Decoded, Protocol, ServerCommand, commands, encode_reply,
};
use fawn_wire::{MemcachedFormat, ReplyFormat, RespFormat};

// Small limits, so that short inputs reach them.
const LIMITS: CodecLimits = CodecLimits { value_bytes_max: 1 << 10, request_bytes_max: 1 << 18 };
const NOW: TimeMs = TimeMs(1_700_000_000_000);

/// A RESP server's decoder.
pub(crate) fn resp(data: &[u8]) {
    server(Protocol::Resp, data);
}

/// A memcached server's decoder.
pub(crate) fn memcached(data: &[u8]) {
    server(Protocol::Memcached, data);
}

/// The internal protocol: a message that decodes is encoded to one that decodes to the same.
pub(crate) fn internal(data: &[u8]) {
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
pub(crate) fn client_resp(data: &[u8]) {
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
pub(crate) fn client_memcached(data: &[u8]) {
    let mut input = data;
    while let ParsedReply::Reply { consumed, .. } = client::memcached::parse_reply(input) {
        assert!(consumed > 0 && consumed <= input.len());
        input = &input[consumed..];
    }
}

/// A glob pattern, up to the first NUL byte, and a text.
pub(crate) fn glob(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let _ = fawn_wire::glob::matches(&data[..at], &data[at..]);
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

#[cfg(test)]
mod tests {
    //! A seeded driver: mutated samples and random bytes.
    //!
    //! For longer runs or other seeds: `FAWN_SEED=7 FAWN_FUZZ_CASES=1000000 cargo test -p fawn-fuzz wire`.
    use super::*;
    use fawn_types::random::SplitMix64;

    const SAMPLES: [&[u8]; 8] = [
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$4\r\nMGET\r\n$1\r\nk\r\n",
        b"set a 0 0 3\r\nabc\r\ngets a b\r\nincr a 1\r\n",
        b"HELLO 3 SETNAME x\r\nCOMMAND DOCS get\r\nCLIENT INFO\r\n",
        b"*2\r\n+OK\r\n%1\r\n$1\r\na\r\n:1\r\n",
        b"VALUE k 0 3 9\r\nabc\r\nEND\r\nSTORED\r\nSTAT a b\r\n",
        b"SET k \"a\\x41\" EX 10 NX GET\r\nEXPIRE k 10 GT\r\nSCAN 0 MATCH * COUNT 3\r\n",
        b"cas a 1 -1 2 77 noreply\r\nxy\r\nflush_all 3\r\nverbosity 1\r\nstats items\r\n",
        b"COMMAND\r\nCOMMAND LIST FILTERBY ACLCAT string\r\nMSET a 1 b 2\r\nDEL a b c\r\n",
    ];

    struct FuzzRng(SplitMix64);

    impl FuzzRng {
        fn next(&mut self, below: usize) -> usize {
            self.0.below(below as u64) as usize
        }

        fn input(&mut self) -> Vec<u8> {
            let mut data = SAMPLES[self.next(SAMPLES.len())].to_vec();
            for _ in 0..self.next(6) {
                let at = self.next(data.len().max(1)).min(data.len());
                match self.next(5) {
                    0 if at < data.len() => data[at] = self.next(256) as u8,
                    1 => data.insert(at, b"\r\n $*:-0123456789\"'"[self.next(19)]),
                    2 if at < data.len() => drop(data.remove(at)),
                    3 => data.truncate(at),
                    _ => data.extend_from_slice(SAMPLES[self.next(SAMPLES.len())]),
                }
            }
            data
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        let number =
            |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
        let (seed, cases) = (number("FAWN_SEED", 1), number("FAWN_FUZZ_CASES", 20_000));
        println!("FAWN_SEED={seed} FAWN_FUZZ_CASES={cases} cargo test -p fawn-fuzz wire");
        let mut random = FuzzRng(SplitMix64::new(seed));
        for _ in 0..cases {
            let data = random.input();
            for target in [resp, memcached, client_resp, client_memcached, glob] {
                target(&data);
            }
        }
    }
}
