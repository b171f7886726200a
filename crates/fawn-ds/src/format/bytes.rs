//! Little-endian loads and stores at fixed offsets of a slice whose length the caller has checked.

/// The `N` bytes at `at`.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Copies `from` to `at`, and returns its end.
pub(super) fn put(out: &mut [u8], at: usize, from: &[u8]) -> usize {
    let end = at + from.len();
    out[at..end].copy_from_slice(from);
    end
}

/// Whether every byte is zero; vectorised, because recovery checks whole segments.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<64>();
    // Folding whole blocks lets the compiler use vectors; the early exit per block keeps the common "no" cheap.
    blocks.iter().all(|block| block.iter().fold(0, |sum, byte| sum | byte) == 0) && rest.iter().all(|&byte| byte == 0)
}
