//! Background scrub: every sealed segment and every run is read again within a period, so that rot is found while other
//! copies exist.
//!
//! These files are in a queue, in the order in which their bytes were last known to be good. One after the other is
//! read and judged, and returns to the end of the queue. With `n` segments one is due every `period / n`, and a run counts
//! for as many as it is long: so each is read within a period of its seal or its last reading, however many are added and
//! dropped meanwhile.
//!
//! Nothing of it is persisted. A position in the manifest would be a write for each file read, and a bad one could hide
//! files from the scrub. Instead each opening begins elsewhere in the store, so that a store that is opened often is
//! read evenly, too.
mod pass;
mod queue;
mod run_pass;

use super::sorted::SortedTier;
use super::{Engine, InFlight};
use crate::format::segment::SegmentHeader;
use crate::log::failures::ReadFailures;
use crate::log::segments::{Segment, SegmentTable};
use core::ops::Range;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Completion, Device, DeviceError, IoClass, Token};
use fawn_types::MonoMs;
use pass::{Judged, SegmentPass};
pub(crate) use queue::QueuedFile;
use queue::{ScrubFile, ScrubQueue};
use run_pass::RunPass;
use std::collections::VecDeque;

/// Length of a read of a segment, bytes; one is in flight at a time.
const READ_BYTES: usize = 256 << 10;
/// Length of a read of a run, bytes. Each of its records is looked up in the fences and filters, and clients wait meanwhile.
const RUN_READ_BYTES: usize = 64 << 10;
/// Pace within a file, bytes per ms, unless the period takes more: a segment is read within minutes, since an interrupted
/// reading begins again.
const BYTES_PER_MS_MIN: u64 = 1 << 10;
/// Pace that the shortest period does not exceed, bytes per ms.
const BYTES_PER_MS_MAX: u64 = 64 << 10;
/// Time from the opening to the first file: clients come first.
const FIRST_MS: u64 = 60_000;
/// Lateness that is made up for. More is forgiven: a machine that was asleep would otherwise do nothing else.
const LATE_MS_MAX: u64 = 60_000;
/// Time for which a reading waits for the reads of cleaning to end.
const CLEANING_MS_MAX: u64 = 10_000;
const NEVER: MonoMs = MonoMs(u64::MAX);
/// Findings that are kept for reports; all are logged and counted.
const FINDINGS_MAX: usize = 16;

/// Bytes of a sealed segment or a run that the scrub found corrupt or unreadable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubFinding {
    /// Name of the file.
    pub file: String,
    /// The corrupt bytes, as far as they can be distinguished from others.
    pub bytes: Range<u64>,
    /// Records lost there, at least.
    pub records: u64,
    /// The failed check, or the failed read.
    pub detail: String,
}

#[derive(Debug)]
pub(crate) struct Scrubber {
    queue: ScrubQueue,
    current: Option<Reading>,
    /// The read in flight, and the time when it has hung for so long that it is left there.
    reading: Option<(Token, MonoMs)>,
    /// Reads of files that are not being read any more.
    reads_left: u32,
    /// Time of the next read; the end of time while there is nothing to read.
    next_at: MonoMs,
    /// Time at which the last file that was taken from the queue was due.
    file_at: MonoMs,
    /// Length of that file in segments.
    file_segments: u64,
    /// Time at which the next file of the queue is due; the end of time while the queue is empty.
    due_at: MonoMs,
    /// Time before which the pace allows no read.
    paced_at: MonoMs,
    findings: VecDeque<ScrubFinding>,
}

impl Default for Scrubber {
    fn default() -> Self {
        Self {
            queue: ScrubQueue::default(),
            current: None,
            reading: None,
            reads_left: 0,
            next_at: NEVER,
            file_at: MonoMs(0),
            file_segments: 1,
            due_at: NEVER,
            paced_at: MonoMs(0),
            findings: VecDeque::new(),
        }
    }
}

/// A file that is being read.
#[derive(Debug)]
struct Reading {
    queued: QueuedFile,
    pass: Pass,
    /// Offset of the next read, and the end of the file.
    at: u64,
    end: u64,
    /// Up to here single pages are read, because a longer read failed.
    pages_to: u64,
}

#[derive(Debug)]
enum Pass {
    Segment(Box<SegmentPass>),
    Run(Box<RunPass>),
}

impl Pass {
    /// Whether a failed read ends the pass, so that the file is read again later.
    const fn ends_at_failure(&self) -> bool {
        match self {
            Self::Segment(pass) => pass.is_scan(),
            Self::Run(pass) => !pass.passes_unreadable(),
        }
    }

    fn resident_bytes(&self) -> usize {
        match self {
            Self::Segment(pass) => pass.resident_bytes(),
            Self::Run(pass) => pass.resident_bytes(),
        }
    }
}

impl Reading {
    /// Bytes from `at` on that the next read takes.
    fn next_len(&self) -> usize {
        let whole = (self.end - self.at).next_multiple_of(PAGE_BYTES as u64);
        let longest = match self.pass {
            _ if self.at < self.pages_to => PAGE_BYTES,
            Pass::Segment(_) => READ_BYTES,
            Pass::Run(_) => RUN_READ_BYTES,
        };
        whole.min(longest as u64) as usize
    }
}

impl Scrubber {
    /// Sets the time of the next read while no file is being read.
    fn plan(&mut self) {
        let first = self.queue.first_retry().map_or(self.due_at, |retry_at| retry_at.min(self.due_at));
        self.next_at = first.max(self.paced_at);
    }

    /// Number of reads in flight of files that are not being read any more.
    pub(crate) const fn reads_left(&self) -> u32 {
        self.reads_left
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.queue.resident_bytes() + self.current.as_ref().map_or(0, |reading| reading.pass.resident_bytes())
    }
}

impl<D: Device> Engine<D> {
    /// The most recent bytes of sealed segments and runs that the scrub found corrupt or unreadable, oldest first.
    pub fn scrub_findings(&self) -> impl Iterator<Item = &ScrubFinding> {
        self.scrubber.findings.iter()
    }

    /// Time of the scrub's next read, or of the end of its patience with one. `None`: none is due, or a completion brings it about.
    pub fn scrub_at(&self) -> Option<MonoMs> {
        let Scrubber { reading, next_at, .. } = &self.scrubber;
        if let Some((_, leave_at)) = reading {
            return Some(*leave_at).filter(|_| self.may_leave_idle_reads() > 0);
        }
        let cleaning_ms = if self.cleaner.is_reading() { CLEANING_MS_MAX } else { 0 };
        Some(*next_at).filter(|at| *at < NEVER).map(|at| at.plus_ms(cleaning_ms))
    }

    const fn scrubs(&self) -> bool {
        !self.options.read_only && self.options.scrub_period_ms > 0
    }

    /// Begins the scrub of an open engine. Each opening begins elsewhere in the store.
    pub(crate) fn begin_scrub(&mut self) {
        if !self.scrubs() {
            return;
        }
        let sealed = self.segments.iter().filter(|segment| segment.listed_sealed);
        let sealed = sealed.map(|segment| QueuedFile::segment(segment.sequence, segment.slot));
        let runs = self.sorted.run_lengths().map(|(id, bytes)| QueuedFile::run(id, self.in_segments(bytes)));
        self.scrubber.queue = ScrubQueue::begin(sealed.chain(runs).collect(), self.generation);
        if self.scrubber.queue.segments() > 0 {
            self.scrubber.file_at = self.now.mono;
            self.scrubber.due_at = self.now.mono.plus_ms(FIRST_MS);
            self.scrubber.plan();
        }
    }

    /// A segment is listed as sealed: its bytes do not change any more.
    pub(crate) fn scrub_sealed(&mut self, slot: u32) {
        let sequence = self.segments.expect(slot).sequence;
        self.scrub_added(QueuedFile::segment(sequence, slot));
    }

    /// A run of this length was entered.
    pub(crate) fn scrub_entered(&mut self, id: u64, file_bytes: u64) {
        self.scrub_added(QueuedFile::run(id, self.in_segments(file_bytes)));
    }

    fn scrub_added(&mut self, added: QueuedFile) {
        if !self.scrubs() {
            return;
        }
        self.scrubber.queue.add(added);
        let (segments, sorted) = (&self.segments, &self.sorted);
        self.scrubber.queue.forget_dropped(|queued| is_listed(queued, segments, sorted));
        self.schedule_scrub();
        if self.scrubber.current.is_none() {
            self.scrubber.plan();
        }
    }

    /// The queue has another file. With more of them, each has to be read sooner.
    fn schedule_scrub(&mut self) {
        let (now, interval_ms) = (self.now.mono, self.segment_interval_ms());
        let scrubber = &mut self.scrubber;
        if scrubber.due_at == NEVER {
            scrubber.file_at = now;
        }
        let due_at = scrubber.file_at.plus_ms(interval_ms.saturating_mul(scrubber.file_segments));
        scrubber.due_at = scrubber.due_at.min(due_at.max(now));
    }

    /// A sealed segment is dropped.
    pub(crate) const fn scrub_dropped(&mut self) {
        self.scrubber.queue.dropped_one(1);
    }

    /// A run of this length is dropped.
    pub(crate) fn scrub_retired(&mut self, file_bytes: u64) {
        let segments = self.in_segments(file_bytes);
        self.scrubber.queue.dropped_one(segments);
    }

    fn in_segments(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.options.segment_bytes))
    }

    /// Starts the next read of the scrub if it is due. Costs a comparison or two otherwise.
    pub(crate) fn scrub(&mut self) {
        let now = self.now.mono;
        if let Some((_, leave_at)) = self.scrubber.reading {
            if now < leave_at || self.may_leave_idle_reads() == 0 {
                return;
            }
            self.leave_scrub_read();
        }
        if now < self.scrubber.next_at {
            return;
        }
        if self.cleaner.is_reading() && now.ms_since(self.scrubber.next_at) < CLEANING_MS_MAX {
            return;
        }
        let (segments, sorted) = (&self.segments, &self.sorted);
        let current = self.scrubber.current.take().filter(|reading| is_listed(&reading.queued, segments, sorted));
        match current.or_else(|| self.next_scrubbed()) {
            Some(reading) => self.read_scrubbed(reading),
            None => self.scrubber.plan(),
        }
    }

    /// Takes a file whose reads failed and that is due again, or the next one of the queue.
    fn next_scrubbed(&mut self) -> Option<Reading> {
        let (now, interval_ms) = (self.now.mono, self.segment_interval_ms());
        let (segments, sorted) = (&self.segments, &self.sorted);
        let is_listed = |queued: &QueuedFile| is_listed(queued, segments, sorted);
        let scrubber = &mut self.scrubber;
        let is_due = now >= scrubber.due_at;
        let next = match scrubber.queue.take_retry(now, is_due, is_listed) {
            Some(retried) => retried,
            None if !is_due => return None,
            None => {
                let Some(next) = scrubber.queue.take(is_listed) else {
                    (scrubber.due_at, scrubber.file_segments) = (NEVER, 1);
                    return None;
                };
                // Lateness beyond this is forgiven.
                let earliest = MonoMs(now.0.saturating_sub(LATE_MS_MAX));
                scrubber.file_at = scrubber.due_at.max(earliest);
                scrubber.file_segments = next.segments;
                scrubber.due_at = scrubber.file_at.plus_ms(interval_ms.saturating_mul(next.segments));
                next
            }
        };
        Some(self.first_pass(next))
    }

    fn first_pass(&self, queued: QueuedFile) -> Reading {
        self.reading(queued, SegmentPass::scan, None)
    }

    /// A pass that finds what is lost: after damage at this offset of a segment, or after reads that failed.
    fn last_pass(&self, queued: QueuedFile, offset: Option<u64>, detail: String) -> Reading {
        let unreadable = Some(detail.clone());
        self.reading(queued, |segment, header| SegmentPass::walk(segment, header, offset, detail), unreadable)
    }

    fn reading(
        &self,
        queued: QueuedFile,
        of_segment: impl FnOnce(&Segment, SegmentHeader) -> SegmentPass,
        unreadable: Option<String>,
    ) -> Reading {
        let (pass, end) = match queued.file {
            ScrubFile::Segment { slot, .. } => {
                let segment = self.segments.expect(slot);
                (Pass::Segment(Box::new(of_segment(segment, self.header_of(segment)))), u64::from(segment.end))
            }
            ScrubFile::Run { id } => {
                let run = self.sorted.expect_run(id);
                (Pass::Run(Box::new(RunPass::new(run, unreadable))), run.footer().file_bytes())
            }
        };
        Reading { queued, pass, at: 0, end, pages_to: 0 }
    }

    fn read_scrubbed(&mut self, reading: Reading) {
        let queued = reading.queued;
        let file = match queued.file {
            ScrubFile::Segment { slot, .. } => {
                let segment = self.segments.expect_mut(slot);
                segment.pins += 1;
                segment.file
            }
            ScrubFile::Run { id } => match self.pin_run(id) {
                Some(file) => file,
                None => unreachable!("the run is listed"),
            },
        };
        let patience_ms = self.failures_of(queued.file).long_patience_ms();
        let len = reading.next_len();
        let buf = self.pool.take_exact(len);
        let token = Token(self.in_flight.insert(InFlight::Scrub { queued, len }) as u64);
        self.read_bytes_in_flight += len;
        self.device.submit_read(file, reading.at, buf, IoClass::Scrub, token);
        self.scrubber.reading = Some((token, self.now.mono.plus_ms(patience_ms)));
        self.scrubber.paced_at = self.next_chunk_at(len as u64);
        self.scrubber.next_at = self.scrubber.paced_at;
        self.scrubber.current = Some(reading);
    }

    /// Time from one segment to the next.
    fn segment_interval_ms(&self) -> u64 {
        self.options.scrub_period_ms / self.scrubber.queue.segments().max(1)
    }

    /// Time of the read after one of this length that begins now.
    fn next_chunk_at(&self, len_bytes: u64) -> MonoMs {
        let by_period_ms = self.segment_interval_ms() * len_bytes / u64::from(self.options.segment_bytes);
        let interval_ms = by_period_ms.min(len_bytes / BYTES_PER_MS_MIN).max(len_bytes / BYTES_PER_MS_MAX);
        self.now.mono.plus_ms(interval_ms)
    }

    fn failures_of(&mut self, file: ScrubFile) -> &mut ReadFailures {
        match file {
            ScrubFile::Segment { slot, .. } => &mut self.segments.expect_mut(slot).failures,
            ScrubFile::Run { id } => self.sorted.failures_of_run(id),
        }
    }

    /// Leaves a read that does not end, and the rest of its file: the device may read others all the same.
    fn leave_scrub_read(&mut self) {
        self.scrubber.reading = None;
        let Some(Reading { queued, at, .. }) = self.scrubber.current.take() else {
            unreachable!("bytes are read of a file")
        };
        tracing::warn!(file = %self.scrubbed_name(queued.file), offset = at, "a read of the scrub hangs");
        self.stats.scrub_reads_failed += 1;
        self.scrubber.reads_left += 1;
        self.failures_of(queued.file).note_left();
        self.scrubber.plan();
    }

    /// A read that was left has ended: its file is read again, from the start.
    fn left_scrub_read_ended(
        &mut self,
        mut queued: QueuedFile,
        result: &Result<usize, DeviceError>,
        buf: Option<AlignedBuf>,
    ) {
        if let Some(buf) = buf {
            self.pool.give(buf);
        }
        self.scrubber.reads_left -= 1;
        if let Err(error) = result {
            if !error.is_retryable() {
                let now = self.now.mono;
                self.failures_of(queued.file).note_unreadable(now);
            }
            queued.note_left_failure(error);
        }
        let delay_ms = queued.retry_delay_ms().unwrap_or_default();
        self.scrubber.queue.retry(queued, self.now.mono.plus_ms(delay_ms));
        if self.scrubber.current.is_none() {
            self.scrubber.plan();
        }
        match queued.file {
            ScrubFile::Segment { slot, .. } => self.left_segment_read_ended(slot),
            ScrubFile::Run { id } => self.left_run_read_ended(id),
        }
    }

    /// Takes bytes of the file that is being read.
    pub(crate) fn scrub_read(&mut self, queued: QueuedFile, len: usize, completion: Completion) {
        let Completion { token, result, buf } = completion;
        self.read_bytes_in_flight -= len;
        if self.scrubber.reading.take_if(|(awaited, _)| *awaited == token).is_none() {
            return self.left_scrub_read_ended(queued, &result, buf);
        }
        let Some(mut reading) = self.scrubber.current.take() else { unreachable!("bytes are read of a file") };
        let file = reading.queued.file;
        match (result, buf) {
            (Ok(_), Some(buf)) => {
                self.stats.scrub_bytes += len as u64;
                self.push_scrubbed(&mut reading, &buf);
                self.pool.give(buf);
                self.continue_scrubbed(reading);
            }
            (Ok(_), None) => unreachable!("a read brings its buffer back"),
            (Err(error), _) => self.scrub_failed(reading, len, &error),
        }
        match file {
            ScrubFile::Segment { slot, .. } => {
                self.segments.expect_mut(slot).pins -= 1;
                self.examine_if_dead(slot);
            }
            ScrubFile::Run { id } => {
                self.unpin_run(id);
            }
        }
    }

    /// Gives the next bytes of the file to the pass.
    fn push_scrubbed(&self, reading: &mut Reading, bytes: &[u8]) {
        match (&mut reading.pass, reading.queued.file) {
            (Pass::Segment(pass), _) => pass.push(bytes, reading.at),
            (Pass::Run(pass), ScrubFile::Run { id }) => pass.push(self.sorted.expect_run(id), bytes, reading.at),
            (Pass::Run(_), ScrubFile::Segment { .. }) => unreachable!("a pass is of its file"),
        }
        reading.at += bytes.len() as u64;
    }

    fn continue_scrubbed(&mut self, reading: Reading) {
        if reading.at >= reading.end {
            self.judge_scrubbed(reading);
        } else {
            self.scrubber.current = Some(reading);
        }
    }

    /// A read failed. The file is read again later; in the end without the pages that cannot be read.
    fn scrub_failed(&mut self, mut reading: Reading, len: usize, error: &DeviceError) {
        self.stats.scrub_reads_failed += 1;
        if reading.pass.ends_at_failure() {
            let (file, offset) = (self.scrubbed_name(reading.queued.file), reading.at);
            let mut queued = reading.queued;
            queued.failures += u32::from(!error.is_retryable());
            let Some(delay_ms) = queued.retry_delay_ms() else {
                // So many failed reads need no other reading.
                queued = QueuedFile { failures: 0, is_suspect: true, ..queued };
                self.scrubber.current = Some(self.last_pass(queued, None, error.to_string()));
                return;
            };
            tracing::warn!(%file, offset, %error, delay_ms, "a read of the scrub failed: it is tried again");
            self.scrubber.queue.retry(queued, self.now.mono.plus_ms(delay_ms));
            self.scrubber.plan();
            return;
        }
        if len > PAGE_BYTES {
            reading.pages_to = reading.at + len as u64;
        } else {
            // Its records count as lost; those around it are still found.
            self.push_scrubbed(&mut reading, &[0; PAGE_BYTES]);
        }
        self.continue_scrubbed(reading);
    }

    fn scrubbed_name(&self, file: ScrubFile) -> &str {
        match file {
            ScrubFile::Segment { slot, .. } => &self.segments.expect(slot).name,
            ScrubFile::Run { id } => self.sorted.expect_run(id).name(),
        }
    }

    fn judge_scrubbed(&mut self, reading: Reading) {
        let Reading { mut queued, pass, .. } = reading;
        let judged = match (pass, queued.file) {
            (Pass::Segment(pass), ScrubFile::Segment { slot, .. }) => pass.judge(self.segments.expect(slot)),
            (Pass::Run(pass), ScrubFile::Run { id }) => pass.judge(self.sorted.expect_run(id)),
            _ => unreachable!("a pass is of its file"),
        };
        let findings = match judged {
            Judged::Sound => {
                // The reads failed before, and not the file.
                self.failures_of(queued.file).note_whole();
                Vec::new()
            }
            // A second pass finds the records that are lost.
            Judged::Corrupt { offset, detail } => {
                self.scrubber.current = Some(self.last_pass(queued, Some(offset), detail));
                return;
            }
            Judged::Lost(findings) => findings,
        };
        let lost: u64 = findings.iter().map(|finding| finding.records).sum();
        // A file that stays corrupt is reported once, and again only if it has lost more.
        let has_lost_more = lost > queued.lost_records;
        if has_lost_more && !queued.is_suspect {
            // One read may have been misdirected: the damage counts if another reading finds it too.
            queued.is_suspect = true;
            self.scrubber.current = Some(self.first_pass(queued));
            return;
        }
        self.stats.scrub_segments += 1;
        if has_lost_more {
            self.stats.scrub_corrupt_records += lost - queued.lost_records;
            self.report_scrubbed(findings);
        }
        // Also if it is less than before: what is healed may be lost again.
        queued = QueuedFile { failures: 0, lost_records: lost, is_suspect: false, ..queued };
        self.scrubber.queue.push(queued);
        self.schedule_scrub();
        self.scrubber.plan();
    }

    fn report_scrubbed(&mut self, findings: Vec<ScrubFinding>) {
        for finding in findings {
            let ScrubFinding { file, bytes, records, detail } = &finding;
            tracing::error!(%file, offset = bytes.start, end = bytes.end, records, %detail, "the scrub found corrupt bytes");
            if self.scrubber.findings.len() == FINDINGS_MAX {
                self.scrubber.findings.pop_front();
            }
            self.scrubber.findings.push_back(finding);
        }
    }
}

/// Whether a file of the queue is still a sealed segment or a listed run.
fn is_listed(queued: &QueuedFile, segments: &SegmentTable, sorted: &SortedTier) -> bool {
    match queued.file {
        ScrubFile::Segment { sequence, slot } => segments.get(slot).is_some_and(|it| it.sequence == sequence),
        ScrubFile::Run { id } => sorted.has_run(id),
    }
}
