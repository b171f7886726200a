//! Writing runs: steps of the job between gathering and the removal of index entries.
use super::super::{Engine, InFlight};
use super::gather::SORTS_PER_MEMORY;
use super::job::{DoneRun, Gathered, SortJob, SortStep, SourceRead};
use super::sweep::SweepPart;
use super::{ListedRun, RunError, SortedTier};
use crate::format::manifest::ManifestEdit;
use crate::format::run::{self, RunHeader, RunRecord, Space};
use crate::format::segment::StreamKind;
use crate::format::{RangeNumber, SegmentUuid};
use crate::sorted::{MergeError, MergeRules, Merged, ReadRange, RunMerge, RunWriter, RunWriterOptions, WriterState};
use core::cell::OnceCell;
use core::ops::RangeInclusive;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Completion, Device, DeviceError, IoClass, Token};
use fawn_types::{KeyHash, MonoMs, RingKey, TimeMs, Version};
use smallvec::SmallVec;

/// Records that a step passes from the sources to the run.
const RECORDS_PER_STEP: usize = 1024;
/// Bytes of a run that a step writes.
const BYTES_PER_STEP: usize = 1 << 20;
/// Reads of a merge in flight: each keeps a file open, and reads of clients wait for it on some devices.
pub(super) const READS_MAX: usize = 4;
/// Length of a read of a run that is merged, bytes: two for each run of a merge take as much memory as a sort, unless they would be
/// shorter than a page.
const READ_BYTES: RangeInclusive<u64> = PAGE_BYTES as u64..=256 << 10;
/// Length of a write of a run, bytes.
const WRITE_BYTES: usize = 256 << 10;
/// Time after a failure before the next job.
pub(super) const RETRY_MS: u64 = 10_000;
/// Doublings of this time at most: more than ten minutes.
const REFUSALS_MAX: u32 = 6;
/// Doublings at most after a lack of memory, which no freed segment shows to be over: more than a minute.
const MEMORY_REFUSALS_MAX: u32 = 3;

/// The reason why a step of a job ended.
enum SortPause {
    /// Another step.
    Step,
    /// The device.
    Device,
    /// All runs are complete.
    Complete,
}

/// The error that ends a job.
enum SortFailure {
    Device(DeviceError),
    Merge(MergeError),
}

impl From<DeviceError> for SortFailure {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// The pause of a job with all its runs: a read that was ahead of need may still be in flight.
fn paused_at_end(job: &SortJob) -> SortPause {
    if job.is_waiting.is_empty() { SortPause::Complete } else { SortPause::Device }
}

impl<D: Device> Engine<D> {
    /// Continues the job, or begins one that is due.
    pub(in crate::engine) fn advance_sort(&mut self) {
        self.watch_rest();
        self.step_sort();
        self.hold_puts_if_ahead();
    }

    fn step_sort(&mut self) {
        self.sorted.has_next_step = false;
        if self.poisoned.is_some() || self.options.read_only {
            return;
        }
        if self.leave_sort_read_at().is_some_and(|at| self.now.mono >= at) {
            self.leave_sort_reads();
        }
        if self.sorted.is_held {
            // Gathering does not change the list of runs, and neither does a batch: its run is listed with that of the last one.
            match self.sorted.job.as_ref().map(|job| job.step) {
                None => _ = self.begin_due_sort(),
                Some(SortStep::WriteBatch) => self.write_runs(),
                Some(_) => {}
            }
            return;
        }
        match self.sorted.job.as_ref().map(|job| job.step) {
            None | Some(SortStep::Gather) => {}
            Some(SortStep::WriteBatch | SortStep::Write) => self.write_runs(),
            Some(SortStep::Listing(end)) => {
                if self.manifest.is_durable(end) {
                    self.enter_runs();
                }
            }
            Some(SortStep::Unindex { at, cursor }) => self.unindex_next(at, cursor),
            Some(SortStep::GivenUp) => self.remove_sort(),
        }
        if !self.sorted.retired.is_empty() {
            self.unlink_runs();
        }
        // At once, since puts that wait for jobs go on when there is none.
        if self.sorted.job.is_none() {
            self.begin_job();
        }
    }

    /// A merge and a sort take turns while both are due.
    fn begin_job(&mut self) {
        let sort_is_first = core::mem::take(&mut self.sorted.was_merge);
        let _ =
            (sort_is_first && self.begin_due_sort()) || self.begin_merge() || (!sort_is_first && self.begin_due_sort());
        self.sorted.note_work(self.now.mono, 0);
        self.sorted.has_next_step |= self.sorted.job.is_some();
    }

    fn write_runs(&mut self) {
        let Some(mut job) = self.sorted.job.take() else { return };
        let paused = self.continue_runs(&mut job);
        let is_batch = job.step == SortStep::WriteBatch;
        let job = self.sorted.job.insert(job);
        match paused {
            Ok(SortPause::Step) => self.sorted.has_next_step = true,
            Ok(SortPause::Device) => {}
            Ok(SortPause::Complete) if is_batch => {
                job.begin_next_batch();
                self.sorted.has_next_step = true;
            }
            Ok(SortPause::Complete) => self.list_runs(),
            Err(failure) => self.sort_failed(&failure),
        }
    }

    fn continue_runs(&mut self, job: &mut SortJob) -> Result<SortPause, SortFailure> {
        let Some(mut merge) = job.merge.take() else { return Ok(paused_at_end(job)) };
        let mut writer = match job.writer.take() {
            Some(writer) => writer,
            None => self.begin_run(job)?,
        };
        let paused = self.step_run(job, &mut merge, &mut writer);
        job.merge = Some(merge);
        match paused {
            Ok(Some(paused)) => {
                job.writer = Some(writer);
                Ok(paused)
            }
            // The run is complete, or has nothing.
            Ok(None) => {
                job.is_finishing = false;
                if writer.is_empty() {
                    let name = writer.abandon(&mut self.device);
                    self.unlink(name, 0);
                } else {
                    let file_bytes = writer.file_bytes();
                    let (run, file) = writer.into_run();
                    self.device.end_writes(file);
                    job.done.push(DoneRun { run, file, file_bytes, age: job.age });
                }
                if !job.is_read {
                    return Ok(SortPause::Step);
                }
                // The job may wait for syncs now. Its records are not needed, and each poll would begin a run of none.
                job.merge = None;
                Ok(paused_at_end(job))
            }
            Err(failure) => {
                job.writer = Some(writer);
                Err(failure)
            }
        }
    }

    /// Passes records, and writes what is full. `None`: the run is complete.
    fn step_run(
        &mut self,
        job: &mut SortJob,
        merge: &mut RunMerge,
        writer: &mut RunWriter,
    ) -> Result<Option<SortPause>, SortFailure> {
        let (mut waits, mut needed) = (false, None);
        if !job.is_finishing {
            match self.merge_step(job, merge, writer).map_err(SortFailure::Merge)? {
                Merged::More => {}
                Merged::Writer => waits = true,
                Merged::Source(index) => (waits, needed) = (true, Some(index)),
                Merged::RunFull => {
                    writer.finish();
                    job.is_finishing = true;
                }
                Merged::Done => {
                    job.is_read = true;
                    if writer.is_empty() {
                        return Ok(None);
                    }
                    writer.finish();
                    job.is_finishing = true;
                }
            }
        }
        if !job.is_read {
            self.read_ahead(job, merge, needed);
        }
        let mut token = || {
            let token = Token(self.in_flight.insert(InFlight::SortWrite) as u64);
            self.writes_in_flight.push_back((token, self.now.mono));
            token
        };
        let before = writer.file_bytes();
        let state = writer.step(&mut self.device, BYTES_PER_STEP, &mut token)?;
        self.stats.sort_bytes += writer.file_bytes().saturating_sub(before);
        Ok(match state {
            WriterState::Done(_) => None,
            // With a step for each poll, hosts would poll all the time until a read or write ends.
            WriterState::Working if !waits => Some(SortPause::Step),
            WriterState::Working | WriterState::Waiting => Some(SortPause::Device),
        })
    }

    fn merge_step(&self, job: &SortJob, merge: &mut RunMerge, writer: &mut RunWriter) -> Result<Merged, MergeError> {
        // Only once a record asks: a merge that waits for the device is polled again and again.
        let owners = OnceCell::new();
        let owner_of = |record: &RunRecord<'_>, ring_key: &RingKey| {
            owners.get_or_init(|| self.record_owners()).of(record.number, ring_key)
        };
        let rules = MergeRules {
            now: self.runs_expired_by(),
            is_invalidated: &|record: &RunRecord<'_>, ring_key: &RingKey| {
                self.is_invalidated_in_run(record, owner_of(record, ring_key))
            },
            // Otherwise a number would stay in lineages for good, and these would grow with every split.
            number: &|record: &RunRecord<'_>, ring_key: &RingKey| {
                owner_of(record, ring_key).map_or(record.number, |(at, _)| self.ranges[at].number)
            },
            may_hide: &|record: &RunRecord<'_>, ring_key: &RingKey| {
                let space = Space::of_type_byte(record.type_byte);
                // A job passes many such records, and a large store has thousands of runs.
                let covering = self.sorted.runs.covering(ring_key).map(|at| &self.sorted.runs[at]);
                let listed = covering.filter(|listed| listed.age < job.oldest_source_age).map(|listed| &listed.run);
                let of_batches = job.done.iter().filter(|done| done.age < job.age).map(|done| &done.run);
                let is_in_older = listed.chain(of_batches).any(|run| run.may_contain(space, ring_key));
                // The log may have a committed record of the key, newer than this one. A sort's own records have index entries
                // until its run is listed.
                let may_be_in_log = || {
                    let hash = KeyHash::of(&self.secret, record.key);
                    owner_of(record, ring_key).is_some_and(|(at, _)| self.has_candidates(at, hash))
                };
                is_in_older || (!job.inputs.sources.is_empty() && may_be_in_log())
            },
            is_kept: &|record: &RunRecord<'_>, ring_key: &RingKey| {
                owner_of(record, ring_key).is_some_and(|(at, _)| self.is_in_overlay(at, record.key))
            },
        };
        merge.step(writer, &rules, RECORDS_PER_STEP)
    }

    /// Time by which records in runs have expired, whatever their range.
    pub(super) fn runs_expired_by(&self) -> TimeMs {
        let times = (0..self.ranges.len()).filter(|&at| self.ranges[at].id.is_some()).map(|at| self.expired_by(at));
        times.min().unwrap_or(TimeMs(0))
    }

    fn begin_run(&mut self, job: &SortJob) -> Result<RunWriter, DeviceError> {
        self.sorted.begun += 1;
        // Segments count up from 1, and checkpoints down from the end.
        let uuid = SegmentUuid::derive(&self.secret, self.store, self.generation, (1 << 63) + self.sorted.begun);
        let header = RunHeader { uuid, store: self.store };
        let pages_max = (self.run_bytes_max() / PAGE_BYTES as u64) as u32;
        let cuts = if job.is_part() { Vec::new() } else { self.cuts(job.space_bytes / job.batches) };
        let now = self.runs_expired_by();
        let usual = RunWriterOptions::new(header, self.secret, job.filter_bits);
        RunWriter::create(
            &mut self.device,
            RunWriterOptions { write_bytes: WRITE_BYTES, pages_max, cuts, now, ..usual },
        )
    }

    /// Reads the next pages of runs, those of `needed` first: one read after the other would take the time of each.
    fn read_ahead(&mut self, job: &mut SortJob, merge: &mut RunMerge, needed: Option<usize>) {
        let mut wanted: SmallVec<[usize; 8]> = merge.sources_to_read().collect();
        if let Some(at) = wanted.iter().position(|&index| Some(index) == needed) {
            wanted.swap(0, at);
        }
        for index in wanted.into_iter().take(READS_MAX.saturating_sub(job.is_waiting.len())) {
            self.read_source(job, merge, index);
        }
    }

    /// Reads the next pages of a run that is merged.
    fn read_source(&mut self, job: &mut SortJob, merge: &mut RunMerge, index: usize) {
        let file = job.inputs.sources.get(index).and_then(|&id| self.sorted.find(id)).map(|listed| listed.file);
        let reads = 2 * job.inputs.sources.len().max(1) as u64;
        let read_bytes = (self.options.memory_bytes / SORTS_PER_MEMORY / reads)
            .clamp(*READ_BYTES.start(), *READ_BYTES.end()) as usize;
        let range = merge.run(index).and_then(|source| source.next_read(read_bytes));
        let (Some(file), Some(range)) = (file, range) else { unreachable!("a source that waits has pages left") };
        let is_oldest = |part: &SweepPart| part.oldest.contains(&job.inputs.sources[index]);
        let of_sweep = self.sorted.sweep.as_mut().filter(|_| job.inputs.part.as_ref().is_some_and(is_oldest));
        if let Some(pace) = job.pace.as_mut().or(of_sweep.map(|sweep| &mut sweep.pace)) {
            pace.read_bytes += range.len_bytes as u64;
        }
        let (id, run, len_bytes) = (job.id, job.inputs.sources[index], range.len_bytes);
        let leave_at = self.now.mono.plus_ms(self.sorted.failures_of_run(run).long_patience_ms());
        job.is_waiting.push(SourceRead { source: index, len_bytes, leave_at });
        job.read_bytes += len_bytes;
        let token = Token(self.in_flight.insert(InFlight::SortRead { job: id, run, source: index, range }) as u64);
        let buf = self.pool.take_exact(range.len_bytes);
        self.device.submit_read(file, range.offset, buf, IoClass::Sort, token);
    }

    /// Takes pages of a run that is merged.
    pub(in crate::engine) fn sort_read(
        &mut self,
        source: usize,
        range: ReadRange,
        result: Result<usize, DeviceError>,
        buf: Option<AlignedBuf>,
    ) {
        self.sorted.note_work(self.now.mono, range.len_bytes as u64);
        let Some(job) = &mut self.sorted.job else { unreachable!("a job waits for its reads") };
        job.is_waiting.retain(|waiting| waiting.source != source);
        job.read_bytes -= range.len_bytes;
        match (result, buf) {
            (Ok(_), Some(buf)) => {
                let id = job.inputs.sources.get(source).copied();
                if let Some(source) = job.merge.as_mut().and_then(|merge| merge.run(source)) {
                    source.feed(range, buf[..range.len_bytes].to_vec());
                }
                if let Some(listed) = id.and_then(|id| self.sorted.find_mut(id)) {
                    listed.note_read(range.offset, &buf[..range.len_bytes]);
                }
                self.pool.give(buf);
            }
            (Ok(_), None) => unreachable!("a read brings its buffer back"),
            (Err(error), _) => {
                // Of several reads that fail, the first one ends the merge.
                if job.step != SortStep::GivenUp {
                    tracing::warn!(%error, "runs are not merged now");
                    self.stats.merges_failed += 1;
                }
                // A lack of descriptors is no fault of the run.
                let id = job.inputs.sources.get(source).copied().filter(|_| !error.is_retryable());
                if let Some(listed) = id.and_then(|id| self.sorted.find_mut(id)) {
                    listed.failures.note_unreadable(self.now.mono);
                }
                self.give_up_sort();
            }
        }
    }

    /// Time when a read of the merge has hung for so long that it is left in flight; `None` without one, or if too many were left.
    /// A merge that was given up leaves all of them: until then no other job begins.
    pub(super) fn leave_sort_read_at(&self) -> Option<MonoMs> {
        let job = self.sorted.job.as_deref()?;
        if job.step != SortStep::GivenUp && self.may_leave_idle_reads() == 0 {
            return None;
        }
        job.is_waiting.iter().map(|read| read.leave_at).min()
    }

    /// Leaves reads of a merge that do not end, and gives the merge up: others may be possible all the same.
    fn leave_sort_reads(&mut self) {
        let now = self.now.mono;
        let SortedTier { job, runs, reads_left, .. } = &mut self.sorted;
        let Some(job) = job else { return };
        let hanging = job.is_waiting.extract_if(.., |read| now >= read.leave_at);
        for SourceRead { source, len_bytes, .. } in hanging {
            job.read_bytes -= len_bytes;
            self.read_bytes_in_flight += len_bytes;
            let Some(listed) = runs.iter_mut().find(|listed| listed.id == job.inputs.sources[source]) else {
                unreachable!("a job's inputs stay listed")
            };
            *reads_left += 1;
            listed.pins += 1;
            listed.failures.note_left();
            tracing::warn!(file = %listed.run.name(), "runs are not merged now: a read hangs");
        }
        self.stats.merges_failed += u64::from(job.step != SortStep::GivenUp);
        self.give_up_sort();
    }

    /// A read of a merge that was given up has ended.
    pub(in crate::engine) fn left_sort_read_ended(
        &mut self,
        run: u64,
        len_bytes: usize,
        result: &Result<usize, DeviceError>,
        buf: Option<AlignedBuf>,
    ) {
        if let Some(buf) = buf {
            self.pool.give(buf);
        }
        self.read_bytes_in_flight -= len_bytes;
        self.sorted.reads_left -= 1;
        if result.is_err() {
            self.sorted.failures_of_run(run).note_unreadable(self.now.mono);
        }
        self.left_run_read_ended(run);
    }

    /// A write or sync of the run is complete.
    pub(in crate::engine) fn sort_written(&mut self, completion: Completion) {
        let writer = self.sorted.job.as_mut().and_then(|job| job.writer.as_mut());
        let Some(writer) = writer else { unreachable!("a job waits for its writes") };
        let written = completion.result.as_ref().map_or(0, |&bytes| bytes as u64);
        if let Err(error) = writer.completed(completion) {
            self.poison(&error);
        }
        self.sorted.note_work(self.now.mono, written);
    }

    /// Gives the job up; a later one tries again.
    fn sort_failed(&mut self, failure: &SortFailure) {
        match failure {
            SortFailure::Device(error) if !error.is_retryable() => drop(self.poison(error)),
            SortFailure::Device(error) => {
                tracing::warn!(%error, "segments are not sorted now");
                // A lack of descriptors is most often found out without a write.
                let has_written = self.sorted.job.as_ref().is_some_and(|job| job.file_bytes() > 0);
                let is_full = matches!(error, DeviceError::Full { .. });
                if has_written || is_full {
                    self.give_up_refused();
                    let latest = self.now.mono.plus_ms(RETRY_MS << MEMORY_REFUSALS_MAX);
                    self.sorted.retry_at =
                        if is_full { self.sorted.retry_at } else { self.sorted.retry_at.min(latest) };
                    return;
                }
            }
            SortFailure::Merge(error) => {
                tracing::warn!(%error, "runs are not merged now");
                self.bar_corrupt(error);
            }
        }
        self.give_up_sort();
    }

    /// Gives the job up for lack of space, or of memory once it has written. The next one waits twice as long as this one did: a job that
    /// is refused at its end has written all that it had.
    pub(super) fn give_up_refused(&mut self) {
        self.give_up_sort();
        self.sorted.retry_at = self.now.mono.plus_ms(RETRY_MS << self.sorted.refusals.min(REFUSALS_MAX));
        self.sorted.refusals += 1;
    }

    /// Keeps later merges from the run that has made one fail, since they would fail too: for a while after a wrong read, and for
    /// good if the next one is wrong at the same offset. If it is one of the oldest, there are no sweeps from then on.
    fn bar_corrupt(&mut self, error: &MergeError) {
        let now = self.now.mono;
        let Some(job) = &self.sorted.job else { return };
        let inputs = self.sorted.runs.iter_mut().filter(|listed| job.inputs.sources.contains(&listed.id));
        // An error without a run is of two records that no run may have together: the newest run stays apart then.
        let corrupt = match error {
            MergeError::Source(RunError::Corrupt { file, offset_bytes, .. }) => Some((file, *offset_bytes)),
            _ => None,
        };
        let is_meant =
            |listed: &&mut ListedRun| corrupt.is_none_or(|(file, _)| *file == run::file_name(listed.run.header().uuid));
        if let Some(listed) = inputs.into_iter().find(is_meant) {
            match corrupt {
                Some((_, offset_bytes)) => _ = listed.failures.note_wrong(offset_bytes, now),
                None => listed.failures.note_corrupt(),
            }
            self.stats.merges_failed += 1;
        }
    }

    /// Gives the job up if it is not listed yet.
    pub(in crate::engine) fn give_up_sort(&mut self) {
        self.sorted.retry_at = self.sorted.retry_at.max(self.now.mono.plus_ms(RETRY_MS));
        if let Some(job) = &mut self.sorted.job
            && matches!(job.step, SortStep::Gather | SortStep::WriteBatch | SortStep::Write)
        {
            job.step = SortStep::GivenUp;
        }
    }

    /// Removes what a job that was given up has made, once nothing of it is in flight.
    fn remove_sort(&mut self) {
        let Some(mut job) = self.sorted.job.take_if(|job| job.is_idle()) else { return };
        self.sorted.end_job();
        self.sorted.return_credit(&job);
        if job.is_empty_sort() {
            self.sorted.segment_search.put_off(self.now.mono);
        }
        if let Some(writer) = job.writer.take() {
            let bytes = writer.file_bytes();
            let name = writer.abandon(&mut self.device);
            self.unlink(name, bytes);
        }
        for DoneRun { run, file, file_bytes, .. } in job.done.drain(..) {
            self.device.close(file);
            self.unlink(run::file_name(run.header().uuid), file_bytes);
        }
        let gathered = job.slots.iter().map(|gathered| gathered.slot);
        for slot in gathered.chain(job.todo.iter().copied()).collect::<Vec<u32>>() {
            let segment = self.segments.expect_mut(slot);
            (segment.pins, segment.is_gathered) = (segment.pins - 1, false);
            self.examine_if_dead(slot);
        }
    }

    /// Lists the runs, once everything that says what counts of their inputs is durable.
    fn list_runs(&mut self) {
        let are_clears_listed = (0..self.ranges.len()).all(|at| !self.has_unlisted_clear(at));
        // A loss could undo a clear, whose records the new runs lack.
        if !are_clears_listed || !self.are_deaths_durable() {
            return;
        }
        let Some(job) = &self.sorted.job else { return };
        let mut edits = self.drop_edits(&job.inputs.replaced);
        edits.extend(job.done.iter().map(|done| ManifestEdit::AddRun(done.entry())));
        edits.extend(job.slots.iter().map(|gathered| gathered.edit()));
        if edits.is_empty() {
            // A part of a sweep of which nothing is left. A sort has segments, and any other merge has runs that it replaces.
            if let Some(part) = job.inputs.part.clone() {
                self.sorted.end_part(part, 0);
            }
            self.sorted.end_job();
            return;
        }
        if self.reserve_manifest_to_free(edits.len() * 64).is_err() {
            return self.give_up_refused();
        }
        let end = self.manifest.commit(&edits);
        if let Some(job) = &mut self.sorted.job {
            job.step = SortStep::Listing(end);
        }
        self.start_manifest();
    }

    /// Whether no crash can undo what made records of the segments dead. Asks for it if one can.
    fn are_deaths_durable(&mut self) -> bool {
        let Some(job) = &self.sorted.job else { return false };
        let is_synced = |gathered: &Gathered| {
            let synced = |kind| self.streams[kind].flush.synced;
            StreamKind::ALL.into_iter().all(|kind| gathered.until[kind] <= synced(kind))
        };
        let is_synced = job.slots.iter().all(is_synced);
        // A range whose number changed since began again: its records are invalidated.
        let is_undurable = |&(at, number, version): &(usize, RangeNumber, Version)| {
            self.ranges[at].number == number && version > self.ranges[at].durably_committed()
        };
        let died_by = job.slots.iter().flat_map(|gathered| &gathered.died_by);
        let undurable: SmallVec<[(usize, Version); 4]> =
            died_by.filter(|died| is_undurable(died)).map(|&(at, _, version)| (at, version)).collect();
        for &(at, version) in &undurable {
            self.want_durable(at, version);
        }
        is_synced && undurable.is_empty()
    }

    /// Whether a job waits until this stream is synced further.
    pub(in crate::engine) fn sort_waits_for(&self, kind: StreamKind) -> bool {
        let Some(job) = self.sorted.job.as_ref().filter(|job| job.is_complete()) else { return false };
        job.slots.iter().any(|gathered| gathered.until[kind] > self.streams[kind].flush.synced)
    }

    /// The runs are durably listed: lookups find them from now on.
    fn enter_runs(&mut self) {
        let Some(mut job) = self.sorted.job.take() else { return };
        let inputs = core::mem::take(&mut job.inputs);
        self.sorted.changes += 1;
        self.sorted.refusals = 0;
        if let Some(part) = inputs.part {
            self.sorted.end_part(part, job.file_bytes());
            self.stats.sweep_parts += 1;
        }
        self.retire_runs(&inputs.replaced);
        for done in job.done.drain(..) {
            let entry = done.entry();
            self.sorted.enter(entry, done.run, done.file);
            self.scrub_entered(self.sorted.last_id, entry.file_bytes);
        }
        self.stats.runs_listed += 1;
        if job.slots.is_empty() {
            return self.sorted.end_job();
        }
        job.step = SortStep::Unindex { at: 0, cursor: 0 };
        self.sorted.job = Some(job);
        self.sorted.has_next_step = true;
    }
}
