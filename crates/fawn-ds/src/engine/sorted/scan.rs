//! Scans of runs, stretch by stretch.
//!
//! A scan passes the log first. A record of a run counts if the log has no record of the key, or only one that was
//! written since the scan began: the log's part may have passed its hash before. Merges leave a tombstone of what has expired
//! while the log may have a record of the key. So a key that is there throughout is met at least once; one that is written
//! or sorted meanwhile may be met twice.
use super::super::scan::{ScanExtent, ScanPlace, ScanStep};
use super::super::scan_position::ScanPosition;
use super::super::{Engine, EngineError, LookupPlan};
use super::stretch::{InLog, RunStretch, StretchKey};
use crate::engine::fetch::ReadSpan;
use crate::engine::{CorruptRecord, Scan};
use crate::format::record::RecordKind;
use crate::format::run;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, DeviceError};
use fawn_types::{KeyHash, TimeMs, Version};

impl<D: Device> Engine<D> {
    /// Continues a scan of runs.
    pub(in crate::engine) fn scan_runs(
        &mut self,
        at: usize,
        scan: &mut Scan,
        now: TimeMs,
    ) -> Result<ScanStep, EngineError> {
        // A cursor says nothing about the time of the scan's start.
        let since = if let ScanExtent::Runs(since) = scan.extent { since } else { Version::ZERO };
        if scan.stretch.is_outdated(self.runs_state(at)) {
            let before = scan.before_stretch;
            scan.items.truncate(before.items);
            scan.kept.truncate(before.kept);
            scan.corrupt.truncate(before.corrupt);
            scan.stretch = RunStretch::default();
        }
        while let Some(ScanPosition::Runs(position)) = scan.position {
            if !scan.stretch.is_begun() {
                (scan.before_stretch.items, scan.before_stretch.kept) = (scan.items.len(), scan.kept.len());
            }
            match self.load_stretch(at, position, &mut scan.stretch) {
                Ok(None) => {}
                Ok(Some(span)) => return Ok(ScanStep::Read(LookupPlan::of_span(scan.range, span))),
                Err(error) => {
                    let Some((id, page)) = self.page_of_error(&error) else { return Err(error) };
                    if self.is_corrupt_again(scan, error)? {
                        scan.stretch.lose_page(id, page);
                    }
                    continue;
                }
            }
            while let Some(mut key) = scan.stretch.pop() {
                let is_passed = match self.meet_in_run(at, scan, &mut key, (since, now)) {
                    Ok(None) => {
                        scan.met += 1;
                        continue;
                    }
                    Ok(Some(span)) => {
                        scan.stretch.push(key);
                        return Ok(ScanStep::Read(LookupPlan::of_span(scan.range, span)));
                    }
                    Err(error) => self.is_corrupt_again(scan, error),
                };
                // A corrupt record of the log may be the key's newest one.
                if !matches!(is_passed, Ok(true)) {
                    scan.stretch.push(key);
                }
                is_passed?;
            }
            scan.position = scan.stretch.next().map(ScanPosition::Runs);
            scan.stretch = RunStretch::default();
            scan.suspects.clear();
            scan.before_stretch.corrupt = scan.corrupt.len();
            // The pages of a stretch were read even if none of their records counts.
            scan.met += 1;
            if scan.is_step_over() {
                break;
            }
        }
        self.end_scan_step(at, scan);
        Ok(ScanStep::Done)
    }

    /// Notes a corrupt page or record whose second read is corrupt, too: only one read may have been wrong. Returns whether
    /// it is.
    fn is_corrupt_again(&mut self, scan: &mut Scan, error: EngineError) -> Result<bool, EngineError> {
        let EngineError::Corrupt { file, offset_bytes, detail } = error else { return Err(error) };
        let place = (file, offset_bytes);
        if !scan.suspects.contains(&place) {
            scan.suspects.push(place);
            return Ok(false);
        }
        self.stats.corrupt_passed += 1;
        scan.corrupt.push(CorruptRecord { file: place.0, offset_bytes, detail, is_lost: true });
        Ok(true)
    }

    /// The run and page that an error names.
    fn page_of_error(&self, error: &EngineError) -> Option<(u64, u32)> {
        let EngineError::Corrupt { file, offset_bytes, .. } = error else { return None };
        let listed = self.sorted.runs.iter().find(|listed| run::file_name(listed.run.header().uuid) == *file)?;
        Some((listed.id, (offset_bytes / PAGE_BYTES as u32).checked_sub(1)?))
    }

    /// Passes the page, or the key with the record, that a scan of runs could not read.
    pub(in crate::engine) fn pass_unread(&mut self, scan: &mut Scan, span: &ReadSpan, error: &DeviceError) {
        let (place, file, offset_bytes) = match span.run() {
            Some(id) => {
                // If it is listed no more, the next step begins the stretch again.
                let Some(listed) = self.sorted.runs.iter().find(|listed| listed.id == id) else { return };
                let page = (span.from / PAGE_BYTES as u32).saturating_sub(1);
                scan.stretch.lose_page(id, page);
                (ScanPlace::Run { id, page }, run::file_name(listed.run.header().uuid), span.from)
            }
            None => {
                // If its segment is gone, the next step looks again.
                let segment = self.segments.get(span.slot).filter(|segment| segment.sequence == span.sequence);
                let Some(segment) = segment else { return };
                let Some(pointer) = scan.stretch.pop().and_then(|key| key.awaited) else { return };
                let place = ScanPlace::Log { pointer, sequence: span.sequence };
                (place, segment.name.clone(), self.segments.slot_and_offset(pointer).1)
            }
        };
        let is_lost = self.note_failed_read(place);
        self.stats.corrupt_passed += u64::from(is_lost);
        scan.corrupt.push(CorruptRecord { file, offset_bytes, detail: error.to_string(), is_lost });
    }

    /// Returns a key of a run if it counts; `Some`: a record of the log must be read first.
    fn meet_in_run(
        &mut self,
        at: usize,
        scan: &mut Scan,
        found: &mut StretchKey,
        (since, now): (Version, TimeMs),
    ) -> Result<Option<ReadSpan>, EngineError> {
        let (version, expires_at_ms, value) = match self.newest_in_log(at, found)? {
            InLog::Read(span) => return Ok(Some(span)),
            InLog::Record(hit) if hit.kind != RecordKind::Put || hit.version <= since => return Ok(None),
            InLog::Record(hit) => {
                (hit.version, hit.expires_at_ms, self.bytes_at(hit.location)[hit.value.clone()].to_vec())
            }
            InLog::None => match found.value.take() {
                Some(value) => (found.version, found.expires_at_ms, value),
                None => return Ok(None),
            },
        };
        if expires_at_ms != 0 && now.0 >= expires_at_ms {
            let hash = KeyHash::of(&self.secret, &found.key);
            let entry = self.overlay.find(at, hash.0, || self.name_of(hash.0, &found.key).ident);
            let pending = entry.and_then(|entry| entry.newest_pending().copied());
            scan.note_expired(&found.key, pending, scan.before_stretch.kept);
            return Ok(None);
        }
        scan.add(&found.key, (version, expires_at_ms), &value);
        Ok(None)
    }
}
