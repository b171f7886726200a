//! Owns the reader and writer of payload fields; no input makes the reader panic.

/// Why a payload is not one. The frame's checksum was right, so its sender is broken or of another version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PayloadError {
    /// It ends within a field.
    #[error("payload ends in {field}: the peer is broken or of another version")]
    Truncated {
        /// Which.
        field: &'static str,
    },
    /// A field holds what it cannot.
    #[error("payload's {field} is {found}: the peer is broken or of another version")]
    Field {
        /// Which.
        field: &'static str,
        /// What it holds.
        found: u64,
    },
}

/// Reads fields one after another.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], PayloadError> {
        let Some((head, rest)) = self.0.split_at_checked(len) else { return Err(PayloadError::Truncated { field }) };
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], PayloadError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, PayloadError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, PayloadError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, PayloadError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, PayloadError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(super) fn flag(&mut self, field: &'static str) -> Result<bool, PayloadError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(PayloadError::Field { field, found: u64::from(found) }),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// Nothing may follow.
    pub(super) fn finish(self) -> Result<(), PayloadError> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(PayloadError::Field { field: "bytes after its end", found: self.0.len() as u64 })
    }
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}
