//! The sorted tier at work: runs that lookups search after the log, and the job that sorts segments or merges runs.
//!
//! A key's newest record is in the log if the index has an entry of it, else in the newest run that has one. So a deleted
//! key keeps an index entry while a run may have an older record of it.
//!
//! To *sort* sealed segments, what counts of them goes to a new run, and records too long for one to the survivors'
//! stream. One commit lists the run and says that the segments are sorted: from then on their records only hide older ones
//! of the log, as tombstones do, and the drop rule keeps the segments as long as there are any. Their index entries go
//! in steps.
mod dump;
mod gather;
mod invalidated_runs;
mod job;
mod lookup;
mod merge_choice;
mod pace;
mod rest;
mod run_list;
mod scan;
mod space;
mod stretch;
mod sweep;
#[cfg(test)]
mod tests;
mod transfer;
mod unindex;
mod write;

use super::{Engine, EngineError, LostPart};
use crate::error::OpenError;
use crate::format::manifest::{ManifestEdit, RunEntry};
use crate::format::run::{self, RunHeader, RunRecord, Space};
use crate::format::segment::NumberFacts;
use crate::format::{RangeNumber, StoreUuid};
use crate::log::failures::ReadFailures;
use crate::sorted::{Run, RunError};
use fawn_flash::{Device, DeviceError, FileId};
use fawn_types::{KeyHash, MonoMs, RingKey, TimeMs, Version};
pub(super) use gather::{CleanGoal, run_record};
pub(crate) use job::SortJobId;
use job::{SortJob, SortStep};
pub(super) use lookup::{RunHit, RunsPassed};
use pace::{JobSearch, PutHold};
use rest::RestWatch;
use run_list::RunList;
pub(super) use stretch::RunStretch;
use sweep::RunSweep;
pub(super) use transfer::RunsTransfer;

/// Names of runs, with the number of their intact records.
type DamagedRuns = Vec<(String, u64)>;

/// A listed run.
#[derive(Debug)]
pub(crate) struct ListedRun {
    /// Names it in this opening; no two runs have the same.
    id: u64,
    age: u64,
    file_bytes: u64,
    run: Run,
    file: FileId,
    /// Reads in flight; they keep the file.
    pins: u32,
    failures: ReadFailures,
}

#[derive(Debug, Default)]
pub(crate) struct SortedTier {
    runs: RunList,
    /// Runs whose removal from the manifest is durable: their files go once nothing reads them.
    retired: Vec<ListedRun>,
    job: Option<Box<SortJob>>,
    /// Reads of jobs that were given up.
    reads_left: u32,
    /// The next poll continues the job, whether or not any I/O completes.
    has_next_step: bool,
    /// A clear or the drop of a range may have invalidated all records of a run.
    may_be_invalidated: bool,
    /// The last job was a merge.
    was_merge: bool,
    /// The last merge beside a sweep was one of newer runs than the sweep's.
    was_newer: bool,
    /// The merge with the oldest runs that is under way.
    sweep: Option<RunSweep>,
    /// Space that the last sweep took until its end, for new keys, in percent of the later runs.
    growth_percent: u64,
    last_job: SortJobId,
    last_id: u64,
    /// Changes of the list of runs.
    changes: u64,
    /// Deletes have index entries: there are runs, or soon may be.
    is_active: bool,
    /// Ranges, by number, with deletes up to a version that have none: not committed yet, or neither verified nor durable.
    activated: Vec<(RangeNumber, Version)>,
    /// The indexes took more than half of the budget, and have not shrunk enough since.
    is_over_budget: bool,
    /// No job begins before.
    retry_at: MonoMs,
    /// Jobs in a row for which there was no space.
    refusals: u32,
    /// The search for segments to sort.
    segment_search: JobSearch,
    /// The search for runs to merge.
    run_search: JobSearch,
    /// Time of the expiry clock at which it is due because more records will have expired.
    expires_at: TimeMs,
    /// Runs begun in this opening.
    begun: u64,
    /// Runs are not entered for now.
    is_held: bool,
    /// Live bytes that the last sort left in segments, and the record bytes of clients' writes by then.
    unsorted_bytes: u64,
    sorted_at_bytes: u64,
    hold: PutHold,
    rest: RestWatch,
}

impl SortedTier {
    /// Whether deletes have index entries.
    pub(crate) const fn is_active(&self) -> bool {
        self.is_active
    }

    /// Whether puts wait for the job in progress.
    pub(crate) const fn holds_puts(&self) -> bool {
        self.hold.is_on
    }

    /// Whether work of jobs is less than puts could use.
    pub(crate) const fn slows_puts(&self) -> bool {
        self.hold.is_scarce
    }

    /// A put of so many bytes was appended.
    pub(crate) const fn note_put(&mut self, bytes: usize) {
        self.hold.put_bytes += bytes as u64;
    }

    /// A job has begun, or a read or write of so many bytes of one has ended.
    pub(crate) const fn note_work(&mut self, now: MonoMs, bytes: u64) {
        self.hold.worked_at = now;
        self.hold.work_bytes += bytes;
    }

    /// Time of the last such event.
    pub(crate) const fn worked_at(&self) -> MonoMs {
        self.hold.worked_at
    }

    /// Number of reads in flight of jobs that were given up.
    pub(crate) const fn reads_left(&self) -> u32 {
        self.reads_left
    }

    /// Whether this job waits for a read of the source: it was not given up, or the read was not left.
    pub(crate) fn awaits_read(&self, id: SortJobId, source: usize) -> bool {
        let job = self.job.as_ref().filter(|job| job.id == id);
        job.is_some_and(|job| job.is_waiting.iter().any(|read| read.source == source))
    }

    /// Memory of the runs' fences and filters, bytes.
    pub(crate) fn runs_bytes(&self) -> usize {
        self.runs.iter().map(|listed| listed.run.memory_bytes()).sum()
    }

    /// Memory of a job's records and buffers, bytes.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.job.as_ref().map_or(0, |job| job.resident_bytes())
    }

    /// Length of the runs' files, bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.runs.iter().chain(&self.retired).map(|listed| listed.file_bytes).sum()
    }

    /// Length of the files that a job has written, bytes.
    pub(crate) fn job_file_bytes(&self) -> u64 {
        self.job.as_ref().map_or(0, |job| job.file_bytes())
    }

    /// Space that is taken for the files of a job, bytes.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.job.as_ref().map_or(0, |job| job.reserved_bytes())
    }

    /// Local numbers that records in runs have.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = RangeNumber> + '_ {
        self.runs.iter().flat_map(|listed| &listed.run.facts().numbers).map(|facts| facts.number)
    }

    /// Whether the next poll continues the job, whether or not any I/O completes.
    pub(crate) const fn has_next_step(&self) -> bool {
        self.has_next_step
    }

    /// Whether a job is under way.
    pub(crate) const fn has_work(&self) -> bool {
        self.job.is_some()
    }

    /// Whether segments are being read.
    pub(crate) fn is_gathering(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.step == SortStep::Gather)
    }

    /// Whether index entries of sorted segments are being removed.
    pub(super) fn is_unindexing(&self) -> bool {
        self.job.as_ref().is_some_and(|job| matches!(job.step, SortStep::Unindex { .. }))
    }

    /// Whether there may be an older record of a key in a run, or in one that is being made.
    fn may_have(&self, key: &RingKey) -> bool {
        self.job.is_some() || self.runs.covering(key).any(|at| self.runs[at].run.may_contain(Space::KEYS, key))
    }

    /// Ids and lengths of the listed runs.
    pub(super) fn run_lengths(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs.iter().map(|listed| (listed.id, listed.file_bytes))
    }

    /// Whether a run with this id is listed.
    pub(super) fn has_run(&self, id: u64) -> bool {
        self.runs.iter().any(|listed| listed.id == id)
    }

    /// The run with this id, which is listed or pinned.
    pub(super) fn expect_run(&self, id: u64) -> &Run {
        match self.find(id) {
            Some(listed) => &listed.run,
            None => unreachable!("a listed or pinned run stays"),
        }
    }

    fn find(&self, id: u64) -> Option<&ListedRun> {
        self.runs.iter().chain(&self.retired).find(|listed| listed.id == id)
    }

    fn find_mut(&mut self, id: u64) -> Option<&mut ListedRun> {
        self.runs.iter_mut().chain(&mut self.retired).find(|listed| listed.id == id)
    }

    pub(in crate::engine) fn failures_of_run(&mut self, id: u64) -> &mut ReadFailures {
        match self.find_mut(id) {
            Some(listed) => &mut listed.failures,
            None => unreachable!("a listed or pinned run stays"),
        }
    }

    /// Enters a run in its place by age.
    fn enter(&mut self, entry: RunEntry, run: Run, file: FileId) {
        self.enter_all([(entry, run, file)]);
    }

    /// As [`SortedTier::enter`], of any number of runs.
    fn enter_all(&mut self, opened: impl IntoIterator<Item = (RunEntry, Run, FileId)>) {
        let last_id = &mut self.last_id;
        self.runs.insert(opened.into_iter().map(|(RunEntry { file_bytes, age, .. }, run, file)| {
            *last_id += 1;
            ListedRun { id: *last_id, age, file_bytes, run, file, pins: 0, failures: ReadFailures::default() }
        }));
        self.run_search.note_change();
    }

    /// A segment was listed as sealed, cleaned, filed, or not sorted after all, or a transfer has ended: there may be enough to
    /// sort now.
    pub(super) const fn note_change(&mut self) {
        self.segment_search.note_change();
    }

    /// There is less space than before: a merge may be due that makes some.
    pub(super) const fn note_space(&mut self) {
        self.run_search.note_change();
        self.segment_search.note_change();
    }

    /// A file is gone, or space was found that others freed: a job that was refused may find some.
    pub(in crate::engine) fn note_freed(&mut self, now: MonoMs) {
        self.note_space();
        self.refusals = 0;
        self.retry_at = self.retry_at.min(now.plus_ms(write::RETRY_MS));
    }

    fn next_job(&mut self) -> SortJobId {
        self.last_job = self.last_job.next();
        self.last_job
    }

    /// The job has ended: its segments and runs may be chosen again.
    fn end_job(&mut self) {
        self.job = None;
        self.segment_search.note_change();
        self.run_search.note_change();
    }
}

impl<D: Device> Engine<D> {
    /// Whether segments are being sorted or runs merged.
    pub fn is_sorting(&self) -> bool {
        self.sorted.has_work()
    }

    /// Holds the list of runs as it is, or lets it change again: a scan of both parts in a row then meets each key once.
    pub fn hold_runs(&mut self, is_held: bool) {
        self.sorted.is_held = is_held;
        self.sorted.has_next_step |= !is_held && self.sorted.has_work();
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.sorted.runs.len()
    }

    /// Puts of the range in runs, older ones included, and deletes of runs with records of several ranges. If it has records
    /// under the numbers of ranges before it, by the pages of its part of the ring.
    pub(crate) fn keys_in_runs(&self, at: usize) -> u64 {
        let range = &self.ranges[at];
        let entry = range.id.and_then(|id| self.manifest.state().ranges.get(&id));
        let lineage = entry.map_or(&[][..], |entry| &entry.lineage);
        let of_run = |listed: &ListedRun| {
            let (facts, footer) = (listed.run.facts(), listed.run.footer());
            let is_older = |facts: &&NumberFacts| lineage.iter().any(|ancestor| ancestor.number == facts.number);
            if facts.numbers.iter().any(|facts| is_older(&facts)) {
                let pages = listed.run.extent(Space::KEYS, &range.keys.start, range.keys.end.as_ref()).len() as u64;
                return footer.records * pages / u64::from(footer.pages.max(1));
            }
            // Which number a delete has is not counted.
            let deletes = if facts.numbers.len() == 1 { facts.tombstones } else { 0 };
            let is_own = |facts: &&NumberFacts| facts.number == range.number && facts.highest > range.cleared.committed;
            facts.numbers.iter().find(is_own).map_or(0, |facts| u64::from(facts.records.saturating_sub(deletes)))
        };
        self.sorted.runs.iter().map(of_run).sum()
    }

    /// As [`Engine::open_runs`], but reads damaged runs page by page. Returns these, and what is lost of them and of runs that are
    /// missing. One that cannot be opened for now is an error.
    pub(crate) fn open_intact_runs(&mut self) -> Result<(DamagedRuns, Vec<LostPart>), DeviceError> {
        let (mut opened, mut damaged, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        self.sorted.is_active = self.manifest.state().indexes_deletes;
        for entry in self.manifest.state().runs.clone() {
            let name = run::file_name(entry.uuid);
            let header = RunHeader { uuid: entry.uuid, store: self.store };
            let pages = match open_run(&mut self.device, self.store, &self.secret, entry) {
                Ok((run, file)) => {
                    opened.push((entry, run, file));
                    continue;
                }
                Err(OpenError::Device(error)) if error.is_retryable() => return Err(error),
                // Pages of another format are others, too.
                Err(OpenError::FileMissing { .. } | OpenError::Format { .. }) => Ok(None),
                Err(_) => Run::open_pages(&mut self.device, header, &self.secret, entry.file_bytes),
            };
            match pages {
                Ok(Some((run, file, records))) => {
                    let intact = run.footer().records;
                    damaged.push((name.clone(), intact));
                    let to_bytes = u32::try_from(entry.file_bytes).unwrap_or(u32::MAX);
                    let records = records.map(|records| records.saturating_sub(intact));
                    let part = LostPart { file: name, from_bytes: run::HEADER_BYTES as u32, to_bytes, records };
                    lost.extend(Some(part).filter(|part| part.records != Some(0)));
                    opened.push((entry, run, file));
                }
                Err(error) if error.is_retryable() => return Err(error),
                Ok(None) | Err(_) => lost.push(LostPart::all_of(name)),
            }
        }
        self.sorted.enter_all(opened);
        Ok((damaged, lost))
    }

    /// Opens the runs that the manifest lists.
    pub(crate) fn open_runs(&mut self) -> Result<(), OpenError> {
        let mut opened = Vec::new();
        for entry in self.manifest.state().runs.clone() {
            let (run, file) = open_run(&mut self.device, self.store, &self.secret, entry)?;
            self.sorted.rest.credit(entry.file_bytes);
            opened.push((entry, run, file));
        }
        self.sorted.enter_all(opened);
        self.sorted.is_active = self.manifest.state().indexes_deletes;
        // The process before may have ended between a clear and the drop of the runs that it has invalidated.
        self.sorted.note_invalidated();
        Ok(())
    }

    /// Whether the record belongs to the range at this place, and was not cleared.
    fn counts_for(&self, at: usize, record: &RunRecord<'_>) -> bool {
        let owner = self.owner_of(record.number, record.key);
        owner.is_some_and(|(owner, _)| owner == at) && !self.is_invalidated_in_run(record, owner)
    }

    /// Whether the record, which belongs to this owner, was cleared; without an owner it counts for no range.
    fn is_invalidated_in_run(&self, record: &RunRecord<'_>, owner: Option<(usize, Version)>) -> bool {
        owner.is_none_or(|(at, cleared)| record.version <= cleared.max(self.ranges[at].cleared.committed))
    }

    /// Whether a write of the key is not committed, or its old version not verified.
    fn is_in_overlay(&self, at: usize, key: &[u8]) -> bool {
        let name = self.name_of(KeyHash::of(&self.secret, key).0, key);
        self.overlay.find(at, name.hash, || name.ident).is_some()
    }

    /// Drops runs from the list, once the manifest does not list them any more; their files go later.
    fn retire_runs(&mut self, ids: &[u64]) {
        let taken = self.sorted.runs.take(ids);
        taken.iter().for_each(|listed| self.scrub_retired(listed.file_bytes));
        self.sorted.retired.extend(taken);
        self.forget_failed_runs(ids);
    }

    fn drop_edits(&self, ids: &[u64]) -> Vec<ManifestEdit> {
        let inputs = ids.iter().filter_map(|&id| self.sorted.find(id));
        inputs.map(|listed| ManifestEdit::DropRun { uuid: listed.run.header().uuid }).collect()
    }

    /// Unlinks the files of dropped runs that nothing reads.
    pub(crate) fn unlink_runs(&mut self) {
        let free: Vec<ListedRun> = self.sorted.retired.extract_if(.., |listed| listed.pins == 0).collect();
        for listed in free {
            self.device.close(listed.file);
            if self.unlink(run::file_name(listed.run.header().uuid), listed.file_bytes) {
                self.note_freed();
            }
        }
    }
}

/// Opens a listed run.
pub(crate) fn open_run<D: Device>(
    device: &mut D,
    store: StoreUuid,
    secret: &fawn_types::HashSecret,
    entry: RunEntry,
) -> Result<(Run, FileId), OpenError> {
    let header = RunHeader { uuid: entry.uuid, store };
    let file = run::file_name(entry.uuid);
    Run::open(device, header, secret, entry.file_bytes).map_err(|error| match error {
        RunError::Device(DeviceError::NotFound { .. }) => OpenError::FileMissing { file },
        RunError::Device(error) => error.into(),
        RunError::Header { error, .. } if error.is_of_other_format() => OpenError::Format { file, error },
        error => OpenError::Corrupt { file, from_bytes: 0, to_bytes: 0, detail: error.to_string() },
    })
}

/// The error of a lookup or a job that met a corrupt run.
pub(super) fn engine_error(error: RunError) -> EngineError {
    match error {
        RunError::Device(error) => error.into(),
        RunError::Corrupt { file, offset_bytes, detail } => {
            EngineError::Corrupt { file, offset_bytes: offset_bytes as u32, detail }
        }
        error => EngineError::Corrupt { file: "a run".to_owned(), offset_bytes: 0, detail: error.to_string() },
    }
}
