//! Background scrub: every sealed segment is read again within a period, so that rot is found while other copies exist.
//!
//! Sealed segments are in a queue, in the order in which their bytes were last known to be good. One after the other is
//! read and judged, and returns to the end of the queue. With `n` segments one is due every `period / n`, so each is
//! read within a period of its seal or its last reading, however many are added and dropped meanwhile.
//!
//! Nothing of it is persisted. A position in the manifest would be a write for each segment read, and a bad one could hide
//! segments from the scrub. Instead each opening begins elsewhere in the log, so that a store that is opened often is
//! read evenly, too.
mod pass;
mod queue;

use super::{Engine, InFlight};
use core::ops::Range;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Device, DeviceError, IoClass, Token};
use fawn_types::MonoMs;
use pass::{Judged, Pass};
use queue::{ScrubQueue, ScrubbedSegment};
use std::collections::VecDeque;

/// Length of a read, bytes; one is in flight at a time.
const READ_BYTES: u32 = 256 << 10;
/// Pace within a segment, bytes per ms, unless the period takes more: a segment is read within minutes, since an interrupted
/// reading begins again.
const BYTES_PER_MS_MIN: u64 = 1 << 10;
/// Pace that the shortest period does not exceed, bytes per ms.
const BYTES_PER_MS_MAX: u64 = 64 << 10;
/// Time from the opening to the first segment: clients come first.
const FIRST_MS: u64 = 60_000;
/// Lateness that is made up for. More is forgiven: a machine that was asleep would otherwise do nothing else.
const LATE_MS_MAX: u64 = 60_000;
/// Time for which a reading waits for the reads of cleaning to end.
const CLEANING_MS_MAX: u64 = 10_000;
const NEVER: MonoMs = MonoMs(u64::MAX);
/// Findings that are kept for reports; all are logged and counted.
const FINDINGS_MAX: usize = 16;

/// Bytes of a sealed segment that the scrub found corrupt or unreadable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubFinding {
    /// The segment's file.
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
    is_reading: bool,
    /// Time of the next read; the end of time while there is nothing to read.
    next_at: MonoMs,
    /// Time at which the last segment of the queue was due, and at which the next one is; the end of time without any.
    segment_at: MonoMs,
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
            is_reading: false,
            next_at: NEVER,
            segment_at: MonoMs(0),
            due_at: NEVER,
            paced_at: MonoMs(0),
            findings: VecDeque::new(),
        }
    }
}

/// A segment that is being read.
#[derive(Debug)]
struct Reading {
    segment: ScrubbedSegment,
    pass: Pass,
    /// Offset of the next read.
    at: u32,
    /// Up to here single pages are read, because a longer read failed.
    pages_to: u32,
}

impl Reading {
    fn new(segment: ScrubbedSegment, pass: Pass) -> Self {
        Self { segment, pass, at: 0, pages_to: 0 }
    }

    /// Bytes from `at` on that the next read takes, of a segment that ends at `end`.
    fn next_len(&self, end: u32) -> u32 {
        let whole = (end - self.at).next_multiple_of(PAGE_BYTES as u32);
        whole.min(if self.at < self.pages_to { PAGE_BYTES as u32 } else { READ_BYTES })
    }
}

impl Scrubber {
    /// Sets the time of the next read while no segment is being read.
    fn plan(&mut self) {
        let first = self.queue.first_retry().map_or(self.due_at, |retry_at| retry_at.min(self.due_at));
        self.next_at = first.max(self.paced_at);
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.queue.resident_bytes() + self.current.as_ref().map_or(0, |reading| reading.pass.resident_bytes())
    }
}

impl<D: Device> Engine<D> {
    /// The most recent bytes of sealed segments that the scrub found corrupt or unreadable, oldest first.
    pub fn scrub_findings(&self) -> impl Iterator<Item = &ScrubFinding> {
        self.scrubber.findings.iter()
    }

    /// Time of the scrub's next read. `None`: none is due, or a completion brings it about.
    pub fn scrub_at(&self) -> Option<MonoMs> {
        let waits = self.scrubber.is_reading || self.cleaner.is_reading();
        Some(self.scrubber.next_at).filter(|at| !waits && *at < NEVER)
    }

    /// Begins the scrub of an open engine. Each opening begins elsewhere in the log.
    pub(crate) fn begin_scrub(&mut self) {
        if self.options.read_only || self.options.scrub_period_ms == 0 {
            return;
        }
        let listed = self.segments.iter().filter(|segment| segment.listed_sealed);
        let names: Vec<(u64, u32)> = listed.map(|segment| (segment.sequence, segment.slot)).collect();
        self.scrubber.queue = ScrubQueue::begin(names, self.generation);
        if self.scrubber.queue.sealed() > 0 {
            self.scrubber.segment_at = self.now.mono;
            self.scrubber.due_at = self.now.mono.plus_ms(FIRST_MS);
            self.scrubber.plan();
        }
    }

    /// A segment is listed as sealed: its bytes do not change any more.
    pub(crate) fn scrub_sealed(&mut self, slot: u32) {
        if self.options.read_only || self.options.scrub_period_ms == 0 {
            return;
        }
        let sequence = self.segments.expect(slot).sequence;
        self.scrubber.queue.sealed_another(sequence, slot);
        let segments = &self.segments;
        self.scrubber.queue.forget_dropped(|segment| segment.is_in(segments));
        self.schedule_scrub();
        if self.scrubber.current.is_none() {
            self.scrubber.plan();
        }
    }

    /// The queue has another segment. With more of them, each has to be read sooner.
    fn schedule_scrub(&mut self) {
        let (now, interval_ms) = (self.now.mono, self.segment_interval_ms());
        let scrubber = &mut self.scrubber;
        if scrubber.due_at == NEVER {
            scrubber.segment_at = now;
        }
        scrubber.due_at = scrubber.due_at.min(scrubber.segment_at.plus_ms(interval_ms).max(now));
    }

    /// A sealed segment is dropped.
    pub(crate) fn scrub_dropped(&mut self) {
        self.scrubber.queue.dropped_one();
    }

    /// Starts the next read of the scrub if it is due. Costs one comparison otherwise.
    pub(crate) fn scrub(&mut self) {
        let now = self.now.mono;
        if now < self.scrubber.next_at || self.scrubber.is_reading {
            return;
        }
        if self.cleaner.is_reading() && now.ms_since(self.scrubber.next_at) < CLEANING_MS_MAX {
            return;
        }
        let segments = &self.segments;
        let mut current = self.scrubber.current.take().filter(|reading| reading.segment.is_in(segments));
        if current.is_none() {
            current = self.next_scrubbed();
        }
        match current {
            Some(reading) => self.read_scrubbed(reading),
            None => self.scrubber.plan(),
        }
    }

    /// Takes a segment whose reads failed and that is due again, or the next one of the queue.
    fn next_scrubbed(&mut self) -> Option<Reading> {
        let (now, interval_ms, segments) = (self.now.mono, self.segment_interval_ms(), &self.segments);
        let scrubber = &mut self.scrubber;
        let is_due = now >= scrubber.due_at;
        let next = match scrubber.queue.take_retry(now, is_due, |segment| segment.is_in(segments)) {
            Some(retried) => retried,
            None if !is_due => return None,
            None => {
                let Some(next) = scrubber.queue.take(|segment| segment.is_in(segments)) else {
                    scrubber.due_at = NEVER;
                    return None;
                };
                // Lateness beyond this is forgiven.
                let earliest = MonoMs(now.0.saturating_sub(LATE_MS_MAX));
                scrubber.segment_at = scrubber.due_at.max(earliest);
                scrubber.due_at = scrubber.segment_at.plus_ms(interval_ms);
                next
            }
        };
        let segment = self.segments.expect(next.slot);
        Some(Reading::new(next, Pass::scan(segment, self.header_of(segment))))
    }

    fn read_scrubbed(&mut self, reading: Reading) {
        let segment = self.segments.expect_mut(reading.segment.slot);
        segment.pins += 1;
        let (file, len) = (segment.file, reading.next_len(segment.end));
        let buf = self.pool.take_exact(len as usize);
        let token = Token(self.in_flight.insert(InFlight::Scrub { len: len as usize }) as u64);
        self.read_bytes_in_flight += len as usize;
        self.device.submit_read(file, u64::from(reading.at), buf, IoClass::Scrub, token);
        self.scrubber.is_reading = true;
        self.scrubber.paced_at = self.next_chunk_at(len);
        self.scrubber.next_at = self.scrubber.paced_at;
        self.scrubber.current = Some(reading);
    }

    /// Time from one segment to the next.
    fn segment_interval_ms(&self) -> u64 {
        self.options.scrub_period_ms / self.scrubber.queue.sealed().max(1)
    }

    /// Time of the read after one of this length that begins now.
    fn next_chunk_at(&self, len: u32) -> MonoMs {
        let (len, segment_bytes) = (u64::from(len), u64::from(self.options.segment_bytes));
        let by_period_ms = self.segment_interval_ms() * len / segment_bytes;
        let interval_ms = by_period_ms.min(len / BYTES_PER_MS_MIN).max(len / BYTES_PER_MS_MAX);
        self.now.mono.plus_ms(interval_ms)
    }

    /// Takes bytes of the segment that is being read.
    pub(crate) fn scrub_read(&mut self, len: usize, result: Result<usize, DeviceError>, buf: Option<AlignedBuf>) {
        self.read_bytes_in_flight -= len;
        self.scrubber.is_reading = false;
        let Some(mut reading) = self.scrubber.current.take() else { unreachable!("bytes are read of a segment") };
        let slot = reading.segment.slot;
        let segment = self.segments.expect_mut(slot);
        segment.pins -= 1;
        let end = segment.end;
        match (result, buf) {
            (Ok(_), Some(buf)) => {
                self.stats.scrub_bytes += len as u64;
                reading.pass.push(&buf, reading.at);
                self.pool.give(buf);
                reading.at += len as u32;
            }
            (Ok(_), None) => unreachable!("a read brings its buffer back"),
            (Err(error), _) => match self.scrub_failed(reading, len as u32, &error) {
                Some(went_on) => reading = went_on,
                None => return self.examine_if_dead(slot),
            },
        }
        if reading.at >= end {
            self.judge_scrubbed(reading);
        } else {
            self.scrubber.current = Some(reading);
        }
        self.examine_if_dead(slot);
    }

    /// A read failed. The segment is read again later; in the end without the pages that cannot be read.
    fn scrub_failed(&mut self, mut reading: Reading, len: u32, error: &DeviceError) -> Option<Reading> {
        self.stats.scrub_reads_failed += 1;
        let segment = self.segments.expect(reading.segment.slot);
        let (file, offset) = (&segment.name, reading.at);
        if reading.pass.is_scan() {
            let mut queued = reading.segment;
            queued.failures += u32::from(!error.is_retryable());
            let Some(delay_ms) = queued.retry_delay_ms() else {
                queued.failures = 0;
                let pass = Pass::walk(segment, self.header_of(segment), None, error.to_string());
                return Some(Reading::new(queued, pass));
            };
            tracing::warn!(%file, offset, %error, delay_ms, "a read of the scrub failed: it is tried again");
            self.scrubber.queue.retry(queued, self.now.mono.plus_ms(delay_ms));
            self.scrubber.plan();
            return None;
        }
        if len > PAGE_BYTES as u32 {
            reading.pages_to = reading.at + len;
        } else {
            // Its records count as lost; those around it are still found.
            reading.pass.push(&[0; PAGE_BYTES], reading.at);
            reading.at += len;
        }
        Some(reading)
    }

    fn judge_scrubbed(&mut self, reading: Reading) {
        let Reading { segment: mut scrubbed, pass, .. } = reading;
        let segment = self.segments.expect(scrubbed.slot);
        match pass.judge(segment) {
            Judged::Sound => {
                self.stats.scrub_segments += 1;
                scrubbed.failures = 0;
            }
            // A second pass finds the records that are lost.
            Judged::Corrupt { offset, detail } => {
                let pass = Pass::walk(segment, self.header_of(segment), Some(offset), detail);
                self.scrubber.current = Some(Reading::new(scrubbed, pass));
                return;
            }
            Judged::Lost(findings) => {
                self.stats.scrub_segments += 1;
                let lost: u64 = findings.iter().map(|finding| finding.records).sum();
                // A segment that stays corrupt is reported once, and again only if it has lost more.
                if lost > scrubbed.lost_records {
                    self.stats.scrub_corrupt_records += lost - scrubbed.lost_records;
                    scrubbed.lost_records = lost;
                    self.report_scrubbed(findings);
                }
            }
        }
        self.scrubber.queue.push(scrubbed);
        self.schedule_scrub();
        self.scrubber.plan();
    }

    fn report_scrubbed(&mut self, findings: Vec<ScrubFinding>) {
        for finding in findings {
            let ScrubFinding { file, bytes, records, detail } = &finding;
            tracing::error!(%file, offset = bytes.start, end = bytes.end, records, %detail, "the scrub found a corrupt record");
            if self.scrubber.findings.len() == FINDINGS_MAX {
                self.scrubber.findings.pop_front();
            }
            self.scrubber.findings.push_back(finding);
        }
    }
}
