//! Sorted runs in tests: writing, opening, looking up, merging and checking them on a simulated device.
use fawn_ds::internals::format::record::RecordKind;
use fawn_ds::internals::format::run::{RunHeader, RunRecord, Space};
use fawn_ds::internals::format::{RangeNumber, SegmentUuid, StoreUuid};
use fawn_ds::internals::sorted::{
    MergeRules, MergeSource, Merged, Pushed, ReadRange, Run, RunCheck, RunError, RunListing, RunLookup, RunMerge,
    RunSource, RunWriter, RunWriterOptions, SourceHead, WriterState,
};
use fawn_flash::{AlignedBuf, Completion, Device, FileId, IoClass, SimDevice, SimDisk, SimOptions, Token};
use fawn_types::{HashSecret, RingKey, Version};
use std::collections::VecDeque;

pub(crate) const SECRET: HashSecret = HashSecret([5; 16]);
pub(crate) const STORE: StoreUuid = StoreUuid([6; 16]);

/// An owned record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Owned {
    pub(crate) kind: RecordKind,
    pub(crate) type_byte: u8,
    pub(crate) number: u32,
    pub(crate) version: u64,
    pub(crate) expires_at_ms: u64,
    pub(crate) flags: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Owned {
    pub(crate) fn put(version: u64, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        let (key, value) = (key.into(), value.into());
        Self { kind: RecordKind::Put, type_byte: 0, number: 1, version, expires_at_ms: 0, flags: 0, key, value }
    }

    pub(crate) fn as_ref(&self) -> RunRecord<'_> {
        RunRecord {
            kind: self.kind,
            type_byte: self.type_byte,
            number: RangeNumber(self.number),
            version: Version::from_u64(self.version),
            expires_at_ms: self.expires_at_ms,
            flags: self.flags,
            key: &self.key,
            value: &self.value,
        }
    }

    pub(crate) fn of(record: &RunRecord<'_>) -> Self {
        Self {
            kind: record.kind,
            type_byte: record.type_byte,
            number: record.number.0,
            version: record.version.as_u64(),
            expires_at_ms: record.expires_at_ms,
            flags: record.flags,
            key: record.key.to_vec(),
            value: record.value.to_vec(),
        }
    }

    pub(crate) fn place(&self) -> (Space, RingKey) {
        (Space::of_type_byte(self.type_byte), RingKey::of(&SECRET, &self.key))
    }
}

pub(crate) fn header(id: u8) -> RunHeader {
    RunHeader { uuid: SegmentUuid([id; 16]), store: STORE }
}

pub(crate) fn options(id: u8, filter_bits: u8) -> RunWriterOptions {
    RunWriterOptions { write_bytes: 64 << 10, ..RunWriterOptions::new(header(id), SECRET, filter_bits) }
}

/// A device, and the runs on it.
pub(crate) struct RunHarness {
    pub(crate) disk: SimDisk,
    pub(crate) device: SimDevice,
    tokens: u64,
}

impl RunHarness {
    pub(crate) fn new(seed: u64) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        Self { device: SimDevice::attach(&disk), disk, tokens: 0 }
    }

    /// Waits for completions, and passes them to the writer.
    pub(crate) fn wait(&mut self, writer: &mut RunWriter) {
        let mut done: VecDeque<Completion> = VecDeque::new();
        self.device.wait(&mut done);
        done.into_iter().for_each(|completion| writer.completed(completion).unwrap());
    }

    pub(crate) fn step(&mut self, writer: &mut RunWriter, budget_bytes: usize) -> WriterState {
        let tokens = &mut self.tokens;
        let mut token = || {
            *tokens += 1;
            Token(*tokens)
        };
        writer.step(&mut self.device, budget_bytes, &mut token).unwrap()
    }

    pub(crate) fn finish(&mut self, mut writer: RunWriter) -> RunListing {
        writer.finish();
        loop {
            match self.step(&mut writer, 64 << 10) {
                WriterState::Done(listing) => {
                    self.device.close(writer.file());
                    return *listing;
                }
                WriterState::Waiting => self.wait(&mut writer),
                WriterState::Working => {}
            }
        }
    }

    /// Passes one record, waiting for the device if need be; false if the run is full.
    pub(crate) fn push(&mut self, writer: &mut RunWriter, record: &RunRecord<'_>) -> bool {
        loop {
            match writer.push(record).unwrap() {
                Pushed::Taken => return true,
                Pushed::Full => return false,
                Pushed::Wait => {
                    if self.step(writer, 64 << 10) == WriterState::Working {
                        self.wait(writer);
                    }
                }
            }
        }
    }

    /// Writes the records, which it sorts first.
    pub(crate) fn write(&mut self, options: RunWriterOptions, records: &mut [Owned]) -> RunListing {
        records.sort_by_cached_key(Owned::place);
        let mut writer = RunWriter::create(&mut self.device, options).unwrap();
        for record in &*records {
            assert!(self.push(&mut writer, &record.as_ref()), "the run is full");
        }
        self.finish(writer)
    }

    pub(crate) fn open(&mut self, listing: &RunListing) -> Result<(Run, FileId), RunError> {
        Run::open(&mut self.device, listing.header, &SECRET, listing.file_bytes)
    }

    pub(crate) fn read(&mut self, file: FileId, offset: u64, len: usize) -> AlignedBuf {
        self.device.submit_read(file, offset, AlignedBuf::zeroed(len), IoClass::Sort, Token(0));
        let mut done = VecDeque::new();
        self.device.wait(&mut done);
        let completion = done.pop_front().unwrap();
        completion.result.unwrap();
        completion.buf.unwrap()
    }

    /// The run's record of a key, and the pages read.
    pub(crate) fn get(&mut self, run: &Run, file: FileId, space: Space, key: &[u8]) -> (Option<Owned>, u32) {
        let (mut step, mut reads) = (run.lookup(space, RingKey::of(&SECRET, key), key), 0);
        loop {
            match step {
                RunLookup::Found(_) => unreachable!("a lookup without a page finds nothing"),
                RunLookup::Absent => return (None, reads),
                RunLookup::Read(plan) => {
                    let page = self.read(file, plan.offset(), 4096);
                    reads += 1;
                    step = match run.resume(plan, &page).unwrap() {
                        RunLookup::Found(record) => return (Some(Owned::of(&record)), reads),
                        RunLookup::Absent => RunLookup::Absent,
                        RunLookup::Read(plan) => RunLookup::Read(plan),
                    };
                }
            }
        }
    }

    /// All records of a source.
    pub(crate) fn drain(&mut self, mut source: RunSource, file: FileId, chunk_bytes: usize) -> (Vec<Owned>, u32) {
        let (mut records, mut reads) = (Vec::new(), 0);
        loop {
            match source.head().unwrap() {
                SourceHead::Record(ring_key, record) => {
                    assert_eq!(ring_key, RingKey::of(&SECRET, record.key));
                    records.push(Owned::of(&record));
                    source.advance().unwrap();
                }
                SourceHead::End => {
                    assert_eq!(source.resident_bytes(), 0, "pages that were passed are freed");
                    return (records, reads);
                }
                SourceHead::Wait => {
                    let range = source.next_read(chunk_bytes).unwrap();
                    reads += 1;
                    let bytes = self.read(file, range.offset, range.len_bytes);
                    source.feed(range, bytes.to_vec());
                    assert!(source.resident_bytes() >= range.len_bytes);
                }
            }
        }
    }

    /// The faults that a check finds.
    pub(crate) fn check(&mut self, run: &Run, file: FileId) -> Vec<RunError> {
        let mut check = RunCheck::new(run);
        while let Some(range) = check.next_read(3 * 4096) {
            let bytes = self.read(file, range.offset, range.len_bytes);
            check.feed(run, range, bytes.to_vec());
        }
        check.finish(run)
    }

    /// Merges sources (runs with their files, or buffers) into runs of at most `pages_max` pages.
    pub(crate) fn merge(
        &mut self,
        sources: Vec<(MergeSource, Option<FileId>)>,
        rules: &MergeRules<'_>,
        (first_id, pages_max): (u8, u32),
    ) -> Vec<RunListing> {
        let (sources, files): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
        let mut merge = RunMerge::new(sources);
        let mut listings = Vec::new();
        for id in first_id.. {
            let options = RunWriterOptions { pages_max, ..options(id, 8) };
            let mut writer = RunWriter::create(&mut self.device, options).unwrap();
            let is_done = self.fill(&mut merge, &mut writer, &files, rules);
            listings.push(self.finish(writer));
            if is_done {
                break;
            }
        }
        listings
    }

    /// Merges until the run is full or all is merged (true).
    fn fill(
        &mut self,
        merge: &mut RunMerge,
        writer: &mut RunWriter,
        files: &[Option<FileId>],
        rules: &MergeRules<'_>,
    ) -> bool {
        loop {
            match merge.step(writer, rules, 7).unwrap() {
                Merged::More => {}
                Merged::Done => return true,
                Merged::RunFull => return false,
                Merged::Writer => {
                    if self.step(writer, 64 << 10) == WriterState::Working {
                        self.wait(writer);
                    }
                }
                Merged::Source(index) => {
                    let range: ReadRange = merge.run(index).unwrap().next_read(2 * 4096).unwrap();
                    // Writes may be in flight, and their completions arrive with the read's.
                    while writer.in_flight() > 0 {
                        self.wait(writer);
                    }
                    let bytes = self.read(files[index].unwrap(), range.offset, range.len_bytes);
                    merge.run(index).unwrap().feed(range, bytes.to_vec());
                }
            }
        }
    }
}
