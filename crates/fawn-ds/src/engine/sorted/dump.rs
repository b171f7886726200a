//! The runs' part of a dump: all runs are read sequentially at once, in ring order.
use super::super::{DumpError, DumpReport, Engine, Event, Lookup, LostPart, View};
use super::ListedRun;
use crate::error::EngineError;
use crate::format::record::{RecordKind, RecordRef};
use crate::format::run::{self, RunRecord};
use crate::recovery::sequential::SequentialRead;
use crate::sorted::{RunSource, SourceHead};
use fawn_flash::{Device, DeviceError, FileId, IoClass};
use fawn_types::{KeyHash, RangeId, RingKey, TimeMs};
use std::collections::{BTreeMap, BTreeSet};

/// Length of a read of each run, bytes.
const READ_BYTES: usize = 256 << 10;

/// A run that is read.
struct DumpedRun {
    source: RunSource,
    file: FileId,
    name: String,
    head: Option<DumpedRecord>,
}

/// A run's next record.
struct DumpedRecord {
    bytes: Vec<u8>,
}

/// The runs of a dump by place in their list, newest first. Each one that is read takes memory, and most oldest runs have no key in
/// common.
struct DumpedRuns {
    /// Runs that are not read yet with their lowest key, the highest one first.
    waiting: Vec<(RingKey, usize)>,
    reading: BTreeMap<usize, DumpedRun>,
    /// The next key of each run that is read.
    heads: BTreeSet<(RingKey, usize)>,
}

impl<D: Device> Engine<D> {
    /// Visits the records of runs that are their keys' newest, as [`Engine::dump`] does.
    pub(in crate::engine) fn dump_runs<E>(
        &mut self,
        report: &mut DumpReport,
        visit: &mut impl FnMut(&mut DumpReport, &RecordRef<'_>) -> Result<(), E>,
    ) -> Result<(), DumpError<E>> {
        let mut runs = DumpedRuns::new(&self.sorted.runs);
        loop {
            runs.begin_due(&self.sorted.runs, &mut self.device, report)?;
            let Some(of_key) = runs.next_key(&mut self.device, report)? else { return Ok(()) };
            for DumpedRecord { bytes } in of_key {
                let Some((record, _)) = RunRecord::decode(&bytes) else { continue };
                if self.is_invalidated_in_run(&record, self.owner_of(record.number, record.key)) {
                    continue;
                }
                if record.kind == RecordKind::Put && !self.is_in_log(&record)? {
                    let mut found = RecordRef::put(record.version, record.key, record.value);
                    (found.flags, found.expires_at_ms) = (record.flags, record.expires_at_ms);
                    visit(report, &found).map_err(DumpError::Visitor)?;
                }
                break;
            }
        }
    }

    /// Whether the log has the key's newest record. Blocks for reads.
    fn is_in_log(&mut self, record: &RunRecord<'_>) -> Result<bool, DeviceError> {
        let Some((at, _)) = self.owner_of(record.number, record.key) else { return Ok(false) };
        let hash = KeyHash::of(&self.secret, record.key);
        let has_entry = self.overlay.find(at, hash.0, || self.name_of(hash.0, record.key).ident).is_some();
        let Some(range) = self.range_ids[at].filter(|_| has_entry || self.candidates(at, hash).next().is_some()) else {
            return Ok(false);
        };
        // Damage elsewhere makes an absence an error for clients. Here such an error would dump the put that an intact
        // tombstone hides.
        let missing = self.missing.take();
        // Without the runs first: the log may have a copy of the run's record, of the same version.
        let runs = core::mem::take(&mut self.sorted.runs);
        let has_put = self.find_for_dump(range, hash, record.key);
        self.sorted.runs = runs;
        let is_in_log = match has_put {
            Ok(Some(false)) => self.find_for_dump(range, hash, record.key).map(|found| found == Some(false)),
            Ok(Some(true)) => Ok(true),
            // An unreadable record of the log may be another key's.
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        self.missing = missing;
        is_in_log
    }

    /// Whether the key has a put, expired or not; `None`: a record cannot be read.
    fn find_for_dump(&mut self, range: RangeId, hash: KeyHash, key: &[u8]) -> Result<Option<bool>, DeviceError> {
        let now = TimeMs(0);
        let mut found = self.lookup(range, hash, key, View::Latest, now);
        loop {
            let plan = match found {
                Ok(Lookup::Found(_)) => return Ok(Some(true)),
                Ok(Lookup::Absent | Lookup::Unsettled) => return Ok(Some(false)),
                Ok(Lookup::Read(plan)) => plan,
                Err(EngineError::Device(error)) if error.is_retryable() => return Err(error),
                Err(_) => return Ok(None),
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

impl DumpedRuns {
    fn new(runs: &[ListedRun]) -> Self {
        let places = runs.iter().enumerate();
        let mut waiting: Vec<_> = places.map(|(place, listed)| (listed.bounds().lowest, place)).collect();
        waiting.sort_unstable_by(|first, second| second.cmp(first));
        Self { waiting, reading: BTreeMap::new(), heads: BTreeSet::new() }
    }

    /// Begins to read the runs whose lowest key may be the next one.
    fn begin_due<D: Device>(
        &mut self,
        runs: &[ListedRun],
        device: &mut D,
        report: &mut DumpReport,
    ) -> Result<(), DeviceError> {
        let Self { waiting, reading, heads } = self;
        while let Some((_, place)) =
            waiting.pop_if(|(lowest, _)| heads.first().is_none_or(|(next, _)| *lowest <= *next))
        {
            let ListedRun { run, file, .. } = &runs[place];
            let name = run::file_name(run.header().uuid);
            let mut dumped = DumpedRun { source: RunSource::all(run), file: *file, name, head: None };
            if let Some(ring_key) = dumped.find_head(device, report)? {
                heads.insert((ring_key, place));
                reading.insert(place, dumped);
            }
        }
        Ok(())
    }

    /// Takes the records of the next key, the newest one first; `None` at the end of all runs.
    fn next_key<D: Device>(
        &mut self,
        device: &mut D,
        report: &mut DumpReport,
    ) -> Result<Option<Vec<DumpedRecord>>, DeviceError> {
        let Some(&(ring_key, _)) = self.heads.first() else { return Ok(None) };
        let mut of_key = Vec::new();
        while let Some(&(_, place)) = self.heads.first().filter(|(next, _)| *next == ring_key) {
            self.heads.pop_first();
            let Some(run) = self.reading.get_mut(&place) else { unreachable!("a run with a next key is read") };
            of_key.extend(run.head.take());
            match run.find_head(device, report)? {
                Some(next) => _ = self.heads.insert((next, place)),
                None => _ = self.reading.remove(&place),
            }
        }
        Ok(Some(of_key))
    }
}

impl DumpedRun {
    /// Finds the next record, and returns its key; `None` at the end. Corrupt pages are passed and reported.
    fn find_head<D: Device>(
        &mut self,
        device: &mut D,
        report: &mut DumpReport,
    ) -> Result<Option<RingKey>, DeviceError> {
        loop {
            match self.source.head() {
                Ok(SourceHead::Record(ring_key, record)) => {
                    let mut bytes = vec![0; record.encoded_len()];
                    record.encode(&mut bytes);
                    self.head = Some(DumpedRecord { bytes });
                    // The next search reports a corrupt page.
                    let _ = self.source.advance();
                    return Ok(Some(ring_key));
                }
                Ok(SourceHead::End) => return Ok(None),
                Ok(SourceHead::Wait) => self.read_on(device)?,
                Err(_) => {
                    let from_bytes = self.source.page_offset() as u32;
                    let to_bytes = from_bytes + fawn_flash::buffer::PAGE_BYTES as u32;
                    report.lost.push(LostPart { file: self.name.clone(), from_bytes, to_bytes, records: None });
                    self.source.skip_page();
                }
            }
        }
    }

    fn read_on<D: Device>(&mut self, device: &mut D) -> Result<(), DeviceError> {
        let Some(range) = self.source.next_read(READ_BYTES) else { return Ok(()) };
        let part = (range.offset, range.offset + range.len_bytes as u64);
        let mut reads = SequentialRead::new(self.file, part, 1, IoClass::Foreground);
        let mut bytes = Vec::with_capacity(range.len_bytes);
        while let Some(read) = reads.next(device)? {
            bytes.extend_from_slice(read);
        }
        self.source.feed(range, bytes);
        Ok(())
    }
}
