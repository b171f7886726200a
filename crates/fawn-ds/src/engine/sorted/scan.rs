//! Scans of runs: stretches of ring order, each with all records of all runs that lie in it.
//!
//! A scan passes the log first. A record of a run counts if the log has no record of the key, or only one that was
//! written since the scan began: the log's part may have passed its place before. So a key that is there throughout is met
//! at least once; one that is written or sorted meanwhile may be met twice.
use super::super::fetch::{Expected, Probe, Rejected};
use super::super::scan::{RunStretch, ScanStep, StretchKey};
use super::super::{Engine, EngineError, LookupPlan};
use super::engine_error;
use crate::engine::fetch::ReadSpan;
use crate::engine::{Scan, ScanItem};
use crate::format::record::RecordKind;
use crate::format::run::page::RunPage;
use crate::format::run::{Space, page_offset};
use crate::index::Pointer;
use crate::overlay::OverlayBase;
use fawn_flash::Device;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{KeyHash, RingKey, TimeMs, Version};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The first ring key of the stretch with this cursor.
fn start_of(cursor: u64) -> RingKey {
    let mut key = RingKey::MIN;
    key.0[..8].copy_from_slice(&cursor.to_be_bytes());
    key
}

/// The cursor of the stretch that this key is in.
fn cursor_of(key: &RingKey) -> u64 {
    let mut prefix = [0; 8];
    prefix.copy_from_slice(&key.0[..8]);
    u64::from_be_bytes(prefix)
}

/// Result of a look at a stretch's pages.
enum LoadedStretch {
    /// A page is missing.
    Read(ReadSpan),
    /// All its pages are there; the cursor of the next one, if there is one.
    Whole(Option<u64>),
}

impl<D: Device> Engine<D> {
    /// Goes on with a scan of runs.
    pub(in crate::engine) fn scan_runs(
        &mut self,
        at: usize,
        scan: &mut Scan,
        since: Version,
        now: TimeMs,
    ) -> Result<ScanStep, EngineError> {
        let changes = self.sorted.changes;
        if let Some((before, items)) = scan.stretch.begun
            && before != changes
        {
            // A record of the log may be in a run by now that is newer than those of the stretch.
            scan.items.truncate(items);
            scan.stretch = RunStretch::default();
        }
        loop {
            scan.stretch.begun.get_or_insert((changes, scan.items.len()));
            if scan.stretch.keys.is_none() {
                match self.load_stretch(at, scan)? {
                    LoadedStretch::Read(span) => return Ok(ScanStep::Read(LookupPlan::of_span(scan.range, span))),
                    LoadedStretch::Whole(next) => scan.stretch.next = next,
                }
            }
            while let Some(key) = scan.stretch.keys.as_mut().and_then(Vec::pop) {
                if let Some(span) = self.meet_in_run(at, scan, &key, (since, now))? {
                    if let Some(keys) = &mut scan.stretch.keys {
                        keys.push(key);
                    }
                    return Ok(ScanStep::Read(LookupPlan::of_span(scan.range, span)));
                }
                scan.stretch.rejected = Rejected::new();
            }
            let next = scan.stretch.next;
            scan.stretch = RunStretch::default();
            scan.cursor = next.unwrap_or(0);
            if next.is_none() || scan.items.len() >= scan.count {
                return Ok(ScanStep::Done);
            }
        }
    }

    /// Takes a page that a read brought.
    pub(in crate::engine) fn take_stretch_page(&mut self, scan: &mut Scan) {
        if let Some(resume) = &self.resume
            && let Some(id) = resume.span.run()
        {
            let page = (u64::from(resume.span.from) / PAGE_BYTES as u64) as u32 - 1;
            scan.stretch.pages.insert((id, page), resume.buf[..PAGE_BYTES].to_vec());
        }
    }

    /// Looks at the pages from the cursor on, and gathers the records up to where the first run's page ends.
    fn load_stretch(&mut self, at: usize, scan: &mut Scan) -> Result<LoadedStretch, EngineError> {
        let from = start_of(scan.cursor);
        let ids: SmallVec<[u64; 8]> = self.sorted.runs.iter().map(|listed| listed.id).collect();
        let mut end: Option<u64> = None;
        for &id in &ids {
            // Of the oldest runs, which have no keys in common, only the one at the cursor is read.
            let first = self.sorted.find(id).map_or(0, |listed| cursor_of(&listed.bounds().lowest));
            if first > scan.cursor {
                end = Some(end.map_or(first, |end: u64| end.min(first)));
                continue;
            }
            let mut pages = self.stretch_pages(id, &from);
            // A stretch ends within the first page that has a key of a later one.
            let run_end = loop {
                let Some(page) = pages.next() else { break None };
                if let Some(span) = self.load_stretch_page(scan, id, page) {
                    return Ok(LoadedStretch::Read(span));
                }
                let last = self
                    .with_stretch_page(scan, id, page, |content| content.ends().map(|(_, last)| last.key.to_vec()))?;
                let last = last.map(|key| cursor_of(&RingKey::of(&self.secret, &key)));
                if let Some(last) = last.filter(|last| *last > scan.cursor) {
                    break Some(last).filter(|_| pages.next().is_some());
                }
            };
            end = [end, run_end].into_iter().flatten().min();
        }
        // Newest runs first: of two records of a key the first one counts.
        let mut found: BTreeMap<RingKey, StretchKey> = BTreeMap::new();
        for &id in &ids {
            for page in self.stretch_pages(id, &from) {
                if !scan.stretch.pages.contains_key(&(id, page)) {
                    break;
                }
                let keys = self.with_stretch_page(scan, id, page, |content| {
                    let counts = content.records().filter(|record| self.counts_for(at, record));
                    let keys = counts.map(|record| {
                        let key = StretchKey {
                            key: record.key.to_vec(),
                            value: (record.kind == RecordKind::Put).then(|| record.value.to_vec()),
                            version: record.version,
                            expires_at_ms: record.expires_at_ms,
                        };
                        (RingKey::of(&self.secret, record.key), key)
                    });
                    keys.collect::<Vec<_>>()
                })?;
                for (ring_key, key) in keys {
                    let cursor = cursor_of(&ring_key);
                    if cursor >= scan.cursor && end.is_none_or(|end| cursor < end) {
                        found.entry(ring_key).or_insert(key);
                    }
                }
            }
        }
        scan.stretch.keys = Some(found.into_values().collect());
        Ok(LoadedStretch::Whole(end))
    }

    fn stretch_pages(&self, id: u64, from: &RingKey) -> core::ops::Range<u32> {
        self.sorted.find(id).map_or(0..0, |listed| listed.run.extent(Space::KEYS, from, None))
    }

    /// Takes the page from the cache, or returns the read that is needed.
    fn load_stretch_page(&mut self, scan: &mut Scan, id: u64, page: u32) -> Option<ReadSpan> {
        if scan.stretch.pages.contains_key(&(id, page)) {
            return None;
        }
        let file = self.sorted.find(id)?.file;
        match self.cache.get(file, (page_offset(page) / PAGE_BYTES as u64) as u32) {
            Some(content) => {
                scan.stretch.pages.insert((id, page), content.to_vec());
                None
            }
            None => Some(ReadSpan::of_run(id, page_offset(page), false)),
        }
    }

    fn with_stretch_page<T>(
        &self,
        scan: &Scan,
        id: u64,
        page: u32,
        look: impl FnOnce(&RunPage<'_>) -> T,
    ) -> Result<T, EngineError> {
        let (Some(bytes), Some(listed)) = (scan.stretch.pages.get(&(id, page)), self.sorted.find(id)) else {
            unreachable!("a stretch begins again when the runs change")
        };
        let content = RunPage::decode(bytes, listed.run.header().uuid, page);
        content.map(|content| look(&content)).map_err(|error| engine_error(listed.run.corrupt(page, error)))
    }

    /// Returns a key of a run if it counts; `Some`: a record of the log must be read first.
    fn meet_in_run(
        &mut self,
        at: usize,
        scan: &mut Scan,
        found: &StretchKey,
        (since, now): (Version, TimeMs),
    ) -> Result<Option<ReadSpan>, EngineError> {
        let hash = KeyHash::of(&self.secret, &found.key);
        let entry = self.overlay.find(at, hash.0, || self.name_of(hash.0, &found.key).ident);
        let candidates: SmallVec<[Pointer; 4]> = match entry.map(|entry| (entry.committed, entry.base)) {
            Some((Some(committed), _)) if committed.is_put => SmallVec::from_slice(&[committed.pointer]),
            // The trace of a sorted record: all that the index has of the key is older.
            Some((Some(_), _)) => SmallVec::new(),
            Some((None, OverlayBase::At(old))) => SmallVec::from_slice(&[old.pointer]),
            _ => self.candidates(at, hash).collect(),
        };
        let mut rejected = core::mem::take(&mut scan.stretch.rejected);
        for pointer in candidates {
            match self.probe_once(at, pointer, Expected::Key(&found.key), &mut rejected) {
                Ok(Probe::Match(hit)) => {
                    let is_there = hit.kind == RecordKind::Put && (hit.expires_at_ms == 0 || now.0 < hit.expires_at_ms);
                    if is_there && hit.version > since {
                        let value = self.bytes_at(hit.location)[hit.value.clone()].to_vec();
                        push_item(scan, &found.key, (hit.version, hit.expires_at_ms), &value);
                    }
                    return Ok(None);
                }
                Ok(Probe::Missing(span)) => {
                    scan.stretch.rejected = rejected;
                    return Ok(Some(span));
                }
                Ok(Probe::Other) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(value) = &found.value
            && (found.expires_at_ms == 0 || now.0 < found.expires_at_ms)
        {
            push_item(scan, &found.key, (found.version, found.expires_at_ms), value);
        }
        Ok(None)
    }
}

fn push_item(scan: &mut Scan, key: &[u8], (version, expires_at_ms): (Version, u64), value: &[u8]) {
    let value_bytes = value.len() as u32;
    let is_wanted = scan.value_bytes_max.is_some_and(|bytes_max| value_bytes <= bytes_max);
    let value = is_wanted.then(|| value.to_vec());
    scan.items.push(ScanItem { key: key.to_vec(), version, value_bytes, expires_at_ms, value });
}
