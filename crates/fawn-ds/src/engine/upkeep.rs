//! Timers of work that no client asks for: scrub, cleaning, the sorted tier, a manifest that found no space, and refused
//! unlinks. Without them a store that nothing is written to would leave it undone, since no completion leads to its next
//! step.
use super::Engine;
use fawn_flash::Device;
use fawn_types::MonoMs;

impl<D: Device> Engine<D> {
    /// Time by which a poll is due for such work, although no I/O completes; a time that has passed: at once.
    pub fn upkeep_at(&self) -> Option<MonoMs> {
        let manifest_at = self.manifest.retry_at().filter(|_| self.poisoned.is_none());
        // A clear that found no space: cleaning of its range waits for it.
        let clears_at = (self.has_unlisted_clear && self.now.mono < self.edits_retry_at).then_some(self.edits_retry_at);
        let unlink_at = self.drops.unlink_at().filter(|_| self.poisoned.is_none());
        let of_space = [manifest_at, clears_at, unlink_at];
        [self.scrub_at(), self.clean_at(), self.sort_at()].into_iter().chain(of_space).flatten().min()
    }

    /// Reads, writes and syncs that have completed.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether a segment is being cleaned, or a job of the sorted tier is in progress. Both stop once the store has failed.
    pub fn has_upkeep(&self) -> bool {
        self.poisoned.is_none() && (self.cleaner.has_work() || self.sorted.has_work())
    }
}
