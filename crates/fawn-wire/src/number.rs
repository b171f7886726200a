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
    match text {
        [b'-', b'0', ..] | [b'0', _, ..] => None,
        _ => parse_i64(text),
    }
}

/// Parses a signed decimal that may have leading zeros (memcached's exptime).
#[must_use]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', digits @ ..] => 0i64.checked_sub_unsigned(parse_u64(digits)?),
        digits => i64::try_from(parse_u64(digits)?).ok(),
    }
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
