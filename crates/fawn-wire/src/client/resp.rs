//! The client side of RESP: encodes commands and parses replies of both versions.
use super::ParsedReply;
use crate::number::{parse_i64, push};
use alloc::vec::Vec;

/// Maximum length of a reply line, such as an error, bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a string and of an aggregate that a client accepts, bytes and elements.
const LEN_MAX: i64 = 512 << 20;

/// Appends a command: an array of bulk strings.
pub fn encode_command<A: AsRef<[u8]>>(args: &[A], out: &mut Vec<u8>) {
    out.push(b'*');
    push(args.len(), out);
    out.extend_from_slice(b"\r\n");
    for arg in args {
        crate::resp::encode::bulk(arg.as_ref(), out);
    }
}

/// A reply that borrows from the input.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RespReply<'a> {
    /// `+`: a status word.
    Simple(&'a [u8]),
    /// `-` or `!`: the code and text of an error.
    Error(&'a [u8]),
    /// `:`.
    Integer(i64),
    /// `$`, or `=` with its format prefix.
    Bulk(&'a [u8]),
    /// `$-1`, `*-1`, `_`.
    Null,
    /// `#`.
    Boolean(bool),
    /// `,` or `(`: a number as text.
    Number(&'a [u8]),
    /// `*`, `~` or `>`.
    Array(ReplyItems<'a>),
    /// `%`: names and values alternate.
    Map(ReplyItems<'a>),
}

/// The elements of an aggregate: verified before, parsed during iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyItems<'a> {
    raw: &'a [u8],
    left: usize,
}

impl ReplyItems<'_> {
    /// Number of elements left; names and values of a map count separately.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.left
    }

    /// Whether no element is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'a> Iterator for ReplyItems<'a> {
    type Item = RespReply<'a>;

    fn next(&mut self) -> Option<RespReply<'a>> {
        self.left = self.left.checked_sub(1)?;
        match parse_reply(self.raw) {
            ParsedReply::Reply { reply, consumed } => {
                self.raw = &self.raw[consumed..];
                Some(reply)
            }
            _ => None,
        }
    }
}

/// Parses the first reply of `input`.
#[must_use]
pub fn parse_reply(input: &[u8]) -> ParsedReply<RespReply<'_>> {
    ReplyParser::new().parse(input)
}

/// A parser of replies that remembers its position in an incomplete reply.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyParser {
    /// All elements before this position are verified.
    at: usize,
    /// Number of elements still to parse; 0: no incomplete reply.
    left: usize,
}

/// The reason why an element is incomplete.
enum ReplyStop {
    Need(usize),
    Malformed(&'static str, usize),
}

impl ReplyParser {
    /// A parser at the start of a reply.
    #[must_use]
    pub const fn new() -> Self {
        Self { at: 0, left: 0 }
    }

    /// Parses the first reply of `input`. After [`ParsedReply::Incomplete`], call again with the same bytes plus more.
    pub fn parse<'a>(&mut self, input: &'a [u8]) -> ParsedReply<RespReply<'a>> {
        // An input shorter than the position reached cannot be the same reply, so start from its beginning.
        let (mut at, mut left) = if self.left == 0 || self.at > input.len() { (0, 1) } else { (self.at, self.left) };
        *self = Self::new();
        // No stack is needed: the end of a reply depends on the number of elements still to parse, not on their depth.
        while left > 0 {
            match element(input, at) {
                Ok((RespReply::Array(items) | RespReply::Map(items), first)) => {
                    (at, left) = (first, left - 1 + items.left)
                }
                Ok((_, end)) => (at, left) = (end, left - 1),
                Err(ReplyStop::Need(need_bytes)) => {
                    (self.at, self.left) = (at, left);
                    return ParsedReply::Incomplete { need_bytes };
                }
                Err(ReplyStop::Malformed(expected, at)) => return ParsedReply::Malformed { expected, at },
            }
            if left > LEN_MAX as usize {
                return ParsedReply::Malformed { expected: "fewer elements", at };
            }
        }
        // Again, now that all of it is verified: an aggregate ends with the reply.
        match element(&input[..at], 0) {
            Ok((reply, _)) => ParsedReply::Reply { reply, consumed: at },
            Err(_) => ParsedReply::Malformed { expected: "a reply", at: 0 },
        }
    }
}

/// The line at `at` without its end, and the position of the next line.
fn line(input: &[u8], at: usize) -> Result<(&[u8], usize), ReplyStop> {
    let rest = &input[at..];
    match memchr::memchr(b'\r', &rest[..rest.len().min(LINE_BYTES_MAX)]) {
        Some(end) if rest.get(end + 1) == Some(&b'\n') => Ok((&rest[..end], at + end + 2)),
        Some(end) if rest.len() > end + 1 => Err(ReplyStop::Malformed("a line feed", at + end + 1)),
        None if rest.len() >= LINE_BYTES_MAX => Err(ReplyStop::Malformed("a line end", at)),
        _ => Err(ReplyStop::Need(input.len() + 1)),
    }
}

/// Parses the element at `at`, but not the elements inside it; returns its end, or where the first of those begins.
fn element(input: &[u8], at: usize) -> Result<(RespReply<'_>, usize), ReplyStop> {
    let Some(&kind) = input.get(at) else { return Err(ReplyStop::Need(at + 1)) };
    let (text, start) = line(input, at + 1)?;
    let len = || match parse_i64(text) {
        Some(-1) => Ok(None),
        Some(len @ 0..=LEN_MAX) => Ok(Some(len as usize)),
        _ => Err(ReplyStop::Malformed("a length", at + 1)),
    };
    let items = |left| ReplyItems { raw: &input[start..], left };
    let reply = match kind {
        b'$' | b'=' | b'!' => {
            let Some(len) = len()? else { return Ok((RespReply::Null, start)) };
            let end = start + len + 2;
            return match input.get(start..end) {
                None => Err(ReplyStop::Need(end)),
                Some([error @ .., b'\r', b'\n']) if kind == b'!' => Ok((RespReply::Error(error), end)),
                Some([value @ .., b'\r', b'\n']) => Ok((RespReply::Bulk(value), end)),
                Some(_) => Err(ReplyStop::Malformed("a line end", end - 2)),
            };
        }
        b'*' | b'~' | b'>' => len()?.map_or(RespReply::Null, |len| RespReply::Array(items(len))),
        b'%' => len()?.map_or(RespReply::Null, |pairs| RespReply::Map(items(pairs * 2))),
        b':' => match parse_i64(text.strip_prefix(b"+").unwrap_or(text)) {
            Some(number) => RespReply::Integer(number),
            None => return Err(ReplyStop::Malformed("an integer", at + 1)),
        },
        b'+' => RespReply::Simple(text),
        b'-' => RespReply::Error(text),
        b'_' => RespReply::Null,
        b'#' => RespReply::Boolean(text == b"t"),
        b',' | b'(' => RespReply::Number(text),
        _ => return Err(ReplyStop::Malformed("a RESP type", at)),
    };
    Ok((reply, start))
}
