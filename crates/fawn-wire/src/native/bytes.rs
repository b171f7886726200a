//! Owns the reader and writer of a form's fields; no input makes the reader panic.
use alloc::vec::Vec;

/// Why bytes are not a form. Whoever carried them vouches for them, so their sender is broken or of another version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FormError {
    /// It ends within a field.
    #[error("form ends in {field}: the peer is broken or of another version")]
    Truncated {
        /// Which.
        field: &'static str,
    },
    /// A field holds what it cannot.
    #[error("form's {field} is {found}: the peer is broken or of another version")]
    Field {
        /// Which.
        field: &'static str,
        /// What it holds.
        found: u64,
    },
}

/// Reads fields one after another.
#[derive(Clone)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], FormError> {
        let Some((head, rest)) = self.0.split_at_checked(len) else { return Err(FormError::Truncated { field }) };
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], FormError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, FormError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, FormError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, FormError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, FormError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, FormError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(FormError::Field { field, found: u64::from(found) }),
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// Nothing may follow.
    pub(crate) fn finish(self) -> Result<(), FormError> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(FormError::Field { field: "bytes after its end", found: self.0.len() as u64 })
    }
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}
