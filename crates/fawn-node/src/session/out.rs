//! Owns a session's output bytes and the pool their memory comes from: an idle session holds none.

/// Buffers that idle sessions gave back.
const POOL_BUFFERS_MAX: usize = 512;
/// A larger buffer goes back to the system: one large reply must not be paid for ever.
const POOLED_BYTES_MAX: usize = 64 << 10;

/// Spare buffers of one shard.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    spare: Vec<Vec<u8>>,
}

impl BufferPool {
    /// An empty buffer, with capacity when one is spare.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let is_worth_keeping = (1..=POOLED_BYTES_MAX).contains(&buffer.capacity());
        if is_worth_keeping && self.spare.len() < POOL_BUFFERS_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

/// Bytes that wait at the end and leave from the front.
#[derive(Debug, Default)]
pub(crate) struct OutBuf {
    pub(crate) bytes: Vec<u8>,
    from: usize,
}

impl OutBuf {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes.len() - self.from
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops `bytes` from the front.
    pub(crate) fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "{bytes} bytes of {} leave the output", self.len());
        self.from += bytes;
        if self.from == self.bytes.len() {
            self.bytes.clear();
            self.from = 0;
        } else if self.from > self.bytes.len() / 2 {
            // What left costs no more than what stays: each byte is moved at most once.
            self.bytes.drain(..self.from);
            self.from = 0;
        }
    }
}
