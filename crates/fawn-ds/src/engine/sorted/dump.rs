//! The runs' part of a dump: all runs are read sequentially at once, in ring order.
use super::super::{DumpReport, Engine, Event, Lookup, LostPart, View};
use crate::format::record::{RecordKind, RecordRef};
use crate::format::run::RunRecord;
use crate::recovery::sequential::SequentialRead;
use crate::sorted::{Run, RunSource, SourceHead};
use fawn_flash::{Device, FileId, IoClass};
use fawn_types::{KeyHash, RangeId, RingKey, TimeMs};

/// Length of a read of each run, bytes.
const READ_BYTES: usize = 256 << 10;

/// A run that is read, newest runs first in a list of them.
struct DumpedRun {
    source: RunSource,
    file: FileId,
    name: String,
    head: Option<(RingKey, DumpedRecord)>,
}

/// A run's next record.
struct DumpedRecord {
    bytes: Vec<u8>,
}

impl<D: Device> Engine<D> {
    /// Visits the records of runs that are their keys' newest, as [`Engine::dump`] does.
    pub(in crate::engine) fn dump_runs<E>(
        &mut self,
        report: &mut DumpReport,
        visit: &mut impl FnMut(&mut DumpReport, &RecordRef<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let dumped = |run: &Run, file| {
            let name = crate::format::run::file_name(run.header().uuid);
            DumpedRun { source: RunSource::all(run), file, name, head: None }
        };
        let mut runs: Vec<DumpedRun> = self.sorted.runs.iter().map(|listed| dumped(&listed.run, listed.file)).collect();
        loop {
            for run in &mut runs {
                run.find_head(&mut self.device, report);
            }
            // The first of several runs is the newest one.
            let heads = runs.iter().filter_map(|run| run.head.as_ref().map(|(ring_key, _)| *ring_key));
            let Some(ring_key) = heads.min() else { return Ok(()) };
            let mut of_key: Vec<DumpedRecord> = Vec::new();
            for run in &mut runs {
                if let Some((_, record)) = run.head.take_if(|(found, _)| *found == ring_key) {
                    of_key.push(record);
                }
            }
            for DumpedRecord { bytes } in of_key {
                let Some((record, _)) = RunRecord::decode(&bytes) else { continue };
                if self.is_void_in_run(&record) {
                    continue;
                }
                if record.kind == RecordKind::Put && !self.is_in_log(&record) {
                    let mut found = RecordRef::put(record.version, record.key, record.value);
                    (found.flags, found.expires_at_ms) = (record.flags, record.expires_at_ms);
                    visit(report, &found)?;
                }
                break;
            }
        }
    }

    /// Whether the log has the key's newest record. Blocks for reads.
    fn is_in_log(&mut self, record: &RunRecord<'_>) -> bool {
        let Some((at, _)) = self.owner_of(record.number, record.key) else { return false };
        let hash = KeyHash::of(&self.secret, record.key);
        let has_entry = self.overlay.find(at, hash.0, || self.name_of(hash.0, record.key).ident).is_some();
        let Some(range) = self.range_ids[at].filter(|_| has_entry || self.candidates(at, hash).next().is_some()) else {
            return false;
        };
        // Damage elsewhere makes an absence an error for clients. Here such an error would dump the put that an intact
        // tombstone hides.
        let missing = self.missing.take();
        // Without the runs first: the log may have a copy of the run's record, of the same version.
        let runs = core::mem::take(&mut self.sorted.runs);
        let has_put = self.find_for_dump(range, hash, record.key);
        self.sorted.runs = runs;
        let is_in_log = match has_put {
            Some(false) => self.find_for_dump(range, hash, record.key) == Some(false),
            Some(true) => true,
            // An unreadable record of the log may be another key's.
            None => false,
        };
        self.missing = missing;
        is_in_log
    }

    /// Whether the key has a put, expired or not; `None`: a record cannot be read.
    fn find_for_dump(&mut self, range: RangeId, hash: KeyHash, key: &[u8]) -> Option<bool> {
        let now = TimeMs(0);
        let mut found = self.lookup(range, hash, key, View::Latest, now);
        loop {
            let plan = match found {
                Ok(Lookup::Found(_)) => return Some(true),
                Ok(Lookup::Absent | Lookup::Unsettled) => return Some(false),
                Ok(Lookup::Read(plan)) => plan,
                Err(_) => return None,
            };
            self.read(plan, 0);
            let mut events = Vec::new();
            let plan = loop {
                let wait = self.now;
                self.wait(wait, &mut events);
                let plan = events.drain(..).find_map(|event| match event {
                    Event::Lookup { plan, .. } => Some(plan),
                    _ => None,
                });
                if let Some(plan) = plan {
                    break plan;
                }
            };
            found = self.resume(plan, now);
        }
    }
}

impl DumpedRun {
    /// Finds the next record. Corrupt pages are passed and reported.
    fn find_head<D: Device>(&mut self, device: &mut D, report: &mut DumpReport) {
        while self.head.is_none() {
            match self.source.head() {
                Ok(SourceHead::Record(ring_key, record)) => {
                    let mut bytes = vec![0; record.encoded_len()];
                    record.encode(&mut bytes);
                    self.head = Some((ring_key, DumpedRecord { bytes }));
                    if self.source.advance().is_err() {
                        // The next search reports it.
                        continue;
                    }
                }
                Ok(SourceHead::End) => return,
                Ok(SourceHead::Wait) => self.read_on(device),
                Err(_) => {
                    let from_bytes = self.source.page_offset() as u32;
                    let to_bytes = from_bytes + fawn_flash::buffer::PAGE_BYTES as u32;
                    report.lost.push(LostPart { file: self.name.clone(), from_bytes, to_bytes, records: None });
                    self.source.skip_page();
                }
            }
        }
    }

    fn read_on<D: Device>(&mut self, device: &mut D) {
        let Some(range) = self.source.next_read(READ_BYTES) else { return };
        let part = (range.offset, range.offset + range.len_bytes as u64);
        let mut reads = SequentialRead::new(self.file, part, 1, IoClass::Foreground);
        let mut bytes = Vec::with_capacity(range.len_bytes);
        while let Some(buf) = reads.next(device) {
            bytes.extend_from_slice(&buf);
        }
        self.source.feed(range, bytes);
    }
}
