//! The job of the sorted tier: one at a time, from segments to a run, or from runs to others.
use super::pace::MergePace;
use super::sweep::SweepPart;
use crate::format::manifest::{ManifestEdit, RunEntry};
use crate::format::run::RunRecord;
use crate::format::run::record::RECORD_BYTES_MAX;
use crate::format::segment::PerStream;
use crate::format::{RangeNumber, SegmentUuid};
use crate::log::LogPosition;
use crate::manifest_file::CommitNumber;
use crate::sorted::{MergeSource, Run, RunMerge, RunWriter, SortBuffer};
use fawn_flash::FileId;
use fawn_types::{HashSecret, MonoMs, Version};
use smallvec::SmallVec;

/// Number of a job in this opening: a segment is read for one job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SortJobId(u64);

impl SortJobId {
    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Bits per key of the filters of all runs but the oldest ones: one miss in a thousand reads a page of a run.
pub(super) const LATER_FILTER_BITS: u8 = 10;

/// Step of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SortStep {
    /// Segments are read.
    Gather,
    /// As many records were read as memory may hold: their run is written before the rest is read.
    WriteBatch,
    /// Runs are written.
    Write,
    /// The commit that lists the runs is in flight.
    Listing(CommitNumber),
    /// Index entries of the sorted segments are removed: of the range at this place, from this hash on.
    Unindex { at: usize, cursor: u64 },
    /// It has failed: its files go once nothing is in flight.
    GivenUp,
}

/// A segment that was read to its end.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) slot: u32,
    pub(super) uuid: SegmentUuid,
    /// End of the records that replaced, removed or copied its own: only once the log is synced up to here may its own
    /// count no more.
    pub(super) until: PerStream<LogPosition>,
    /// Per range, with its number: newest version whose commit replaced or removed one of them.
    pub(super) died_by: SmallVec<[(usize, RangeNumber, Version); 1]>,
}

impl Gathered {
    /// The edit that lists it as sorted.
    pub(super) const fn edit(&self) -> ManifestEdit {
        ManifestEdit::SortSegment { slot: self.slot, uuid: self.uuid }
    }
}

/// The runs of a merge.
#[derive(Debug, Default)]
pub(super) struct RunInputs {
    /// Runs that are read, in the order of the merge's sources.
    pub(super) sources: Vec<u64>,
    /// Runs that the new ones replace.
    pub(super) replaced: Vec<u64>,
    /// The part of the sweep that the job is.
    pub(super) part: Option<SweepPart>,
}

/// A sort of segments, or a merge of runs.
#[derive(Debug)]
pub(crate) struct SortJob {
    pub(super) id: SortJobId,
    pub(super) step: SortStep,
    /// Segments to gather from, the next one last.
    pub(super) todo: Vec<u32>,
    /// Segments that were gathered whole; pinned.
    pub(super) slots: Vec<Gathered>,
    buffer: Option<SortBuffer>,
    /// Batches of a sort, and the memory of one, bytes.
    pub(super) batches: u64,
    batch_bytes: u64,
    pub(super) inputs: RunInputs,
    /// The oldest age of the runs that are read: these stay listed until the job ends. Older runs may have what tombstones hide.
    pub(super) oldest_source_age: u64,
    /// Age of the runs that are being written. Each batch of a sort has its own: their keys overlap.
    pub(super) age: u64,
    /// Bits per key of the new runs' filters.
    pub(super) filter_bits: u8,
    /// Space that its runs take at most, bytes: it counts as taken from the start.
    pub(super) space_bytes: u64,
    /// Credit of the rest that was taken for it, bytes. A part of a sweep has the sweep's.
    pub(super) paid_bytes: u64,
    /// The pace of a merge of later runs. A part of a sweep has the sweep's.
    pub(super) pace: Option<MergePace>,
    pub(super) merge: Option<RunMerge>,
    pub(super) writer: Option<RunWriter>,
    /// The last record was passed to the writer.
    pub(super) is_read: bool,
    /// The run that is being written takes no more records.
    pub(super) is_finishing: bool,
    /// Reads in flight, one of a source at most.
    pub(super) is_waiting: Vec<SourceRead>,
    pub(super) read_bytes: usize,
    pub(super) done: Vec<DoneRun>,
}

/// A read in flight of a source.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceRead {
    pub(super) source: usize,
    pub(super) len_bytes: usize,
    /// Time when it has hung for so long that it is left in flight.
    pub(super) leave_at: MonoMs,
}

/// A complete run of a job.
#[derive(Debug)]
pub(super) struct DoneRun {
    pub(super) run: Run,
    pub(super) file: FileId,
    pub(super) file_bytes: u64,
    pub(super) age: u64,
}

impl DoneRun {
    /// Its entry in the list of runs.
    pub(super) const fn entry(&self) -> RunEntry {
        RunEntry { uuid: self.run.header().uuid, file_bytes: self.file_bytes, age: self.age }
    }
}

impl SortJob {
    /// A sort of these segments, which are pinned, in so many batches of so many bytes of memory.
    pub(super) fn of_segments(
        id: SortJobId,
        todo: Vec<u32>,
        age: u64,
        secret: HashSecret,
        (batches, batch_bytes): (u64, u64),
    ) -> Self {
        // A batch is full once it takes more.
        let buffer = Some(SortBuffer::new(secret, batch_bytes as usize + RECORD_BYTES_MAX));
        Self { todo, buffer, batches, batch_bytes, ..Self::empty(id, SortStep::Gather, age, LATER_FILTER_BITS) }
    }

    /// A merge of these runs.
    pub(super) fn of_runs(
        id: SortJobId,
        inputs: RunInputs,
        sources: Vec<MergeSource>,
        age: u64,
        filter_bits: u8,
    ) -> Self {
        let merge = Some(RunMerge::new(sources));
        Self { inputs, merge, ..Self::empty(id, SortStep::Write, age, filter_bits) }
    }

    fn empty(id: SortJobId, step: SortStep, age: u64, filter_bits: u8) -> Self {
        Self {
            id,
            step,
            todo: Vec::new(),
            slots: Vec::new(),
            buffer: None,
            batches: 1,
            batch_bytes: 0,
            inputs: RunInputs::default(),
            // All runs are older than what is sorted.
            oldest_source_age: u64::MAX,
            age,
            filter_bits,
            space_bytes: 0,
            paid_bytes: 0,
            pace: None,
            merge: None,
            writer: None,
            is_read: false,
            is_finishing: false,
            is_waiting: Vec::new(),
            read_bytes: 0,
            done: Vec::new(),
        }
    }

    /// Whether it is a part of a sweep.
    pub(super) const fn is_part(&self) -> bool {
        self.inputs.part.is_some()
    }

    /// Whether it is a sort none of whose segments was gathered whole.
    pub(super) fn is_empty_sort(&self) -> bool {
        self.inputs.sources.is_empty() && !self.is_part() && self.slots.is_empty() && self.todo.is_empty()
    }

    /// Whether it is the job with this number, and takes records of segments.
    pub(super) fn is_gathering(&self, id: SortJobId) -> bool {
        self.id == id && self.step == SortStep::Gather
    }

    /// Takes a record into the run; false if it has no room.
    pub(super) fn take_record(&mut self, record: &RunRecord<'_>) -> bool {
        self.buffer.as_mut().is_some_and(|buffer| buffer.push(record))
    }

    /// Ends the batch that is being gathered if it is full.
    pub(super) fn end_full_batch(&mut self) {
        let is_full = self.buffer.as_ref().is_some_and(|buffer| buffer.used_bytes() > self.batch_bytes);
        if self.step == SortStep::Gather && is_full {
            self.step = SortStep::WriteBatch;
            self.sort_gathered();
        }
    }

    /// The batch's run is complete: segments are read on.
    pub(super) const fn begin_next_batch(&mut self) {
        self.step = SortStep::Gather;
        self.is_read = false;
        self.age += 1;
    }

    /// All segments were read: what was taken of them is sorted and written.
    pub(super) fn end_gathering(&mut self) {
        self.step = SortStep::Write;
        self.sort_gathered();
        self.buffer = None;
    }

    fn sort_gathered(&mut self) {
        if let Some(buffer) = &mut self.buffer {
            let mut records = buffer.take();
            records.sort();
            self.merge = Some(RunMerge::new(vec![MergeSource::Memory(records)]));
        }
    }

    /// Whether nothing of it is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.is_waiting.is_empty() && self.writer.as_ref().is_none_or(|writer| writer.in_flight() == 0)
    }

    /// Whether all its runs are complete.
    pub(super) fn is_complete(&self) -> bool {
        self.step == SortStep::Write && self.is_read && self.writer.is_none()
    }

    /// Length of the files that it has written so far, bytes.
    pub(super) fn file_bytes(&self) -> u64 {
        let of_writer = self.writer.as_ref().map_or(0, RunWriter::file_bytes);
        self.done.iter().map(|done| done.file_bytes).sum::<u64>() + of_writer
    }

    /// Space that is taken for its files, bytes: none once its runs are listed and entered.
    pub(super) fn reserved_bytes(&self) -> u64 {
        match self.step {
            SortStep::Unindex { .. } => 0,
            _ => self.space_bytes.max(self.file_bytes()),
        }
    }

    /// Segments that it has sorted, and that are dropped soon: their records are in its runs, which are entered.
    pub(super) const fn sorted_segments(&self) -> usize {
        if matches!(self.step, SortStep::Unindex { .. }) { self.slots.len() } else { 0 }
    }

    /// Memory of its records, reads and complete runs, bytes.
    pub(super) fn resident_bytes(&self) -> usize {
        // A sort fills its buffer soon: it counts from the start.
        let least = if self.step == SortStep::Gather { self.batch_bytes as usize } else { 0 };
        let gathered = self.buffer.as_ref().map_or(0, |buffer| buffer.resident_bytes().max(least));
        let fences: usize = self.done.iter().map(|done| done.run.memory_bytes()).sum();
        gathered + fences + self.merge.as_ref().map_or(0, RunMerge::resident_bytes) + self.read_bytes
    }
}
