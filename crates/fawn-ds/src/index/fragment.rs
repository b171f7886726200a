//! 16-bit fragment of an index entry: hash bits that encode their own length.
//!
//! A fragment is `bits ‖ 1 ‖ 0…`: up to fifteen bits of the key's hash below the page's prefix, terminated by a one. A
//! page split consumes the top bit and shifts the rest up, so old entries keep fewer bits than new ones, and the length
//! needs no storage of its own. Zero (no terminator) is never an entry and marks a page's vacant last place.

/// A vacant place.
pub(super) const VACANT: u16 = 0;

/// Hash bits of a fresh fragment; one of the sixteen is the terminator.
pub(super) const BITS_MAX: u32 = 15;

/// Fragments compared at once: a 128-bit register, which every x86-64 and AArch64 has.
const LANES: usize = 8;

/// The full-length fragment of `hash` in a page whose prefix is `depth` bits long.
#[inline]
pub(super) fn fresh(hash: u64, depth: u32) -> u16 {
    assert!(depth < 48, "page depth {depth} leaves no room for a 16-bit fragment in a 64-bit hash");
    ((hash << depth) >> 48) as u16 | 1
}

/// Whether an entry agrees with a fresh `query` of the same page in every bit it still has.
#[inline]
pub(super) fn matches(entry: u16, query: u16) -> bool {
    // entry ^ (entry - 1) covers the terminator and everything below it; only the bits above count.
    (query ^ entry) & !(entry ^ entry.wrapping_sub(1)) == 0
}

/// Whether an entry agrees with a fresh `query` of the same page in those of the first `bits` bits that it still has.
#[inline]
pub(super) fn begins_as(entry: u16, query: u16, bits: u32) -> bool {
    let first = !(u16::MAX.checked_shr(bits).unwrap_or(0));
    (query ^ entry) & first & !(entry ^ entry.wrapping_sub(1)) == 0
}

/// Hash bits of the entry: fifteen when inserted, one fewer after each split of its page.
#[inline]
pub(super) fn bits(entry: u16) -> u32 {
    debug_assert_ne!(entry, VACANT);
    BITS_MAX - entry.trailing_zeros()
}

/// The child page of the entry when its page splits, and its fragment there.
///
/// `None`: no bit is left, so only the full hash of the key could decide (see `Index::refill`).
#[inline]
pub(super) fn descend(entry: u16) -> Option<(bool, u16)> {
    debug_assert_ne!(entry, VACANT);
    (bits(entry) > 0).then_some((entry >> 15 == 1, entry << 1))
}

/// The entry in the parent of its page, whose prefix lacks the bit `side`: the opposite of [`descend`]. A full fragment
/// loses its last bit.
#[inline]
pub(super) fn ascend(entry: u16, side: bool) -> u16 {
    debug_assert_ne!(entry, VACANT);
    u16::from(side) << 15 | entry >> 1 | entry & 1
}

/// The first entry at or after `from` that matches `query`.
#[inline]
pub(super) fn first_match(entries: &[u16], query: u16, from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(lanes) = entries.get(at..).and_then(|rest| rest.first_chunk::<LANES>()) {
        if any_matches(lanes, query) {
            return lanes.iter().position(|&entry| matches(entry, query)).map(|lane| at + lane);
        }
        at += LANES;
    }
    let rest = entries.get(at..).filter(|rest| !rest.is_empty())?;
    // Fewer are left than are compared at once: they are compared together with those before them.
    if let Some(lanes) = entries.last_chunk::<LANES>()
        && !any_matches(lanes, query)
    {
        return None;
    }
    rest.iter().position(|&entry| matches(entry, query)).map(|lane| at + lane)
}

/// Whether one of the entries matches. Without branches over the lanes, so that the compiler compares them together: misses
/// are the common case.
#[inline]
fn any_matches(lanes: &[u16; LANES], query: u16) -> bool {
    lanes.iter().fold(false, |any, &entry| any | matches(entry, query))
}
