//! Validation before anything is changed: torn or corrupt ends, orphans, a manifest that lost its synced end.
use super::index_build::Stray;
use super::{Damage, OpenReport, Scanned, synced_logs};
use crate::check;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::format::checkpoint;
use crate::format::manifest;
use crate::format::run;
use crate::format::scan::{OTHER_RECORDS, SegmentVerdict};
use crate::format::segment;
use crate::format::{FRAMES_OFFSET, Watermark};
use fawn_flash::Device;
use std::collections::BTreeSet;

impl<D: Device> Engine<D> {
    /// Lists the orphans: store files of unfinished steps, which the manifest does not list. A segment with data was
    /// listed, durably, before it took data. If it is not listed, the manifest lost an edit and the file has
    /// acknowledged data. Files of another store are no orphans: a copy into the wrong directory may have brought the manifest
    /// of this one, and the records of the other are nowhere else.
    pub(super) fn orphans(&mut self, report: &mut OpenReport) -> Result<Vec<String>, OpenError> {
        let state = self.manifest.state();
        let segments = state.segments.iter().map(|(&slot, entry)| segment::file_name(slot, entry.uuid));
        let checkpoints = state.checkpoints.iter().map(|listed| checkpoint::file_name(listed.uuid));
        let runs = state.runs.iter().map(|listed| run::file_name(listed.uuid));
        let listed: BTreeSet<_> = segments.chain(checkpoints).chain(runs).collect();
        let mut orphans = Vec::new();
        for name in self.device.list()? {
            let is_segment = segment::is_file_name(&name);
            let is_of_store = is_segment
                || checkpoint::is_file_name(&name)
                || run::is_file_name(&name)
                || name == manifest::NEW_FILE_NAME;
            if listed.contains(&name) || !is_of_store {
                continue;
            }
            let (last_sequence, tail) = (state.last_sequence, &self.left_tail);
            if is_segment && check::holds_newer_data(&mut self.device, &name, self.store, last_sequence, tail)? {
                let detail = "it holds data of this store and is newer than all that the manifest lists".to_owned();
                if !self.options.read_only {
                    return Err(OpenError::ManifestTailLost { file: name, detail });
                }
                let detail = format!("{detail}: the manifest lost its synced end");
                report.damage.push(Damage { file: name, from_bytes: FRAMES_OFFSET, synced: Watermark::NONE, detail });
            } else if check::is_of_other_store(&mut self.device, &name, self.store)? {
                tracing::warn!(file = %name, "a file of another store is in the directory; it is not used, and stays");
            } else {
                orphans.push(name);
            }
        }
        Ok(orphans)
    }

    /// Refuses a frame of a later generation than the manifest's: a generation is synced there before its first frame.
    pub(super) fn check_generation(&self, scanned: &[Scanned], report: &mut OpenReport) -> Result<(), OpenError> {
        let Some(newest) = scanned.iter().max_by_key(|scanned| scanned.report.generation) else { return Ok(()) };
        let found = newest.report.generation;
        if found <= self.generation {
            return Ok(());
        }
        let file = self.segments.expect(newest.slot).name.clone();
        let detail = format!("it has a frame of generation {found}, the manifest ends at {}", self.generation);
        if !self.options.read_only {
            return Err(OpenError::ManifestTailLost { file, detail });
        }
        report.damage.push(Damage {
            file,
            from_bytes: newest.report.valid_len,
            synced: newest.report.watermark,
            detail: format!("{detail}: the manifest lost its synced end"),
        });
        Ok(())
    }

    /// Refuses records under a local number that was never assigned: it is assigned, durably, before its first record.
    pub(super) fn check_strays(&self, strays: &[Stray], report: &mut OpenReport) -> Result<(), OpenError> {
        for &Stray { number, slot, offset, records } in strays {
            if number <= self.manifest.state().last_number {
                report.invalidated_records += records;
                continue;
            }
            let file = self.segments.expect(slot).name.clone();
            let detail = format!("it has {records} records under range number {}, which was never assigned", number.0);
            if !self.options.read_only {
                return Err(OpenError::ManifestTailLost { file, detail });
            }
            let detail = format!("{detail}: the manifest lost its synced end");
            report.damage.push(Damage { file, from_bytes: offset, synced: Watermark::NONE, detail });
        }
        Ok(())
    }

    /// Validates each segment's end and returns those to truncate. Corruption below the synced end is refused, or only
    /// reported by a read-only open.
    pub(super) fn validate_ends(
        &self,
        scanned: &[Scanned],
        report: &mut OpenReport,
    ) -> Result<Vec<(u32, u32)>, OpenError> {
        let known = synced_logs(self.manifest.state(), scanned);
        let mut torn = Vec::new();
        for scanned in scanned {
            let file = self.segments.expect(scanned.slot).name.clone();
            let damage = scanned.report.damage;
            let detail = damage.map_or_else(|| "frames are missing".to_owned(), |error| error.to_string());
            match scanned
                .report
                .validate(&known[scanned.entry.stream], scanned.entry.seal.as_ref().map(|seal| &seal.facts))
            {
                SegmentVerdict::Clean => {}
                SegmentVerdict::TornAt { offset } => torn.push((scanned.slot, offset)),
                SegmentVerdict::CorruptAt { offset, watermark } if scanned.is_passed => {
                    tracing::warn!(%file, offset, %detail, "a sorted segment is corrupt; its records are in runs");
                    report.damage_passed.push(Damage { file, from_bytes: offset, synced: watermark, detail });
                }
                SegmentVerdict::CorruptAt { offset, watermark } if self.options.read_only => {
                    report.damage.push(Damage { file, from_bytes: offset, synced: watermark, detail });
                }
                SegmentVerdict::OtherRecords => {
                    let (to_bytes, detail) = (scanned.report.valid_len, OTHER_RECORDS.to_owned());
                    if !self.options.read_only {
                        return Err(OpenError::Corrupt { file, from_bytes: FRAMES_OFFSET, to_bytes, detail });
                    }
                    let synced = Watermark { sequence: scanned.entry.sequence, offset: to_bytes };
                    report.damage.push(Damage { file, from_bytes: FRAMES_OFFSET, synced, detail });
                }
                SegmentVerdict::CorruptAt { offset, watermark } => {
                    let here = watermark.sequence == scanned.entry.sequence;
                    let to_bytes = if here { watermark.offset } else { self.options.segment_bytes };
                    return Err(OpenError::Corrupt { file, from_bytes: offset, to_bytes, detail });
                }
            }
        }
        Ok(torn)
    }
}
