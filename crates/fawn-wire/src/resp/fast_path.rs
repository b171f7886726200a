//! Fast path for the most frequent requests: a `GET` or `SET` without options, complete and canonically framed.
//!
//! It handles no errors and no options. Any other request takes the general path, which has the same result for the
//! requests handled here.
use super::RespVersion;
use crate::command::unconditional_set;
use crate::{CodecLimits, Command, Decoded, ReplyFormat, RespFormat};
use fawn_types::limits::KEY_BYTES_MAX;
use fawn_types::{Request, Update};

/// The array's length, followed by a three-byte first argument.
const HEADS: [&[u8; 8]; 2] = [b"*2\r\n$3\r\n", b"*3\r\n$3\r\n"];
/// Mask that turns the three letters of a name into lower case; the fourth byte belongs to the line end.
const LOWER: u32 = u32::from_le_bytes([0x20, 0x20, 0x20, 0]);
const GET: u32 = u32::from_le_bytes(*b"get\r");
const SET: u32 = u32::from_le_bytes(*b"set\r");
/// Position of the argument after the name.
const SECOND: usize = 13;
/// Maximum number of digits of a length. Longer arguments are rare, and their copy costs more than the parsing.
const DIGITS_MAX: usize = 4;

const _: () = assert!(KEY_BYTES_MAX >= 10usize.pow(DIGITS_MAX as u32) - 1, "no key read here exceeds the limit");

/// Decodes the request at the start of `input`. Requires that no part of the request has been decoded before.
#[inline]
pub(crate) fn decode<'a>(input: &'a [u8], limits: &CodecLimits, version: RespVersion) -> Option<Decoded<'a>> {
    let (head, rest) = input.split_first_chunk::<8>()?;
    let (name, rest) = rest.split_first_chunk::<4>()?;
    if rest.first() != Some(&b'\n') {
        return None;
    }
    let (request, format, consumed) = match u32::from_le_bytes(*name) | LOWER {
        GET if head == HEADS[0] => {
            let (key, end) = bulk(input, SECOND)?;
            (Request::Get { key }, RespFormat::Bulk, end)
        }
        SET if head == HEADS[1] => {
            let (key, at) = bulk(input, SECOND)?;
            let (value, end) = bulk(input, at)?;
            let update: Update<'a> = unconditional_set(value);
            (Request::Update { key, update }, RespFormat::OkOrNull, end)
        }
        _ => return None,
    };
    if consumed > limits.request_bytes_max {
        return None;
    }
    let command = Command::Single { request, format: ReplyFormat::Resp(format, version) };
    Some(Decoded::Command { command, consumed })
}

/// Parses a short bulk string at `at`; returns it with the position after it.
#[inline]
fn bulk(input: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let line = input.get(at..)?;
    let (first, digits) = line.split_first()?;
    let (mut len, mut count) = (0, 0);
    while let Some(digit @ 0..=9) = digits.get(count).map(|byte| byte.wrapping_sub(b'0')) {
        (len, count) = (len * 10 + usize::from(digit), count + 1);
        if count > DIGITS_MAX {
            return None;
        }
    }
    let start = count + 3;
    let is_framed = *first == b'$' && count > 0 && line.get(count + 1..start)? == b"\r\n";
    let is_ended = line.get(start + len..start + len + 2)? == b"\r\n";
    (is_framed && is_ended).then(|| (&line[start..start + len], at + start + len + 2))
}
