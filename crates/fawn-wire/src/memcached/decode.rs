//! Decoding of memcached text: framing, command lookup, and dispatch to the command's parser.
use super::line::{MemcachedLine, Words};
use crate::commands::{self, Parse};
use crate::{Decoded, MemcachedState, Protocol, inline};
use alloc::borrow::Cow;
use fawn_types::TimeMs;

impl MemcachedState {
    /// Decodes the first request of `input`; see [`Codec::decode`](crate::Codec::decode).
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a [u8], now: TimeMs) -> Decoded<'a> {
        if self.discard_bytes > 0 {
            return self.swallow(input);
        }
        let Some((line, consumed)) = inline::find_line(input, &mut self.searched_bytes) else {
            return inline::no_line(input, b"CLIENT_ERROR line too long\r\n");
        };
        let mut words = Words(line);
        let Some(name) = words.next() else { return Decoded::refuse(super::ERROR, consumed) };
        match commands::find(Protocol::Memcached, name).map(|spec| spec.parse) {
            Some(Parse::Memcached(parse)) => parse(self, &MemcachedLine { words, input, consumed, now }),
            _ => Decoded::refuse(super::ERROR, consumed),
        }
    }

    /// Rejects a request with a data block of `block_bytes` that is not parsed yet. The block is dropped, so that it is
    /// never executed as commands.
    #[cold]
    pub(crate) fn refuse_block(
        &mut self,
        message: &'static [u8],
        line: &MemcachedLine<'_>,
        block_bytes: u64,
    ) -> Decoded<'static> {
        self.discard_bytes = block_bytes;
        Decoded::Error { message: Cow::Borrowed(message), consumed: line.consumed, fatal: false }
    }

    #[cold]
    fn swallow(&mut self, input: &[u8]) -> Decoded<'static> {
        let taken = self.discard_bytes.min(input.len() as u64);
        self.discard_bytes -= taken;
        if taken == 0 { Decoded::Incomplete { need_bytes: 1 } } else { Decoded::Skip { consumed: taken as usize } }
    }
}
