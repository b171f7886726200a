//! Open of a damaged store for a salvage: takes every intact record that its files still have, and changes nothing.
//!
//! A sound store is opened like any other, read-only. If that finds damage, the store is read in a way that no server
//! may: missing files are left out, segments that the manifest lost are taken in, and a segment's records count up to
//! its end, also behind damage. All of them count as committed, because what was acknowledged is among them.
use super::index_build::IndexBuilder;
use super::io::Io;
use super::left_tail::TailFrames;
use super::sequential::SequentialRead;
use super::{OpenReport, abandon_operations};
use crate::check::{self, CheckFinding, Severity};
use crate::engine::{Engine, LostPart};
use crate::error::{EngineError, OpenError};
use crate::format::manifest::{
    self, Ancestor, DecodedManifest, Identity, ManifestHeader, ManifestState, SegmentEntry, slots_max,
};
use crate::format::record::{RecordKind, Stored};
use crate::format::run;
use crate::format::scan::ScanInput;
use crate::format::segment::{self, SegmentHeader, StreamKind};
use crate::format::tail;
use crate::format::walk::{RecordWalk, WalkInput, WalkReport};
use crate::format::{FORMAT_VERSION, FRAMES_OFFSET, HeaderError, RangeNumber, SegmentUuid, StoreUuid, Watermark};
use crate::index::PointerWidth;
use crate::log::segments::Segment;
use crate::manifest_file::{ManifestFile, ManifestReadError};
use crate::options::Options;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, DeviceError, FileId, IoClass};
use fawn_types::{ExpiryClock, HashSecret, KeyRange, Now, Version};
use std::collections::{BTreeMap, BTreeSet};

/// The damage that an open for a salvage found; nothing in a sound store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SalvageReport {
    /// The check's findings, notes among them.
    pub findings: Vec<CheckFinding>,
    /// Listed segments and runs that are missing or cannot be opened, files that the manifest may have lost, and segments of
    /// which two reads returned other records.
    pub missing: Vec<LostPart>,
}

impl SalvageReport {
    /// Whether acknowledged data may be lost.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        !self.missing.is_empty() || self.findings.iter().any(|finding| finding.severity == Severity::Damage)
    }
}

/// A segment that is there, in whatever state.
#[derive(Debug)]
struct FoundSegment {
    slot: u32,
    name: String,
    file: FileId,
    entry: SegmentEntry,
    /// The check found damage in it, or had no manifest that lists it.
    is_damaged: bool,
    /// End of the bytes to take records from.
    end: u32,
    /// The records and gaps that the survey found in them.
    surveyed: WalkReport,
}

/// Opens the store in the device's directory read-only, a damaged one as far as it can be read; returns the damage.
/// [`Engine::dump`] then visits its records, and reports the lost ones. `device` is called once, or again after damage.
///
/// # Errors
/// If the directory is in use, holds no store, or one of a format that this code does not read.
pub fn open_for_salvage<D: Device>(
    mut device: impl FnMut() -> Result<D, DeviceError>,
    options: &Options,
    now: Now,
) -> Result<(Engine<D>, SalvageReport), OpenError> {
    let options = Options { read_only: true, ..options.clone() };
    match Engine::open(device()?, options.clone(), now) {
        Ok((engine, report)) if report.damage.is_empty() => return Ok((engine, SalvageReport::default())),
        Err(error) if !is_damage(&error) => return Err(error),
        Ok(_) | Err(_) => {}
    }
    Engine::salvage(device()?, options, now)
}

fn is_damage(error: &OpenError) -> bool {
    match error {
        OpenError::Manifest { .. }
        | OpenError::ManifestTailLost { .. }
        | OpenError::FileMissing { .. }
        | OpenError::Corrupt { .. }
        | OpenError::ReadsDiffer { .. }
        | OpenError::Engine(_) => true,
        OpenError::Device(error) => matches!(error, DeviceError::Io { .. }),
        // The manifest can be read, and so can the other files. A newer format asks for another fawn, which reads all of them.
        OpenError::Format { file, error: HeaderError::Older { .. } } => file != manifest::FILE_NAME,
        OpenError::Option { .. }
        | OpenError::Format { .. }
        | OpenError::NothingLeft
        | OpenError::SecretMissing
        | OpenError::SecretDiffers => false,
    }
}

impl<D: Device> Engine<D> {
    fn salvage(mut device: D, options: Options, now: Now) -> Result<(Self, SalvageReport), OpenError> {
        // The same judgement as an open's. It locks the directory.
        let (report, listed) = check::check_all(&mut device)?;
        if let Some((file, error)) = report.other_format {
            return Err(OpenError::Format { file, error });
        }
        let mut findings = report.findings;
        abandon_operations(&mut device);
        let names = device.list()?;
        let FoundHeaders { intact: headers, failed } = segment_headers(&mut device, &names)?;
        let has_manifest = listed.is_ok();
        let (header, mut state) = match listed {
            Ok(DecodedManifest { header, mut state, .. }) => {
                findings.extend(if report.has_lost_end { take_unfinished(&mut state) } else { Vec::new() });
                (header, state)
            }
            // Another read may return a whole one.
            Err(error) if may_pass(&error) => return Err(error.into()),
            Err(error) => invent_manifest(&headers).ok_or_else(|| match failed {
                _ if report.has_nothing_left => OpenError::NothingLeft,
                Some(failed) if is_manifest_lost(&error) => failed.into(),
                _ => error.into(),
            })?,
        };
        let Some(identity) = state.identity else { unreachable!("a manifest has an identity") };
        let listed_through = state.last_sequence;
        adopt_segments(&mut state, &headers, identity);
        let damaged = findings.iter().filter(|finding| finding.severity == Severity::Damage);
        let damaged: BTreeSet<&str> = damaged.map(|finding| &finding.file[..]).collect();
        let is_damaged = |name: &str| !has_manifest || damaged.contains(name);
        let mut found = open_segments(&mut device, &state, &names, &headers, is_damaged)?;
        // The check has read the beginnings alone of those that it does not know.
        let adopted = found.iter_mut().filter(|segment| segment.entry.sequence > listed_through);
        adopted.for_each(|segment| segment.is_damaged = true);
        let mut missing = forget_missing(&mut state, &found);
        let (tail, is_tail_lost) = match TailFrames::read(&mut device, &state) {
            Ok(tail) => (tail, false),
            Err(error) if error.is_retryable() || !is_damaged(tail::FILE_NAME) => return Err(error.into()),
            // The check looks at it only with a manifest.
            Err(_) => (TailFrames::default(), !has_manifest),
        };
        let mut lost_files = lost_files(&state, &names, &found, &missing, is_damaged);
        lost_files.extend(is_tail_lost.then(|| tail::FILE_NAME.to_owned()));
        let (numbers, tail) = survey_all(&mut device, &mut found, tail, has_manifest, identity.segment_bytes)?;
        let clears = adopt_clears(&mut state, &numbers);
        findings.extend(clears.into_iter().filter_map(|position| finding_of_clear(&found, position)));
        let clock = state.clock.map_or(ExpiryClock::first(now), |(time, mono)| ExpiryClock::resume(time, mono, now));
        let manifest = ManifestFile::for_reading(header, state);
        let mut engine = Self::bare(device, options, identity, manifest, (now, clock));
        engine.left_tail = tail;
        let (damaged_runs, lost_runs) = engine.open_intact_runs()?;
        if !lost_runs.is_empty() && engine.runs() == 0 {
            // Copies in sorted segments are all that is left of the runs' records. An intact run would keep them hidden:
            // it may have a newer record or delete whose segment is gone, and the log's records hide those of runs.
            found.iter_mut().for_each(|segment| segment.entry.is_sorted = false);
        }
        findings.extend(damaged_runs.into_iter().map(finding_of_run));
        missing.extend(lost_runs.into_iter().chain(lost_files.into_iter().map(LostPart::all_of)));
        missing.extend(engine.take_records(&found, &numbers)?);
        engine.renumber_unfinished();
        engine.missing = error_of_absence(&findings, &missing);
        engine.finish_ranges(&mut OpenReport::default());
        StreamKind::ALL.into_iter().for_each(|kind| engine.end_of_log_is_flushed(kind));
        Ok((engine, SalvageReport { findings, missing }))
    }

    /// Builds the index from the records of all segments, in log order. Returns the segments of which another read returned
    /// other records: what one of the reads did not return is in no index, so a dump would pass it.
    fn take_records(&mut self, found: &[FoundSegment], numbers: &FoundNumbers) -> Result<Vec<LostPart>, OpenError> {
        for FoundSegment { slot, name, file, entry, end, .. } in found {
            let mut segment = Segment::new((*slot, entry.sequence), entry.uuid, entry.stream, *file, name.clone());
            segment.end = *end;
            (segment.is_sorted, segment.is_cleaned) = (entry.is_sorted, entry.is_sorted);
            self.segments.insert(segment);
        }
        let (mut builder, mut unstable) = (IndexBuilder::new(self), BTreeSet::new());
        builder.conflicts.lose_unreadable();
        for segment in found {
            let mut walk = RecordWalk::new(segment.walk_input());
            let part = (u64::from(FRAMES_OFFSET), u64::from(segment.end));
            let tail = builder.engine.left_tail.of(segment.entry.uuid);
            let mut reads = SequentialRead::new(segment.file, part, 4, IoClass::Recovery).overlaid_by(tail);
            while let Some(bytes) = reads.next(&mut builder.engine.device)? {
                walk.push(bytes, &mut |offset, stored: &Stored<'_>| builder.take(segment, numbers, offset, stored));
                if builder.must_resolve() {
                    reads.settle(&mut builder.engine.device);
                    builder.resolve()?;
                }
            }
            let walked = walk.finish(&mut |offset, stored: &Stored<'_>| builder.take(segment, numbers, offset, stored));
            if (&walked.facts, &walked.gaps) != (&segment.surveyed.facts, &segment.surveyed.gaps) {
                unstable.insert(segment.slot);
            }
        }
        builder.finish()?;
        unstable.extend(builder.conflicts.lost());
        let unstable = found.iter().filter(|segment| unstable.contains(&segment.slot));
        let part = |segment: &FoundSegment| LostPart {
            file: segment.name.clone(),
            from_bytes: FRAMES_OFFSET,
            to_bytes: segment.end,
            records: None,
        };
        Ok(unstable.map(part).collect())
    }
}

impl<D: Device> IndexBuilder<'_, D> {
    /// Takes a record as committed, unless it was rolled back. Marks are passed: with some of them lost, they would hold back
    /// records that were acknowledged.
    fn take(&mut self, segment: &FoundSegment, numbers: &FoundNumbers, offset: u32, stored: &Stored<'_>) {
        let is_mark = matches!(stored.record.kind, RecordKind::CommitMark | RecordKind::Rollback);
        if !is_mark && !segment.is_rolled_back(numbers, offset, stored) {
            self.single_record(segment.slot, offset, stored);
        }
    }
}

impl FoundSegment {
    fn walk_input(&self) -> WalkInput {
        WalkInput { uuid: self.entry.uuid, end: self.end, written: self.end }
    }

    fn is_rolled_back(&self, numbers: &FoundNumbers, offset: u32, stored: &Stored<'_>) -> bool {
        let position = Watermark { sequence: self.entry.sequence, offset };
        // Survivors are copies of what was committed, under other positions.
        self.entry.stream == StreamKind::Foreground
            && numbers
                .get(&stored.envelope.number)
                .is_some_and(|found| found.is_rolled_back(position, stored.record.version))
    }
}

/// Headers of the segment files.
pub(crate) struct FoundHeaders {
    /// The intact ones, with the names of their files.
    pub(crate) intact: Vec<(String, SegmentHeader)>,
    /// Why a file could not be opened or read. It may have an intact header all the same.
    pub(crate) failed: Option<DeviceError>,
}

/// Reads the headers of all segment files.
///
/// # Errors
/// If a file cannot be opened or read for now.
pub(crate) fn segment_headers<D: Device>(device: &mut D, names: &[String]) -> Result<FoundHeaders, DeviceError> {
    let (mut intact, mut failed) = (Vec::new(), None);
    for name in names.iter().filter(|name| segment::is_file_name(name)) {
        let bytes = device.open(name).and_then(|file| {
            let bytes = Io::new(device).read(file, 0, segment::HEADER_BYTES, IoClass::Recovery);
            device.close(file);
            bytes
        });
        match bytes {
            Ok(bytes) => {
                let header = segment::decode(&bytes).ok();
                // A misdirected read returns another segment's.
                let header = header.filter(|header| segment::file_name(header.slot, header.uuid) == *name);
                intact.extend(header.map(|header| (name.clone(), header)));
            }
            Err(DeviceError::NotFound { .. }) => {}
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Ok(FoundHeaders { intact, failed })
}

/// Whether no reading of the manifest can return one.
pub(crate) const fn is_manifest_lost(error: &ManifestReadError) -> bool {
    matches!(error, ManifestReadError::Manifest(_) | ManifestReadError::Device(DeviceError::NotFound { .. }))
}

/// Whether another reading of the manifest may return one.
const fn may_pass(error: &ManifestReadError) -> bool {
    match error {
        ManifestReadError::Unstable { .. } => true,
        ManifestReadError::Device(error) => error.is_retryable(),
        ManifestReadError::Manifest(_) => false,
    }
}

/// The finding about a run that has so many records in intact pages, and other damage.
fn finding_of_run((file, records): (String, u64)) -> CheckFinding {
    let detail = format!("it is read page by page; intact records in its pages: {records}");
    CheckFinding { severity: Severity::Damage, file, offset_bytes: 0, detail }
}

/// A manifest without segments or ranges, for the store that most segments name. `None`: none is intact.
fn invent_manifest(headers: &[(String, SegmentHeader)]) -> Option<(ManifestHeader, ManifestState)> {
    let mut counts = BTreeMap::<StoreUuid, usize>::new();
    headers.iter().for_each(|(_, header)| *counts.entry(header.store).or_default() += 1);
    let (_, header) = headers.iter().max_by_key(|(_, header)| counts.get(&header.store))?;
    let identity = Identity {
        store: header.store,
        format: FORMAT_VERSION,
        segment_bytes: header.segment_bytes,
        // The store's own is lost with the manifest. It places keys in the index, which is built here.
        secret: HashSecret([0; 16]),
        // Its slots may be past what shorter ones can name.
        pointers: PointerWidth::Bits40,
    };
    let state = ManifestState { identity: Some(identity), ..ManifestState::default() };
    Some((ManifestHeader { store: header.store, rewrite: 1 }, state))
}

/// The error for a key that is not found, if anything is lost.
fn error_of_absence(findings: &[CheckFinding], missing: &[LostPart]) -> Option<EngineError> {
    let damage = findings.iter().find(|finding| finding.severity == Severity::Damage);
    let damage = damage.map(|finding| (&finding.file, finding.offset_bytes));
    let damage = damage.or(missing.first().map(|lost| (&lost.file, u64::from(lost.from_bytes))));
    damage.map(|(file, offset_bytes)| EngineError::Corrupt {
        file: file.clone(),
        offset_bytes: u32::try_from(offset_bytes).unwrap_or(u32::MAX),
        detail: "part of the log is lost: a key that is not in what is left may have been there".to_owned(),
    })
}

/// Takes copies that the manifest lists as incomplete for complete: the commit that one is complete may be in its lost end.
fn take_unfinished(state: &mut ManifestState) -> Vec<CheckFinding> {
    let mut findings = Vec::new();
    for (id, range) in &mut state.ranges {
        if let Some(beginning) = range.beginning.as_mut().filter(|beginning| !beginning.is_whole) {
            beginning.is_whole = true;
            let detail = format!("{id:?}: it is lost whether its copy was complete; records of it are taken");
            let (severity, file) = (Severity::Damage, manifest::FILE_NAME.to_owned());
            findings.push(CheckFinding { severity, file, offset_bytes: 0, detail });
        }
    }
    findings
}

/// Lists the store's segments that the manifest has lost: they are newer than all that it ever listed.
fn adopt_segments(state: &mut ManifestState, headers: &[(String, SegmentHeader)], identity: Identity) {
    let last_sequence = state.last_sequence;
    let is_lost = |header: &SegmentHeader| {
        header.store == identity.store
            && header.segment_bytes == identity.segment_bytes
            && header.sequence > last_sequence
    };
    for (_, header) in headers.iter().filter(|(_, header)| is_lost(header)) {
        let slots = slots_max(identity.segment_bytes, identity.pointers);
        // The manifest may have lost that the slot's former segment was dropped.
        let free = core::iter::once(header.slot).chain(0..slots).find(|slot| !state.segments.contains_key(slot));
        let Some(slot) = free else { return };
        let SegmentHeader { uuid, sequence, stream, .. } = *header;
        let entry = SegmentEntry { uuid, sequence, stream, seal: None, is_sorted: false };
        state.segments.insert(slot, entry);
        state.last_sequence = state.last_sequence.max(header.sequence);
    }
}

/// Opens the listed segments, in the order of an open's scan.
///
/// # Errors
/// If one cannot be opened for now: its records are not lost.
fn open_segments<D: Device>(
    device: &mut D,
    state: &ManifestState,
    names: &[String],
    headers: &[(String, SegmentHeader)],
    is_damaged: impl Fn(&str) -> bool,
) -> Result<Vec<FoundSegment>, DeviceError> {
    let mut found = Vec::new();
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let named: BTreeMap<SegmentUuid, &String> = headers.iter().map(|(name, header)| (header.uuid, name)).collect();
    for (&slot, entry) in &state.segments {
        // An adopted segment may be in another slot than its name says.
        let name = named.get(&entry.uuid).map(|name| (*name).clone());
        let name = name.unwrap_or_else(|| segment::file_name(slot, entry.uuid));
        let is_damaged = is_damaged(&name);
        if !names.contains(&name[..]) {
            continue;
        }
        let file = match device.open(&name) {
            Ok(file) => file,
            Err(error) if error.is_retryable() => return Err(error),
            Err(_) => continue,
        };
        let (entry, end, surveyed) = (entry.clone(), FRAMES_OFFSET, WalkReport::default());
        found.push(FoundSegment { slot, name, file, entry, is_damaged, end, surveyed });
    }
    // As an open does: survivors first.
    found.sort_by_key(|segment| (core::cmp::Reverse(segment.entry.stream), segment.entry.sequence));
    Ok(found)
}

/// Takes the segments that are not there from the list, and returns them.
fn forget_missing(state: &mut ManifestState, found: &[FoundSegment]) -> Vec<LostPart> {
    let found: BTreeSet<u32> = found.iter().map(|segment| segment.slot).collect();
    let missing = state.segments.extract_if(.., |slot, _| !found.contains(slot));
    let lost = missing.map(|(slot, entry)| LostPart {
        file: segment::file_name(slot, entry.uuid),
        from_bytes: FRAMES_OFFSET,
        to_bytes: entry.sealed_len().unwrap_or(FRAMES_OFFSET),
        records: entry.seal.as_ref().map(|seal| seal.facts.records()),
    });
    lost.collect()
}

/// Files that the manifest's lost part may have listed, and from which no record is taken: segments without an intact
/// header, and runs. Of runs the secret that orders them, their ages, or the merges that replaced them are lost with it.
fn lost_files(
    state: &ManifestState,
    names: &[String],
    found: &[FoundSegment],
    missing: &[LostPart],
    is_damaged: impl Fn(&str) -> bool,
) -> Vec<String> {
    let runs = state.runs.iter().map(|entry| run::file_name(entry.uuid));
    let found = found.iter().map(|segment| segment.name.clone());
    let missing = missing.iter().map(|lost| lost.file.clone());
    let known: BTreeSet<String> = runs.chain(found).chain(missing).collect();
    let has_records = |name: &str| run::is_file_name(name) || segment::is_file_name(name);
    // The check decides whether an unlisted file is an orphan of a crash.
    let is_lost = |name: &&String| has_records(name) && !known.contains(*name) && is_damaged(name);
    names.iter().filter(is_lost).cloned().collect()
}

/// The local numbers of records.
type FoundNumbers = BTreeMap<RangeNumber, FoundNumber>;

/// A local number: its newest record, and those that invalidate others.
#[derive(Debug, Default)]
struct FoundNumber {
    newest: Version,
    /// Position and version of each clear.
    clears: Vec<(Watermark, Version)>,
    /// Position of each rollback, and the version that it went back to.
    rollbacks: Vec<(Watermark, Version)>,
}

impl FoundNumber {
    fn note(&mut self, position: Watermark, stored: &Stored<'_>) {
        self.newest = self.newest.max(stored.record.version);
        let list = match stored.record.kind {
            RecordKind::Clear => &mut self.clears,
            RecordKind::Rollback => &mut self.rollbacks,
            _ => return,
        };
        list.push((position, stored.record.version));
    }

    /// Whether a record of the foreground was rolled back.
    fn is_rolled_back(&self, position: Watermark, version: Version) -> bool {
        self.rollbacks.iter().any(|&(at, after)| position < at && version > after)
    }

    /// The clear of the highest version that was not rolled back.
    fn last_clear(&self) -> Option<(Watermark, Version)> {
        let clears = self.clears.iter().filter(|&&(at, version)| !self.is_rolled_back(at, version));
        clears.copied().max_by_key(|&(_, version)| version)
    }

    fn cleared(&self) -> Version {
        self.last_clear().map_or(Version::ZERO, |(_, version)| version)
    }
}

/// As [`survey`] of all segments. Returns the tail's frames that count, too.
fn survey_all<D: Device>(
    device: &mut D,
    found: &mut [FoundSegment],
    tail: TailFrames,
    has_manifest: bool,
    segment_bytes: u32,
) -> Result<(FoundNumbers, TailFrames), OpenError> {
    let mut numbers = FoundNumbers::new();
    if has_manifest {
        survey(device, found, &tail, segment_bytes, &mut numbers)?;
        return Ok((numbers, tail));
    }
    let none = TailFrames::default();
    survey(device, found.iter_mut(), &none, segment_bytes, &mut numbers)?;
    // An opening takes a tail's frames into the log, or cuts them off, and begins a generation. Its frames tell, as the manifest
    // would.
    if found.iter().any(|segment| segment.surveyed.generation > tail.generation) {
        return Ok((numbers, none));
    }
    let tailed = found.iter_mut().filter(|segment| tail.of(segment.entry.uuid).is_some());
    survey(device, tailed, &tail, segment_bytes, &mut numbers)?;
    Ok((numbers, tail))
}

/// Finds the segments' ends and records, and the local numbers of these.
fn survey<'f, D: Device>(
    device: &mut D,
    found: impl IntoIterator<Item = &'f mut FoundSegment>,
    tail: &TailFrames,
    segment_bytes: u32,
    numbers: &mut FoundNumbers,
) -> Result<(), OpenError> {
    for segment in found {
        let SegmentEntry { uuid, sequence, .. } = segment.entry;
        let (sealed_len, tail) = (segment.entry.sealed_len(), tail.of(uuid));
        segment.end = sealed_len.unwrap_or(segment_bytes);
        if sealed_len.is_none() && !segment.is_damaged {
            // Its end is an open's to judge: an unfinished frame was never acknowledged. The check could read all of it.
            let input = ScanInput { uuid, sequence, segment_bytes, sealed_len };
            segment.end = check::scan_confirmed(device, segment.file, input, tail.clone())?.0.valid_len;
        }
        let mut note = |offset: u32, stored: &Stored<'_>| {
            let position = Watermark { sequence, offset };
            numbers.entry(stored.envelope.number).or_default().note(position, stored);
        };
        let part = (u64::from(FRAMES_OFFSET), u64::from(segment.end));
        let mut reads = SequentialRead::new(segment.file, part, 4, IoClass::Recovery).overlaid_by(tail);
        let mut walk = RecordWalk::new(segment.walk_input());
        while let Some(bytes) = reads.next(device)? {
            walk.push(bytes, &mut note);
        }
        segment.surveyed = walk.finish(&mut note);
    }
    Ok(())
}

/// Lists the clears and the numbers that the manifest has lost. Survivors are read before the clears' own records, and have no
/// order of versions. Returns the clears whose keys are unknown.
fn adopt_clears(state: &mut ManifestState, numbers: &FoundNumbers) -> Vec<Watermark> {
    for range in state.ranges.values_mut() {
        let found = range.beginning.and_then(|beginning| numbers.get(&beginning.number));
        range.cleared = found.map_or(range.cleared, |found| found.cleared().max(range.cleared));
    }
    let (mut later, mut unknown) = (Vec::new(), Vec::new());
    for (&number, found) in numbers.iter().filter(|(number, _)| **number > state.last_number) {
        let (keys, base, cleared) = (KeyRange::ALL, Version::ZERO, found.cleared());
        later.push(Ancestor { number, keys, since: 0, base, cleared, sole: None });
        // Before the first number of all there are no records that could be back.
        let has_earlier = numbers.keys().next() < Some(&number);
        unknown.extend(found.last_clear().filter(|_| has_earlier).map(|(position, _)| position));
    }
    let newest = numbers.values().map(|found| found.newest).max().unwrap_or_default();
    state.adopt_numbers(&later, newest);
    unknown
}

/// The finding about a clear of keys that only the manifest knew.
fn finding_of_clear(found: &[FoundSegment], position: Watermark) -> Option<CheckFinding> {
    let segment = found.iter().find(|segment| segment.entry.sequence == position.sequence)?;
    let detail = "it is the clear of keys that only the manifest knew: values from before it, and from before a split, merge or \
                  copy, may be back";
    let (severity, detail) = (Severity::Damage, detail.to_owned());
    Some(CheckFinding { severity, file: segment.name.clone(), offset_bytes: u64::from(position.offset), detail })
}

const _: () = assert!(PAGE_BYTES == FRAMES_OFFSET as usize, "reads of frames begin on a page");
