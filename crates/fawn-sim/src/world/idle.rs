//! Idle ranges whose members restart repeatedly: they still serve after many epochs.
use super::World;
use crate::tally::FaultKind;
use fawn_types::{Epoch, RangeId};

/// Epochs that each range passes without a write: more than the remembered activations.
const IDLE_EPOCHS: u32 = 110;
/// After so many restarts the cluster becomes whole: with slow disks and a manager that restarts too, epochs could
/// otherwise begin without end and never become active.
const RESTARTS_PER_PAUSE: u32 = 8;
/// Maximum number of restarts. The restarts between two pauses begin at least one epoch of each range, with few
/// exceptions.
const IDLE_RESTARTS_MAX: u32 = 2 * RESTARTS_PER_PAUSE * IDLE_EPOCHS;
/// How long a restarted back-end is down, µs.
const IDLE_DOWN_US: u64 = 5_000;
/// Time for the others to react to a restart, µs.
const IDLE_PAUSE_US: u64 = 60_000;

impl World {
    /// Restarts one or all back-ends until every range has passed many epochs. Clients send nothing.
    pub(super) fn pass_idle_epochs(&mut self) -> Result<(), String> {
        assert!(self.quiet, "a client would write");
        self.tally.note(FaultKind::IdleEpochs);
        let before = self.epochs();
        let has_passed = |after: &[(RangeId, Epoch)]| {
            let passed = |(was, is): (&(RangeId, Epoch), &(RangeId, Epoch))| is.1.get() - was.1.get() >= IDLE_EPOCHS;
            before.len() == after.len() && before.iter().zip(after).all(passed)
        };
        let mut restarts = 0;
        while !has_passed(&self.epochs()) {
            if restarts == IDLE_RESTARTS_MAX {
                let (after, words) = (self.epochs(), self.words());
                return Err(format!("few epochs began in {restarts} restarts: {before:?}, {after:?}: {words}"));
            }
            restarts += 1;
            let backends = self.scenario.backends as usize;
            let all = self.random.chance(1, 4);
            let one = self.random.below(backends as u64) as usize;
            for index in if all { 0..backends } else { one..one + 1 } {
                self.close(index, None, IDLE_DOWN_US)?;
            }
            self.run_until(self.now_us + IDLE_DOWN_US + IDLE_PAUSE_US)?;
            if restarts.is_multiple_of(RESTARTS_PER_PAUSE) {
                self.heal_whole("restarts without a write")?;
            }
        }
        self.trace.say(self.now_us, format!("idle through {restarts} restarts"));
        self.heal_whole("many epochs without a write")
    }

    /// The newest epoch of each range that any member knows.
    fn epochs(&self) -> Vec<(RangeId, Epoch)> {
        let ranges = self.map.ranges.iter().map(|entry| entry.range);
        ranges.map(|range| (range, self.watch.newest_epoch(range))).collect()
    }
}
