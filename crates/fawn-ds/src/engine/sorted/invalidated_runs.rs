//! Runs none of whose records counts: dropped without being read, after a clear or the drop of a range.
use super::super::Engine;
use super::job::{LATER_FILTER_BITS, RunInputs, SortJob, SortStep};
use super::{ListedRun, SortedTier};
use crate::format::run::KeyBounds;
use crate::format::segment::NumberFacts;
use fawn_flash::Device;

/// Runs that a job drops at most: a commit of the manifest has a limit, and the largest store has more runs.
const INVALIDATED_RUNS_MAX: usize = if cfg!(test) { 3 } else { 16_384 };

impl SortedTier {
    /// All records of a run may be invalidated.
    pub(in crate::engine) const fn note_invalidated(&mut self) {
        self.run_search.note_change();
        self.may_be_invalidated = true;
    }
}

impl<D: Device> Engine<D> {
    /// A clear is listed, or a range was dropped: all records of a run may be invalidated. The drop of such a run gives space back,
    /// so it does not wait as long as a job that was refused for lack of space.
    pub(in crate::engine) fn note_invalidated_runs(&mut self) {
        self.sorted.note_invalidated();
        let now = self.now.mono;
        if self.sorted.retry_at > now && self.sorted.runs.iter().any(|listed| self.is_invalidated_run(listed)) {
            self.sorted.note_freed(now);
        }
    }

    /// Begins to drop the runs of which every record is invalidated, if there are any. A merge would drop them too; but the merge of a full store may wait for
    /// writes, and these for the space.
    pub(super) fn drop_invalidated_runs(&mut self) -> bool {
        if !core::mem::take(&mut self.sorted.may_be_invalidated) {
            return false;
        }
        let runs = self.sorted.runs.iter().filter(|listed| self.is_invalidated_run(listed));
        let ids: Vec<u64> = runs.map(|listed| listed.id).take(INVALIDATED_RUNS_MAX).collect();
        let edits = self.drop_edits(&ids);
        if edits.is_empty() {
            return false;
        }
        if self.reserve_manifest_to_free(edits.len() * 64).is_err() {
            // Repeated with the next change.
            self.sorted.may_be_invalidated = true;
            return false;
        }
        self.sorted.may_be_invalidated = ids.len() == INVALIDATED_RUNS_MAX;
        let inputs = RunInputs { replaced: ids, ..RunInputs::default() };
        let mut job = SortJob::of_runs(self.sorted.next_job(), inputs, Vec::new(), 0, LATER_FILTER_BITS);
        job.step = SortStep::Listing(self.manifest.commit(&edits));
        self.sorted.job = Some(Box::new(job));
        self.start_manifest();
        true
    }

    fn is_invalidated_run(&self, listed: &ListedRun) -> bool {
        listed.run.facts().numbers.iter().all(|facts| self.is_invalidated_number(facts, listed.bounds()))
    }

    /// Whether the manifest says that no record of this local number, up to its highest version and within the bounds, counts.
    fn is_invalidated_number(&self, facts: &NumberFacts, bounds: &KeyBounds) -> bool {
        if let Some(range) = self.ranges.iter().find(|range| range.number == facts.number && range.id.is_some()) {
            return facts.highest <= range.cleared.listed;
        }
        let state = self.manifest.state();
        self.ranges.iter().filter_map(|range| Some((range, state.ranges.get(&range.id?)?))).all(|(range, entry)| {
            entry.lineage.iter().filter(|ancestor| ancestor.number == facts.number).all(|ancestor| {
                let keys = &ancestor.keys;
                let is_apart = bounds.highest < keys.start || keys.end.is_some_and(|end| bounds.lowest >= end);
                is_apart || facts.highest <= ancestor.cleared.max(range.cleared.listed)
            })
        })
    }
}
