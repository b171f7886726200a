//! The store's expiry clock: advanced by the caller once an iteration, persisted with the manifest's commits.
use super::Engine;
use super::segments::RETRY_MS;
use fawn_flash::Device;
use fawn_types::{Now, RangeId, TimeJump, TimeMs};

impl<D: Device> Engine<D> {
    /// Advances the expiry clock to `now` and returns its time. Call it once an iteration, before expiry is evaluated.
    /// The store removes a record only if it has expired by this clock, whatever times lookups pass.
    pub fn advance_clock(&mut self, now: Now) -> TimeMs {
        let time = self.clock.advance(now);
        self.manifest.note_clock(time, now.mono);
        time
    }

    /// Sets the time by which the chain of a range judges expiry. From the first call on, cleaning takes a record of the
    /// range for expired only [`crate::Options::expiry_margin_ms`] later, and ignores the store's clock: it may be ahead
    /// of the clock of the chain's head. An unknown range is ignored.
    pub fn set_chain_time(&mut self, range: RangeId, time: TimeMs) {
        let Ok(at) = self.range_at(range) else { return };
        self.ranges[at].chain_time = Some(time);
        // No chain sets the time of a retired range, and cleaning judges its records by that of the heir.
        for retired in self.ranges[at].inherited.clone() {
            let latest = &mut self.ranges[retired].chain_time;
            *latest = (*latest).max(Some(time));
        }
    }

    /// Records of the range that expired by this time are dead to all members of its chain.
    pub(crate) fn expired_by(&self, at: usize) -> TimeMs {
        let margin_ms = self.options.expiry_margin_ms;
        self.ranges[at].chain_time.map_or(self.clock.get(), |time| TimeMs(time.0.saturating_sub(margin_ms)))
    }

    /// Expiry time at the last [`Engine::advance_clock`].
    pub fn expiry_time(&self) -> TimeMs {
        self.clock.get()
    }

    /// The jump of the expiry time to expect as of the last [`Engine::advance_clock`], which was at `now`.
    pub fn next_jump(&self, now: Now) -> TimeJump {
        self.clock.next_jump(now)
    }

    /// Commits the expiry time on its own if no other manifest commit has carried it for long. After a power loss the
    /// clock continues from the last committed time.
    pub(super) fn persist_stale_clock(&mut self) {
        if self.manifest.is_clock_stale() && self.now.mono >= self.persist_clock_at {
            self.persist_clock();
        }
    }

    pub(super) fn persist_clock(&mut self) {
        if self.poisoned.is_some() || self.options.read_only || self.manifest.clock_age_ms() == 0 {
            return;
        }
        match self.reserve_manifest(0) {
            Ok(()) => {
                self.manifest.commit_clock();
                self.start_manifest();
            }
            // Without space, seals and drops need the rest more. Any other failure has poisoned the engine.
            Err(_) => self.persist_clock_at = self.now.mono.plus_ms(RETRY_MS),
        }
    }
}
