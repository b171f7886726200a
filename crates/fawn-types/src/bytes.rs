//! Little-endian reader and writer of fields, for all binary codecs; no input makes the reader panic.
use alloc::vec::Vec;

/// A decoding error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The input ends too early.
    #[error("{what}: {need_bytes} bytes expected, {have_bytes} left; the sender is broken or of another version")]
    Truncated {
        /// Field being read.
        what: &'static str,
        /// Bytes that the field needs.
        need_bytes: usize,
        /// Bytes left.
        have_bytes: usize,
    },
    /// Bytes follow the end of the message.
    #[error("{what}: {extra_bytes} bytes after its end; the sender is broken or of another version")]
    Trailing {
        /// Message being read.
        what: &'static str,
        /// Number of extra bytes.
        extra_bytes: usize,
    },
    /// The checksum is wrong: bytes were corrupted in transit or on flash.
    #[error("{what}: checksum {expected:#018x} expected, {found:#018x} found; drop the link, or restore the file")]
    Checksum {
        /// Message being read.
        what: &'static str,
        /// Checksum computed from the bytes.
        expected: u64,
        /// Checksum found in the bytes.
        found: u64,
    },
    /// A field has an invalid value.
    #[error("{what}: the value {found} is invalid; the sender is broken or of another version")]
    Value {
        /// Field being read.
        what: &'static str,
        /// Its value.
        found: u64,
    },
}

/// Reads consecutive fields.
#[derive(Clone, Debug)]
pub struct FrameReader<'a> {
    rest: &'a [u8],
}

/// Each method that reads a field fails if the field is incomplete or invalid; the error names it `what`.
impl<'a> FrameReader<'a> {
    /// A reader of all these bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// See above.
    #[inline]
    pub fn take(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(len) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(DecodeError::Truncated { what, need_bytes: len, have_bytes: self.rest.len() }),
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(what, N)?);
        Ok(array)
    }

    /// A byte.
    ///
    /// # Errors
    /// See above.
    #[inline]
    pub fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(what)?[0])
    }

    /// A byte that is 0 or 1; any other value is an error, so that every value has one encoding.
    ///
    /// # Errors
    /// See above.
    #[inline]
    pub fn flag(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::Value { what, found: u64::from(other) }),
        }
    }

    /// A number of 16 bits.
    ///
    /// # Errors
    /// See above.
    #[inline]
    pub fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    /// A number of 32 bits.
    ///
    /// # Errors
    /// See above.
    #[inline]
    pub fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// A number of 64 bits.
    ///
    /// # Errors
    /// See above.
    #[inline]
    pub fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A `u32` length, then that many bytes. The length is checked against the remaining bytes first.
    ///
    /// # Errors
    /// See above.
    pub fn blob(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = self.u32(what)? as usize;
        self.take(what, len)
    }

    /// Whether no bytes are left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All remaining bytes.
    #[inline]
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }

    /// Ends the message.
    ///
    /// # Errors
    /// If bytes are left.
    #[inline]
    pub fn finish(self, what: &'static str) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { what, extra_bytes: self.rest.len() }) }
    }
}

/// Appends fields to a byte vector.
pub trait PutFields {
    /// Appends a byte.
    fn put_u8(&mut self, value: u8);
    /// Appends a number of 16 bits.
    fn put_u16(&mut self, value: u16);
    /// Appends a number of 32 bits.
    fn put_u32(&mut self, value: u32);
    /// Appends a number of 64 bits.
    fn put_u64(&mut self, value: u64);
    /// Appends a `u32` length, then the bytes. Callers keep them below 4 GiB: frames and images are bounded far lower.
    fn put_blob(&mut self, bytes: &[u8]);
}

impl PutFields for Vec<u8> {
    #[inline]
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    #[inline]
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    #[inline]
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    #[inline]
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_blob(&mut self, bytes: &[u8]) {
        assert!(bytes.len() < u32::MAX as usize, "blob of {} bytes", bytes.len());
        self.put_u32(bytes.len() as u32);
        self.extend_from_slice(bytes);
    }
}
