//! Lineage of a range: the split and merged ranges whose records belong to it, with their bounds.
//!
//! A split or a merge writes no record: the new ranges have numbers of their own, and the records under the old numbers
//! belong to whichever of them has their keys.
use super::state::{ManifestRange, ManifestState, RangeBeginning, SoleEpochs};
use crate::format::RangeNumber;
use crate::format::bytes::{array, u32_at, u64_at};
use fawn_types::{Epoch, KeyRange, RangeId, RingKey, Version};

/// A range that was split or merged, as far as its records belong to another one now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ancestor {
    /// The local number of its records.
    pub number: RangeNumber,
    /// Bounds of the keys whose records count.
    pub keys: KeyRange,
    /// Sequence number of a segment: earlier ones have no record under the number.
    pub since: u64,
    /// Records up to this version came with a transfer.
    pub base: Version,
    /// Records up to this version are invalidated.
    pub cleared: Version,
    /// Its last sole epochs. All of its records that were not rolled back are committed.
    pub sole: Option<SoleEpochs>,
}

impl Ancestor {
    /// Length of an encoded one, bytes.
    pub(crate) const BYTES: usize = 88;

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let Self { number, keys, since, base, cleared, sole } = self;
        let state = sole.as_ref().map_or(0u32, |sole| 1 + u32::from(sole.is_over));
        out.extend_from_slice(&number.0.to_le_bytes());
        out.extend_from_slice(&state.to_le_bytes());
        out.extend_from_slice(&since.to_le_bytes());
        out.extend_from_slice(&base.as_u64().to_le_bytes());
        out.extend_from_slice(&cleared.as_u64().to_le_bytes());
        let epochs = sole.as_ref().map_or((0, 0, 0), |sole| (sole.first.get(), sole.epoch.get(), sole.base.as_u64()));
        out.extend_from_slice(&epochs.0.to_le_bytes());
        out.extend_from_slice(&epochs.1.to_le_bytes());
        out.extend_from_slice(&epochs.2.to_le_bytes());
        out.extend_from_slice(&keys.start.0);
        // No range ends at the lowest ring key; it encodes the ring's end.
        out.extend_from_slice(&keys.end.unwrap_or(RingKey::MIN).0);
    }

    /// `None`: these bytes encode none.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (first, epoch) = (Epoch::new(u32_at(bytes, 32))?, Epoch::new(u32_at(bytes, 36))?);
        let sole_base = Version::from_u64(u64_at(bytes, 40));
        let sole = match u32_at(bytes, 4) {
            0 if bytes[32..48] == [0; 16] => None,
            state @ (1 | 2) => Some(SoleEpochs { first, epoch, base: sole_base, is_over: state == 2 }),
            _ => return None,
        };
        let (start, end) = (RingKey(array(bytes, 48)), RingKey(array(bytes, 68)));
        Some(Self {
            number: RangeNumber(u32_at(bytes, 0)),
            keys: KeyRange { start, end: (end > RingKey::MIN).then_some(end) },
            since: u64_at(bytes, 8),
            base: Version::from_u64(u64_at(bytes, 16)),
            cleared: Version::from_u64(u64_at(bytes, 24)),
            sole,
        })
    }
}

/// Adds an ancestor; two parts of one become one where they meet.
fn add(lineage: &mut Vec<Ancestor>, ancestor: Ancestor) {
    let meets = |known: &&mut Ancestor| {
        let other = Ancestor { keys: ancestor.keys, ..**known };
        other == ancestor && known.keys.end == Some(ancestor.keys.start)
    };
    match lineage.iter_mut().find(meets) {
        Some(known) => known.keys.end = ancestor.keys.end,
        None => lineage.push(ancestor),
    }
}

impl ManifestRange {
    /// The lineage of a range that takes over all of its keys.
    fn bequeathed(&self) -> Result<Vec<Ancestor>, &'static str> {
        let whole = self.beginning.filter(|beginning| beginning.is_whole);
        let RangeBeginning { number, since, base, .. } = whole.ok_or("this range is not whole")?;
        let own = Ancestor { number, keys: self.keys, since, base, cleared: self.cleared, sole: self.sole };
        // A clear of its own is newer than all that it had inherited.
        let inherited = if self.cleared > Version::ZERO { &[][..] } else { &self.lineage };
        Ok(inherited.iter().copied().chain([own]).collect())
    }

    fn heir(keys: KeyRange, beginning: RangeBeginning, lineage: &[Ancestor]) -> Self {
        let clipped = lineage.iter().filter_map(|ancestor| {
            let start = ancestor.keys.start.max(keys.start);
            let end = [ancestor.keys.end, keys.end].into_iter().flatten().min();
            let is_empty = end.is_some_and(|end| end <= start);
            (!is_empty).then_some(Ancestor { keys: KeyRange { start, end }, ..*ancestor })
        });
        let lineage = clipped.collect();
        Self { keys, cleared: Version::ZERO, beginning: Some(beginning), sole: None, lineage }
    }
}

/// The new ranges of a split or merge: their ids and numbers.
pub(super) type Heirs<const N: usize> = [(RangeId, RangeNumber); N];

impl ManifestState {
    pub(super) fn split_range(
        &mut self,
        parent: RangeId,
        at: RingKey,
        heirs: Heirs<2>,
        (since, base): (u64, Version),
    ) -> Result<(), &'static str> {
        let entry = self.ranges.get(&parent).ok_or("this range is not listed")?;
        let lineage = entry.bequeathed()?;
        let [(left, left_number), (right, right_number)] = heirs;
        let KeyRange { start, end } = entry.keys;
        if !at.is_boundary() || at <= start || end.is_some_and(|end| at >= end) {
            return Err("a range is split at a boundary within it");
        }
        if left == right || self.ranges.contains_key(&left) || self.ranges.contains_key(&right) {
            return Err("this range is listed already");
        }
        if left_number <= self.last_number || right_number <= left_number {
            return Err("local numbers of ranges only grow");
        }
        let parts = [KeyRange { start, end: Some(at) }, KeyRange { start: at, end }];
        self.ranges.remove(&parent);
        for ((id, number), keys) in heirs.into_iter().zip(parts) {
            let beginning = RangeBeginning { number, since, base, is_whole: true };
            self.ranges.insert(id, ManifestRange::heir(keys, beginning, &lineage));
        }
        self.last_number = right_number;
        Ok(())
    }

    pub(super) fn merge_ranges(
        &mut self,
        parents: [RangeId; 2],
        heirs: Heirs<1>,
        (since, base): (u64, Version),
    ) -> Result<(), &'static str> {
        let [(into, number)] = heirs;
        let [left, right] = parents.map(|parent| self.ranges.get(&parent));
        let (left, right) = left.zip(right).ok_or("this range is not listed")?;
        if left.keys.end != Some(right.keys.start) {
            return Err("ranges are merged where one ends and the other begins");
        }
        if self.ranges.contains_key(&into) {
            return Err("this range is listed already");
        }
        if number <= self.last_number {
            return Err("local numbers of ranges only grow");
        }
        let mut lineage = left.bequeathed()?;
        right.bequeathed()?.into_iter().for_each(|ancestor| add(&mut lineage, ancestor));
        let keys = KeyRange { start: left.keys.start, end: right.keys.end };
        let beginning = RangeBeginning { number, since, base, is_whole: true };
        let heir = ManifestRange::heir(keys, beginning, &lineage);
        parents.iter().for_each(|parent| drop(self.ranges.remove(parent)));
        self.ranges.insert(into, heir);
        self.last_number = number;
        Ok(())
    }

    /// Gives the records of all ranges and of these later numbers to one range, for a salvage, with records up to `newest`. The
    /// keys of the later numbers are unknown. Each may come from a split, merge or copy of a range before it, whose records it
    /// replaces: in one range the versions decide, which grow over all of these.
    pub(crate) fn adopt_numbers(&mut self, later: &[Ancestor], newest: Version) {
        let Some(last) = later.last() else { return };
        // A range that has begun and is not whole has no records, as at an opening.
        let listed = self.ranges.values().flat_map(|entry| entry.bequeathed().unwrap_or_default());
        let lineage: Vec<Ancestor> = listed.chain(later.iter().copied()).collect();
        let known = |ancestor: &Ancestor| {
            let sole = ancestor.sole.map_or(Version::ZERO, |sole| sole.base);
            ancestor.base.max(ancestor.cleared).max(sole)
        };
        let base = lineage.iter().map(known).fold(newest, Version::max);
        // A number of its own, without records: if it had one of theirs, that one's clear would apply to all of them.
        let number = RangeNumber(last.number.0.saturating_add(1));
        let beginning = RangeBeginning { number, since: 0, base, is_whole: true };
        self.ranges = [(RangeId(0), ManifestRange::heir(KeyRange::ALL, beginning, &lineage))].into();
        self.last_number = number;
    }

    pub(super) fn set_lineage(&mut self, range: RangeId, lineage: &[Ancestor]) -> Result<(), &'static str> {
        let entry = self.ranges.get_mut(&range).ok_or("this range is not listed")?;
        let number = entry.beginning.map_or(RangeNumber::default(), |beginning| beginning.number);
        let is_within = |ancestor: &Ancestor| {
            let KeyRange { start, end } = ancestor.keys;
            let is_piece = start.is_boundary() && end.is_none_or(|end| end.is_boundary() && end > start);
            let ends_within = entry.keys.end.is_none_or(|last| end.is_some_and(|end| end <= last));
            is_piece && start >= entry.keys.start && ends_within
        };
        if lineage.iter().any(|ancestor| ancestor.number >= number || !is_within(ancestor)) {
            return Err("a range's lineage has earlier numbers, and bounds within its own");
        }
        entry.lineage = lineage.to_vec();
        Ok(())
    }

    /// Ancestors of all ranges.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = &Ancestor> {
        let ancestors = self.ranges.values().flat_map(|entry| &entry.lineage);
        #[cfg(test)]
        let ancestors = ancestors.inspect(|_| ANCESTORS_VISITED.set(ANCESTORS_VISITED.get() + 1));
        ancestors
    }
}

#[cfg(test)]
thread_local! {
    /// Ancestors visited, again and again: measures work that grows with the number of ranges that were split.
    pub(crate) static ANCESTORS_VISITED: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}
