//! Commands that a test's clients send, and the meaning of the replies.
use fawn_types::Version;
use fawn_wire::Protocol;
use fawn_wire::client::memcached::{MemcachedReply, StoreCommand, encode_store, encode_words};
use fawn_wire::client::resp::{RespReply, encode_command};
use fawn_wire::client::{ParsedReply, memcached, resp};

/// One request in one of the protocols.
#[derive(Clone, Debug)]
pub(crate) struct TestCommand {
    pub(crate) protocol: Protocol,
    pub(crate) bytes: Vec<u8>,
}

/// The owned outcome of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Value(Vec<u8>, Version),
    Absent,
    Stored,
    Number(i64),
    /// The value that was deleted.
    Previous(Vec<u8>),
    /// The text of an error.
    Error(String),
    /// A reply of memcached that none of the others means.
    Other(String),
}

impl Answer {
    pub(crate) fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Value(value, _) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn is_error(&self, start: &str) -> bool {
        matches!(self, Self::Error(text) if text.starts_with(start))
    }

    fn error(text: &[u8]) -> Self {
        Self::Error(String::from_utf8_lossy(text).into_owned())
    }

    /// The answer in a session's output, once it is complete.
    pub(crate) fn parse(protocol: Protocol, output: &[u8]) -> Option<Self> {
        let (answer, consumed) = match protocol {
            Protocol::Resp => of_resp(output)?,
            Protocol::Memcached => of_memcached(output)?,
        };
        assert_eq!(consumed, output.len(), "one reply to one request: {}", output.escape_ascii());
        Some(answer)
    }
}

/// The reply at the start of `output`; `None` while it is incomplete.
fn whole<R>(parsed: ParsedReply<R>, output: &[u8]) -> Option<(R, usize)> {
    match parsed {
        ParsedReply::Reply { reply, consumed } => Some((reply, consumed)),
        ParsedReply::Incomplete { .. } => None,
        ParsedReply::Malformed { expected, at } => panic!("no {expected} at {at}: {}", output.escape_ascii()),
    }
}

fn of_resp(output: &[u8]) -> Option<(Answer, usize)> {
    let (reply, consumed) = whole(resp::parse_reply(output), output)?;
    let answer = match reply {
        RespReply::Simple(b"OK") => Answer::Stored,
        RespReply::Integer(number) => Answer::Number(number),
        RespReply::Bulk(value) => Answer::Previous(value.to_vec()),
        RespReply::Null => Answer::Absent,
        RespReply::Error(text) => Answer::error(text),
        other => panic!("no command of the tests is answered so: {other:?}"),
    };
    Some((answer, consumed))
}

fn of_memcached(output: &[u8]) -> Option<(Answer, usize)> {
    let (reply, consumed) = whole(memcached::parse_reply(output), output)?;
    let answer = match reply {
        MemcachedReply::Value { value, version, .. } => {
            let (end, end_bytes) = whole(memcached::parse_reply(&output[consumed..]), output)?;
            assert_eq!(end, MemcachedReply::End, "one value of one key");
            let Some(version) = version.map(Version::from_u64) else { panic!("every retrieval asks for versions") };
            return Some((Answer::Value(value.to_vec(), version), consumed + end_bytes));
        }
        MemcachedReply::End => Answer::Absent,
        MemcachedReply::Stored => Answer::Stored,
        MemcachedReply::Error(text) => Answer::error(text),
        other => Answer::Other(format!("{other:?}")),
    };
    Some((answer, consumed))
}

/// A command of Redis with these words.
pub(crate) fn redis(words: &[&[u8]]) -> TestCommand {
    let mut bytes = Vec::new();
    encode_command(words, &mut bytes);
    TestCommand { protocol: Protocol::Resp, bytes }
}

/// A command of memcached with these words and without a data block. Keys must not contain spaces.
pub(crate) fn memcached(words: &[&[u8]]) -> TestCommand {
    let mut bytes = Vec::new();
    encode_words(words, &mut bytes);
    TestCommand { protocol: Protocol::Memcached, bytes }
}

/// A storage command of memcached.
fn store(verb: &str, key: &[u8], value: &[u8], version: Option<Version>) -> TestCommand {
    let version = version.map(Version::as_u64);
    let mut bytes = Vec::new();
    encode_store(&StoreCommand { verb, key, flags: 0, exptime: 0, version, noreply: false }, value, &mut bytes);
    TestCommand { protocol: Protocol::Memcached, bytes }
}

/// Returns the value with its version.
pub(crate) fn get(key: &[u8]) -> TestCommand {
    memcached(&[b"gets", key])
}

pub(crate) fn set(key: &[u8], value: &[u8]) -> TestCommand {
    redis(&[b"SET", key, value])
}

pub(crate) fn set_if_absent(key: &[u8], value: &[u8]) -> TestCommand {
    store("add", key, value, None)
}

pub(crate) fn set_if_version(key: &[u8], value: &[u8], version: Version) -> TestCommand {
    store("cas", key, value, Some(version))
}

/// Creates the key if it is absent; the answer is the new length.
pub(crate) fn append(key: &[u8], bytes: &[u8]) -> TestCommand {
    redis(&[b"APPEND", key, bytes])
}

pub(crate) fn append_if_present(key: &[u8], bytes: &[u8]) -> TestCommand {
    store("append", key, bytes, None)
}

pub(crate) fn increment(key: &[u8]) -> TestCommand {
    redis(&[b"INCR", key])
}
