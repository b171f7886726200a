//! Lineage at run time: retired ranges, whose index and facts in segments serve the ranges that took over their keys.
//!
//! A split or merge *retires* a range: it stays in its place without an id, takes no writes, and keeps its index. Its heirs
//! look up their own index first, then those that they inherited. A lookup compares whole keys, so a shared index is
//! right as it is. Filing moves the entries to the heirs' indexes later.
//!
//! An index entry and the live record that it stands for are always counted for the same range. A record that dies by an
//! heir's commit is counted out of the retired range, and the heir notes the commit's version: its marks or syncs make it
//! durable.
use super::Engine;
use crate::error::EngineError;
#[cfg(test)]
use crate::format::manifest::ANCESTORS_VISITED;
use crate::format::manifest::{Ancestor, COMMIT_EDIT_BYTES_MAX, ManifestEdit, ManifestRange};
use crate::format::record::RecordKind;
use crate::format::segment::StreamKind;
use crate::format::{RangeNumber, checkpoint};
use crate::index::{Cell, Index, Pointer};
use crate::log::LogPosition;
use crate::manifest_file::CommitNumber;
use crate::overlay::ReplacedRecord;
use crate::range::RangeState;
use fawn_flash::Device;
use fawn_types::{KeyHash, KeyRange, RangeId, RingKey, Version};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

mod results;
#[cfg(test)]
mod tests;

/// Ancestors in all lineages from which on cleaning gives the records of the oldest ones present numbers.
const ANCESTORS_KEPT: usize = 512;
/// Ancestors in all lineages at most: one commit may list all of them. Openings compare each with the others of its range.
const ANCESTORS_MAX: usize = 4096;
const _: () = assert!(ANCESTORS_MAX * 2 * Ancestor::BYTES <= COMMIT_EDIT_BYTES_MAX);

impl<D: Device> Engine<D> {
    /// Splits a range in two at a boundary. Both are there at once, with the records of the parent, which goes. Blocks for
    /// one write of the manifest, and for a sync where the durability mode left records unsynced.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`] while records of the range are not committed, a transfer into it or the verification
    /// of an overwritten key is in flight, a clear is not listed yet, results wait for copies as in [`Engine::add_range`],
    /// or lineages have too many ancestors, which cleaning makes fewer: poll, then retry. [`EngineError::NotSplit`] if the
    /// boundary is not within the range.
    /// [`EngineError::RangeExists`], [`EngineError::UnknownRange`], [`EngineError::StoreFull`], or the store is poisoned.
    pub fn split_range(
        &mut self,
        parent: RangeId,
        boundary: RingKey,
        left: RangeId,
        right: RangeId,
    ) -> Result<(), EngineError> {
        let at = self.range_at(parent)?;
        let keys = self.ranges[at].keys;
        if !boundary.is_boundary() || boundary <= keys.start || keys.end.is_some_and(|end| boundary >= end) {
            return Err(EngineError::NotSplit { range: parent });
        }
        if let Some(range) = [left, right].into_iter().find(|&id| self.range_at(id).is_ok() || left == right) {
            return Err(EngineError::RangeExists { range });
        }
        self.prepare_heirs(&[at])?;
        let base = self.ranges[at].progress.appended;
        let since = self.appended_end().sequence(self.options.segment_bytes);
        let left_number = self.manifest.state().next_number();
        let right_number = RangeNumber(left_number.0 + 1);
        let split = ManifestEdit::SplitRange { parent, left, left_number, right, right_number, since, base, boundary };
        self.replace_ranges(&[at], split, &[left, right])
    }

    /// Merges two neighbouring ranges into one. It is there at once, with the records of both, which go. Blocks as
    /// [`Engine::split_range`].
    ///
    /// # Errors
    /// As [`Engine::split_range`]; [`EngineError::NotSplit`] if the one does not end where the other begins.
    pub fn merge_ranges(&mut self, left: RangeId, right: RangeId, into: RangeId) -> Result<(), EngineError> {
        let parents = [self.range_at(left)?, self.range_at(right)?];
        if self.ranges[parents[0]].keys.end != Some(self.ranges[parents[1]].keys.start) {
            return Err(EngineError::NotSplit { range: right });
        }
        if self.range_at(into).is_ok() {
            return Err(EngineError::RangeExists { range: into });
        }
        // An index that both inherited may have entries of a range between that was dropped or cleared.
        if parents.iter().any(|&at| !self.ranges[at].inherited.is_empty()) {
            return Err(EngineError::Overloaded);
        }
        self.prepare_heirs(&parents)?;
        let base = parents.map(|at| self.ranges[at].progress.appended).into_iter().max().unwrap_or_default();
        let since = self.appended_end().sequence(self.options.segment_bytes);
        let number = self.manifest.state().next_number();
        let merge = ManifestEdit::MergeRanges { left, right, into, number, since, base };
        self.replace_ranges(&parents, merge, &[into])
    }

    /// Refuses while anything of the ranges is in flight, and syncs them.
    fn prepare_heirs(&mut self, parents: &[usize]) -> Result<(), EngineError> {
        self.check_writable()?;
        for &at in parents {
            let range = &self.ranges[at];
            let is_pending = !range.pending.is_empty() || range.copy.is_some() || self.has_unlisted_clear(at);
            if self.has_unlisted_clear(at) {
                // In the mode `memory` nothing else would sync it before its segment is full.
                self.want_durable(at, self.ranges[at].cleared.committed);
            }
            if is_pending || self.overlay.has_unconfirmed(at) {
                return Err(EngineError::Overloaded);
            }
        }
        // The open frame may have records that were rolled back: then all that is left is synced. The rollback must be, too: the
        // manifest is about to say that all records of the parents are committed.
        let synced = self.streams[StreamKind::Foreground].flush.synced;
        let is_synced = |range: &RangeState| {
            range.progress.synced >= range.progress.appended
                && range.open_facts.records == 0
                && range.rolled_back_at <= synced
        };
        if !parents.iter().all(|&at| is_synced(&self.ranges[at])) {
            self.sync_all()?;
        }
        self.check_numbers()?;
        let listed = self.manifest.state().ancestors().count() + 2;
        self.reserve_manifest(2 * listed * size_of::<Ancestor>())
    }

    /// Retires ranges and puts their heirs in place, with one commit.
    fn replace_ranges(&mut self, parents: &[usize], edit: ManifestEdit, heirs: &[RangeId]) -> Result<(), EngineError> {
        let kept = self.kept_for_heirs(parents, heirs.len())?;
        let edits = self.edits_of_heirs(parents, edit, heirs.len())?;
        let listed = self.manifest.commit(&edits);
        self.retire_dropped_checkpoints(&edits, listed);
        self.look_for_old_numbers();
        let mut inherited: SmallVec<[usize; 2]> = parents.iter().copied().collect();
        for &at in parents {
            inherited.extend(self.ranges[at].inherited().iter().copied().filter(|f| !parents.contains(f)));
        }
        let chain_time = parents.iter().filter_map(|&at| self.ranges[at].chain_time).min();
        let copies = self.result_copies_of(parents);
        parents.iter().for_each(|&at| self.retire_range(at));
        for &id in heirs {
            let entry = self.manifest.state().ranges.get(&id);
            let Some((keys, beginning)) = entry.and_then(|entry| Some((entry.keys, entry.beginning?))) else {
                unreachable!("the manifest lists {id:?} now")
            };
            let mut heir = RangeState::new(Some(id), beginning.number, keys, self.options.index);
            heir.begin_again(beginning.number, beginning.base);
            (heir.inherited, heir.chain_time) = (inherited.clone(), chain_time);
            // Both parts keep all of them: a record that is only a result has no key to assign it to a part.
            heir.copied_results.clone_from(&kept);
            heir.result_copies.kept.clone_from(&copies);
            let at = self.place_range(heir);
            self.share_kept_segments(at);
        }
        self.bound_retained();
        self.wait_for_manifest(listed)
    }

    /// The edits of a split or merge, unless lineages would get too long.
    fn edits_of_heirs(
        &self,
        parents: &[usize],
        edit: ManifestEdit,
        heirs: usize,
    ) -> Result<Vec<ManifestEdit>, EngineError> {
        let is_merge = matches!(edit, ManifestEdit::MergeRanges { .. });
        let drops_checkpoints = is_merge || self.needs_checkpoints_dropped();
        let mut edits = if drops_checkpoints { self.retire_listed_checkpoints(parents) } else { Vec::new() };
        let has_checkpoints = self.manifest.state().checkpoints.len() > edits.len();
        edits.extend(self.forgotten_lineage(has_checkpoints));
        let ids = || parents.iter().filter_map(|&at| self.range_ids[at]);
        // At most: each heir has what its parents have, and the parents.
        let of_parents = ids().map(|id| self.lineage_after(id, &edits).len() + 1).sum::<usize>();
        let of_others = self.manifest.state().ranges.keys().filter(|&&id| ids().all(|parent| parent != id));
        let of_others: usize = of_others.map(|&id| self.lineage_after(id, &edits).len()).sum();
        if of_others + heirs * of_parents > ANCESTORS_MAX {
            return Err(EngineError::Overloaded);
        }
        edits.push(edit);
        Ok(edits)
    }

    /// The range takes no writes from now on. All of its records are committed and synced, and the manifest says so.
    fn retire_range(&mut self, at: usize) {
        self.give_up_checkpoint();
        self.restart_filing();
        self.records.clear_range(at);
        self.release_durable_mark(at);
        self.streams[StreamKind::Foreground].flush.forget_range(at);
        self.ranges[at].retire();
        self.range_ids[at] = None;
        self.release_held(at);
        self.examine_range(at);
    }

    /// Edits that leave numbers out of lineages that no segment, no run and, if some are listed, no checkpoint has any more.
    pub(crate) fn forgotten_lineage(&self, has_checkpoints: bool) -> Vec<ManifestEdit> {
        if self.manifest.state().ancestors().next().is_none() {
            return Vec::new();
        }
        // Lineages have numbers of retired ranges only, and the open frame has no records of those.
        let of_segments = self.segments.iter().flat_map(|segment| &segment.facts.numbers).map(|facts| facts.number);
        // A later checkpoint has what was filed to a range that is retired now under its number.
        let unfiled = self.ranges.iter().filter(|range| range.is_retired() && !range.segments.is_empty());
        let unfiled = unfiled.map(|range| range.number);
        let named: BTreeSet<RangeNumber> = of_segments.chain(self.sorted.numbers()).chain(unfiled).collect();
        // A checkpoint may have records of a segment under the number of a later range, to which they were filed, and so may a run that is
        // being written: but none of a lower number than the oldest one, since segments and runs stay until it is listed.
        let may_have_later = has_checkpoints || self.is_sorting();
        let shorter = |(&range, entry): (&RangeId, &ManifestRange)| {
            let numbers = entry.lineage.iter().map(|ancestor| ancestor.number);
            let oldest = numbers.filter(|number| named.contains(number)).min().filter(|_| may_have_later);
            let is_left = |ancestor: &&Ancestor| {
                named.contains(&ancestor.number) || oldest.is_some_and(|oldest| ancestor.number >= oldest)
            };
            let ancestors: Vec<Ancestor> = entry.lineage.iter().filter(is_left).copied().collect();
            (ancestors.len() < entry.lineage.len()).then_some(ManifestEdit::Lineage { range, ancestors })
        };
        self.manifest.state().ranges.iter().filter_map(shorter).collect()
    }

    /// The lineage of a range after these edits of [`Engine::forgotten_lineage`].
    fn lineage_after<'a>(&'a self, id: RangeId, edits: &'a [ManifestEdit]) -> &'a [Ancestor] {
        let shorter = edits.iter().find_map(|edit| match edit {
            ManifestEdit::Lineage { range, ancestors } if *range == id => Some(ancestors),
            _ => None,
        });
        let entry = || self.manifest.state().ranges.get(&id).map(|entry| &entry.lineage);
        shorter.or_else(entry).map_or(&[], |lineage| lineage)
    }

    /// Whether cleaning should make lineages shorter.
    pub(crate) fn has_long_lineages(&self) -> bool {
        self.lineage_len() > ANCESTORS_KEPT
    }

    /// The next poll looks for segments with old numbers if lineages are long.
    pub(crate) fn look_for_old_numbers(&mut self) {
        if self.has_long_lineages() {
            self.cleaner.note_change();
        }
    }

    /// The numbers in lineages under which no record should be left: the oldest ones, without which lineages are short enough. Once
    /// they would be so without the numbers that nothing has any more, leaves these out.
    pub(crate) fn old_numbers(&mut self) -> BTreeSet<RangeNumber> {
        if !self.has_long_lineages() {
            return BTreeSet::new();
        }
        // A checkpoint in progress has numbers as one that is listed.
        let has_checkpoints = !self.manifest.state().checkpoints.is_empty() || self.checkpoints.has_work();
        let edits = self.forgotten_lineage(has_checkpoints);
        let ids = self.manifest.state().ranges.keys();
        let left = ids.flat_map(|&id| self.lineage_after(id, &edits)).map(|ancestor| ancestor.number);
        let mut left: Vec<RangeNumber> = left.collect();
        left.sort_unstable();
        let old = left.len().saturating_sub(ANCESTORS_KEPT);
        // Without space in the manifest, a later search tries again.
        if old == 0 && self.reserve_manifest((left.len() + edits.len()) * Ancestor::BYTES).is_ok() {
            self.manifest.commit(&edits);
            self.start_manifest();
        }
        left.truncate(old);
        left.into_iter().collect()
    }

    /// Edits that drop all checkpoints before a merge of ranges with a lineage: an index in them may have entries of a
    /// range between that is gone. Long lineages become shorter without checkpoints.
    fn retire_listed_checkpoints(&self, parents: &[usize]) -> Vec<ManifestEdit> {
        let state = self.manifest.state();
        let has_lineage = |&at: &usize| {
            self.range_ids[at].and_then(|id| state.ranges.get(&id)).is_some_and(|entry| !entry.lineage.is_empty())
        };
        let is_needed = self.needs_checkpoints_dropped() || parents.iter().any(has_lineage);
        let checkpoints = is_needed.then_some(&state.checkpoints).into_iter().flatten();
        checkpoints.map(|entry| ManifestEdit::DropCheckpoint { uuid: entry.uuid }).collect()
    }

    /// Whether lineages are so long that splits may be put off soon: checkpoints keep numbers that nothing else has.
    fn needs_checkpoints_dropped(&self) -> bool {
        self.lineage_len() >= ANCESTORS_MAX / 2
    }

    /// The files of checkpoints that the edits drop go once these are durable. An opening has none then: the next is due.
    fn retire_dropped_checkpoints(&mut self, edits: &[ManifestEdit], listed: CommitNumber) {
        let dropped = edits.iter().filter_map(|edit| match edit {
            ManifestEdit::DropCheckpoint { uuid } => Some(checkpoint::file_name(*uuid)),
            _ => None,
        });
        let names: Vec<String> = dropped.collect();
        if !names.is_empty() {
            let log_bytes = self.log_bytes();
            self.checkpoints.retire_all_with(names, listed, log_bytes);
        }
    }

    /// Gives each range of a lineage a place, at an opening: a checkpoint may have its index.
    pub(crate) fn place_ancestors(&mut self) {
        let ancestors: Vec<Ancestor> = self.manifest.state().ancestors().copied().collect();
        let mut places = self.places_by_number();
        for Ancestor { number, keys, .. } in ancestors {
            match places.get(&number) {
                Some(&at) => {
                    let range = &mut self.ranges[at];
                    let ends = [range.keys.end, keys.end];
                    range.keys.start = range.keys.start.min(keys.start);
                    range.keys.end =
                        ends.iter().all(Option::is_some).then(|| ends.into_iter().flatten().max()).flatten();
                }
                None => {
                    // No place is vacant at an opening.
                    places.insert(number, self.ranges.len());
                    self.ranges.push(RangeState::retired(number, keys, self.options.index));
                    self.range_ids.push(None);
                }
            }
        }
    }

    fn places_by_number(&self) -> BTreeMap<RangeNumber, usize> {
        self.ranges.iter().enumerate().map(|(at, range)| (range.number, at)).collect()
    }

    /// Sets from which places each range inherits, at an opening.
    pub(crate) fn inherit(&mut self) {
        let places = self.places_by_number();
        for at in 0..self.ranges.len() {
            let entry = self.range_ids[at].and_then(|id| self.manifest.state().ranges.get(&id));
            let numbers = entry.into_iter().flat_map(|entry| entry.lineage.iter().map(|ancestor| ancestor.number));
            let mut inherited: SmallVec<[usize; 2]> =
                numbers.filter_map(|number| places.get(&number).copied()).collect();
            inherited.sort_unstable();
            inherited.dedup();
            self.ranges[at].inherited = inherited;
        }
    }

    /// By place of a retired range: the ranges that took its keys over, and which of these, in the keys' order. An opening asks for
    /// each record.
    pub(crate) fn heirs_by_place(&self) -> Vec<SmallVec<[(KeyRange, usize); 1]>> {
        let mut heirs = vec![SmallVec::new(); self.ranges.len()];
        let places = self.places_by_number();
        for (heir, id) in self.range_ids.iter().enumerate() {
            let entry = id.and_then(|id| self.manifest.state().ranges.get(&id));
            for &Ancestor { number, keys, .. } in entry.into_iter().flat_map(|entry| &entry.lineage) {
                if let Some(&at) = places.get(&number) {
                    heirs[at].push((keys, heir));
                }
            }
        }
        heirs.iter_mut().for_each(|heirs: &mut SmallVec<[(KeyRange, usize); 1]>| {
            heirs.sort_unstable_by_key(|(keys, _)| keys.start);
        });
        heirs
    }

    /// The owners of records by number, for a step that asks for many: [`Engine::owner_of`] searches all lineages each time.
    pub(crate) fn record_owners(&self) -> RecordOwners {
        let mut owners: BTreeMap<RangeNumber, OwnedParts> = BTreeMap::new();
        for (at, range) in self.ranges.iter().enumerate() {
            let Some(id) = range.id else { continue };
            let listed = range.cleared.listed;
            owners.entry(range.number).or_default().push((KeyRange::ALL, (at, listed)));
            let entry = self.manifest.state().ranges.get(&id);
            for &Ancestor { number, keys, cleared, .. } in entry.into_iter().flat_map(|entry| &entry.lineage) {
                #[cfg(test)]
                ANCESTORS_VISITED.set(ANCESTORS_VISITED.get() + 1);
                owners.entry(number).or_default().push((keys, (at, cleared.max(listed))));
            }
        }
        owners.values_mut().for_each(|parts| parts.sort_unstable_by_key(|(keys, _)| keys.start));
        RecordOwners(owners)
    }

    /// An opening read a rollback of a retired range: its records before it count for none of the heirs.
    pub(crate) fn invalidate_for_heirs(&mut self, at: usize, after: Version, (slot, end): (u32, LogPosition)) {
        let (number, heirs): (RangeNumber, SmallVec<[usize; 2]>) = (self.ranges[at].number, self.heirs(at).collect());
        let mut slots: BTreeSet<u32> = BTreeSet::new();
        for &heir in &heirs {
            slots.extend(self.ranges[heir].segments.values());
            self.enter_segment(heir, slot, Version::ZERO, RecordKind::Rollback);
        }
        // Of the records so far, only those that were rolled back are above an heir's base. Its own records follow in the log.
        let state = self.manifest.state();
        let base_of = |&heir: &usize| Some((heir, state.ranges.get(&self.range_ids[heir]?)?.beginning?.base));
        let bases: SmallVec<[(usize, Version); 2]> = heirs.iter().filter_map(base_of).collect();
        for slot in slots {
            let segment = self.segments.expect_mut(slot);
            if segment.stream == StreamKind::Foreground {
                segment.invalidate(number, after, end, self.options.segment_bytes);
                bases.iter().for_each(|&(heir, base)| segment.lower_newest(heir, base));
            }
        }
    }

    /// The first entry of an inherited index that may be of a key with this hash.
    #[inline]
    pub(crate) fn first_inherited(&self, at: usize, hash: KeyHash) -> Option<Pointer> {
        if self.ranges[at].inherited.is_empty() { None } else { self.candidates(at, hash).next() }
    }

    /// Keys of the range in inherited indexes, estimated by the width of its part.
    pub(crate) fn inherited_keys(&self, at: usize) -> u64 {
        let of_part = |&from: &usize| {
            let part = |heir: usize| u128::from(width(&self.ranges[heir].keys, &self.ranges[from].keys));
            let all: u128 = self.heirs(from).map(part).sum();
            let keys = u128::from(self.ranges[from].index.len());
            (keys * part(at) / all.max(1)) as u64
        };
        self.ranges[at].inherited().iter().map(of_part).sum()
    }

    /// Whether [`Engine::len`] is no estimate: nothing was ever sorted, and nothing of the range has still to be filed after a
    /// split or merge.
    pub fn is_len_exact(&self, range: RangeId) -> bool {
        let Ok(at) = self.range_at(range) else { return true };
        // Deletes have index entries, and runs may have older records of keys in the log.
        !self.sorted.is_active() && self.ranges[at].inherited().iter().all(|&from| self.ranges[from].index.is_empty())
    }

    /// Length of all lineages, in ancestors: bounded by the numbers that segments have.
    pub fn lineage_len(&self) -> usize {
        self.manifest.state().ancestors().count()
    }

    /// Whether any range is retired.
    #[inline]
    pub(crate) fn has_retired(&self) -> bool {
        self.ranges.iter().any(RangeState::is_retired)
    }

    /// Pointers of the entries whose fragment matches a key of the range: its own, then inherited ones.
    pub(crate) fn candidates(&self, at: usize, hash: KeyHash) -> impl Iterator<Item = Pointer> + '_ {
        let range = &self.ranges[at];
        let indexes = range.inherited().iter().map(|&from| &self.ranges[from].index).filter(|index| !index.is_empty());
        let inherited = indexes.flat_map(move |index| index.candidates(hash));
        range.index.candidates(hash).chain(inherited)
    }

    /// Whether [`Engine::candidates`] are any.
    #[inline]
    pub(crate) fn has_candidates(&self, at: usize, hash: KeyHash) -> bool {
        let range = &self.ranges[at];
        range.index.has_candidates(hash)
            || range.inherited().iter().map(|&from| &self.ranges[from].index).any(|index| {
                // Most often empty, which costs a cache miss less to see.
                !index.is_empty() && index.has_candidates(hash)
            })
    }

    /// The place of the range whose index has this entry of the range.
    #[inline]
    pub(crate) fn indexed_at(&self, at: usize, hash: KeyHash, pointer: Pointer) -> usize {
        if self.ranges[at].inherited().is_empty() { at } else { self.find_indexed(at, hash, pointer) }
    }

    #[cold]
    fn find_indexed(&self, at: usize, hash: KeyHash, pointer: Pointer) -> usize {
        let has = |&place: &usize| self.ranges[place].index.candidates(hash).any(|found| found == pointer);
        let inherited = self.ranges[at].inherited().iter().copied().find(has);
        inherited.filter(|_| !has(&at)).unwrap_or(at)
    }

    /// Pointers of the range's records in the cell at `cursor`, and where the next cell begins. Cells of the range's own index
    /// and of inherited ones nest, and the smallest at the cursor counts: a new heir's index has few and large ones, which
    /// would gather thousands of its parent's records. Some pointers may be of records beside the cell, since entries of a
    /// larger one may lack the bits that tell.
    pub(crate) fn cells(&self, at: usize, cursor: u64) -> (Vec<Pointer>, Option<u64>) {
        let parts = [at].into_iter().chain(self.ranges[at].inherited().iter().copied());
        let indexes = parts.map(|place| &self.ranges[place].index);
        // An empty index has no records to gather, and its cells may be many or large.
        let indexes: SmallVec<[&Index; 3]> = indexes.filter(|index| !index.is_empty()).collect();
        let smallest = indexes.iter().map(|index| index.cell(cursor)).max_by_key(Cell::depth);
        let cell = smallest.unwrap_or_else(|| self.ranges[at].index.cell(cursor));
        let pointers = indexes.iter().flat_map(|index| index.cell(cursor).pointers_within(cursor, cell.depth()));
        (pointers.collect(), cell.next)
    }

    /// Whether a record that an index of the range points to is the range's: an inherited index has others too.
    pub(crate) fn has_key(&self, at: usize, key: &[u8]) -> bool {
        let range = &self.ranges[at];
        range.inherited().is_empty() || range.keys.contains(&RingKey::of(&self.secret, key))
    }

    /// The place of the range that a record under this number belongs to, and the version up to which its records are
    /// invalidated by the manifest.
    pub(crate) fn owner_of(&self, number: RangeNumber, key: &[u8]) -> Option<(usize, Version)> {
        match self.ranges.iter().position(|range| range.number == number && range.id.is_some()) {
            Some(at) => Some((at, self.ranges[at].cleared.listed)),
            None => self.heir_of(number, key),
        }
    }

    /// The serving range whose lineage has this number for this key.
    #[cold]
    pub(crate) fn heir_of(&self, number: RangeNumber, key: &[u8]) -> Option<(usize, Version)> {
        let state = self.manifest.state();
        if state.ancestors().all(|ancestor| ancestor.number != number) {
            return None;
        }
        let ring_key = RingKey::of(&self.secret, key);
        self.ranges.iter().enumerate().find_map(|(at, range)| {
            let lineage = &state.ranges.get(&range.id?)?.lineage;
            let is_it = |ancestor: &&Ancestor| ancestor.number == number && ancestor.keys.contains(&ring_key);
            let ancestor = lineage.iter().find(is_it)?;
            Some((at, ancestor.cleared.max(range.cleared.listed)))
        })
    }

    /// Places of the serving ranges that have records of this one.
    pub(crate) fn heirs(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let has = move |(_, range): &(usize, &RangeState)| {
            #[cfg(test)]
            PLACES_VISITED.set(PLACES_VISITED.get() + range.inherited.len());
            range.id.is_some() && range.inherited.contains(&at)
        };
        self.ranges.iter().enumerate().filter(has).map(|(heir, _)| heir)
    }

    /// Places of all ranges whose records in segments may be of the same keys.
    pub(crate) fn family(&self, at: usize) -> SmallVec<[usize; 4]> {
        let mut family: SmallVec<[usize; 4]> = SmallVec::new();
        family.push(at);
        let heirs = self.ranges[at].id.is_none().then(|| self.heirs(at)).into_iter().flatten();
        let related = heirs.flat_map(|heir| [heir].into_iter().chain(self.ranges[heir].inherited.iter().copied()));
        for place in related.chain(self.ranges[at].inherited.iter().copied()) {
            #[cfg(test)]
            PLACES_VISITED.set(PLACES_VISITED.get() + 1);
            family.push(place);
        }
        family.sort_unstable();
        family.dedup();
        family
    }

    /// Moves a record, and what it counts, from the retired range whose index has it to the range that it belongs to. A
    /// record that belongs to none dies, and so does one that was cleared since.
    pub(crate) fn file_record(&mut self, owner: Option<usize>, hash: KeyHash, record: ReplacedRecord) {
        let has = |range: &RangeState| {
            range.is_retired() && range.index.candidates(hash).any(|found| found == record.pointer)
        };
        let Some(from) = self.ranges.iter().position(has) else { return };
        let heir = owner.filter(|&at| self.ranges[at].inherited().contains(&from));
        let Some(at) = heir else {
            let removed = self.ranges[from].index.remove(hash, record.pointer);
            assert!(removed, "the entry was just found");
            self.note_unindexed(from, hash, record);
            let by = owner.map_or(Version::ZERO, |at| self.ranges[at].cleared.committed);
            return self.release_for(from, owner.unwrap_or(from), record, by);
        };
        if let Err(error) = self.ranges[at].index.insert(hash, record.pointer) {
            return self.index_refused(&error.to_string());
        }
        let removed = self.ranges[from].index.remove(hash, record.pointer);
        assert!(removed, "the entry was just found");
        let (slot, _) = self.segments.slot_and_offset(record.pointer);
        self.segments.expect_mut(slot).hand_over_live(from, at, record.len_bytes);
        self.note_share(at, slot);
        self.note_dead_puts(from, slot);
        self.stats.filed_records += 1;
    }

    /// As [`Engine::release_old`], of a record that is counted for `part` and died by a commit of the range `at`.
    pub(crate) fn release_for(&mut self, part: usize, at: usize, old: ReplacedRecord, by: Version) {
        if part == at {
            return self.release_old(at, old, by);
        }
        let (slot, _) = self.segments.slot_and_offset(old.pointer);
        self.segments.expect_mut(slot).note_died_by(at, by);
        self.note_share(at, slot);
        self.release_old(part, old, Version::ZERO);
    }

    /// The range has a part of this segment.
    pub(crate) fn note_share(&mut self, at: usize, slot: u32) {
        let sequence = self.segments.expect(slot).sequence;
        self.ranges[at].segments.insert(sequence, slot);
    }

    /// Forgets retired ranges that have nothing left, or no heir.
    pub(crate) fn forget_retired(&mut self) {
        // A checkpoint in progress names places.
        if self.checkpoints.is_copying() || !self.has_retired() {
            return;
        }
        // Every poll comes here: one pass over all lineages, not one for each retired range.
        let mut has_heir = vec![false; self.ranges.len()];
        for from in self.ranges.iter().filter(|range| range.id.is_some()).flat_map(|range| &range.inherited) {
            #[cfg(test)]
            PLACES_VISITED.set(PLACES_VISITED.get() + 1);
            has_heir[*from] = true;
        }
        for (at, has_heir) in has_heir.into_iter().enumerate() {
            if !self.ranges[at].is_retired() || (has_heir && !self.ranges[at].segments.is_empty()) {
                continue;
            }
            self.restart_filing();
            self.ranges.iter_mut().for_each(|range| range.inherited.retain(|from| *from != at));
            self.vacate_place(at);
        }
    }
}

/// Parts of the ring in their order, each with the place of the range whose records of a number are there, and the version up to
/// which these are invalidated by the manifest.
type OwnedParts = SmallVec<[(KeyRange, (usize, Version)); 1]>;

/// Owners of records: see [`Engine::record_owners`].
#[derive(Debug)]
pub(crate) struct RecordOwners(BTreeMap<RangeNumber, OwnedParts>);

impl RecordOwners {
    /// As [`Engine::owner_of`].
    pub(crate) fn of(&self, number: RangeNumber, key: &RingKey) -> Option<(usize, Version)> {
        heir_with_key(self.0.get(&number)?, key)
    }
}

/// The heir that took a key over, of those of one range ([`Engine::heirs_by_place`]). Their parts do not overlap.
pub(crate) fn heir_with_key<T: Copy>(heirs: &[(KeyRange, T)], key: &RingKey) -> Option<T> {
    let begins = |(keys, _): &(KeyRange, T)| {
        #[cfg(test)]
        HEIRS_COMPARED.set(HEIRS_COMPARED.get() + 1);
        keys.start <= *key
    };
    let last = heirs[..heirs.partition_point(begins)].last();
    last.filter(|(keys, _)| keys.contains(key)).map(|&(_, heir)| heir)
}

#[cfg(test)]
thread_local! {
    /// Heirs that were compared with keys.
    pub(crate) static HEIRS_COMPARED: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
    /// Inherited places that were visited to find the heirs or the family of ranges.
    static PLACES_VISITED: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// Width of the part that two ranges share, in units of the ring keys' highest 64 bits.
fn width(range: &KeyRange, other: &KeyRange) -> u64 {
    let high = |key: &RingKey| key.0.iter().take(8).fold(0, |high: u64, &byte| (high << 8) | u64::from(byte));
    let end = |range: &KeyRange| range.end.as_ref().map_or(u64::MAX, high);
    end(range).min(end(other)).saturating_sub(high(&range.start.max(other.start)))
}
