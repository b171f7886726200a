//! Owns a memcached command line as the commands' parsers see it: its words, keys and times.
use crate::number::parse_i64;
use fawn_types::limits::MEMCACHED_KEY_BYTES_MAX;
use fawn_types::{Expiry, TimeMs};

/// Above this, an exptime is seconds since the epoch, else seconds from now.
const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;

/// A command line.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    /// What follows the command's name.
    pub(crate) words: Words<'a>,
    /// Everything received, from the line's start: a value's block follows the line.
    pub(crate) input: &'a [u8],
    /// The line's length with its end.
    pub(crate) consumed: usize,
    pub(crate) now: TimeMs,
}

/// Words between spaces.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(pub(crate) &'a [u8]);

impl<'a> Words<'a> {
    /// The text left, without leading spaces.
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

/// Whether memcached would take it: 1 to 250 bytes, no space and no control character.
#[inline]
pub(crate) fn is_key(word: &[u8]) -> bool {
    !word.is_empty() && word.len() <= MEMCACHED_KEY_BYTES_MAX && word.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

/// An exptime: 0 never, negative at once, up to 30 days from now, above that since the epoch.
pub(crate) fn expiry(word: &[u8], now: TimeMs) -> Option<Expiry> {
    let seconds = parse_i64(word)?;
    Some(match seconds {
        0 => Expiry::Never,
        // The beginning of time; 0 would mean never.
        ..0 => Expiry::AtMs(1),
        1..=RELATIVE_SECONDS_MAX => Expiry::AtMs(now.plus_ms(seconds.unsigned_abs() * 1000).0),
        _ => Expiry::AtMs(seconds.unsigned_abs().saturating_mul(1000)),
    })
}
