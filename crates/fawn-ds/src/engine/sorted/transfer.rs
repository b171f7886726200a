//! The part of an outgoing transfer in runs, after that in the log: a chunk has whole stretches.
//!
//! The log's part has sent every key whose newest record was in the log and up to the base: what is in the log now is no
//! older. So only a key without a record in the log is sent. A key that was sorted meanwhile is sent twice, which changes
//! nothing at the receiver.
use super::super::fetch::ReadSpan;
use super::super::scan_position::ScanPosition;
use super::super::{Engine, EngineError, LookupPlan, TransferScan, TransferStep};
use super::stretch::{InLog, RunStretch, RunsState, StretchKey};
use crate::format::record::RecordRef;
use fawn_flash::Device;

/// Stretches of a chunk at most: runs may have many records that are not sent, and with each change of their list the chunk begins
/// again.
const STRETCHES_MAX: usize = 256;

/// A chunk that is being gathered.
#[derive(Debug)]
pub(in crate::engine) struct RunsTransfer {
    /// Position of the current stretch; `None` behind the last one.
    position: Option<u64>,
    stretch: RunStretch,
    /// Its start: it begins again if the state of the runs changes.
    start: u64,
    /// That state when the chunk was begun; `None`: it was not begun.
    state: Option<RunsState>,
    /// A key without a value is not sent.
    held: Vec<StretchKey>,
    held_bytes: usize,
    /// Stretches that were read for it.
    stretches: usize,
    /// Held keys that the current pass over them has checked.
    checked: usize,
    /// The current pass has waited for a read.
    has_waited: bool,
}

impl RunsTransfer {
    pub(in crate::engine) fn new(position: u64) -> Self {
        Self {
            position: Some(position),
            stretch: RunStretch::default(),
            start: position,
            state: None,
            held: Vec::new(),
            held_bytes: 0,
            stretches: 0,
            checked: 0,
            has_waited: false,
        }
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
        let state = self.runs_state(at);
        if runs.state.is_some_and(|before| before != state) {
            // A record of the log may be in a run by now that is newer than one that is held, or a held one is cleared.
            *runs = RunsTransfer::new(runs.start);
        }
        runs.state = Some(state);
        self.take_stretch_page(&mut runs.stretch);
        let is_full = |runs: &RunsTransfer| runs.held_bytes >= scan.bytes_max() || runs.stretches >= STRETCHES_MAX;
        while let Some(position) = runs.position.filter(|_| !is_full(runs)) {
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
            runs.stretches += 1;
        }
        if let Some(span) = self.check_held(at, runs)? {
            return Ok(TransferStep::Read(LookupPlan::of_span(scan.range(), span)));
        }
        let mut count = 0;
        for key in runs.held.drain(..) {
            let Some(value) = &key.value else { continue };
            let mut record = RecordRef::put(key.version, &key.key, value);
            (record.flags, record.expires_at_ms) = (key.flags, key.expires_at_ms);
            visit(&record);
            count += 1;
        }
        (runs.held_bytes, runs.stretches, runs.state) = (0, 0, None);
        if let Some(position) = runs.position {
            runs.start = position;
        }
        let next = runs.position.map(|position| scan.place_of(ScanPosition::Runs(position), Some(self.content_id(at))));
        Ok(TransferStep::Chunk { next, count })
    }

    /// Drops the values of held keys with a record in the log. `Some`: a record must be read first.
    fn check_held(&mut self, at: usize, runs: &mut RunsTransfer) -> Result<Option<ReadSpan>, EngineError> {
        // The last pass waits for nothing: no key can get a record in the log between its check and the hand-over. Passes that
        // wait continue where they are. Otherwise the reads of two keys that no cache holds would displace each other for ever.
        loop {
            while let Some(key) = runs.held.get_mut(runs.checked) {
                if key.value.is_some() {
                    match self.newest_in_log(at, key)? {
                        InLog::Read(span) => {
                            runs.has_waited = true;
                            return Ok(Some(span));
                        }
                        // A key with a record in the log is never sent, and not checked again. Up to the base, the log's part
                        // has sent the record: no record moves from runs to the log. Above, the history has it. If the log
                        // loses it, by a sort or a clear, the state of the runs changes, and the chunk begins again.
                        InLog::Record(_) => key.value = None,
                        InLog::None => {}
                    }
                }
                runs.checked += 1;
            }
            runs.checked = 0;
            if !core::mem::take(&mut runs.has_waited) {
                return Ok(None);
            }
        }
    }
}
