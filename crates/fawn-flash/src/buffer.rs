//! Owns `AlignedBuf`: heap memory aligned for direct I/O, handed to a device and back with its completion.
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Page size of the cache and alignment of every buffer, bytes.
pub const PAGE_BYTES: usize = 4096;
/// What the medium writes whole or not at all, bytes.
pub const SECTOR_BYTES: usize = 512;

/// Zeroed memory, aligned to [`PAGE_BYTES`], its length a multiple of [`SECTOR_BYTES`].
pub struct AlignedBuf {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: (1) the buffer owns its memory alone, as a `Box<[u8]>` does; (2) it has no interior mutability.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len_bytes` zero bytes.
    ///
    /// # Panics
    /// When the length is zero or no multiple of [`SECTOR_BYTES`]: a caller's error, never an input's.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        let layout = Self::layout(len_bytes);
        // SAFETY: (1) `layout` has a non-zero size, asserted in `Self::layout`.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, len_bytes }
    }

    fn layout(len_bytes: usize) -> Layout {
        assert!(len_bytes > 0 && len_bytes.is_multiple_of(SECTOR_BYTES), "direct I/O moves whole sectors");
        match Layout::from_size_align(len_bytes, PAGE_BYTES) {
            Ok(layout) => layout,
            Err(error) => unreachable!("{len_bytes} bytes cannot be laid out: {error}"),
        }
    }

    /// Address for a device; stays the same while the buffer is moved.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The address, without a reference to the bytes: parts of them may be in use elsewhere.
    pub(crate) const fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: (1) allocated in `zeroed` with this very layout; (2) dropped once, nothing else owns it.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len_bytes)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: (1) `len_bytes` bytes from `start` are allocated and initialised (zeroed at birth).
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
