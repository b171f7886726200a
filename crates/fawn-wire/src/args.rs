//! Arguments of a request, parsed lazily from the input buffer without building a list.
use crate::number;

/// An iterator over the arguments of a request. It borrows from the request's bytes, which the decoder has verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Args<'a> {
    raw: &'a [u8],
    left: u32,
    framing: Framing,
}

/// The separation of arguments in the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Framing {
    /// RESP bulk strings.
    #[default]
    Bulk,
    /// Words between white space: inline commands, memcached lines.
    Words,
}

impl<'a> Args<'a> {
    pub(crate) const fn new(raw: &'a [u8], count: usize, framing: Framing) -> Self {
        Self { raw, left: count as u32, framing }
    }

    /// Number of arguments left.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.left as usize
    }

    /// Whether no argument is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.left == 0
    }

    fn next_bulk(&mut self) -> Option<&'a [u8]> {
        let (len, start) = number::length_line(self.raw, 1)?;
        let end = start + len;
        let arg = self.raw.get(start..end)?;
        self.raw = self.raw.get(end + 2..)?;
        Some(arg)
    }

    fn next_word(&mut self) -> Option<&'a [u8]> {
        let start = self.raw.iter().position(|byte| !is_space(*byte))?;
        let rest = &self.raw[start..];
        let len = rest.iter().position(|byte| is_space(*byte)).unwrap_or(rest.len());
        self.raw = &rest[len..];
        Some(&rest[..len])
    }
}

impl<'a> Iterator for Args<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        match self.framing {
            Framing::Bulk => self.next_bulk(),
            Framing::Words => self.next_word(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len(), Some(self.len()))
    }
}

/// White space between words; equal to C's `isspace`.
pub(crate) const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c)
}
