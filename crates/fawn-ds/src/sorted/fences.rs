//! Fences: which pages of a run may hold a ring key, from about ten bits per page.
//!
//! Each page's first ring key becomes a *coordinate*, ascending with (space, ring key), 256 of them per page: eight
//! guard bits, so one key in 256 shares its coordinate with a fence and has two candidate pages. Coordinates are
//! stored in Elias–Fano form. The map from ring keys to coordinates follows the data:
//!
//! - *areas* of at most 1,024 fences map prefixes (the highest 64 bits) linearly, and end where a gap between hosted
//!   ranges would waste coordinates;
//! - *groups* are tags under which two pages or more begin: they get 256 coordinates per page of their own, by the low
//!   64 bits of ring keys. A million keys under one tag cost what others cost.
use crate::format::run::tail::{FenceArea, FenceGroup, FenceParts, KeyPrefix};
use crate::format::run::{KeyBounds, RunFooter, SPACES, Space};
use fawn_types::RingKey;

/// Coordinates per page.
const PAGE_COORDINATES: u32 = 256;
/// Maximum number of fences in an area.
const AREA_FENCES_MAX: usize = 1024;
/// A gap between fences ends an area if it is this many times their median gap.
const GAP_MEDIANS: u64 = 64;
/// Maximum number of gaps that end an area, per [`AREA_FENCES_MAX`] fences.
const GAPS_MAX: usize = 32;
/// Zeros of the high bits per sample.
const SAMPLE_ZEROS: usize = 256;

/// The highest 64 bits of a ring key.
pub(super) fn prefix_of(key: &RingKey) -> u64 {
    half(key, 0)
}

fn low_of(key: &RingKey) -> u64 {
    half(key, 12)
}

fn half(key: &RingKey, at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&key.0[at..at + 8]);
    u64::from_be_bytes(bytes)
}

fn tag_of(key: &RingKey) -> &[u8] {
    &key.0[..12]
}

/// Candidate pages of a ring key: `first..=last`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageSpan {
    /// The first candidate. Its first ring key is certainly below the key, unless it is the first page of its space.
    pub first: u32,
    /// The last candidate. The first ring key of the page behind it is certainly above the key.
    pub last: u32,
}

/// The fences of a run.
#[derive(Clone, Debug)]
pub struct Fences {
    parts: FenceParts,
    /// Position of every [`SAMPLE_ZEROS`]-th zero of the high bits.
    samples: Box<[u32]>,
    starts: [u32; SPACES + 1],
    bounds: [KeyBounds; SPACES],
}

/// Fences that contradict the footer, or each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("fences with {0}")]
pub struct FenceError(&'static str);

impl Fences {
    /// The fences of a run with this footer.
    ///
    /// # Errors
    /// If the parts contradict the footer.
    pub fn load(parts: FenceParts, footer: &RunFooter) -> Result<Self, FenceError> {
        let coordinates = parts.area_coordinates.checked_add(parts.group_coordinates);
        let Some(coordinates) = coordinates else { return Err(FenceError("too many coordinates")) };
        let bits = high_bits(footer.pages, coordinates);
        let ones: u32 = parts.highs.iter().map(|word| word.count_ones()).sum();
        if parts.highs.len() != bits.div_ceil(64) || ones != footer.pages || parts.lows.len() != ones as usize {
            return Err(FenceError("another number of pages"));
        }
        for space in 0..SPACES {
            let areas = &parts.areas[range_of(&parts.area_starts, space)];
            let is_ordered = areas.is_sorted_by(|a, b| a.last < b.first && a.base < b.base);
            if !is_ordered || areas.iter().any(|area| area.first > area.last) {
                return Err(FenceError("areas out of order"));
            }
            if areas.is_empty() != (footer.starts[space] == footer.starts[space + 1]) {
                return Err(FenceError("a space without areas"));
            }
            if !parts.groups[range_of(&parts.group_starts, space)].is_sorted_by(|a, b| a.prefix < b.prefix) {
                return Err(FenceError("groups out of order"));
            }
        }
        let is_ascending = parts.areas.is_sorted_by(|a, b| a.base < b.base)
            && parts.groups.is_sorted_by(|a, b| a.before < b.before)
            && parts.areas.last().is_none_or(|area| area.base < parts.area_coordinates)
            && parts.groups.last().is_none_or(|group| group.before < parts.group_coordinates);
        if !is_ascending {
            return Err(FenceError("coordinates out of order"));
        }
        let samples = sample(&parts.highs, bits);
        Ok(Self { parts, samples, starts: footer.starts, bounds: footer.bounds })
    }

    /// The pages that may hold `key`; `None` if none does.
    #[must_use]
    pub fn locate(&self, space: Space, key: &RingKey) -> Option<PageSpan> {
        let at = usize::from(space.get());
        let (start, end) = (self.starts[at], self.starts[at + 1]);
        let bounds = &self.bounds[at];
        if start == end || *key < bounds.lowest || *key > bounds.highest {
            return None;
        }
        let coordinate = self.coordinate(at, key);
        let (below, up_to) = self.rank(coordinate);
        let first = below.saturating_sub(1).clamp(start, end - 1);
        let last = up_to.saturating_sub(1).clamp(first, end - 1);
        Some(PageSpan { first, last })
    }

    /// The pages of a space that may hold keys from `from` to before `to`: contiguous in the file.
    #[must_use]
    pub fn extent(&self, space: Space, from: &RingKey, to: Option<&RingKey>) -> core::ops::Range<u32> {
        let at = usize::from(space.get());
        let (start, end) = (self.starts[at], self.starts[at + 1]);
        let bounds = &self.bounds[at];
        if start == end || *from > bounds.highest || to.is_some_and(|to| *to <= bounds.lowest || to <= from) {
            return start..start;
        }
        let first = self.locate(space, from).map_or(start, |span| span.first);
        let last = to.and_then(|to| self.locate(space, to)).map_or(end - 1, |span| span.last);
        first..last + 1
    }

    fn coordinate(&self, space: usize, key: &RingKey) -> u32 {
        coordinate(&self.parts, space, &self.bounds[space], key)
    }

    /// How many coordinates are below this one, and how many are not above it.
    fn rank(&self, coordinate: u32) -> (u32, u32) {
        let bucket = (coordinate / PAGE_COORDINATES) as usize;
        let mut bit = if bucket == 0 { 0 } else { self.select_zero(bucket - 1) + 1 };
        let mut at = bit - bucket;
        let low = coordinate as u8;
        let mut below = at;
        while self.is_one(bit) && self.parts.lows[at] <= low {
            below += usize::from(self.parts.lows[at] < low);
            bit += 1;
            at += 1;
        }
        (below as u32, at as u32)
    }

    fn is_one(&self, bit: usize) -> bool {
        self.parts.highs.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Position of the zero with this index among the high bits, or their end.
    fn select_zero(&self, nth: usize) -> usize {
        let end = self.parts.highs.len() * 64;
        let Some(&from) = self.samples.get(nth / SAMPLE_ZEROS) else { return end };
        let (mut at, mut left) = (from as usize / 64, nth % SAMPLE_ZEROS);
        let mut mask = u64::MAX << (from % 64);
        while let Some(word) = self.parts.highs.get(at) {
            let zeros = !word & mask;
            let count = zeros.count_ones() as usize;
            if left < count {
                return at * 64 + nth_one(zeros, left);
            }
            left -= count;
            mask = u64::MAX;
            at += 1;
        }
        end
    }

    /// Memory of the fences, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let parts = &self.parts;
        let areas = size_of_val(&*parts.areas) + size_of_val(&*parts.groups);
        size_of::<Self>() + areas + parts.lows.len() + size_of_val(&*parts.highs) + size_of_val(&*self.samples)
    }
}

/// Position of the one with this index.
fn nth_one(mut word: u64, nth: usize) -> usize {
    for _ in 0..nth {
        word &= word - 1;
    }
    word.trailing_zeros() as usize
}

/// Bits of the high part: a one per page, and a zero per 256 coordinates begun.
const fn high_bits(pages: u32, coordinates: u32) -> usize {
    pages as usize + coordinates as usize / PAGE_COORDINATES as usize + 1
}

fn sample(highs: &[u64], bits: usize) -> Box<[u32]> {
    let (mut samples, mut zeros) = (Vec::new(), 0);
    for bit in 0..bits {
        if highs[bit / 64] >> (bit % 64) & 1 == 0 {
            if zeros % SAMPLE_ZEROS == 0 {
                samples.push(bit as u32);
            }
            zeros += 1;
        }
    }
    samples.into_boxed_slice()
}

fn range_of(starts: &[u32; SPACES + 1], space: usize) -> core::ops::Range<usize> {
    starts[space] as usize..starts[space + 1] as usize
}

/// The coordinate of a ring key of a space that has records.
fn coordinate(parts: &FenceParts, space: usize, bounds: &KeyBounds, key: &RingKey) -> u32 {
    let prefix = prefix_of(key);
    let groups = &parts.groups[range_of(&parts.group_starts, space)];
    let area_range = range_of(&parts.area_starts, space);
    let area_end = area_range.end;
    let next = area_range.start + parts.areas[area_range.clone()].partition_point(|area| area.first.get() <= prefix);
    let by_prefix = if next == area_range.start {
        // Below the first fence: no page of this space begins there.
        parts.areas[next.min(area_end - 1)].base
    } else {
        let area = &parts.areas[next - 1];
        let base_after = parts.areas.get(next).map_or(parts.area_coordinates, |after| after.base);
        area.base + within(prefix, area.first.get(), area.last.get(), base_after - area.base)
    };
    let after = groups.partition_point(|group| group.prefix.get() <= prefix);
    let next_group = parts.group_starts[space] as usize + after;
    let group_end = parts.groups.get(next_group).map_or(parts.group_coordinates, |group| group.before);
    if after == 0 || groups[after - 1].prefix.get() != prefix {
        return by_prefix + group_end;
    }
    // Only a run's first and last tag can be cut: their keys span less than 64 bits.
    let before = groups[after - 1].before;
    let first = if prefix_of(&bounds.lowest) == prefix { low_of(&bounds.lowest) } else { 0 };
    let last = if prefix_of(&bounds.highest) == prefix { low_of(&bounds.highest) } else { u64::MAX };
    by_prefix + before + within(low_of(key), first, last, group_end - before).min(group_end - before - 1)
}

/// Linear map of `first..=last` to the numbers below `width - 1`; values above `last` map to `width - 1`.
fn within(value: u64, first: u64, last: u64, width: u32) -> u32 {
    if value > last {
        return width - 1;
    }
    let span = u128::from(last.saturating_sub(first)) + 1;
    (u128::from(value.saturating_sub(first)) * u128::from(width - 1) / span) as u32
}

/// Collects the first ring key of each page, and chooses areas and groups.
#[derive(Debug, Default)]
pub struct FenceBuilder {
    firsts: Vec<RingKey>,
    /// Prefixes that two tags share: such tags cannot be a group, because its coordinates would not ascend.
    shared: Vec<u64>,
}

impl FenceBuilder {
    /// The next page begins with `key`.
    pub fn push(&mut self, key: RingKey) {
        self.firsts.push(key);
    }

    /// Two tags of the run have this prefix.
    pub fn note_shared_prefix(&mut self, key: &RingKey) {
        let prefix = prefix_of(key);
        if self.shared.last() != Some(&prefix) {
            self.shared.push(prefix);
        }
    }

    /// The fences of pages that begin at `starts` in each space.
    #[must_use]
    pub fn finish(self, starts: &[u32; SPACES + 1], bounds: &[KeyBounds; SPACES]) -> FenceParts {
        assert_eq!(self.firsts.len(), starts[SPACES] as usize, "a fence per page");
        let mut chosen = Chosen::default();
        let mut parts = FenceParts::default();
        for space in 0..SPACES {
            self.choose(&self.firsts[range_of(starts, space)], &mut chosen);
            parts.area_starts[space + 1] = chosen.areas.len() as u32;
            parts.group_starts[space + 1] = chosen.groups.len() as u32;
        }
        parts.areas = chosen.areas.into_boxed_slice();
        parts.groups = chosen.groups.into_boxed_slice();
        (parts.area_coordinates, parts.group_coordinates) = (chosen.area_coordinates, chosen.group_coordinates);

        let bits = high_bits(starts[SPACES], parts.area_coordinates + parts.group_coordinates);
        let (mut lows, mut highs) = (Vec::with_capacity(self.firsts.len()), vec![0_u64; bits.div_ceil(64)]);
        let mut last = 0;
        for (space, bounds) in bounds.iter().enumerate() {
            for page in range_of(starts, space) {
                let at = coordinate(&parts, space, bounds, &self.firsts[page]);
                assert!(at >= last, "coordinates ascend with ring keys");
                last = at;
                lows.push(at as u8);
                let bit = (at / PAGE_COORDINATES) as usize + page;
                highs[bit / 64] |= 1 << (bit % 64);
            }
        }
        (parts.lows, parts.highs) = (lows.into_boxed_slice(), highs.into_boxed_slice());
        parts
    }

    /// Adds the groups and areas of a space's fences.
    fn choose(&self, firsts: &[RingKey], chosen: &mut Chosen) {
        let mut prefixes = Vec::with_capacity(firsts.len());
        for same_tag in firsts.chunk_by(|a, b| tag_of(a) == tag_of(b)) {
            let prefix = prefix_of(&same_tag[0]);
            if prefixes.last() != Some(&prefix) {
                prefixes.push(prefix);
            }
            if same_tag.len() > 1 && !self.shared.contains(&prefix) {
                chosen.groups.push(FenceGroup { prefix: KeyPrefix::new(prefix), before: chosen.group_coordinates });
                chosen.group_coordinates += same_tag.len() as u32 * PAGE_COORDINATES;
            }
        }
        for chunk in prefixes.chunks(AREA_FENCES_MAX) {
            let cuts = wide_gaps(chunk);
            let mut from = 0;
            for end in cuts.into_iter().chain([chunk.len()]) {
                chosen.area(&chunk[from..end]);
                from = end;
            }
        }
    }
}

/// Places where a gap is far above the median one: the ends of areas, ascending.
fn wide_gaps(prefixes: &[u64]) -> Vec<usize> {
    let mut gaps: Vec<_> = prefixes.windows(2).enumerate().map(|(at, pair)| (pair[1] - pair[0], at + 1)).collect();
    gaps.sort_unstable();
    let Some(&(median, _)) = gaps.get(gaps.len() / 2) else { return Vec::new() };
    let is_wide = |gap: &&(u64, usize)| gap.0 / GAP_MEDIANS > median;
    let mut cuts: Vec<_> = gaps.iter().rev().take_while(is_wide).take(GAPS_MAX).map(|&(_, at)| at).collect();
    cuts.sort_unstable();
    cuts
}

/// Areas and groups chosen so far.
#[derive(Default)]
struct Chosen {
    areas: Vec<FenceArea>,
    groups: Vec<FenceGroup>,
    area_coordinates: u32,
    group_coordinates: u32,
}

impl Chosen {
    fn area(&mut self, prefixes: &[u64]) {
        let [first, .., last] = prefixes else {
            return if let [only] = prefixes {
                self.area(&[*only, *only])
            };
        };
        let (first, last) = (KeyPrefix::new(*first), KeyPrefix::new(*last));
        self.areas.push(FenceArea { first, last, base: self.area_coordinates });
        // One more than the map uses: keys between the area's last page and the next area.
        self.area_coordinates += prefixes.len() as u32 * PAGE_COORDINATES + 1;
    }
}
