//! Redis's inline commands: a line of words, typed by hand or sent by a simple client.
use crate::Decoded;
use crate::args::{Args, Framing, is_space};
use crate::client::resp::encode_command;
use crate::resp::frame::{RespFrame, SPANS};
use alloc::vec::Vec;
use fawn_types::limits::LINE_BYTES_MAX;

/// Splits the first line into words. `searched_bytes` is the length of the input already known to have no line end.
/// `Err` is the result of the decoding step: the line is incomplete, malformed, or has quotes.
pub(crate) fn split(input: &[u8], searched_bytes: &mut usize) -> Result<RespFrame, Decoded<'static>> {
    let Some((line, consumed)) = find_line(input, searched_bytes) else {
        return Err(no_line(input, b"-ERR Protocol error: too big inline request\r\n"));
    };
    if line.iter().any(|byte| matches!(byte, b'"' | b'\'')) {
        let Some(words) = unquote(line) else {
            return Err(Decoded::fatal(&b"-ERR Protocol error: unbalanced quotes in request\r\n"[..], consumed));
        };
        let mut bytes = Vec::with_capacity(line.len() + 16 * words.len());
        encode_command(&words, &mut bytes);
        return Err(Decoded::Rewritten { bytes, consumed });
    }
    let mut spans = [(0, 0); SPANS];
    let mut count = 0;
    let words = line.split(|byte| is_space(*byte)).filter(|word| !word.is_empty());
    for word in words {
        if let Some(span) = spans.get_mut(count) {
            // The word is a slice of the line, so the difference of their addresses is its offset.
            *span = ((word.as_ptr() as usize - line.as_ptr() as usize) as u32, word.len() as u32);
        }
        count += 1;
    }
    debug_assert_eq!(Args::new(line, count, Framing::Words).count(), count);
    Ok(RespFrame { spans, count, body: 0, consumed })
}

/// The first line without its end, and its length including the end: at most [`LINE_BYTES_MAX`].
pub(crate) fn find_line<'a>(input: &'a [u8], searched_bytes: &mut usize) -> Option<(&'a [u8], usize)> {
    let until = input.len().min(LINE_BYTES_MAX);
    let from = core::mem::take(searched_bytes).min(until);
    let Some(found) = memchr::memchr(b'\n', &input[from..until]) else {
        *searched_bytes = until;
        return None;
    };
    let line = &input[..from + found];
    Some((line.strip_suffix(b"\r").unwrap_or(line), from + found + 1))
}

/// The result of a decoding step while the first line has no end; `too_long` is the error beyond [`LINE_BYTES_MAX`].
#[cold]
pub(crate) fn no_line(input: &[u8], too_long: &'static [u8]) -> Decoded<'static> {
    match input.len() {
        len if len >= LINE_BYTES_MAX => Decoded::fatal(too_long, len),
        len => Decoded::Incomplete { need_bytes: len + 1 },
    }
}

/// The words of a line with quotes; `None` if the quotes do not balance.
fn unquote(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut words, mut at) = (Vec::new(), 0);
    loop {
        while line.get(at).is_some_and(|byte| is_space(*byte)) {
            at += 1;
        }
        if at >= line.len() {
            return Some(words);
        }
        let mut word = Vec::new();
        while let Some(&byte) = line.get(at).filter(|byte| !is_space(**byte)) {
            at += 1;
            if matches!(byte, b'"' | b'\'') {
                at = quoted(line, at, byte, &mut word)?;
                // A closing quote must end the word.
                if line.get(at).is_some_and(|byte| !is_space(*byte)) {
                    return None;
                }
            } else {
                word.push(byte);
            }
        }
        words.push(word);
    }
}

/// Reads up to the closing `quote`; returns the position after it.
fn quoted(line: &[u8], mut at: usize, quote: u8, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match line.get(at..)? {
            [byte, ..] if *byte == quote => return Some(at + 1),
            [b'\\', b'\'', ..] if quote == b'\'' => {
                word.push(b'\'');
                at += 2;
            }
            [b'\\', b'x', high, low, ..] if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap_or(0) as u8;
                word.push(digit(high) << 4 | digit(low));
                at += 4;
            }
            [b'\\', escaped, ..] if quote == b'"' => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                at += 2;
            }
            [byte, ..] => {
                word.push(*byte);
                at += 1;
            }
            [] => return None,
        }
    }
}
