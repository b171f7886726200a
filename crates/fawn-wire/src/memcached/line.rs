//! A memcached command line, prepared for the command parsers: words, keys and times.
use crate::number::parse_i64;
use crate::{Command, Decoded};
use fawn_types::limits::{EXPIRES_AT_MS_MAX, MEMCACHED_KEY_BYTES_MAX};
use fawn_types::{Expiry, TimeMs};

/// An exptime up to this value is in seconds from now; above, in seconds since the epoch.
const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;

#[derive(Clone, Copy)]
pub(crate) struct MemcachedLine<'a> {
    /// The text after the command's name.
    pub(crate) words: Words<'a>,
    /// The whole input from the line's start; a data block follows the line.
    pub(crate) input: &'a [u8],
    /// Length of the line, including its end.
    pub(crate) consumed: usize,
    pub(crate) now: TimeMs,
}

/// A line as a command, or the text that rejects it.
pub(crate) type LineResult<'a> = Result<Command<'a>, &'static [u8]>;

impl<'a> MemcachedLine<'a> {
    /// The decoding step of a line without a data block.
    #[inline]
    pub(crate) fn decoded(&self, result: LineResult<'a>) -> Decoded<'a> {
        match result {
            Ok(command) => Decoded::Command { command, consumed: self.consumed },
            Err(message) => Decoded::refuse(message, self.consumed),
        }
    }
}

/// Words separated by spaces.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(pub(crate) &'a [u8]);

impl<'a> Words<'a> {
    /// The remaining text, without leading spaces.
    pub(crate) fn rest(&self) -> &'a [u8] {
        let start = self.0.iter().position(|byte| *byte != b' ').unwrap_or(self.0.len());
        &self.0[start..]
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest();
        let len = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        self.0 = &rest[len..];
        (len > 0).then(|| &rest[..len])
    }
}

/// Whether memcached accepts the key: 1 to 250 bytes, without spaces and control characters.
#[inline]
pub(crate) fn is_key(word: &[u8]) -> bool {
    !word.is_empty() && word.len() <= MEMCACHED_KEY_BYTES_MAX && word.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

/// The word as a key.
#[inline]
pub(crate) fn checked(word: &[u8]) -> Result<&[u8], &'static [u8]> {
    if is_key(word) { Ok(word) } else { Err(super::BAD_FORMAT) }
}

/// Parses an exptime. 0: never; negative: at once; up to 30 days: from now; above: since the epoch.
pub(crate) fn expiry(word: &[u8]) -> Option<Expiry> {
    let seconds = parse_i64(word)?;
    Some(match seconds {
        0 => Expiry::Never,
        // The earliest time after the epoch, since a time of 0 means never.
        ..0 => Expiry::AtMs(1),
        1..=RELATIVE_SECONDS_MAX => Expiry::InMs(seconds.unsigned_abs() * 1000),
        _ => Expiry::AtMs(seconds.unsigned_abs().saturating_mul(1000).min(EXPIRES_AT_MS_MAX)),
    })
}
