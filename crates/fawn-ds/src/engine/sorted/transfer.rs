//! The part of an outgoing transfer in runs, after that in the log: a chunk has whole stretches.
//!
//! The log's part has sent every key whose newest record was in the log and up to the base: what is in the log now is no
//! older. So only a key without a record in the log is sent. A key that was sorted meanwhile is sent twice, which changes
//! nothing at the receiver.
use super::super::scan_place::ScanPlace;
use super::super::{Engine, EngineError, LookupPlan, TransferScan, TransferStep};
use super::stretch::{InLog, RunStretch, StretchKey};
use crate::format::record::RecordRef;
use fawn_flash::Device;

/// A chunk that is being gathered.
#[derive(Debug)]
pub(in crate::engine) struct RunsTransfer {
    /// Position of the current stretch; `None` behind the last one.
    position: Option<u64>,
    stretch: RunStretch,
    /// Its start: it begins again if the runs change.
    start: u64,
    changes: u64,
    held: Vec<StretchKey>,
    held_bytes: usize,
}

impl RunsTransfer {
    pub(in crate::engine) fn new(position: u64) -> Self {
        let stretch = RunStretch::default();
        Self { position: Some(position), stretch, start: position, changes: 0, held: Vec::new(), held_bytes: 0 }
    }
}

impl<D: Device> Engine<D> {
    /// Continues a chunk of runs, as [`Engine::transfer_step`] does.
    pub(in crate::engine) fn transfer_runs(
        &mut self,
        at: usize,
        scan: &mut TransferScan,
        runs: &mut RunsTransfer,
        visit: &mut impl FnMut(&RecordRef<'_>),
    ) -> Result<TransferStep, EngineError> {
        self.take_stretch_page(&mut runs.stretch);
        if runs.held.is_empty() && !runs.stretch.is_begun() {
            runs.changes = self.sorted.changes;
        }
        if runs.changes != self.sorted.changes {
            // A record of the log may be in a run by now that is newer than one that is held.
            *runs = RunsTransfer { changes: self.sorted.changes, ..RunsTransfer::new(runs.start) };
        }
        while let Some(position) = runs.position.filter(|_| runs.held_bytes < scan.bytes_max()) {
            if let Some(span) = self.load_stretch(at, position, &mut runs.stretch)? {
                return Ok(TransferStep::Read(LookupPlan::of_span(scan.range(), span)));
            }
            while let Some(key) = runs.stretch.pop() {
                let Some(value) = key.value.as_ref().filter(|_| key.version <= scan.base()) else { continue };
                runs.held_bytes += key.key.len() + value.len();
                runs.held.push(key);
            }
            runs.position = runs.stretch.next();
            runs.stretch = RunStretch::default();
        }
        // All held keys are checked at the end, in one pass without reads: no record can be replaced between its check and the
        // hand-over.
        let mut is_in_log = Vec::with_capacity(runs.held.len());
        for key in &mut runs.held {
            match self.newest_in_log(at, key)? {
                InLog::Read(span) => return Ok(TransferStep::Read(LookupPlan::of_span(scan.range(), span))),
                InLog::Record(_) => is_in_log.push(true),
                InLog::None => is_in_log.push(false),
            }
        }
        let mut count = 0;
        for (key, _) in runs.held.drain(..).zip(is_in_log).filter(|(_, is_in_log)| !is_in_log) {
            let Some(value) = &key.value else { continue };
            let mut record = RecordRef::put(key.version, &key.key, value);
            (record.flags, record.expires_at_ms) = (key.flags, key.expires_at_ms);
            visit(&record);
            count += 1;
        }
        runs.held_bytes = 0;
        if let Some(position) = runs.position {
            runs.start = position;
        }
        let next = runs.position.map(|position| scan.place_of(ScanPlace::Runs(position), Some(self.source_of(at))));
        Ok(TransferStep::Chunk { next, count })
    }
}
