//! Encoding of replies in RESP2 and RESP3.
use crate::number::push;
use crate::reply_format::RespFormat;
use crate::resp::RespVersion;
use alloc::vec::Vec;
use fawn_types::{EntryRef, OperationError, Reply, TimeMs};

/// Appends a reply.
pub(crate) fn reply(format: RespFormat, version: RespVersion, reply: &Reply<'_>, out: &mut Vec<u8>) {
    match (format, reply) {
        (RespFormat::Bulk, Reply::Value(entry) | Reply::Previous { entry: Some(entry), .. }) => bulk(entry.value, out),
        (RespFormat::OkOrNull, Reply::Stored { .. }) => out.extend_from_slice(b"+OK\r\n"),
        (RespFormat::Counter, Reply::Signed(value)) => integer(*value, out),
        (_, Reply::Error(problem)) => error(*problem, out),
        (RespFormat::Bulk | RespFormat::OkOrNull, _) => null(version, out),
        _ => rarer(format, reply, out),
    }
}

fn rarer(format: RespFormat, reply: &Reply<'_>, out: &mut Vec<u8>) {
    let entry = match reply {
        Reply::Value(entry) => Some(entry),
        _ => None,
    };
    match format {
        RespFormat::Flag => integer(i64::from(is_hit(reply)), out),
        RespFormat::Length => integer(entry.map_or(0, |entry| entry.value.len() as i64), out),
        RespFormat::TypeName => simple(if entry.is_some() { "string" } else { "none" }, out),
        // The entry was not expired when it was read, so at least 1 ms is left, unless the clocks differ.
        RespFormat::Remaining { now, seconds } => integer(expiry(entry, seconds, |at| at.ms_since(now)), out),
        RespFormat::ExpiresAt { seconds } => integer(expiry(entry, seconds, |at| at.0), out),
        RespFormat::LengthWritten => match reply {
            Reply::Stored { value_bytes, .. } => integer(i64::from(*value_bytes), out),
            _ => integer(0, out),
        },
        RespFormat::Bulk | RespFormat::OkOrNull | RespFormat::Counter => mismatch(reply, out),
    }
}

/// Appends an error for a reply that cannot answer the request, which is a bug in the server.
#[cold]
fn mismatch(reply: &Reply<'_>, out: &mut Vec<u8>) {
    debug_assert!(false, "no encoding of {reply:?}");
    let _ = reply;
    out.extend_from_slice(b"-ERR internal error: the reply does not match the request; please report it\r\n");
}

/// Whether the key was present, or the change was made.
pub(crate) const fn is_hit(reply: &Reply<'_>) -> bool {
    match reply {
        Reply::Value(_)
        | Reply::Stored { .. }
        | Reply::Deleted
        | Reply::Touched
        | Reply::Signed(_)
        | Reply::Unsigned(_) => true,
        Reply::Previous { applied, .. } => *applied,
        Reply::Absent
        | Reply::NotStored
        | Reply::VersionMismatch
        | Reply::NotFound
        | Reply::NotTouched
        | Reply::Error(_) => false,
    }
}

/// The expiry as `to_ms` counts it, from the epoch or from now; seconds are rounded to the nearest, as in Redis.
fn expiry(entry: Option<&EntryRef<'_>>, seconds: bool, to_ms: impl FnOnce(TimeMs) -> u64) -> i64 {
    match entry {
        None => -2,
        Some(entry) if entry.expires_at_ms == 0 => -1,
        Some(entry) => {
            let ms = to_ms(TimeMs(entry.expires_at_ms));
            i64::try_from(if seconds { ms.saturating_add(500) / 1000 } else { ms }).unwrap_or(i64::MAX)
        }
    }
}

/// Appends `$…`: a string of arbitrary bytes.
#[inline(always)]
pub fn bulk(value: &[u8], out: &mut Vec<u8>) {
    out.reserve(value.len() + 25);
    match value.len() {
        // Fast path: the most frequent lengths need a single copy.
        len @ 10..=99 => out.extend_from_slice(&[b'$', b'0' + (len / 10) as u8, b'0' + (len % 10) as u8, b'\r', b'\n']),
        len => {
            out.push(b'$');
            push(len, out);
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends null: `$-1`, or `_` in RESP3.
pub fn null(version: RespVersion, out: &mut Vec<u8>) {
    out.extend_from_slice(match version {
        RespVersion::V2 => b"$-1\r\n",
        RespVersion::V3 => b"_\r\n",
    });
}

/// Appends `:…`: an integer.
pub fn integer(value: i64, out: &mut Vec<u8>) {
    out.push(b':');
    push(value, out);
    out.extend_from_slice(b"\r\n");
}

/// Appends `+…`: a status word, which must not contain line ends.
pub fn simple(word: &str, out: &mut Vec<u8>) {
    out.push(b'+');
    out.extend_from_slice(word.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends `*…`: the header of an array of `len` elements.
pub fn array_header(len: usize, out: &mut Vec<u8>) {
    header(b'*', len, out);
}

/// Appends the header of `pairs` pairs: a map in RESP3, an array of twice as many elements in RESP2.
pub fn map_header(version: RespVersion, pairs: usize, out: &mut Vec<u8>) {
    match version {
        RespVersion::V2 => header(b'*', pairs * 2, out),
        RespVersion::V3 => header(b'%', pairs, out),
    }
}

/// Appends the header of `len` distinct elements: a set in RESP3, an array in RESP2.
pub fn set_header(version: RespVersion, len: usize, out: &mut Vec<u8>) {
    header(if version == RespVersion::V3 { b'~' } else { b'*' }, len, out);
}

fn header(kind: u8, len: usize, out: &mut Vec<u8>) {
    out.push(kind);
    push(len, out);
    out.extend_from_slice(b"\r\n");
}

/// Appends text for people (`INFO`): verbatim in RESP3, a bulk string in RESP2.
pub fn text(version: RespVersion, text: &[u8], out: &mut Vec<u8>) {
    if version == RespVersion::V2 {
        return bulk(text, out);
    }
    header(b'=', text.len() + 4, out);
    out.extend_from_slice(b"txt:");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Appends names with values (`CONFIG GET`).
pub fn pairs(version: RespVersion, pairs: &[(&str, &str)], out: &mut Vec<u8>) {
    map_header(version, pairs.len(), out);
    entries(pairs, out);
}

/// Appends entries of a map.
pub(crate) fn entries(pairs: &[(&str, &str)], out: &mut Vec<u8>) {
    for (name, value) in pairs {
        bulk(name.as_bytes(), out);
        bulk(value.as_bytes(), out);
    }
}

/// Appends one step of `SCAN`: the cursor to continue with (0 at the end), and the keys.
pub fn scan<K: AsRef<[u8]>>(cursor: u64, keys: &[K], out: &mut Vec<u8>) {
    out.extend_from_slice(b"*2\r\n");
    bulk(itoa::Buffer::new().format(cursor).as_bytes(), out);
    array_header(keys.len(), out);
    for key in keys {
        bulk(key.as_ref(), out);
    }
}

/// Appends an error. Its code is for client libraries, its text for people.
#[cold]
pub fn error(error: OperationError, out: &mut Vec<u8>) {
    let code = match error {
        OperationError::StoreFull => "OOM",
        OperationError::Overloaded | OperationError::Unavailable | OperationError::TooFewCopies => "TRYAGAIN",
        OperationError::Poisoned | OperationError::PoisonedInFlight => "MISCONF",
        _ => "ERR",
    };
    out.extend_from_slice(alloc::format!("-{code} {error}\r\n").as_bytes());
}
