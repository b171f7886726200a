//! Stretches of runs: the newest records of a few keys that follow each other in all runs, for scans and transfers.
use super::super::fetch::{Expected, Hit, Probe, ReadSpan, Rejected};
use super::super::scan::ScanPlace;
use super::super::scan_position::{RingCells, SLICE_BITS, in_tag, next_tag};
use super::super::{Engine, EngineError};
use super::engine_error;
use crate::format::RangeNumber;
use crate::format::record::RecordKind;
use crate::format::run::page::RunPage;
use crate::format::run::{RunRecord, Space, page_offset};
use crate::index::Pointer;
use crate::overlay::OverlayBase;
use fawn_flash::Device;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{KeyHash, KeyRange, RingKey, Version};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Pages of a ring cell in one run from which a stretch is a part of the cell.
const CELL_PAGES_MAX: usize = 32;
/// Pages of such a part.
const SLICE_PAGES: usize = 16;

/// The state of the runs, for a range: records that were taken from runs count as long as it is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) struct RunsState {
    /// Changes of the list of runs.
    changes: u64,
    number: RangeNumber,
    cleared: Version,
}

/// A stretch of ring order.
#[derive(Debug, Default)]
pub(in crate::engine) struct RunStretch {
    /// The state when it was begun; `None`: it was not begun.
    state: Option<RunsState>,
    /// Pages by run and number.
    pages: BTreeMap<(u64, u32), Vec<u8>>,
    /// Its keys that were not taken yet; `None` until all its pages are there.
    keys: Option<Vec<StretchKey>>,
    /// Position of the next stretch.
    next: Option<u64>,
    /// Corrupt and unreadable pages, which are passed.
    lost: Vec<(u64, u32)>,
}

/// The newest record of a key in the runs.
#[derive(Debug)]
pub(in crate::engine) struct StretchKey {
    pub(in crate::engine) key: Vec<u8>,
    /// `None`: a tombstone.
    pub(in crate::engine) value: Option<Vec<u8>>,
    pub(in crate::engine) version: Version,
    pub(in crate::engine) flags: u32,
    pub(in crate::engine) expires_at_ms: u64,
    /// Records of the log that are not the key's.
    pub(in crate::engine) rejected: Rejected,
    /// The record of the log whose read is awaited.
    pub(in crate::engine) awaited: Option<Pointer>,
}

impl StretchKey {
    fn of(record: &RunRecord<'_>) -> Self {
        let value = (record.kind == RecordKind::Put).then(|| record.value.to_vec());
        let RunRecord { version, flags, expires_at_ms, .. } = *record;
        let (key, rejected) = (record.key.to_vec(), Rejected::new());
        Self { key, value, version, flags, expires_at_ms, rejected, awaited: None }
    }
}

/// The newest committed record of a key in the log.
#[derive(Debug)]
pub(in crate::engine) enum InLog {
    None,
    /// A put or a tombstone.
    Record(Hit),
    /// A device read is needed first.
    Read(ReadSpan),
}

impl RunStretch {
    /// Whether it was begun in another state: a record of the log may be in a run by now that is newer than those of the
    /// stretch, or the range was cleared.
    pub(in crate::engine) fn is_outdated(&self, state: RunsState) -> bool {
        self.state.is_some_and(|before| before != state)
    }

    pub(in crate::engine) const fn is_begun(&self) -> bool {
        self.state.is_some()
    }

    /// Its next key.
    pub(in crate::engine) fn pop(&mut self) -> Option<StretchKey> {
        self.keys.as_mut()?.pop()
    }

    /// Gives a key back that waits for a read, or whose read was wrong.
    pub(in crate::engine) fn push(&mut self, key: StretchKey) {
        self.keys.get_or_insert_default().push(key);
    }

    /// Passes a page of a run from now on, with all keys whose newest record it may have. The stretch begins again.
    pub(in crate::engine) fn lose_page(&mut self, id: u64, page: u32) {
        let mut lost = core::mem::take(&mut self.lost);
        lost.push((id, page));
        *self = Self { lost, ..Self::default() };
    }

    /// Position of the next stretch; `None` behind the last one.
    pub(in crate::engine) const fn next(&self) -> Option<u64> {
        self.next
    }
}

/// The bounds of a stretch.
#[derive(Clone, Copy, Debug)]
struct StretchBounds {
    keys: KeyRange,
    cells: RingCells,
    /// Its first position.
    from: u64,
}

impl StretchBounds {
    /// The part of the range from a cell on.
    fn cells_from(&self, first: u64) -> Option<KeyRange> {
        let start = self.cells.cell_start(first)?.max(self.keys.start);
        self.keys.end.is_none_or(|end| start < end).then_some(KeyRange { start, ..self.keys })
    }

    /// The part of the range that is its first cell.
    fn first_cell(&self) -> Option<KeyRange> {
        let cell = self.from >> SLICE_BITS;
        let part = self.cells_from(cell)?;
        Some(KeyRange { end: [self.cells.cell_start(cell + 1), part.end].into_iter().flatten().min(), ..part })
    }
}

impl<D: Device> Engine<D> {
    /// The state of the runs for the range at this place.
    pub(in crate::engine) fn runs_state(&self, at: usize) -> RunsState {
        let range = &self.ranges[at];
        RunsState { changes: self.sorted.changes, number: range.number, cleared: range.cleared.committed }
    }

    /// Loads the stretch that begins at a position, unless it is loaded. `Some`: a page must be read first. After an error the
    /// stretch is not begun.
    pub(in crate::engine) fn load_stretch(
        &mut self,
        at: usize,
        from: u64,
        stretch: &mut RunStretch,
    ) -> Result<Option<ReadSpan>, EngineError> {
        let loaded = self.load_pages(at, from, stretch);
        if loaded.is_err() {
            self.forget_pages(stretch);
        }
        loaded
    }

    /// Drops the pages of a stretch, of which one is corrupt, from all memory: only one read of it may have been wrong.
    fn forget_pages(&mut self, stretch: &mut RunStretch) {
        self.set_resume(None);
        let lost = core::mem::take(&mut stretch.lost);
        let forgotten = core::mem::replace(stretch, RunStretch { lost, ..RunStretch::default() });
        for (id, page) in forgotten.pages.into_keys() {
            if let Some(file) = self.sorted.find(id).map(|listed| listed.file) {
                let number = (page_offset(page) / PAGE_BYTES as u64) as u32;
                self.cache.invalidate_pages(file, number..number + 1);
            }
        }
    }

    fn load_pages(&mut self, at: usize, from: u64, stretch: &mut RunStretch) -> Result<Option<ReadSpan>, EngineError> {
        stretch.state.get_or_insert(self.runs_state(at));
        if stretch.keys.is_some() {
            return Ok(None);
        }
        let keys = self.ranges[at].keys;
        let bounds = StretchBounds { keys, cells: RingCells::of(&keys), from };
        let (Some(cell), Some(rest)) = (bounds.first_cell(), bounds.cells_from(from >> SLICE_BITS)) else {
            (stretch.keys, stretch.next) = (Some(Vec::new()), None);
            return Ok(None);
        };
        let pages =
            self.sorted.runs.iter().map(|listed| listed.run.extent(Space::KEYS, &cell.start, cell.end.as_ref()).len());
        let pages = pages.max().unwrap_or(0);
        let slice = from & ((1 << SLICE_BITS) - 1);
        let loaded = if slice == 0 && pages <= CELL_PAGES_MAX {
            self.load_cells(&bounds, &rest, stretch)?
        } else {
            // Positions are not in ring order within a cell, so the part of each tag is found apart.
            let slices = (pages.div_ceil(SLICE_PAGES).next_power_of_two() as u64).min(1 << SLICE_BITS);
            let width = (1 << SLICE_BITS) / slices;
            self.load_slice(&cell, (slice, (slice / width + 1) * width), stretch)?
        };
        match loaded {
            Loaded::Read(span) => return Ok(Some(span)),
            Loaded::UpTo(slice) => stretch.next = Some(from - (from & ((1 << SLICE_BITS) - 1)) + slice),
            Loaded::Cells(next) => stretch.next = next.map(|cell| cell << SLICE_BITS),
        }
        stretch.next = stretch.next.filter(|next| bounds.cells_from(next >> SLICE_BITS).is_some());
        stretch.keys = Some(self.newest_of_pages(at, &bounds, stretch)?);
        Ok(None)
    }

    /// Loads pages from the first cell on, up to where the first run's page ends.
    fn load_cells(
        &mut self,
        bounds: &StretchBounds,
        rest: &KeyRange,
        stretch: &mut RunStretch,
    ) -> Result<Loaded, EngineError> {
        let cell_of = |key: &RingKey| bounds.cells.position(key) >> SLICE_BITS;
        let first = bounds.from >> SLICE_BITS;
        let mut end: Option<u64> = None;
        for place in 0..self.sorted.runs.len() {
            let listed = &self.sorted.runs[place];
            // The oldest runs have no keys in common: only the one at the position is read.
            let lowest = listed.bounds().lowest;
            if rest.end.is_some_and(|end| lowest >= end) {
                continue;
            }
            if lowest > rest.start && cell_of(&lowest) > first {
                end = Some(end.map_or(cell_of(&lowest), |end| end.min(cell_of(&lowest))));
                continue;
            }
            let mut pages = self.pages_of(place, rest);
            // A stretch ends within the first page that has a key of a later cell.
            let run_end = loop {
                let Some(page) = pages.next() else { break None };
                if let Some(span) = self.load_stretch_page(stretch, place, page) {
                    return Ok(Loaded::Read(span));
                }
                let last = self.with_stretch_page(stretch, place, page, |content| {
                    content.ends().map(|(_, last)| RingKey::of(&self.secret, last.key))
                })?;
                let last = last.flatten().filter(|last| *last >= rest.start).map(|last| cell_of(&last));
                if let Some(last) = last.filter(|last| *last > first) {
                    break Some(last).filter(|_| pages.next().is_some());
                }
            };
            end = [end, run_end].into_iter().flatten().min();
        }
        Ok(Loaded::Cells(end))
    }

    /// Loads the pages of a cell that have the keys of each tag from one hash to another.
    fn load_slice(
        &mut self,
        cell: &KeyRange,
        (from, to): (u64, u64),
        stretch: &mut RunStretch,
    ) -> Result<Loaded, EngineError> {
        for place in 0..self.sorted.runs.len() {
            let mut rest = Some(*cell);
            while let Some(part) = rest.take() {
                let mut found = None;
                for page in self.pages_of(place, &part) {
                    if let Some(span) = self.load_stretch_page(stretch, place, page) {
                        return Ok(Loaded::Read(span));
                    }
                    let in_page = self.with_stretch_page(stretch, place, page, |content| {
                        let mut keys = content.records().map(|record| RingKey::of(&self.secret, record.key));
                        keys.find(|key| *key >= part.start)
                    })?;
                    found = in_page.flatten();
                    if found.is_some() {
                        break;
                    }
                }
                let Some(tag) = found.filter(|key| cell.contains(key)) else { break };
                let Some(start) = in_tag(&tag, from) else { break };
                for page in self.pages_of(place, &KeyRange { start, end: in_tag(&tag, to) }) {
                    if let Some(span) = self.load_stretch_page(stretch, place, page) {
                        return Ok(Loaded::Read(span));
                    }
                }
                rest = next_tag(&tag).filter(|next| cell.contains(next)).map(|start| KeyRange { start, ..*cell });
            }
        }
        Ok(Loaded::UpTo(to))
    }

    /// The newest record of each key of the stretch, the last key first.
    fn newest_of_pages(
        &self,
        at: usize,
        bounds: &StretchBounds,
        stretch: &RunStretch,
    ) -> Result<Vec<StretchKey>, EngineError> {
        let place_of = |id: u64| self.sorted.runs.iter().position(|listed| listed.id == id);
        let lost = stretch.lost.iter().filter_map(|&(id, page)| Some((place_of(id)?, page)));
        let lost: SmallVec<[(usize, u32); 1]> = lost.collect();
        let is_hidden = |place: usize, key: &RingKey| {
            let mut newer = lost.iter().filter(|(lost, _)| *lost < place);
            newer.any(|&(lost, page)| self.sorted.runs[lost].run.may_contain_at(Space::KEYS, key, page))
        };
        // Newest runs first: of two records of a key the first one counts.
        let mut newest: BTreeMap<RingKey, StretchKey> = BTreeMap::new();
        for (place, listed) in self.sorted.runs.iter().enumerate() {
            let id = listed.id;
            for (&(_, page), _) in stretch.pages.range((id, 0)..=(id, u32::MAX)) {
                self.with_stretch_page(stretch, place, page, |content| {
                    for record in content.records().filter(|record| self.counts_for(at, record)) {
                        let ring_key = RingKey::of(&self.secret, record.key);
                        let position = bounds.cells.position(&ring_key);
                        let is_inside = position >= bounds.from && stretch.next.is_none_or(|next| position < next);
                        if is_inside && bounds.keys.contains(&ring_key) {
                            newest.entry(ring_key).or_insert_with(|| {
                                let mut key = StretchKey::of(&record);
                                // The lost page may have a delete or a newer put of it: only a record of the log can count.
                                key.value.take_if(|_| is_hidden(place, &ring_key));
                                key
                            });
                        }
                    }
                })?;
            }
        }
        Ok(newest.into_values().rev().collect())
    }

    /// The pages of a run that may have keys of a part of the ring. Runs are named by their places in the list, which does not change
    /// within a pass: a search for each of them would make a pass take the square of their number.
    fn pages_of(&self, place: usize, part: &KeyRange) -> core::ops::Range<u32> {
        self.sorted.runs[place].run.extent(Space::KEYS, &part.start, part.end.as_ref())
    }

    /// Takes the page from the cache, or returns the read that is needed.
    fn load_stretch_page(&mut self, stretch: &mut RunStretch, place: usize, page: u32) -> Option<ReadSpan> {
        let super::ListedRun { id, file, .. } = self.sorted.runs[place];
        if stretch.pages.contains_key(&(id, page)) || stretch.lost.contains(&(id, page)) {
            return None;
        }
        match self.cache.get(file, (page_offset(page) / PAGE_BYTES as u64) as u32) {
            Some(content) => {
                stretch.pages.insert((id, page), content.to_vec());
                self.forget_failed_read(ScanPlace::Run { id, page });
                None
            }
            None => Some(ReadSpan::of_run(id, page_offset(page), false)),
        }
    }

    /// Takes a page that a read brought.
    pub(in crate::engine) fn take_stretch_page(&mut self, stretch: &mut RunStretch) {
        if let Some(resume) = &self.resume
            && let Some(id) = resume.span.run()
        {
            let page = (u64::from(resume.span.from) / PAGE_BYTES as u64) as u32 - 1;
            stretch.pages.insert((id, page), resume.buf[..PAGE_BYTES].to_vec());
            self.forget_failed_read(ScanPlace::Run { id, page });
        }
    }

    /// Looks at a page; `None`: it is lost.
    fn with_stretch_page<T>(
        &self,
        stretch: &RunStretch,
        place: usize,
        page: u32,
        look: impl FnOnce(&RunPage<'_>) -> T,
    ) -> Result<Option<T>, EngineError> {
        let listed = &self.sorted.runs[place];
        if stretch.lost.contains(&(listed.id, page)) {
            return Ok(None);
        }
        let Some(bytes) = stretch.pages.get(&(listed.id, page)) else {
            unreachable!("a stretch begins again when the runs change")
        };
        let content = RunPage::decode(bytes, listed.run.header().uuid, page);
        content.map(|content| Some(look(&content))).map_err(|error| engine_error(listed.run.corrupt(page, error)))
    }

    /// The newest committed record of a key of a run in the log. The overlay's trace of a sorted record is none.
    pub(in crate::engine) fn newest_in_log(&mut self, at: usize, found: &mut StretchKey) -> Result<InLog, EngineError> {
        let hash = KeyHash::of(&self.secret, &found.key);
        let entry = self.overlay.find(at, hash.0, || self.name_of(hash.0, &found.key).ident);
        let candidates: SmallVec<[Pointer; 4]> = match entry.map(|entry| (entry.committed, entry.base)) {
            Some((Some(committed), _)) if committed.is_put => SmallVec::from_slice(&[committed.pointer]),
            // All that the index has of the key is older.
            Some((Some(_), _)) => SmallVec::new(),
            // The entry of a sorted record goes before the overlay forgets the record. A scan or transfer that passed the log
            // without it must find the key here.
            Some((None, base)) => match self.present_base(at, hash, base) {
                OverlayBase::At(old) => SmallVec::from_slice(&[old.pointer]),
                OverlayBase::Absent | OverlayBase::Unknown => self.candidates(at, hash).collect(),
            },
            None => self.candidates(at, hash).collect(),
        };
        for pointer in candidates {
            let probed = self.probe_once(at, pointer, Expected::Key(&found.key), &mut found.rejected);
            if probed.is_err() {
                // Only this one read may have been wrong: the corruption is not remembered.
                found.rejected.pop();
            }
            let probed = probed?;
            if let Probe::Missing(span) = probed {
                found.awaited = Some(pointer);
                return Ok(InLog::Read(span));
            }
            self.forget_failed_read(self.place_in_log(pointer));
            if let Probe::Match(hit) = probed {
                return Ok(InLog::Record(hit));
            }
        }
        Ok(InLog::None)
    }
}

/// Result of loading the pages of a stretch.
enum Loaded {
    /// A page is missing.
    Read(ReadSpan),
    /// The pages of whole cells are there; the cell of the next stretch, if there is one.
    Cells(Option<u64>),
    /// The pages of a part of one cell are there, which ends before this slice.
    UpTo(u64),
}
