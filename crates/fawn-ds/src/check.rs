//! Offline verification of a store for `fawn check`: manifest, segments, frames, every record.
//!
//! Reads only. A state that an open repairs (torn ends, orphans) is a note; one that it refuses is damage.
use crate::format::checkpoint;
use crate::format::manifest::{self, DecodedManifest, ManifestError, ManifestState, ManifestVerdict, SegmentEntry};
use crate::format::record::Stored;
use crate::format::run::{self, RunHeader};
use crate::format::scan::{OTHER_RECORDS, ScanInput, ScanReport, Scanner, SegmentVerdict, SyncedLog};
use crate::format::segment::{self, HEADER_BYTES, PerStream, RecordFacts, SegmentHeader, StreamKind};
use crate::format::{FRAMES_OFFSET, HeaderError, RangeNumber, StoreUuid, frame, tail};
use crate::manifest_file::{ManifestReadError, read_manifest};
use crate::recovery::checkpoint::verify_pieces;
use crate::recovery::confirm::frame_at_end;
use crate::recovery::io::Io;
use crate::recovery::left_tail::{SegmentTail, TailFrames};
use crate::recovery::salvage::{is_manifest_lost, segment_headers};
use crate::sorted::{Run, RunCheck, RunError};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, DeviceError, FileId, IoClass};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Length of one read, bytes. It bounds the check's memory, except for frames that straddle reads.
const READ_BYTES: u32 = 1 << 20;

/// Finding about an unlisted segment or run whose header names another store.
const OTHER_STORES_FILE: &str =
    "a file of another store, which may have records that this one lacks; no open uses or removes it";
/// Finding about an unlisted run, if the manifest has lost commits.
const LOST_RUN: &str =
    "an unlisted run, which the manifest may have lost: some records may be in it alone; restore the manifest";

/// Per local number: the offset of its first record in a segment, and the count of its records there.
pub(crate) type RangeCounts = BTreeMap<RangeNumber, (u32, u64)>;

/// A segment whose header is valid.
struct CheckedSegment<'m> {
    name: String,
    stream: StreamKind,
    /// The facts that the manifest lists.
    listed: Option<&'m RecordFacts>,
    scan: ScanReport,
    ranges: RangeCounts,
}

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// The trace of a crash: the next open repairs it, and no acknowledged data is missing.
    Note,
    /// Acknowledged data is corrupt or missing.
    Damage,
}

/// A deviation from the state after a clean shutdown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckFinding {
    /// Note or damage.
    pub severity: Severity,
    /// Name of the file.
    pub file: String,
    /// Offset in the file.
    pub offset_bytes: u64,
    /// The fault, and what to do.
    pub detail: String,
}

/// Result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Segments read.
    pub segments: u64,
    /// Frames accepted.
    pub frames: u64,
    /// Records verified.
    pub records: u64,
    /// Bytes of frames accepted.
    pub bytes: u64,
    /// All findings: the manifest's, then the segments' in log order.
    pub findings: Vec<CheckFinding>,
    /// A file of a format that this code does not read, and the format. The store can be whole, and is not judged.
    pub other_format: Option<(String, HeaderError)>,
    /// Whether a salvage has nothing to read: no manifest, and no segment with an intact header. Every file could be read.
    pub has_nothing_left: bool,
    /// Whether the manifest lacks commits at its end, by its own bytes or by what segments have.
    pub has_lost_end: bool,
}

impl CheckReport {
    /// Whether no acknowledged data is corrupt or missing.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.other_format.is_none() && self.findings.iter().all(|finding| finding.severity == Severity::Note)
    }

    fn add(&mut self, severity: Severity, file: &str, offset_bytes: u64, detail: impl Into<String>) {
        self.findings.push(CheckFinding { severity, file: file.to_owned(), offset_bytes, detail: detail.into() });
    }
}

/// Verifies the store in the device's directory and locks it: no server may use it.
///
/// # Errors
/// If the directory is in use or cannot be listed, or the system cannot open or read a file for now. An unreadable file is a
/// finding, not an error.
pub fn check<D: Device>(device: &mut D) -> Result<CheckReport, DeviceError> {
    check_all(device).map(|(report, _)| report)
}

/// As [`check`]; returns the manifest too.
pub(crate) fn check_all<D: Device>(
    device: &mut D,
) -> Result<(CheckReport, Result<DecodedManifest, ManifestReadError>), DeviceError> {
    device.lock()?;
    let names = device.list()?;
    let mut report = CheckReport::default();
    let decoded = match check_manifest(device, &mut report) {
        Ok(decoded) => decoded,
        Err(ManifestReadError::Device(error)) if error.is_retryable() => return Err(error),
        Err(error) if report.other_format.is_some() => return Ok((report, Err(error))),
        Err(error) => {
            let runs = names.iter().filter(|name| run::is_file_name(name));
            runs.for_each(|name| report.add(Severity::Damage, name, 0, LOST_RUN));
            let headers = segment_headers(device, &names)?;
            if headers.intact.is_empty() {
                report.other_format = segment_of_other_format(device, &names)?;
                let is_all_lost = headers.failed.is_none() && is_manifest_lost(&error);
                report.has_nothing_left = is_all_lost && report.other_format.is_none();
            }
            return Ok((report, Err(error)));
        }
    };
    let state = &decoded.state;
    let tail = check_tail(device, state, &mut report)?;
    let mut listed: Vec<_> = state.segments.iter().map(|(&slot, entry)| (slot, entry)).collect();
    listed.sort_by_key(|(_, entry)| entry.sequence);
    let mut segments = Vec::new();
    for listed in listed {
        segments.extend(check_segment(device, &decoded, listed, &tail, &mut report)?);
    }
    check_ranges(&decoded, &segments, &mut report);
    let mut known = PerStream::from_fn(|kind| SyncedLog::new(state.ends_of_log[kind]));
    segments.iter().for_each(|segment| known[segment.stream].add(&segment.scan));
    for segment in &segments {
        check_end(segment, &known[segment.stream], state.generation, &mut report);
    }
    check_checkpoints(device, &decoded, &mut report);
    check_runs(device, &decoded, &mut report)?;
    report.has_lost_end = has_lost_end(&decoded, &segments);
    check_unlisted(device, &names, &decoded, &tail, &mut report)?;
    if report.other_format.is_some() {
        // Without the file that was not read, records and commits seem to be missing.
        report.findings.clear();
    }
    Ok((report, Ok(decoded)))
}

/// A segment that another fawn can read, and its format.
fn segment_of_other_format<D: Device>(
    device: &mut D,
    names: &[String],
) -> Result<Option<(String, HeaderError)>, DeviceError> {
    for name in names.iter().filter(|name| segment::is_file_name(name)) {
        match with_segment(device, name, |_, _, _| Ok(())) {
            Err(SegmentFault::OtherFormat(error)) => return Ok(Some((name.clone(), error))),
            Err(SegmentFault::Unread(error)) => return Err(error),
            Ok(()) | Err(SegmentFault::Damage(_)) => {}
        }
    }
    Ok(None)
}

/// Decodes the manifest. After an error the check cannot continue, and the report has the reason.
fn check_manifest<D: Device>(device: &mut D, report: &mut CheckReport) -> Result<DecodedManifest, ManifestReadError> {
    let name = manifest::FILE_NAME;
    let read = device.open(name).map_err(ManifestReadError::from).and_then(|file| {
        // A read that failed, or came from another place, may be right the second time.
        let read = read_manifest(device, file, IoClass::Verification)
            .or_else(|_| read_manifest(device, file, IoClass::Verification))
            .or_else(|error| read_manifest_around(device, file, error, report));
        device.close(file);
        read
    });
    let decoded = match read {
        Ok((_, decoded)) => decoded,
        Err(ManifestReadError::Manifest(ManifestError::Header(error))) if error.is_of_other_format() => {
            report.other_format = Some((name.to_owned(), error.clone()));
            return Err(ManifestError::Header(error).into());
        }
        Err(error) => {
            let without = match &error {
                ManifestReadError::Device(_) => "; without a manifest there is no store",
                ManifestReadError::Manifest(_) | ManifestReadError::Unstable { .. } => "",
            };
            report.add(Severity::Damage, name, 0, format!("{error}{without}"));
            return Err(error);
        }
    };
    match &decoded.verdict {
        ManifestVerdict::Clean => {}
        ManifestVerdict::TornAt { offset } => {
            report.add(Severity::Note, name, *offset, "an unfinished commit; the next open overwrites it");
        }
        ManifestVerdict::CorruptAt { offset, synced, contradiction } => {
            let why = contradiction.as_ref().map(ToString::to_string).unwrap_or_default();
            let detail = format!("corrupt commit below byte {synced}, which was synced; restore the file. {why}");
            report.add(Severity::Damage, name, *offset, detail);
        }
    }
    Ok(decoded)
}

/// Reads a manifest with an unreadable page up to that: it has lost its end, as by a corrupt commit there.
///
/// # Errors
/// `error`, for which it could not be read at once, if the page has its beginning.
fn read_manifest_around<D: Device>(
    device: &mut D,
    file: FileId,
    error: ManifestReadError,
    report: &mut CheckReport,
) -> Result<(Vec<u8>, DecodedManifest), ManifestReadError> {
    let unreadable = match error {
        ManifestReadError::Device(error) if !error.is_retryable() => error,
        error => return Err(error),
    };
    let len = device.len(file)? as usize;
    let pages = Io::new(device).read_pages(file, 0, len.next_multiple_of(PAGE_BYTES), IoClass::Verification)?;
    let bytes = pages[..len].to_vec();
    let Ok(mut decoded) = manifest::decode_all(&bytes) else { return Err(unreadable.into()) };
    let (offset, synced) = (decoded.valid_len, len as u64);
    report.add(Severity::Damage, manifest::FILE_NAME, offset, unreadable.to_string());
    if !matches!(decoded.verdict, ManifestVerdict::CorruptAt { .. }) {
        // The commits there may have been synced, although no later one says so.
        decoded.verdict = ManifestVerdict::CorruptAt { offset, synced, contradiction: None };
    }
    Ok((bytes, decoded))
}

/// Reads the tail file of a killed process.
fn check_tail<D: Device>(
    device: &mut D,
    state: &ManifestState,
    report: &mut CheckReport,
) -> Result<TailFrames, DeviceError> {
    TailFrames::read(device, state).or_else(|error| {
        if error.is_retryable() {
            return Err(error);
        }
        let detail = format!("{error}; the last second before a kill may be here alone");
        report.add(Severity::Damage, tail::FILE_NAME, 0, detail);
        Ok(TailFrames::default())
    })
}

/// Checks a listed segment's header and frames. `None`: the header itself is invalid.
fn check_segment<'m, D: Device>(
    device: &mut D,
    decoded: &DecodedManifest,
    (slot, entry): (u32, &'m SegmentEntry),
    tail: &TailFrames,
    report: &mut CheckReport,
) -> Result<Option<CheckedSegment<'m>>, DeviceError> {
    let name = segment::file_name(slot, entry.uuid);
    let store = decoded.header.store;
    let scan = with_segment(device, &name, |device, file, header| {
        let SegmentEntry { uuid, sequence, stream, .. } = *entry;
        expect_header(&header, &SegmentHeader { slot, uuid, store, sequence, stream, ..header })?;
        let sealed_len = entry.sealed_len();
        let input = ScanInput { uuid, sequence, segment_bytes: header.segment_bytes, sealed_len };
        Ok(scan_confirmed(device, file, input, tail.of(uuid))?)
    });
    match scan {
        Ok((scan, ranges, tail_from)) => {
            if tail_from < scan.valid_len {
                let detail = format!("bytes to {} are in the tail file; the next open writes them", scan.valid_len);
                report.add(Severity::Note, &name, u64::from(tail_from), detail);
            }
            report.segments += 1;
            report.frames += scan.frames;
            report.records += scan.records;
            report.bytes += u64::from(scan.valid_len - FRAMES_OFFSET);
            let listed = entry.seal.as_ref().map(|seal| &seal.facts);
            Ok(Some(CheckedSegment { name, stream: entry.stream, listed, scan, ranges }))
        }
        Err(SegmentFault::OtherFormat(error)) => {
            report.other_format = Some((name, error));
            Ok(None)
        }
        Err(SegmentFault::Damage(detail)) => {
            report.add(Severity::Damage, &name, 0, detail);
            Ok(None)
        }
        Err(SegmentFault::Unread(error)) => Err(error),
    }
}

/// Why a listed segment was not scanned.
enum SegmentFault {
    OtherFormat(HeaderError),
    Damage(String),
    /// The system cannot open or read it for now.
    Unread(DeviceError),
}

impl From<String> for SegmentFault {
    fn from(detail: String) -> Self {
        Self::Damage(detail)
    }
}

impl From<DeviceError> for SegmentFault {
    fn from(error: DeviceError) -> Self {
        if error.is_retryable() { Self::Unread(error) } else { Self::Damage(error.to_string()) }
    }
}

impl From<HeaderError> for SegmentFault {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::Older { found, .. } => Self::Damage(of_older_format(found)),
            error if error.is_of_other_format() => Self::OtherFormat(error),
            error => Self::Damage(error.to_string()),
        }
    }
}

/// The fault of a file whose manifest can be read. The records of the other files can be saved.
fn of_older_format(found: u32) -> String {
    format!("its header is of format {found}, which is older than all that this fawn reads")
}

/// Opens a segment's file, decodes its header, calls `then`, and closes the file.
fn with_segment<D: Device, T>(
    device: &mut D,
    name: &str,
    then: impl FnOnce(&mut D, FileId, SegmentHeader) -> Result<T, SegmentFault>,
) -> Result<T, SegmentFault> {
    let file = device.open(name)?;
    let header = Io::new(device).read(file, 0, HEADER_BYTES, IoClass::Verification).map_err(SegmentFault::from);
    let result = header.and_then(|bytes| Ok(segment::decode(&bytes)?)).and_then(|header| then(device, file, header));
    device.close(file);
    result
}

/// Checks the header of a listed segment's file.
pub(crate) fn judge_header(bytes: &[u8], expected: &SegmentHeader) -> Result<(), String> {
    segment::decode(bytes).map_err(|error| error.to_string()).and_then(|header| expect_header(&header, expected))
}

fn expect_header(header: &SegmentHeader, expected: &SegmentHeader) -> Result<(), String> {
    if header == expected {
        return Ok(());
    }
    Err(format!("the file is {header:?}, the manifest lists {expected:?}"))
}

/// The report of a scan, the records per local number, and the offset of the first byte that only the tail file has.
pub(crate) type ScannedSegment = (ScanReport, RangeCounts, u32);

/// Scans a segment, a second time if one misdirected read has hidden its end.
pub(crate) fn scan_confirmed<D: Device>(
    device: &mut D,
    file: FileId,
    input: ScanInput,
    tail: Option<Arc<SegmentTail>>,
) -> Result<ScannedSegment, DeviceError> {
    let scanned = scan(device, file, input, tail.as_deref())?;
    match frame_at_end(device, file, &scanned.0, tail.as_deref())? {
        Some(_) => scan(device, file, input, tail.as_deref()),
        None => Ok(scanned),
    }
}

fn scan<D: Device>(
    device: &mut D,
    file: FileId,
    input: ScanInput,
    tail: Option<&SegmentTail>,
) -> Result<ScannedSegment, DeviceError> {
    let (mut scanner, mut ranges) = (Scanner::new(input), RangeCounts::new());
    let ScanInput { segment_bytes, sealed_len, .. } = input;
    let file_bytes = device.len(file)?.min(u64::from(segment_bytes)) as u32;
    let tail_end = tail.and_then(SegmentTail::extent).map_or(0, |(_, end)| end);
    let end = sealed_len.unwrap_or(segment_bytes).min(file_bytes.max(tail_end));
    let (mut at, mut tail_from) = (FRAMES_OFFSET, None);
    while at < end {
        let len = (end - at).min(READ_BYTES).next_multiple_of(PAGE_BYTES as u32);
        let mut buf = Io::new(device).read(file, u64::from(at), len as usize, IoClass::Verification)?;
        if let Some(tail) = tail {
            tail_from = tail_from.or(tail.lay_over(u64::from(at), &mut buf));
        }
        scanner.push(&buf, &mut |offset: u32, stored: &Stored<'_>| {
            ranges.entry(stored.envelope.number).or_insert((offset, 0)).1 += 1;
        });
        at += len;
    }
    Ok((scanner.finish(), ranges, tail_from.unwrap_or(u32::MAX)))
}

/// Reports records under numbers that no listed range has: invalid if the number was assigned; otherwise the manifest
/// lost its end.
fn check_ranges(decoded: &DecodedManifest, segments: &[CheckedSegment<'_>], report: &mut CheckReport) {
    let state = &decoded.state;
    for CheckedSegment { name, ranges, .. } in segments {
        let is_listed = |number: RangeNumber| {
            let mut beginnings = state.ranges.values().filter_map(|entry| entry.beginning);
            beginnings.any(|beginning| beginning.number == number)
                || state.ancestors().any(|ancestor| ancestor.number == number)
        };
        let strays = ranges.iter().filter(|(number, _)| !is_listed(**number));
        for (number, &(offset, records)) in strays {
            let (severity, what) = if *number <= state.last_number {
                (Severity::Note, "which no range has any more: they are invalid")
            } else {
                (Severity::Damage, "which was never assigned: the manifest lost its end; restore it")
            };
            let detail = format!("{records} records under range number {}, {what}", number.0);
            report.add(severity, name, u64::from(offset), detail);
        }
    }
}

fn check_end(segment: &CheckedSegment<'_>, known: &SyncedLog, generation: u32, report: &mut CheckReport) {
    let CheckedSegment { name, listed, scan, .. } = segment;
    let why = scan.damage.map_or_else(|| "frames are missing".to_owned(), |error| error.to_string());
    match scan.validate(known, *listed) {
        SegmentVerdict::Clean => {}
        SegmentVerdict::OtherRecords => {
            let detail = format!("{OTHER_RECORDS}: {listed:?}, found {:?}; restore a backup", scan.facts);
            report.add(Severity::Damage, name, u64::from(FRAMES_OFFSET), detail);
        }
        SegmentVerdict::TornAt { offset } => {
            let detail = format!("{why}; never synced, the next open truncates it");
            report.add(Severity::Note, name, u64::from(offset), detail);
        }
        SegmentVerdict::CorruptAt { offset, watermark } => {
            let detail = format!("{why}; the log was synced through {watermark}: keep a copy of the directory");
            report.add(Severity::Damage, name, u64::from(offset), detail);
        }
    }
    if scan.generation > generation {
        let detail = format!(
            "a frame of generation {}, the manifest knows {generation}: the manifest lost its end; restore it",
            scan.generation
        );
        report.add(Severity::Damage, name, u64::from(scan.valid_len), detail);
    }
}

/// Verifies the listed checkpoints. They repeat what the log says, so a bad one is no damage.
fn check_checkpoints<D: Device>(device: &mut D, decoded: &DecodedManifest, report: &mut CheckReport) {
    for entry in &decoded.state.checkpoints {
        let name = checkpoint::file_name(entry.uuid);
        if let Err((offset, detail)) = verify_pieces(device, entry, decoded.header.store) {
            let detail = format!("{detail}; openings read more of the log until the next checkpoint");
            report.add(Severity::Note, &name, offset, detail);
        }
    }
}

/// Verifies the listed runs, all their pages included.
fn check_runs<D: Device>(
    device: &mut D,
    decoded: &DecodedManifest,
    report: &mut CheckReport,
) -> Result<(), DeviceError> {
    let Some(identity) = decoded.state.identity else { return Ok(()) };
    for entry in &decoded.state.runs {
        let name = run::file_name(entry.uuid);
        let header = RunHeader { uuid: entry.uuid, store: decoded.header.store };
        let (run, file) = match Run::open(device, header, &identity.secret, entry.file_bytes) {
            Ok(opened) => opened,
            Err(RunError::Device(error)) if error.is_retryable() => return Err(error),
            Err(RunError::Header { error: HeaderError::Older { found, .. }, .. }) => {
                report.add(Severity::Damage, &name, 0, of_older_format(found));
                continue;
            }
            Err(RunError::Header { file, error }) if error.is_of_other_format() => {
                report.other_format = Some((file, error));
                continue;
            }
            Err(error) => {
                report.add(Severity::Damage, &name, 0, error.to_string());
                continue;
            }
        };
        let mut check = RunCheck::new(&run);
        while let Some(range) = check.next_read(READ_BYTES as usize) {
            let mut io = Io::new(device);
            let bytes = match io.read(file, range.offset, range.len_bytes, IoClass::Verification) {
                Ok(buf) => buf[..range.len_bytes].to_vec(),
                Err(_) => io.read_pages(file, range.offset, range.len_bytes, IoClass::Verification)?.to_vec(),
            };
            check.feed(&run, range, bytes);
        }
        device.close(file);
        report.records += run.footer().records;
        for error in check.finish(&run) {
            let offset = match &error {
                RunError::Corrupt { offset_bytes, .. } => *offset_bytes,
                _ => 0,
            };
            report.add(Severity::Damage, &name, offset, error.to_string());
        }
    }
    Ok(())
}

/// Whether the manifest lacks commits at its end, by its own bytes or by what the listed segments have.
fn has_lost_end(decoded: &DecodedManifest, segments: &[CheckedSegment<'_>]) -> bool {
    let state = &decoded.state;
    let is_newer = |segment: &CheckedSegment<'_>| {
        segment.scan.generation > state.generation || segment.ranges.keys().any(|number| *number > state.last_number)
    };
    matches!(decoded.verdict, ManifestVerdict::CorruptAt { .. }) || segments.iter().any(is_newer)
}

fn is_file_missing(names: &[String], state: &ManifestState) -> bool {
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let listed = state.segments.iter().map(|(&slot, entry)| segment::file_name(slot, entry.uuid));
    let mut listed = listed.chain(state.runs.iter().map(|entry| run::file_name(entry.uuid)));
    listed.any(|name| !names.contains(name.as_str()))
}

/// Reports unlisted files. They are orphans of a crash, unless the manifest lost the listing of a segment with data or of
/// a run.
fn check_unlisted<D: Device>(
    device: &mut D,
    names: &[String],
    decoded: &DecodedManifest,
    tail: &TailFrames,
    report: &mut CheckReport,
) -> Result<(), DeviceError> {
    let state = &decoded.state;
    let segments = state.segments.iter().map(|(&slot, entry)| segment::file_name(slot, entry.uuid));
    let checkpoints = state.checkpoints.iter().map(|entry| checkpoint::file_name(entry.uuid));
    let runs = state.runs.iter().map(|entry| run::file_name(entry.uuid));
    let listed: BTreeSet<String> = segments.chain(checkpoints).chain(runs).collect();
    let mut orphans = Vec::new();
    for name in names.iter().filter(|name| !listed.contains(*name)) {
        if checkpoint::is_file_name(name) {
            report.add(Severity::Note, name, 0, "an unlisted checkpoint; the next open removes it");
        } else if name == manifest::NEW_FILE_NAME {
            report.add(Severity::Note, name, 0, "an unfinished rewrite of the manifest; the next open removes it");
        } else if segment::is_file_name(name) {
            match holds_newer_data(device, name, decoded.header.store, state.last_sequence, tail) {
                Ok(true) => {
                    report.has_lost_end = true;
                    let detail = "holds data but is not listed: the manifest lost its end; restore it";
                    report.add(Severity::Damage, name, 0, detail);
                }
                Ok(false) if is_of_other_store(device, name, decoded.header.store)? => {
                    report.add(Severity::Note, name, 0, OTHER_STORES_FILE);
                }
                Ok(false) => orphans.push(name),
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => report.add(Severity::Damage, name, 0, error.to_string()),
            }
        }
    }
    // After the segments with data, which may show that the manifest lost its end. The commit that dropped a missing file may be
    // among the lost ones.
    let has_lost_end = report.has_lost_end || is_file_missing(names, state);
    for name in orphans {
        match if has_lost_end { has_corrupt_header(device, name) } else { Ok(false) } {
            Ok(true) => {
                let detail = "its header is corrupt, and it is not listed: the manifest may have lost it; restore both";
                report.add(Severity::Damage, name, 0, detail);
            }
            Ok(false) => report.add(Severity::Note, name, 0, "an unlisted segment; the next open removes it"),
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => report.add(Severity::Damage, name, 0, error.to_string()),
        }
    }
    for name in names.iter().filter(|name| run::is_file_name(name) && !listed.contains(*name)) {
        if is_of_other_store(device, name, decoded.header.store)? {
            report.add(Severity::Note, name, 0, OTHER_STORES_FILE);
        } else if has_lost_end {
            report.add(Severity::Damage, name, 0, LOST_RUN);
        } else {
            report.add(Severity::Note, name, 0, "an unlisted run; the next open removes it");
        }
    }
    Ok(())
}

/// Whether a segment's header is corrupt, while there is something where its first frame would be. A crash leaves no such file:
/// the header is synced before any other write.
///
/// # Errors
/// If the file cannot be read: the question stays open then.
fn has_corrupt_header<D: Device>(device: &mut D, name: &str) -> Result<bool, DeviceError> {
    let file = device.open(name)?;
    let mut read = |offset, len| Io::new(device).read(file, offset, len, IoClass::Recovery);
    let is_corrupt = match read(0, HEADER_BYTES) {
        Ok(header) if segment::decode(&header).is_ok() => Ok(false),
        Ok(_) => read(u64::from(FRAMES_OFFSET), PAGE_BYTES).map(|first| first.iter().any(|&byte| byte != 0)),
        Err(error) => Err(error),
    };
    device.close(file);
    is_corrupt
}

/// Whether the header of a segment or run names another store: the file was copied here, and is no orphan of this store's.
///
/// # Errors
/// If the system cannot read the file for now.
pub(crate) fn is_of_other_store<D: Device>(device: &mut D, name: &str, store: StoreUuid) -> Result<bool, DeviceError> {
    let mut read = || {
        let file = device.open(name)?;
        let header = Io::new(device).read(file, 0, PAGE_BYTES, IoClass::Recovery);
        device.close(file);
        header
    };
    let header = match read() {
        Ok(header) => header,
        Err(error) if error.is_retryable() => return Err(error),
        Err(_) => return Ok(false),
    };
    let found = if run::is_file_name(name) {
        run::decode_header(&header[..run::HEADER_BYTES]).map(|header| header.store)
    } else {
        segment::decode(&header[..HEADER_BYTES]).map(|header| header.store)
    };
    Ok(found.is_ok_and(|found| found != store))
}

/// Whether an unlisted segment is newer than all listed ones and has a frame, in its file or in the tail file alone. A segment
/// takes data only once its listing is synced, so the manifest has lost that listing. A dropped segment may have frames in the
/// tail file too, but the manifest still knows that its sequence number was used.
///
/// # Errors
/// If the file cannot be read: the question stays open then.
pub(crate) fn holds_newer_data<D: Device>(
    device: &mut D,
    name: &str,
    store: StoreUuid,
    last_sequence: u64,
    tail: &TailFrames,
) -> Result<bool, DeviceError> {
    let file = device.open(name)?;
    let holds = has_newer_frame(device, file, store, last_sequence, tail);
    device.close(file);
    holds
}

fn has_newer_frame<D: Device>(
    device: &mut D,
    file: FileId,
    store: StoreUuid,
    last_sequence: u64,
    tail: &TailFrames,
) -> Result<bool, DeviceError> {
    let header = Io::new(device).read(file, 0, HEADER_BYTES, IoClass::Recovery)?;
    // Without a valid header it never took data: the header is synced before any other write to the file.
    let Ok(header) = segment::decode(&header) else { return Ok(false) };
    if header.store != store || header.sequence <= last_sequence {
        return Ok(false);
    }
    if tail.has_frame_of_unlisted(header.uuid) {
        return Ok(true);
    }
    let first = Io::new(device).read(file, u64::from(FRAMES_OFFSET), PAGE_BYTES, IoClass::Recovery)?;
    Ok(frame::decode_header(&first, header.uuid, FRAMES_OFFSET, header.segment_bytes).is_ok())
}
