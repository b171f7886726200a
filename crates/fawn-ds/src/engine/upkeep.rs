//! Timers of work that no client asks for: delayed flushes and syncs, scrub, cleaning, the sorted tier, copies of open results, a
//! manifest that found no space, refused unlinks, the recorded end of an idle log, the certified end of the manifest, and checkpoints
//! that had to wait. Without them a store that nothing is written to would leave it undone, since no
//! completion leads to its next step.
use super::Engine;
use crate::format::segment::StreamKind;
use crate::log::failures::{IDLE_READS_LEFT_MAX, READS_LEFT_MAX};
use crate::log::flush::{EVERYSEC_SYNC_MS, MEMORY_FLUSH_MS};
use fawn_flash::Device;
use fawn_types::{Durability, MonoMs};

impl<D: Device> Engine<D> {
    /// Time of the last poll.
    pub const fn polled_at(&self) -> MonoMs {
        self.now.mono
    }

    /// Time by which a poll is due for such work, although no I/O completes; a time that has passed: at once.
    pub fn upkeep_at(&self) -> Option<MonoMs> {
        let scrub_at = self.scrub_at();
        if self.poisoned.is_some() || self.options.read_only {
            return scrub_at;
        }
        let manifest_at = self.manifest.retry_at();
        let certify_at = self.manifest.needs_certifying().then_some(self.certify_at);
        // A clear that found no space: cleaning of its range waits for it.
        let clears_at = (self.has_unlisted_clear && self.now.mono < self.edits_retry_at).then_some(self.edits_retry_at);
        let of_files = [manifest_at, certify_at, clears_at, self.drops.unlink_at(), self.record_end_at()];
        let of_jobs = [scrub_at, self.clean_at(), self.sort_at(), self.copy_results_at(), self.checkpoint_at()];
        let of_reads = [self.leave_verification_at()];
        of_jobs.into_iter().chain(of_files).chain(of_reads).flatten().min()
    }

    /// Time by which the durability mode wants the foreground written (`memory`) or synced (`everysec`), although nobody
    /// writes any more; a time that has passed: at once, or after the write in flight.
    pub fn log_due_at(&self) -> Option<MonoMs> {
        let flush = &self.streams[StreamKind::Foreground].flush;
        if self.poisoned.is_some() {
            return None;
        }
        match self.options.durability {
            Durability::Sync => None,
            Durability::EverySecond => {
                let is_unsynced = (flush.open.is_some() || !flush.unsynced.is_empty()) && flush.sync.is_none();
                is_unsynced.then(|| flush.last_sync.plus_ms(EVERYSEC_SYNC_MS))
            }
            Durability::Memory => flush.open.is_some().then(|| flush.last_flush.plus_ms(MEMORY_FLUSH_MS)),
        }
    }

    /// Reads, writes and syncs that have completed.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// How many more reads that do not end cleaning may leave in flight.
    pub(crate) fn may_leave_reads(&self) -> u32 {
        // A merge may have left more.
        let of_others = self.idle_reads_left().min(IDLE_READS_LEFT_MAX);
        READS_LEFT_MAX.saturating_sub(self.cleaner.reads_left() + of_others)
    }

    /// How many more reads that do not end the scrub and jobs of the sorted tier may leave in flight.
    pub(crate) fn may_leave_idle_reads(&self) -> u32 {
        IDLE_READS_LEFT_MAX.saturating_sub(self.cleaner.reads_left() + self.idle_reads_left())
    }

    fn idle_reads_left(&self) -> u32 {
        self.scrubber.reads_left() + self.sorted.reads_left()
    }

    /// Whether a segment is being cleaned, a read of one was left in flight, or a job of the sorted tier is in progress. All of these
    /// stop once the store has failed.
    pub fn has_upkeep(&self) -> bool {
        let is_cleaning = self.cleaner.has_work() || self.cleaner.reads_left() > 0;
        self.poisoned.is_none() && (is_cleaning || self.sorted.has_work())
    }
}
