//! Runs in the manifest: the sorted tier's files, and the segments whose records are in them.
use super::ManifestState;
use crate::format::SegmentUuid;
use crate::format::run::{FOOTER_BYTES, HEADER_BYTES};

/// A run of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunEntry {
    /// UUID of the run.
    pub uuid: SegmentUuid,
    /// Length of its file, bytes.
    pub file_bytes: u64,
    /// Of two runs that have a record of one key, that with the higher number has the newer one. Runs of one number have
    /// no key in common.
    pub age: u64,
}

impl ManifestState {
    pub(super) fn add_run(&mut self, entry: RunEntry) -> Result<(), &'static str> {
        if !self.indexes_deletes {
            return Err("runs come after deletes are indexed");
        }
        if self.runs.iter().any(|run| run.uuid == entry.uuid) {
            return Err("this run is listed already");
        }
        if entry.file_bytes < (HEADER_BYTES + FOOTER_BYTES) as u64 {
            return Err("a run has a header and a footer");
        }
        let at = self.runs.partition_point(|run| run.age <= entry.age);
        self.runs.insert(at, entry);
        Ok(())
    }

    pub(super) fn drop_run(&mut self, uuid: SegmentUuid) -> Result<(), &'static str> {
        let at = self.runs.iter().position(|run| run.uuid == uuid);
        self.runs.remove(at.ok_or("this run is not listed")?);
        Ok(())
    }

    pub(super) fn sort_segment(&mut self, slot: u32, uuid: SegmentUuid) -> Result<(), &'static str> {
        let entry = self.segments.get_mut(&slot).filter(|entry| entry.uuid == uuid && entry.seal.is_some());
        entry.ok_or("only a sealed segment is sorted")?.is_sorted = true;
        Ok(())
    }
}
