//! `prefetch`: CPU hints for memory that is about to be read.

/// Cache line size, bytes.
const LINE_BYTES: usize = 64;

/// Starts loading the cache lines of `bytes` without waiting. A no-op except on x86-64.
#[inline]
pub fn prefetch<T>(items: &[T]) {
    let (start, len_bytes) = (items.as_ptr().cast::<i8>(), size_of_val(items));
    let lead = start as usize % LINE_BYTES;
    for offset in (0..len_bytes + lead).step_by(LINE_BYTES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: (1) the instruction reads nothing and cannot fault, whatever the address; (2) SSE is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset).wrapping_sub(lead));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }
}
