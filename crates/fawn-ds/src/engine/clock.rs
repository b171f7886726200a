//! The expiry time of a store: advanced by its host once an iteration, persisted with the manifest's commits.
use super::Engine;
use super::segments::RETRY_MS;
use crate::manifest_file::CLOCK_SPARES_BYTES;
use fawn_flash::{Device, DeviceError};
use fawn_types::{Now, TimeMs};

impl<D: Device> Engine<D> {
    /// Moves expiry time on to `now` and returns it: once an iteration, before anything is judged by it. Nothing is
    /// forgotten that has not expired by it, whatever times lookups are made with.
    pub fn advance_clock(&mut self, now: Now) -> TimeMs {
        let time = self.clock.advance(now);
        self.manifest.note_clock(time, now.mono);
        time
    }

    /// Expiry time as of the last [`Engine::advance_clock`].
    pub fn expiry_time(&self) -> TimeMs {
        self.clock.get()
    }

    /// Where no other commit of the manifest has carried the expiry time for long, it gets one of its own: after a loss of
    /// power it runs on from there.
    pub(super) fn persist_stale_clock(&mut self) {
        if self.manifest.is_clock_stale() && self.now.mono >= self.persist_clock_at {
            self.persist_clock();
        }
    }

    pub(super) fn persist_clock(&mut self) {
        if self.poisoned.is_some() || self.options.read_only || self.manifest.clock_age_ms() == 0 {
            return;
        }
        match self.manifest.reserve(&mut self.device, CLOCK_SPARES_BYTES) {
            Ok(()) => {
                self.manifest.commit_clock();
                self.start_manifest();
            }
            // Seals and drops need what space is left more.
            Err(DeviceError::Full { .. }) => self.persist_clock_at = self.now.mono.plus_ms(RETRY_MS),
            Err(error) => drop(self.poison(&error)),
        }
    }
}
