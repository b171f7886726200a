//! `prefetch`: CPU hints for memory that is about to be read.

/// Cache line size, bytes.
const LINE_BYTES: usize = 64;

/// Starts loading the cache lines of `bytes` without waiting. A no-op except on x86-64.
#[inline]
pub fn prefetch<T>(items: &[T]) {
    let start = items.as_ptr().cast::<i8>();
    let end = start.wrapping_add(size_of_val(items));
    let mut line = start.wrapping_sub(start as usize % LINE_BYTES);
    // A loop over addresses: a stepped range divides its length first, which costs more than the prefetches.
    while line < end {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: (1) the instruction reads nothing and cannot fault, whatever the address; (2) SSE is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line);
        }
        line = line.wrapping_add(LINE_BYTES);
    }
}
