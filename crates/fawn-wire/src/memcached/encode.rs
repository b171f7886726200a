//! Encoding of replies in memcached text.
use crate::number::push;
use crate::reply_format::MemcachedFormat;
use alloc::vec::Vec;
use fawn_types::{EntryRef, OperationError, Reply};

/// Appends a reply.
#[inline]
pub(crate) fn reply(format: MemcachedFormat, key: &[u8], reply: &Reply<'_>, out: &mut Vec<u8>) {
    match (format, reply) {
        (_, Reply::Error(problem)) => error(*problem, out),
        (MemcachedFormat::Get { cas }, Reply::Value(entry)) => {
            value(key, entry, cas, out);
            out.extend_from_slice(b"END\r\n");
        }
        (MemcachedFormat::Get { .. }, _) => out.extend_from_slice(b"END\r\n"),
        (MemcachedFormat::Value { cas }, Reply::Value(entry)) => value(key, entry, cas, out),
        (MemcachedFormat::Value { .. }, _) => {}
        (MemcachedFormat::Number, Reply::Unsigned(number)) => {
            push(*number, out);
            out.extend_from_slice(b"\r\n");
        }
        _ => out.extend_from_slice(word(format, reply)),
    }
}

fn word(format: MemcachedFormat, reply: &Reply<'_>) -> &'static [u8] {
    match reply {
        Reply::Stored { .. } => b"STORED\r\n",
        Reply::NotStored => b"NOT_STORED\r\n",
        Reply::VersionMismatch => b"EXISTS\r\n",
        Reply::NotFound | Reply::Absent | Reply::NotTouched => b"NOT_FOUND\r\n",
        Reply::Deleted => b"DELETED\r\n",
        Reply::Touched => b"TOUCHED\r\n",
        _ => {
            debug_assert!(false, "no encoding of {reply:?} as {format:?}");
            b"SERVER_ERROR internal error: the reply does not match the request; please report it\r\n"
        }
    }
}

/// Appends `VALUE <key> <flags> <bytes> [<cas>]` and the data block.
#[inline]
fn value(key: &[u8], entry: &EntryRef<'_>, cas: bool, out: &mut Vec<u8>) {
    out.reserve(key.len() + entry.value.len() + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push(entry.flags, out);
    out.push(b' ');
    push(entry.value.len(), out);
    if cas {
        out.push(b' ');
        push(entry.version.as_u64(), out);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(entry.value);
    out.extend_from_slice(b"\r\n");
}

/// Appends an error: `CLIENT_ERROR` for an invalid request, otherwise `SERVER_ERROR`.
#[cold]
pub fn error(error: OperationError, out: &mut Vec<u8>) {
    match error {
        // Clients and test suites compare the texts of these errors.
        OperationError::ValueTooLong { .. } | OperationError::RecordsTooLong { .. } => {
            out.extend_from_slice(super::TOO_LARGE)
        }
        OperationError::NotANumber | OperationError::NotAnInteger => {
            out.extend_from_slice(b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
        }
        OperationError::KeyTooLong => out.extend_from_slice(super::BAD_FORMAT),
        other => out.extend_from_slice(alloc::format!("SERVER_ERROR {other}\r\n").as_bytes()),
    }
}

/// Appends the reply to `stats`: one line per statistic, then `END`.
pub fn stats(stats: &[(&str, &str)], out: &mut Vec<u8>) {
    for (name, value) in stats {
        for part in ["STAT ", name, " ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    out.extend_from_slice(b"END\r\n");
}
