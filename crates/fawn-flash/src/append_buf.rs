//! `AppendBuf`: an append buffer whose front can be written to a device while its rest grows, without a copy.
use crate::AlignedBuf;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A buffer in two parts. The front is frozen: it never changes again, and [`FrozenBytes`] read it from elsewhere. Only
/// the buffer's owner accesses the rest.
#[derive(Debug)]
pub struct AppendBuf {
    memory: Arc<AlignedBuf>,
    frozen_bytes: usize,
}

/// A range of an [`AppendBuf`]'s frozen front. It remains valid after the buffer is dropped.
#[derive(Debug)]
pub struct FrozenBytes {
    memory: Arc<AlignedBuf>,
    range: Range<usize>,
}

impl AppendBuf {
    /// Freezes everything up to the range's end and shares the range.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    pub fn share(&mut self, range: Range<usize>) -> FrozenBytes {
        assert!(range.start <= range.end && range.end <= self.memory.len(), "{range:?} is not within the buffer");
        self.frozen_bytes = self.frozen_bytes.max(range.end);
        FrozenBytes { memory: Arc::clone(&self.memory), range }
    }

    /// The mutable bytes from `from` on.
    ///
    /// # Panics
    /// If one of them is frozen, or `from` is past the end.
    pub fn rest_mut(&mut self, from: usize) -> &mut [u8] {
        let len_bytes = self.memory.len();
        assert!(
            self.frozen_bytes <= from && from <= len_bytes,
            "byte {from} of {len_bytes} is frozen or out of bounds"
        );
        // SAFETY: (1) the range lies within the allocation, asserted above, and is initialised (zeroed on allocation);
        // (2) no other reference to it exists: `FrozenBytes` refer to bytes below `frozen_bytes` only, which never
        // decreases, and `&mut self` excludes `deref`; (3) `self.memory` keeps the memory alive as long as the borrow.
        unsafe { std::slice::from_raw_parts_mut(self.memory.address().add(from), len_bytes - from) }
    }

    /// The whole buffer, for reuse, if no [`FrozenBytes`] share it any more.
    #[must_use]
    pub fn into_inner(self) -> Option<AlignedBuf> {
        Arc::into_inner(self.memory)
    }
}

impl From<AlignedBuf> for AppendBuf {
    fn from(buf: AlignedBuf) -> Self {
        Self { memory: Arc::new(buf), frozen_bytes: 0 }
    }
}

impl Deref for AppendBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // Other owners only read, and `&self` excludes `rest_mut`.
        &self.memory
    }
}

impl Deref for FrozenBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: (1) the range lies within the allocation, asserted in `share`; (2) no code writes to it: `rest_mut`
        // returns only bytes after the frozen ones; (3) this makes no reference to the whole buffer, because its owner
        // may hold a mutable one to the rest; (4) the memory lives as long as `self.memory`.
        unsafe { std::slice::from_raw_parts(self.memory.address().add(self.range.start), self.range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_is_shared_while_the_rest_is_written() {
        let mut buf = AppendBuf::from(AlignedBuf::zeroed(4096));
        buf.rest_mut(0)[..1024].fill(1);
        let front = buf.share(512..1024);
        let rest = buf.rest_mut(1024);
        rest[..512].fill(2);
        assert_eq!((front.len(), front[0]), (512, 1));
        assert_eq!((buf[1023], buf[1024], buf[1536]), (1, 2, 0));
        let other = std::thread::scope(|scope| scope.spawn(|| front.iter().all(|&byte| byte == 1)).join());
        assert!(other.is_ok_and(|all| all));
        assert!(buf.into_inner().is_none(), "a shared buffer cannot be reused");
        assert_eq!(front[511], 1, "shared bytes outlive the buffer");
    }

    #[test]
    fn what_nobody_shares_comes_back_whole() {
        let mut buf = AppendBuf::from(AlignedBuf::zeroed(4096));
        drop(buf.share(0..4096));
        assert!(buf.into_inner().is_some_and(|buf| buf.len() == 4096));
    }

    #[test]
    #[should_panic(expected = "is frozen")]
    fn frozen_bytes_are_not_written() {
        let mut buf = AppendBuf::from(AlignedBuf::zeroed(4096));
        let _front = buf.share(0..512);
        buf.rest_mut(511)[0] = 1;
    }
}
