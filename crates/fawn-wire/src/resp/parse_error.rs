//! Errors for rejected RESP requests, with Redis's texts.
use super::frame::ProtocolError;
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The whole line that rejects a framed request, with `-` and line end; the connection remains open.
pub(crate) type ParseError = Cow<'static, [u8]>;

pub(crate) const SYNTAX: ParseError = Cow::Borrowed(b"-ERR syntax error\r\n");
pub(crate) const NOT_AN_INTEGER: ParseError = Cow::Borrowed(b"-ERR value is not an integer or out of range\r\n");
pub(crate) const KEY_TOO_LONG: ParseError = Cow::Borrowed(b"-ERR key longer than 65535 bytes\r\n");
/// A pattern longer than [`crate::glob::PATTERN_BYTES_MAX`].
pub(crate) const PATTERN_TOO_LONG: ParseError = Cow::Borrowed(b"-ERR pattern longer than 256 bytes\r\n");

/// The error for a wrong number of arguments for the command `name`.
#[cold]
pub(crate) fn arity(name: &str) -> ParseError {
    line(&format!("ERR wrong number of arguments for '{name}' command"))
}

/// The error for an expiry time that is not after the epoch, or overflows, in the command `name`.
#[cold]
pub(crate) fn expire_time(name: &str) -> ParseError {
    line(&format!("ERR invalid expire time in '{name}' command"))
}

/// The error for an unknown command. It quotes the name and the first arguments, at most 128 bytes of each.
#[cold]
pub(crate) fn unknown<'a>(name: &[u8], args: impl Iterator<Item = &'a [u8]>) -> ParseError {
    let mut list = Vec::new();
    for arg in args {
        if list.len() >= 128 {
            break;
        }
        let room = 128 - list.len();
        list.push(b'\'');
        list.extend_from_slice(&arg[..arg.len().min(room)]);
        list.extend_from_slice(b"' ");
    }
    let (name, list) = (lossy(name, 128), String::from_utf8_lossy(&list));
    line(&format!("ERR unknown command '{name}', with args beginning with: {list}"))
}

/// The error for an unknown subcommand.
#[cold]
pub(crate) fn unknown_subcommand(container: &str, name: &[u8]) -> ParseError {
    line(&format!("ERR unknown subcommand '{}'. Try {} HELP.", lossy(name, 128), container.to_ascii_uppercase()))
}

/// The error line sent before the connection is closed.
#[cold]
pub(crate) fn protocol(error: ProtocolError) -> ParseError {
    match error {
        ProtocolError::MultibulkLength => Cow::Borrowed(b"-ERR Protocol error: invalid multibulk length\r\n"),
        ProtocolError::BulkLength => Cow::Borrowed(b"-ERR Protocol error: invalid bulk length\r\n"),
        ProtocolError::BulkEnd => Cow::Borrowed(b"-ERR Protocol error: expected a line end after the bulk string\r\n"),
        ProtocolError::ExpectedDollar(found) => {
            line(&format!("ERR Protocol error: expected '$', got '{}'", lossy(&[found], 1)))
        }
        ProtocolError::TooLarge(limit) => {
            line(&format!("ERR Protocol error: request longer than {limit} bytes, send it in smaller pieces"))
        }
    }
}

/// The error for an argument longer than the maximum value length.
#[cold]
pub(crate) fn too_long(len: u64, limit: usize) -> ParseError {
    line(&format!(
        "ERR string exceeds maximum allowed size: {len} bytes where {limit} are allowed; raise value-max or \
         split the value"
    ))
}

/// The error line of `text`. Line ends in the text become spaces, as in Redis, since they would end the reply early.
#[cold]
pub(crate) fn line(text: &str) -> ParseError {
    let mut out = Vec::with_capacity(text.len() + 3);
    out.push(b'-');
    out.extend(text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
    Cow::Owned(out)
}

/// The start of a client's bytes, at most `len_max` of them, as text of an error.
pub(crate) fn lossy(bytes: &[u8], len_max: usize) -> Cow<'_, str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(len_max)])
}
