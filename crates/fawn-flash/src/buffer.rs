//! `AlignedBuf`: memory aligned for direct I/O; a device owns it until the operation completes.
use crate::region::{Advice, REGION_BYTES, map_region, unmap_region};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Page size of the cache and alignment of every buffer, bytes.
pub const PAGE_BYTES: usize = 4096;
/// The unit that a disk writes atomically, bytes.
pub const SECTOR_BYTES: usize = 512;
/// Length of a buffer that is backed by one huge page, where the system has them, bytes. All other lengths use small
/// pages.
pub const HUGE_BUF_BYTES: usize = REGION_BYTES;

/// Zeroed memory, aligned to [`PAGE_BYTES`], its length a multiple of [`SECTOR_BYTES`].
pub struct AlignedBuf {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: (1) the buffer exclusively owns its memory, as a `Box<[u8]>` does; (2) it has no interior mutability.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len_bytes` zero bytes.
    ///
    /// # Panics
    /// If the length is zero or not a multiple of [`SECTOR_BYTES`]: a bug in the caller, never caused by input.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        let layout = Self::layout(len_bytes);
        if len_bytes == HUGE_BUF_BYTES {
            // For I/O the system pins and describes one huge page, instead of each small page.
            let Some(start) = map_region(Advice::Huge) else { handle_alloc_error(layout) };
            return Self { start, len_bytes };
        }
        // SAFETY: (1) `layout` has a non-zero size, asserted in `Self::layout`.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, len_bytes }
    }

    fn layout(len_bytes: usize) -> Layout {
        assert!(len_bytes > 0 && len_bytes.is_multiple_of(SECTOR_BYTES), "direct I/O moves whole sectors");
        match Layout::from_size_align(len_bytes, PAGE_BYTES) {
            Ok(layout) => layout,
            Err(error) => unreachable!("no layout for {len_bytes} bytes: {error}"),
        }
    }

    /// The address for a device; it does not change when the buffer is moved.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The address, without creating a reference to the bytes: parts of them may be in use elsewhere.
    pub(crate) const fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len_bytes == HUGE_BUF_BYTES {
            // SAFETY: (1) mapped in `zeroed`, as every buffer of this length, and dropped once; it has no other owner.
            return unsafe { unmap_region(self.start) };
        }
        // SAFETY: (1) allocated in `zeroed` with this layout; (2) dropped once, and it has no other owner.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len_bytes)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: (1) `len_bytes` bytes from `start` are allocated and initialised (zeroed on allocation).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: (1) as in `deref`; (2) `&mut self` excludes other access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} B)", self.len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mapped pages of the process; 0 where the system does not report them.
    fn mapped_pages() -> usize {
        let told = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        told.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0)
    }

    #[test]
    fn buffers_of_every_length_are_zero_aligned_and_given_back() {
        let before = mapped_pages();
        for round in 0..3000_usize {
            let lengths = [HUGE_BUF_BYTES, HUGE_BUF_BYTES - SECTOR_BYTES, HUGE_BUF_BYTES + PAGE_BYTES];
            let mut buf = AlignedBuf::zeroed(lengths[round % 3]);
            let align = if buf.len() == HUGE_BUF_BYTES { HUGE_BUF_BYTES } else { PAGE_BYTES };
            assert!((buf.as_mut_ptr() as usize).is_multiple_of(align), "{buf:?}");
            if round < 12 {
                assert!(buf.iter().all(|&byte| byte == 0), "{buf:?} in round {round}");
                buf.fill(7);
            }
        }
        let kept_bytes = mapped_pages().saturating_sub(before) * PAGE_BYTES;
        assert!(
            kept_bytes < 500 * HUGE_BUF_BYTES,
            "{kept_bytes} bytes are still mapped after 1000 buffers of each length"
        );
    }
}
