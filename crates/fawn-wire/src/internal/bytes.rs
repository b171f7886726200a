//! Reader and writer of the fields of internal messages; the reader does not panic on any input.
use alloc::vec::Vec;

/// The reason why bytes are not a message. The transport has checked the bytes, so the sender is faulty or runs
/// another version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageDecodeError {
    /// The message ends within a field.
    #[error("truncated message: ends in {field}; the peer is faulty or runs another version")]
    Truncated {
        /// Name of the field.
        field: &'static str,
    },
    /// A field has an invalid value.
    #[error("invalid message: {field} is {found}; the peer is faulty or runs another version")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// The invalid value.
        found: u64,
    },
}

/// Reads the fields of a message in sequence.
#[derive(Clone)]
pub(crate) struct MessageReader<'a>(pub(crate) &'a [u8]);

impl<'a> MessageReader<'a> {
    pub(crate) fn take(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], MessageDecodeError> {
        let Some((head, rest)) = self.0.split_at_checked(len) else {
            return Err(MessageDecodeError::Truncated { field });
        };
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], MessageDecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, MessageDecodeError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, MessageDecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, MessageDecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, MessageDecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, MessageDecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(MessageDecodeError::Field { field, found: u64::from(found) }),
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// Fails if bytes are left.
    pub(crate) fn finish(self) -> Result<(), MessageDecodeError> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(MessageDecodeError::Field { field: "number of trailing bytes", found: self.0.len() as u64 })
    }
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}
