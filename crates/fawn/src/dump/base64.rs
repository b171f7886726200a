//! Base64 (RFC 4648, section 4, padded) of keys and values that are no text.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the encoding of `bytes`.
pub(crate) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |i: u32| DIGITS[(bits >> (18 - 6 * i)) as usize & 63];
        out.extend([digit(0), digit(1)]);
        out.push(if group.len() > 1 { digit(2) } else { b'=' });
        out.push(if group.len() > 2 { digit(3) } else { b'=' });
    }
}

/// Decodes; `None` for text that [`encode`] does not write.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let (groups, []) = text.as_chunks::<4>() else { return None };
    let mut bytes = Vec::with_capacity(groups.len() * 3);
    for (i, group) in groups.iter().enumerate() {
        let digits = group.iter().position(|&digit| digit == b'=').unwrap_or(4);
        let is_padded = digits < 4;
        if is_padded && (i + 1 < groups.len() || digits < 2 || group[digits..].iter().any(|&digit| digit != b'=')) {
            return None;
        }
        let mut bits = 0;
        for &digit in &group[..digits] {
            bits = bits << 6 | value_of(digit)?;
        }
        bits <<= 6 * (4 - digits);
        let (all, len) = (bits.to_be_bytes(), digits - 1);
        // Bits beyond the last byte are zero, so that every text has one meaning and every meaning one text.
        if all[1 + len..].iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend_from_slice(&all[1..1 + len]);
    }
    Some(bytes)
}

fn value_of(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        encode(bytes, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn the_examples_of_the_rfc() {
        let examples = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (len, expected) in examples.into_iter().enumerate() {
            assert_eq!(text_of(&b"foobar"[..len]), expected);
            assert_eq!(decode(expected.as_bytes()).as_deref(), Some(&b"foobar"[..len]));
        }
    }

    #[test]
    fn every_byte_returns_and_other_texts_are_refused() {
        let all: Vec<u8> = (0..=255).collect();
        for len in [0, 1, 2, 3, 253, 256] {
            assert_eq!(decode(text_of(&all[..len]).as_bytes()).as_deref(), Some(&all[..len]));
        }
        for bad in ["Zg", "Zg=", "Zg=a", "Z===", "====", "Zh==", "Zm9=", "Zg==Zg==", "Zm9v\n", "Zm-v", "Zm9v "] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad}");
        }
    }
}
