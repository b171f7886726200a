//! The reading part of an open: scans all listed segments in log order, with several reads in flight.
use super::decode::{DecodeJob, DecodeResult, LogDecoder};
use super::index_build::{IndexBuilder, Stray};
use super::io::Io;
use super::sequential::SequentialRead;
use super::work_queue::{THREAD_BYTES_MIN, WorkQueue};
use super::{OpenReport, Scanned};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::format::manifest::SegmentEntry;
use crate::format::page_sums::PageSums;
use crate::format::scan::{ScanInput, ScanReport};
use crate::format::segment::{self, HEADER_BYTES, StreamKind};
use crate::format::{FRAMES_OFFSET, StoreUuid};
use crate::log::segments::Segment;
use fawn_flash::{Device, DeviceError, FileId, IoClass};
use std::collections::BTreeSet;

const SCAN_READS_IN_FLIGHT: usize = 4;
/// Sequence number of a store's first segment.
const FIRST_SEQUENCE: u64 = 1;

impl<D: Device> Engine<D> {
    pub(super) fn scan_all(&mut self, report: &mut OpenReport) -> Result<(Vec<Scanned>, Vec<Stray>), OpenError> {
        let mut listed: Vec<_> =
            self.manifest.state().segments.iter().map(|(&slot, entry)| (slot, entry.clone())).collect();
        let gaps = gaps_before(&listed);
        // Survivors first: the foreground's records replace them by version, and its tombstones leave no trace.
        listed.sort_by_key(|(_, entry)| (core::cmp::Reverse(entry.stream), entry.sequence));
        for (slot, entry) in &listed {
            let mut segment = open_segment(&mut self.device, self.store, *slot, entry)?;
            (segment.is_sorted, segment.is_cleaned) = (entry.is_sorted, entry.is_sorted);
            self.segments.insert(segment);
        }
        self.measure_device();
        self.note_over_capacity();
        let mut builder = IndexBuilder::new(self);
        let from = builder.load_checkpoint(report)?;
        let scanned = listed.iter().filter(|(_, entry)| entry.sequence >= from[entry.stream].sequence).count() as u64;
        if scanned * 4 >= builder.engine.capacity_segments() && builder.engine.is_nearly_full() {
            // Segments with deferred records are not cleaned. Openings of short duration would never confirm all, and fill the
            // store. A smaller part of it leaves others to clean.
            builder.deferred.defer_nothing();
        }
        // A sorted segment before the checkpoint hides copies behind it.
        listed.retain(|(_, entry)| entry.is_sorted || entry.sequence >= from[entry.stream].sequence);
        if report.checkpoint_entries.is_some() {
            // Without a checkpoint most keys are new.
            builder.expect_deferred(&listed);
        }
        let segment_bytes = builder.engine.options.segment_bytes;
        let len = |(_, entry): &(u32, SegmentEntry)| entry.sealed_len().unwrap_or(segment_bytes) - FRAMES_OFFSET;
        let planned: u64 = listed.iter().map(len).map(u64::from).sum();
        builder.engine.options.progress.iter().for_each(|progress| progress.plan(planned));
        let mut decoder = WorkQueue::new(planned >= THREAD_BYTES_MIN, || builder.decoder());
        let mut scanned = Vec::new();
        for (slot, entry) in listed {
            let is_behind = entry.sequence >= from[entry.stream].sequence;
            if is_behind && gaps.contains(&entry.sequence) {
                builder.gap(entry.sequence);
            }
            let input =
                ScanInput { uuid: entry.uuid, sequence: entry.sequence, segment_bytes, sealed_len: entry.sealed_len() };
            let only_hides = entry.is_sorted && !is_behind;
            // Without a seal, unreadable pages at the end could pass for a torn write, and their records for absent ones.
            let is_reported = builder.engine.options.read_only && entry.seal.is_some();
            let passes_unreadable = only_hides || is_reported;
            let (scan, pages, tail_from) = scan_segment(&mut builder, &mut decoder, slot, input, passes_unreadable)?;
            // Without a checkpoint the indexes grow with each segment.
            builder.bound_deferred();
            report.segments += 1;
            report.records += scan.records;
            report.bytes += u64::from(scan.valid_len - FRAMES_OFFSET);
            report.tail_bytes += u64::from(scan.valid_len.saturating_sub(tail_from));
            let has_lost_traces = only_hides && entry.sealed_len().is_some_and(|len| scan.valid_len < len);
            if has_lost_traces {
                builder.lose_traces(slot, &entry);
            } else {
                let segment = builder.engine.segments.expect_mut(slot);
                (segment.end, segment.facts) = (scan.valid_len, scan.facts.clone());
            }
            let tail = builder.engine.left_tail.of(entry.uuid);
            scanned.push(Scanned { entry, slot, report: scan, pages, tail, tail_from, is_passed: has_lost_traces });
        }
        for scanned in scanned.iter_mut().filter(|scanned| scanned.is_passed) {
            scanned.is_passed = !builder.may_lack_traces(&scanned.entry);
        }
        let strays = builder.finish()?;
        Ok((scanned, strays))
    }
}

impl<D: Device> IndexBuilder<'_, D> {
    /// Makes room for the records of these segments. A retired range has no table: its records are of several heirs.
    fn expect_deferred(&mut self, listed: &[(u32, SegmentEntry)]) {
        let (mut by_range, mut records) = (vec![0; self.engine.ranges.len()], 0);
        let sealed = listed.iter().filter_map(|(_, entry)| entry.seal.as_ref());
        for facts in sealed.flat_map(|seal| &seal.facts.numbers) {
            records += u64::from(facts.records);
            if let Some(&at) = self.numbers.get(&facts.number) {
                by_range[at] += u64::from(facts.records);
            }
        }
        self.deferred.expect(&by_range, records);
    }
}

/// The foreground's segments before which others are missing, by sequence number. A missing one may have been of either
/// stream.
fn gaps_before(listed: &[(u32, SegmentEntry)]) -> BTreeSet<u64> {
    let mut streams: Vec<_> = listed.iter().map(|(_, entry)| (entry.sequence, entry.stream)).collect();
    streams.sort_unstable();
    let (mut gaps, mut expected, mut is_gap) = (BTreeSet::new(), FIRST_SEQUENCE, false);
    for (sequence, stream) in streams {
        is_gap |= sequence > expected;
        expected = sequence + 1;
        if stream == StreamKind::Foreground && core::mem::take(&mut is_gap) {
            gaps.insert(sequence);
        }
    }
    gaps
}

fn open_segment<D: Device>(
    device: &mut D,
    store: StoreUuid,
    slot: u32,
    entry: &SegmentEntry,
) -> Result<Segment, OpenError> {
    let name = segment::file_name(slot, entry.uuid);
    let file = match device.open(&name) {
        Ok(file) => file,
        Err(DeviceError::NotFound { .. }) => return Err(OpenError::FileMissing { file: name }),
        Err(error) => return Err(error.into()),
    };
    // One read may have been misdirected or have failed.
    verify_header(device, file, &name, store, entry).or_else(|_| verify_header(device, file, &name, store, entry))?;
    Ok(Segment::new((slot, entry.sequence), entry.uuid, entry.stream, file, name))
}

/// Verifies that a file's header is that of the listed segment.
fn verify_header<D: Device>(
    device: &mut D,
    file: FileId,
    name: &str,
    store: StoreUuid,
    entry: &SegmentEntry,
) -> Result<(), OpenError> {
    let header = Io::new(device).read(file, 0, HEADER_BYTES, IoClass::Recovery)?;
    let corrupt =
        |detail: String| OpenError::Corrupt { file: name.to_owned(), from_bytes: 0, to_bytes: FRAMES_OFFSET, detail };
    let header = segment::decode(&header).map_err(|error| match error.is_of_other_format() {
        true => OpenError::Format { file: name.to_owned(), error },
        false => corrupt(error.to_string()),
    })?;
    if header.uuid != entry.uuid
        || header.store != store
        || header.sequence != entry.sequence
        || header.stream != entry.stream
    {
        return Err(corrupt("the file is another segment than the manifest lists".to_owned()));
    }
    Ok(())
}

/// Streams one segment through the decoder: its reads and the decoding of what was read run while earlier records are applied.
/// Unreadable pages are an error, or corrupt bytes if the opening may succeed without them.
fn scan_segment<D: Device>(
    builder: &mut IndexBuilder<'_, D>,
    decoder: &mut WorkQueue<LogDecoder>,
    slot: u32,
    input: ScanInput,
    passes_unreadable: bool,
) -> Result<(ScanReport, PageSums, u32), OpenError> {
    let file: FileId = builder.engine.segments.expect(slot).file;
    let end = u64::from(input.sealed_len.unwrap_or(input.segment_bytes));
    let tail = builder.engine.left_tail.of(input.uuid);
    let part = (u64::from(FRAMES_OFFSET), end);
    let reads = SequentialRead::new(file, part, SCAN_READS_IN_FLIGHT, IoClass::Recovery);
    let mut reads = reads.counted_by(builder.engine.options.progress.as_ref()).overlaid_by(tail);
    reads = reads.reusing(core::mem::take(&mut builder.buffers));
    // Parts that were read before an error are applied first.
    let mut read = Ok(());
    let mut is_at_end = false;
    let (report, pages) = loop {
        while decoder.has_room() && !is_at_end {
            let device = &mut builder.engine.device;
            let taken = if passes_unreadable { reads.take(device) } else { reads.try_take(device) };
            let job = match taken {
                Ok(Some(buf)) => DecodeJob::Part { input, buf, batch: builder.batches.pop().unwrap_or_default() },
                taken => {
                    is_at_end = true;
                    read = taken.map(drop);
                    DecodeJob::End { input }
                }
            };
            decoder.push(job);
        }
        match decoder.next() {
            Some(DecodeResult::Batch { buf, batch }) => {
                reads.give_back(buf);
                builder.records(slot, &batch);
                builder.batches.push(batch);
            }
            Some(DecodeResult::End { report, pages }) => break (report, pages),
            None => unreachable!("the last job of a segment is its end"),
        }
        if builder.must_resolve() {
            reads.settle(&mut builder.engine.device);
            builder.resolve()?;
        }
    };
    read?;
    let changed_from = reads.changed_from();
    builder.buffers = reads.into_buffers();
    Ok((report, pages, changed_from))
}
