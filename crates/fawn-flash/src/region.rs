//! Owns `Region`: 2 MiB of anonymous memory on a 2 MiB boundary, so that it can be one entry of the processor's
//! translation table instead of 512.
//!
//! A random read of a gigabyte waits longer for the address (with nested paging up to 24 memory reads) than for the bytes.
//! Whether a region is huge is decided here and never left to the system's policy, which would back a region of which
//! one page is used with 2 MiB: a memory budget is hard.
use crate::buffer::PAGE_BYTES;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Size and alignment of a region: a huge page where most systems have them, bytes.
pub(crate) const REGION_BYTES: usize = 2 << 20;

/// Items that regions are divided into.
///
/// # Safety
/// (1) All bytes zero is a value; (2) whole [`REGION_BYTES`] hold a whole number of items; (3) no alignment beyond
/// [`PAGE_BYTES`]; (4) nothing to drop and no interior mutability.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: (1, 4) plain integers; (2) a page divides 2 MiB; (3) no alignment.
unsafe impl Plain for [u8; PAGE_BYTES] {}
// SAFETY: (1, 4) plain integers; (2) 8 KiB divide 2 MiB; (3) aligned to two bytes.
unsafe impl Plain for [u16; 4096] {}

/// Zeros, without memory until written.
#[derive(Debug)]
pub(crate) struct Region<T> {
    start: NonNull<u8>,
    items: PhantomData<T>,
}

// SAFETY: (1) a region owns its mapping alone; (2) its items may be sent, by `Plain`.
unsafe impl<T: Plain> Send for Region<T> {}
// SAFETY: as above; shared access is read-only.
unsafe impl<T: Plain> Sync for Region<T> {}

impl<T: Plain> Region<T> {
    /// Items of a region.
    pub(crate) const ITEMS: usize = REGION_BYTES / size_of::<T>();

    /// One that takes memory by small pages; `None` when the system has no address space to give.
    pub(crate) fn small() -> Option<Self> {
        map_region(Advice::Small).map(|start| Self { start, items: PhantomData })
    }

    /// One that takes all its memory with the first write, if the system has huge pages.
    pub(crate) fn huge() -> Option<Self> {
        map_region(Advice::Huge).map(|start| Self { start, items: PhantomData })
    }

    /// Has the system move what is here to a huge page, now. Meant for a region in use as a whole: it takes all its
    /// memory. Nothing but the speed depends on whether the system can.
    pub(crate) fn collapse(&self) {
        for advice in [Advice::Huge, Advice::Collapse] {
            // SAFETY: (1) mapped by `map_region` until `self` is dropped.
            unsafe { advise(self.start, advice) };
        }
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> &T {
        assert!(at < Self::ITEMS);
        // SAFETY: (1) in bounds by the assertion; (2) mapped, readable and a value since birth (zeros, by `Plain`);
        // (3) aligned: regions start at their size, and items divide it; (4) `&self` excludes writers.
        unsafe { self.start.cast::<T>().add(at).as_ref() }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut T {
        assert!(at < Self::ITEMS);
        // SAFETY: as in `get`, and (4) `&mut self` excludes every other access.
        unsafe { self.start.cast::<T>().add(at).as_mut() }
    }

    /// Gives the memory of some items back; their content is unspecified, until written.
    pub(crate) fn discard(&mut self, items: Range<usize>) {
        assert!(items.start <= items.end && items.end <= Self::ITEMS);
        #[cfg(target_os = "linux")]
        {
            let page = rustix::param::page_size();
            let (from, to) = ((items.start * size_of::<T>()).next_multiple_of(page), items.end * size_of::<T>());
            let to = to - to % page;
            if from < to {
                // SAFETY: (1) the range lies within the mapping; (2) private anonymous memory reads as zeros afterwards,
                // which `Plain` makes values; (3) `&mut self`: nobody holds a reference to what changes.
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

/// How the system backs a region.
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

/// [`REGION_BYTES`] of zeros on their boundary, the caller's alone.
pub(crate) fn map_region(advice: Advice) -> Option<NonNull<u8>> {
    let start = map_aligned()?;
    // SAFETY: (1) mapped just now.
    unsafe { advise(start, advice) };
    Some(start)
}

/// # Safety
/// (1) `start` came from [`map_region`] and was not given back; (2) no reference to its bytes is left.
pub(crate) unsafe fn unmap_region(start: NonNull<u8>) {
    // SAFETY: (1) the length is that of every region.
    unsafe { unmap(start.as_ptr().cast(), REGION_BYTES) }
}

/// # Safety
/// (1) `start` is that of a region that is mapped.
unsafe fn advise(start: NonNull<u8>, advice: Advice) {
    #[cfg(target_os = "linux")]
    // SAFETY: (1) the range is mapped, by the caller's word; (2) none of these three advices changes the content or the
    // validity of memory.
    unsafe {
        libc::madvise(start.as_ptr().cast(), REGION_BYTES, advice as i32);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, advice);
}

/// A mapping of one region's size on its boundary: the system's choice if that is one, else cut out of a larger one.
fn map_aligned() -> Option<NonNull<u8>> {
    let start = map(REGION_BYTES)?;
    if (start as usize).is_multiple_of(REGION_BYTES) {
        return NonNull::new(start.cast());
    }
    // SAFETY: (1) it was mapped just now with this length, and nobody knows it.
    unsafe { unmap(start, REGION_BYTES) };
    let start = map(2 * REGION_BYTES)?;
    let before = (start as usize).wrapping_neg() % REGION_BYTES;
    // SAFETY: (1) `before` and what lies behind the region are within what was mapped just now, of which nobody knows;
    // (2) both are whole pages, for mappings start at pages.
    unsafe {
        let region = start.byte_add(before);
        unmap(start, before);
        unmap(region.byte_add(REGION_BYTES), REGION_BYTES - before);
        NonNull::new(region.cast())
    }
}

fn map(len_bytes: usize) -> Option<*mut c_void> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: (1) no address is asked for, so no mapping of ours is replaced; (2) the result is checked by the caller.
    unsafe { mmap_anonymous(std::ptr::null_mut(), len_bytes, protection, MapFlags::PRIVATE) }.ok()
}

/// # Safety
/// (1) The bytes are whole pages of a mapping of the caller's, of which no reference is left.
unsafe fn unmap(start: *mut c_void, len_bytes: usize) {
    if len_bytes > 0 {
        // SAFETY: (1) passed on.
        let unmapped = unsafe { munmap(start, len_bytes) };
        debug_assert!(unmapped.is_ok(), "pages of a mapping can be given back");
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
