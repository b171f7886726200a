//! Decimal numbers in text: strict parsing as the protocols require, and appending.
use alloc::vec::Vec;

/// Parses an unsigned decimal: digits only, no sign, no space. `None` for anything else and on overflow.
#[must_use]
#[inline]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Parses a signed decimal in Redis's canonical form: no `+`, no leading zero, no `-0`, no space.
#[must_use]
pub fn parse_i64_strict(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if negative => None,
        [b'0', _, ..] => None,
        _ => signed(negative, parse_u64(digits)?),
    }
}

/// Parses a signed decimal that may have leading zeros (memcached's exptime).
#[must_use]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', digits @ ..] => signed(true, parse_u64(digits)?),
        digits => signed(false, parse_u64(digits)?),
    }
}

fn signed(negative: bool, magnitude: u64) -> Option<i64> {
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// Appends `value` in decimal.
#[inline]
pub(crate) fn push(value: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Parses the verified length line at `at`; returns the length and the position of the content.
#[inline]
pub(crate) fn length_line(input: &[u8], at: usize) -> Option<(usize, usize)> {
    let mut len = 0usize;
    for (i, &byte) in input.get(at..)?.iter().enumerate() {
        match byte.wrapping_sub(b'0') {
            digit @ 0..=9 => len = len.wrapping_mul(10).wrapping_add(digit as usize),
            _ => return Some((len, at + i + 2)),
        }
    }
    None
}
