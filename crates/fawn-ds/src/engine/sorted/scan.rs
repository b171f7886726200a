//! Scans of runs, stretch by stretch.
//!
//! A scan passes the log first. A record of a run counts if the log has no record of the key, or only one that was
//! written since the scan began: the log's part may have passed its hash before. So a key that is there throughout is met
//! at least once; one that is written or sorted meanwhile may be met twice.
use super::super::scan::{ScanExtent, ScanStep};
use super::super::scan_position::ScanPosition;
use super::super::{Engine, EngineError, LookupPlan};
use super::stretch::{InLog, RunStretch, StretchKey};
use crate::engine::fetch::ReadSpan;
use crate::engine::{Scan, ScanItem};
use crate::format::record::RecordKind;
use fawn_flash::Device;
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
            let (items, kept) = scan.before_stretch;
            scan.items.truncate(items);
            scan.kept.truncate(kept);
            scan.stretch = RunStretch::default();
        }
        while let Some(ScanPosition::Runs(position)) = scan.position {
            if !scan.stretch.is_begun() {
                scan.before_stretch = (scan.items.len(), scan.kept.len());
            }
            if let Some(span) = self.load_stretch(at, position, &mut scan.stretch)? {
                return Ok(ScanStep::Read(LookupPlan::of_span(scan.range, span)));
            }
            while let Some(mut key) = scan.stretch.pop() {
                let met = self.meet_in_run(at, scan, &mut key, (since, now));
                if !matches!(met, Ok(None)) {
                    scan.stretch.push(key);
                }
                if let Some(span) = met? {
                    return Ok(ScanStep::Read(LookupPlan::of_span(scan.range, span)));
                }
            }
            scan.position = scan.stretch.next().map(ScanPosition::Runs);
            scan.stretch = RunStretch::default();
            if scan.items.len() >= scan.count {
                break;
            }
        }
        self.end_scan_step(at, scan);
        Ok(ScanStep::Done)
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
            scan.note_expired(&found.key, pending, scan.before_stretch.1);
            return Ok(None);
        }
        let value_bytes = value.len() as u32;
        let is_wanted = scan.value_bytes_max.is_some_and(|bytes_max| value_bytes <= bytes_max);
        let value = is_wanted.then_some(value);
        scan.items.push(ScanItem { key: found.key.clone(), version, value_bytes, expires_at_ms, value });
        Ok(None)
    }
}
