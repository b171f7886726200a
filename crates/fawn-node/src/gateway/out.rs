//! Output bytes of a session, and the pool of their buffers: an idle session holds none.

/// Maximum number of spare buffers.
const POOL_BUFFERS_MAX: usize = 512;
/// A larger buffer returns to the system, so that one large reply does not keep its memory.
const POOLED_BYTES_MAX: usize = 64 << 10;

/// Spare buffers of one shard.
#[derive(Debug, Default)]
pub(crate) struct OutputBufferPool {
    spare: Vec<Vec<u8>>,
}

impl OutputBufferPool {
    /// An empty buffer, with capacity if a spare one exists.
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

/// Bytes appended at the end and consumed from the front.
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
            // The front is dropped only when it is longer than the rest: each byte moves at most once.
            self.bytes.drain(..self.from);
            self.from = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_buffers_of_usual_size_are_kept() {
        let mut pool = OutputBufferPool::default();
        pool.give(Vec::with_capacity(POOLED_BYTES_MAX + 1));
        pool.give(Vec::new());
        assert_eq!(pool.take().capacity(), 0, "one large reply keeps no memory");
        pool.give(vec![1; POOLED_BYTES_MAX]);
        let buffer = pool.take();
        assert!(buffer.is_empty() && buffer.capacity() >= POOLED_BYTES_MAX);
    }
}
