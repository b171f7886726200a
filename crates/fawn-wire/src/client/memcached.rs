//! The client side of memcached text: encodes commands and parses replies.
use super::ParsedReply;
use crate::number::{parse_u64, push};
use alloc::vec::Vec;

/// Maximum length of a reply line, bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum value length that a client accepts, bytes.
const VALUE_BYTES_MAX: u64 = 512 << 20;

/// Appends a command of words without a data block, such as `get` or `gets` of some keys.
pub fn encode_words<W: AsRef<[u8]>>(words: &[W], out: &mut Vec<u8>) {
    for (i, word) in words.iter().enumerate() {
        if i > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(word.as_ref());
    }
    out.extend_from_slice(b"\r\n");
}

/// A storage command's line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreCommand<'a> {
    /// `set`, `add`, `replace`, `append`, `prepend` or `cas`.
    pub verb: &'a str,
    /// The key.
    pub key: &'a [u8],
    /// Client flags.
    pub flags: u32,
    /// The expiry time in memcached's encoding: 0: never; up to 30 days: seconds from now; above: seconds since the
    /// epoch.
    pub exptime: i64,
    /// The expected version; `cas` only.
    pub version: Option<u64>,
    /// Whether the reply is suppressed.
    pub noreply: bool,
}

/// Appends a storage command with its data block.
pub fn encode_store(store: &StoreCommand<'_>, value: &[u8], out: &mut Vec<u8>) {
    out.reserve(store.key.len() + value.len() + 64);
    out.extend_from_slice(store.verb.as_bytes());
    out.push(b' ');
    out.extend_from_slice(store.key);
    out.push(b' ');
    push(store.flags, out);
    out.push(b' ');
    push(store.exptime, out);
    out.push(b' ');
    push(value.len(), out);
    if let Some(version) = store.version {
        out.push(b' ');
        push(version, out);
    }
    out.extend_from_slice(if store.noreply { b" noreply\r\n" } else { b"\r\n" });
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends `set <key>` without flags or expiry.
pub fn encode_set(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let store = StoreCommand { verb: "set", key, flags: 0, exptime: 0, version: None, noreply: false };
    encode_store(&store, value, out);
}

/// One line of a server's reply, with its data block. Values of a retrieval are separate replies before
/// [`MemcachedReply::End`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemcachedReply<'a> {
    /// `VALUE`.
    Value {
        /// The key.
        key: &'a [u8],
        /// Client flags.
        flags: u32,
        /// The version; `gets` only.
        version: Option<u64>,
        /// The value.
        value: &'a [u8],
    },
    /// `END`: no more values or statistics.
    End,
    /// `STORED`.
    Stored,
    /// `NOT_STORED`.
    NotStored,
    /// `EXISTS`: the key has another version.
    Exists,
    /// `NOT_FOUND`.
    NotFound,
    /// `DELETED`.
    Deleted,
    /// `TOUCHED`.
    Touched,
    /// `OK`.
    Ok,
    /// A counter's value.
    Number(u64),
    /// `VERSION`.
    Version(&'a [u8]),
    /// `STAT`.
    Stat {
        /// The statistic's name.
        name: &'a [u8],
        /// The statistic's value.
        value: &'a [u8],
    },
    /// `ERROR`, `CLIENT_ERROR …` or `SERVER_ERROR …`: the whole line.
    Error(&'a [u8]),
}

/// Parses the first line of `input`, with its data block.
#[must_use]
pub fn parse_reply(input: &[u8]) -> ParsedReply<MemcachedReply<'_>> {
    let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(LINE_BYTES_MAX)]) else {
        if input.len() >= LINE_BYTES_MAX {
            return ParsedReply::Malformed { expected: "a line end", at: input.len() };
        }
        return ParsedReply::Incomplete { need_bytes: input.len() + 1 };
    };
    let (line, start) = (input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]), end + 1);
    if let Some(words) = line.strip_prefix(b"VALUE ") {
        return value(input, words, start);
    }
    match word(line) {
        Some(reply) => ParsedReply::Reply { reply, consumed: start },
        None => ParsedReply::Malformed { expected: "a memcached reply", at: 0 },
    }
}

fn word(line: &[u8]) -> Option<MemcachedReply<'_>> {
    if let Some(version) = line.strip_prefix(b"VERSION ") {
        return Some(MemcachedReply::Version(version));
    }
    if let Some(stat) = line.strip_prefix(b"STAT ") {
        let space = memchr::memchr(b' ', stat)?;
        return Some(MemcachedReply::Stat { name: &stat[..space], value: &stat[space + 1..] });
    }
    Some(match line {
        b"END" => MemcachedReply::End,
        b"STORED" => MemcachedReply::Stored,
        b"NOT_STORED" => MemcachedReply::NotStored,
        b"EXISTS" => MemcachedReply::Exists,
        b"NOT_FOUND" => MemcachedReply::NotFound,
        b"DELETED" => MemcachedReply::Deleted,
        b"TOUCHED" => MemcachedReply::Touched,
        b"OK" => MemcachedReply::Ok,
        b"ERROR" => MemcachedReply::Error(line),
        _ if line.starts_with(b"CLIENT_ERROR") || line.starts_with(b"SERVER_ERROR") => MemcachedReply::Error(line),
        // Some servers pad the reply to `decr` with spaces.
        _ => MemcachedReply::Number(parse_u64(line.trim_ascii_end())?),
    })
}

fn value<'a>(input: &'a [u8], words: &'a [u8], start: usize) -> ParsedReply<MemcachedReply<'a>> {
    let mut words = words.split(|byte| *byte == b' ');
    let key = words.next().unwrap_or_default();
    let mut number = || words.next().map(parse_u64);
    let (Some(Some(flags)), Some(Some(len)), version) = (number(), number(), number()) else {
        return ParsedReply::Malformed { expected: "flags and length of a value", at: 0 };
    };
    let (Ok(flags), true, true) = (u32::try_from(flags), len <= VALUE_BYTES_MAX, version != Some(None)) else {
        return ParsedReply::Malformed { expected: "flags, length and version of a value", at: 0 };
    };
    let consumed = start + len as usize + 2;
    match input.get(start..consumed) {
        None => ParsedReply::Incomplete { need_bytes: consumed },
        Some([value @ .., b'\r', b'\n']) => {
            let reply = MemcachedReply::Value { key, flags, version: version.flatten(), value };
            ParsedReply::Reply { reply, consumed }
        }
        Some(_) => ParsedReply::Malformed { expected: "a line end after the value", at: consumed - 2 },
    }
}
