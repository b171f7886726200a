//! `Region`: 2 MiB of anonymous memory on a 2 MiB boundary, so that one huge page can back it.
//!
//! A huge page takes one TLB entry instead of 512. A random read in a gigabyte spends more time on address translation
//! (with nested paging up to 24 memory reads) than on the data.
//!
//! The code here decides which regions are huge, not the system's policy: that policy would back a region of which one
//! page is used with 2 MiB, and a memory budget is a hard limit.
use crate::buffer::PAGE_BYTES;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Size and alignment of a region, bytes: a huge page on most systems.
pub(crate) const REGION_BYTES: usize = 2 << 20;

/// Longest memory that the C library may take from its heap, bytes.
const HEAP_BYTES_MAX: usize = 32 << 20;

/// Item types that a region can be divided into.
///
/// # Safety
/// (1) All bytes zero is a valid value; (2) [`REGION_BYTES`] is a multiple of the item size; (3) the alignment is at
/// most [`PAGE_BYTES`]; (4) nothing to drop and no interior mutability.
pub unsafe trait PlainBytes: Copy + Send + Sync + 'static {}
// SAFETY: (1, 4) plain integers; (2) a page divides 2 MiB; (3) no alignment.
unsafe impl PlainBytes for [u8; PAGE_BYTES] {}
// SAFETY: (1, 4) plain integers; (2) a page divides 2 MiB; (3) aligned to four bytes.
unsafe impl PlainBytes for [u32; 1024] {}
// SAFETY: (1, 4) plain integers; (2) 8 KiB divide 2 MiB; (3) aligned to two bytes.
unsafe impl PlainBytes for [u16; 4096] {}
// SAFETY: (1, 4) plain integers; (2) 16 KiB divide 2 MiB; (3) no alignment.
unsafe impl PlainBytes for [u8; 16 << 10] {}
// SAFETY: (1, 4) plain integers; (2) 64 bytes divide 2 MiB; (3) aligned to eight bytes.
unsafe impl PlainBytes for [u64; 8] {}

/// Zeroed items; takes memory only when written.
#[derive(Debug)]
pub(crate) struct Region<T> {
    start: NonNull<u8>,
    items: PhantomData<T>,
}

// SAFETY: (1) a region exclusively owns its mapping; (2) its items may be sent, by `PlainBytes`.
unsafe impl<T: PlainBytes> Send for Region<T> {}
// SAFETY: as above; shared access is read-only.
unsafe impl<T: PlainBytes> Sync for Region<T> {}

impl<T: PlainBytes> Region<T> {
    pub(crate) const ITEMS: usize = REGION_BYTES / size_of::<T>();

    /// A region that takes memory by small pages; `None` if the system has no address space left.
    pub(crate) fn small() -> Option<Self> {
        map_region(Advice::Small).map(|start| Self { start, items: PhantomData })
    }

    /// A region that takes all its memory with the first write, if the system has huge pages.
    pub(crate) fn huge() -> Option<Self> {
        map_region(Advice::Huge).map(|start| Self { start, items: PhantomData })
    }

    /// Asks the system to move the content to a huge page now. Meant for a fully used region, because it takes all of
    /// the region's memory. If the system cannot, only speed suffers.
    pub(crate) fn collapse(&self) {
        for advice in [Advice::Huge, Advice::Collapse] {
            // SAFETY: (1) mapped by `map_region` until `self` is dropped.
            unsafe { advise(self.start, advice) };
        }
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> &T {
        assert!(at < Self::ITEMS);
        // SAFETY: (1) in bounds by the assertion; (2) mapped, readable and always a valid value (zeros at first, by
        // `PlainBytes`); (3) aligned: regions start at a multiple of their size, and items divide it; (4) `&self`
        // excludes writers.
        unsafe { self.start.cast::<T>().add(at).as_ref() }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut T {
        assert!(at < Self::ITEMS);
        // SAFETY: as in `get`, and (4) `&mut self` excludes every other access.
        unsafe { self.start.cast::<T>().add(at).as_mut() }
    }

    /// Returns the memory of some items to the system; their content is unspecified until written.
    pub(crate) fn discard(&mut self, items: Range<usize>) {
        assert!(items.start <= items.end && items.end <= Self::ITEMS);
        #[cfg(target_os = "linux")]
        {
            let page = rustix::param::page_size();
            let (from, to) = ((items.start * size_of::<T>()).next_multiple_of(page), items.end * size_of::<T>());
            let to = to - to % page;
            if from < to {
                // SAFETY: (1) the range lies within the mapping; (2) private anonymous memory reads as zeros
                // afterwards, which are valid values by `PlainBytes`; (3) `&mut self`: no reference to the changed
                // memory exists.
                unsafe { libc::madvise(self.start.as_ptr().add(from).cast(), to - from, libc::MADV_DONTNEED) };
            }
        }
    }
}

impl<T> Drop for Region<T> {
    fn drop(&mut self) {
        // SAFETY: (1) mapped in `map_region`; (2) no reference outlives the region that lent it.
        unsafe { unmap_region(self.start) }
    }
}

/// Asks for huge pages for memory that will be used from its beginning on, as far as they lie within it. If the system has none, only
/// speed suffers.
///
/// The advice outlives its memory if an allocator gives the same addresses to others. So nothing happens for memory of at most 32 MiB:
/// the C library takes longer memory from the system, and returns it to the system.
pub fn prefer_huge_pages<T>(memory: &[T]) {
    if size_of_val(memory) <= HEAP_BYTES_MAX {
        return;
    }
    let start = memory.as_ptr() as usize;
    let (from, to) = (start.next_multiple_of(REGION_BYTES), start + size_of_val(memory));
    let to = to - to % REGION_BYTES;
    #[cfg(target_os = "linux")]
    // SAFETY: (1) the range lies within `memory`, which is mapped and longer than two regions; (2) the advice changes neither content
    // nor validity.
    unsafe {
        libc::madvise(from as *mut c_void, to - from, libc::MADV_HUGEPAGE)
    };
    #[cfg(not(target_os = "linux"))]
    let _ = (from, to);
}

#[derive(Clone, Copy)]
#[cfg_attr(target_os = "linux", repr(i32))]
pub(crate) enum Advice {
    #[cfg(target_os = "linux")]
    Small = libc::MADV_NOHUGEPAGE,
    #[cfg(target_os = "linux")]
    Huge = libc::MADV_HUGEPAGE,
    #[cfg(target_os = "linux")]
    Collapse = libc::MADV_COLLAPSE,
    #[cfg(not(target_os = "linux"))]
    Small,
    #[cfg(not(target_os = "linux"))]
    Huge,
    #[cfg(not(target_os = "linux"))]
    Collapse,
}

/// Maps [`REGION_BYTES`] of zeros on a boundary of that size; the caller is the only owner.
pub(crate) fn map_region(advice: Advice) -> Option<NonNull<u8>> {
    let start = map_aligned()?;
    // SAFETY: (1) mapped just now.
    unsafe { advise(start, advice) };
    Some(start)
}

/// # Safety
/// (1) `start` came from [`map_region`] and was not unmapped; (2) no reference to its bytes is left.
pub(crate) unsafe fn unmap_region(start: NonNull<u8>) {
    // SAFETY: (1) the length is that of every region.
    unsafe { unmap(start.as_ptr().cast(), REGION_BYTES) }
}

/// # Safety
/// (1) `start` is that of a mapped region.
unsafe fn advise(start: NonNull<u8>, advice: Advice) {
    #[cfg(target_os = "linux")]
    // SAFETY: (1) the range is mapped, as the caller guarantees; (2) none of these three advices changes the content or
    // the validity of memory.
    unsafe {
        libc::madvise(start.as_ptr().cast(), REGION_BYTES, advice as i32);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, advice);
}

/// Maps one region on its boundary: at the system's choice of address if that is aligned, else cut out of a larger
/// mapping.
fn map_aligned() -> Option<NonNull<u8>> {
    let start = map(REGION_BYTES)?;
    if (start as usize).is_multiple_of(REGION_BYTES) {
        return NonNull::new(start.cast());
    }
    // SAFETY: (1) it was mapped above with this length, and no other code knows the address.
    unsafe { unmap(start, REGION_BYTES) };
    let start = map(2 * REGION_BYTES)?;
    let before = (start as usize).wrapping_neg() % REGION_BYTES;
    // SAFETY: (1) `before` and the pages after the region are within the mapping made above, whose address no other
    // code knows; (2) both are whole pages, because mappings start at pages.
    unsafe {
        let region = start.byte_add(before);
        unmap(start, before);
        unmap(region.byte_add(REGION_BYTES), REGION_BYTES - before);
        NonNull::new(region.cast())
    }
}

fn map(len_bytes: usize) -> Option<*mut c_void> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: (1) no address is requested, so no existing mapping is replaced; (2) the caller checks the result.
    unsafe { mmap_anonymous(std::ptr::null_mut(), len_bytes, protection, MapFlags::PRIVATE) }.ok()
}

/// # Safety
/// (1) The bytes are whole pages of a mapping that the caller owns, with no reference to them left.
unsafe fn unmap(start: *mut c_void, len_bytes: usize) {
    if len_bytes > 0 {
        // SAFETY: (1) guaranteed by the caller.
        let unmapped = unsafe { munmap(start, len_bytes) };
        debug_assert!(unmapped.is_ok(), "whole pages of a mapping can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_zero_and_keep_what_is_written() {
        for make in [Region::<[u8; PAGE_BYTES]>::small, Region::huge] {
            let mut regions: Vec<_> = (0..3).filter_map(|_| make()).collect();
            assert_eq!(regions.len(), 3);
            for region in &mut regions {
                assert!((region.start.as_ptr() as usize).is_multiple_of(REGION_BYTES));
                assert!(region.get(511).iter().all(|&byte| byte == 0));
                (0..512).for_each(|at| region.get_mut(at)[at] = at as u8);
                region.collapse();
                region.discard(100..200);
                assert!((0..100).chain(200..512).all(|at| region.get(at)[at] == at as u8));
            }
        }
    }
}
