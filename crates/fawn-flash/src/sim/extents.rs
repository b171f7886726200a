//! Allocation map of a simulated file: the 4 KiB blocks that take space on the disk.
use std::collections::BTreeMap;

/// A set of blocks as disjoint, non-adjacent ranges.
#[derive(Clone, Default, Debug)]
pub(super) struct Extents {
    /// Start of each range to its exclusive end.
    ranges: BTreeMap<u64, u64>,
    blocks: u64,
}

impl Extents {
    /// Number of allocated blocks.
    pub(super) const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Number of blocks in `start..end` that are not allocated.
    pub(super) fn missing(&self, start: u64, end: u64) -> u64 {
        let held: u64 = self.overlapping(start, end).map(|(from, to)| to.min(end) - from.max(start)).sum();
        end.saturating_sub(start) - held
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        self.ranges
            .range(..end)
            .rev()
            .map(|(&from, &to)| (from, to))
            .take_while(move |&(_, to)| to > start)
            .filter(move |&(from, to)| start < end && from < end && to > start)
    }

    /// Allocates `start..end`.
    pub(super) fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.blocks += self.missing(start, end);
        let touching: Vec<(u64, u64)> =
            self.ranges.range(..=end).rev().map(|(&f, &t)| (f, t)).take_while(|&(_, to)| to >= start).collect();
        let (mut from, mut to) = (start, end);
        for (old_from, old_to) in touching {
            self.ranges.remove(&old_from);
            from = from.min(old_from);
            to = to.max(old_to);
        }
        self.ranges.insert(from, to);
    }

    /// Deallocates `start..end`.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        let cut: Vec<(u64, u64)> = self.overlapping(start, end).collect();
        for (from, to) in cut {
            self.ranges.remove(&from);
            self.blocks -= to.min(end) - from.max(start);
            if from < start {
                self.ranges.insert(from, start);
            }
            if to > end {
                self.ranges.insert(end, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_a_set_of_blocks_counts() {
        let mut rng = fawn_types::random::SplitMix64::new(7);
        let mut extents = Extents::default();
        let mut model = std::collections::BTreeSet::new();
        for _ in 0..2000 {
            let start = rng.below(64);
            let end = start + rng.below(16);
            let missing = (start..end).filter(|block| !model.contains(block)).count() as u64;
            assert_eq!(extents.missing(start, end), missing);
            if rng.coin() {
                extents.insert(start, end);
                model.extend(start..end);
            } else {
                extents.remove(start, end);
                model.retain(|block| !(start..end).contains(block));
            }
            assert_eq!(extents.blocks(), model.len() as u64);
        }
    }
}
