//! Parsing of numbers in values: strict for Redis, like C's `strtoull` for memcached.

/// Parses a signed 64-bit decimal in Redis's canonical form: no spaces, no `+`, no leading zero, no `-0`.
#[must_use]
pub fn parse_signed(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let canonical = match digits {
        [b'0'] => !negative,
        [b'1'..=b'9', ..] => true,
        _ => false,
    };
    if !canonical {
        return None;
    }
    let magnitude = decimal(digits)?;
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// Parses an unsigned 64-bit decimal as memcached does. Leading white space is skipped, and everything after the next
/// white space is ignored, since `decr` pads with spaces. A minus sign is an error.
#[must_use]
pub fn parse_unsigned(bytes: &[u8]) -> Option<u64> {
    let rest = &bytes[bytes.iter().take_while(|byte| is_space(**byte)).count()..];
    let rest = rest.strip_prefix(b"+").unwrap_or(rest);
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if rest.get(digits).is_some_and(|byte| !is_space(*byte)) {
        return None;
    }
    decimal(&rest[..digits])
}

/// C's `isspace`; unlike Rust's `is_ascii_whitespace`, it includes the vertical tab.
const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}
