//! Pace of cleaning: when to clean, which segment, and how many bytes for each byte that clients write.
use super::super::Engine;
use super::super::segments::RETRY_MS;
use super::choice::NEVER;
use super::space::SurvivorsRoom;
use super::victim::{Victim, VictimPurpose};
use core::ops::RangeInclusive;
use fawn_flash::Device;
use fawn_types::{MonoMs, TimeMs};

/// Bytes of a victim for each dead one, as far as the pace is concerned: least and most. A full store does not keep to it.
const BYTES_PER_DEAD: RangeInclusive<u64> = 2..=20;
/// Credit that may be saved up, bytes.
const CREDIT_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a victim that one poll cleans at least, if it has credit. With records of 256 B that takes 0.1 ms, for which operations
/// that arrive meanwhile wait.
pub(super) const STEP_BYTES: u64 = 64 << 10;
/// Bytes that a poll may clean of the credit for the time that has passed, or if writes wait for cleaning.
pub(super) const STEP_BYTES_MAX: u64 = 256 << 10;
/// Credit besides that for writes, bytes per ms: an idle store pays off its debt with it.
const BYTES_PER_MS: u64 = 16 << 10;
/// Time after which cleaning that is out of credit continues without any write, ms.
const STEP_MS: u64 = 16;
/// Time between two looks for a segment to file, ms.
const FILING_MS: u64 = 250;
/// Bytes of segments that are read to be sorted for each byte that clients write.
const SORTED_PER_WRITTEN: u64 = 5;
/// Time until the next search for a victim if one has found none, ms: doubled by each further one, up to the longest.
const SEARCH_MS: u64 = 1_000;
pub(super) const SEARCH_MS_MAX: u64 = 10_000;
/// Time between two searches for writes that find no space, ms.
const WRITE_SEARCH_MS: u64 = 10;

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Time of the next search for a victim because of a change since the last one.
    pub(super) due_at: Option<MonoMs>,
    /// The next write that finds no space makes a search due, and waits for it.
    is_due_for_write: bool,
    /// The last search: its time, record bytes of clients' writes by then, and searches in a row without a change before it.
    searched_at: MonoMs,
    searched_bytes: u64,
    repeats: u32,
    /// Time of the expiry clock at which records will have expired, so that a search is due; `None` before the first poll.
    expires_at: Option<TimeMs>,
    /// The last victim was chosen because its dead puts were replaced earliest.
    pub(super) was_for_tombstones: bool,
    /// Segments above the target at the last search.
    pub(super) debt: u64,
    /// Length of the records that have died since the last search, bytes.
    dead_bytes: u64,
    /// Lineages were too long at the last search.
    has_old_numbers: bool,
    /// The last victim was chosen for its old numbers.
    was_for_numbers: bool,
    /// Bytes of the last victim for each dead one, rounded up: so many must be cleaned to free one.
    bytes_per_dead: u64,
    /// Bytes of victims that may be cleaned now.
    credit_bytes: u64,
    /// Bytes of victims that the present poll may clean, as far as there is credit.
    step_bytes: u64,
    /// Record bytes of clients' writes for which credit was given, and the time of the last credit.
    paid_bytes: u64,
    paid_at: MonoMs,
}

impl Pace {
    /// Whether there is a next search also without a change: only time may make a segment worthwhile, or readable again.
    const fn repeats_search(&self) -> bool {
        self.debt > 0 || self.has_old_numbers
    }

    /// A segment was sealed or dropped: the next poll searches.
    pub(super) const fn note_change(&mut self) {
        self.due_at = Some(MonoMs(0));
    }

    /// A record died. Deletes of long records make victims before they fill a segment, and a store that shares its device with others
    /// may have nothing else to write: a segment's length of dead records makes a search due, too.
    pub(super) const fn note_dead(&mut self, bytes: u64, segment_bytes: u64) {
        self.dead_bytes += bytes;
        if self.dead_bytes >= segment_bytes {
            self.note_change();
        }
    }

    pub(super) const fn note_retry(&mut self) {
        self.is_due_for_write = true;
    }

    /// A write needs another segment. Each delete may have made a victim, so searches for writes keep a distance.
    pub(super) fn note_write(&mut self) {
        if core::mem::take(&mut self.is_due_for_write) {
            let at = self.searched_at.plus_ms(WRITE_SEARCH_MS);
            self.due_at = Some(self.due_at.map_or(at, |due_at| due_at.min(at)));
        }
    }

    pub(super) const fn has_credit(&self) -> bool {
        self.credit_bytes > 0
    }

    pub(super) const fn has_step(&self) -> bool {
        self.step_bytes > 0
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        self.credit_bytes = self.credit_bytes.saturating_sub(bytes);
        self.step_bytes = self.step_bytes.saturating_sub(bytes);
    }
}

impl<D: Device> Engine<D> {
    /// Gives credit for what clients have written since the last poll, more the more segments are above the target. With one above,
    /// cleaning frees as much as is written. Sets how much of the credit this poll may spend.
    pub(super) fn earn_credit(&mut self) {
        let pace = &mut self.cleaner.pace;
        let written = self.stats.record_bytes - pace.paid_bytes;
        let passed_ms = self.now.mono.ms_since(pace.paid_at);
        (pace.paid_bytes, pace.paid_at) = (self.stats.record_bytes, self.now.mono);
        let bytes_per_dead = pace.bytes_per_dead.clamp(*BYTES_PER_DEAD.start(), *BYTES_PER_DEAD.end());
        let of_debt = written * bytes_per_dead * (pace.debt + 1) / 2;
        // Sorting must be faster than what makes it necessary.
        let of_sort = if self.sorted.is_gathering() { written * SORTED_PER_WRITTEN } else { 0 };
        let may_hurry = self.full || self.sorted.slows_puts();
        let (of_writes, of_time) = (of_debt.max(of_sort), passed_ms * BYTES_PER_MS);
        let earned = if may_hurry { CREDIT_BYTES_MAX } else { of_writes + of_time };
        // More than is earned: otherwise the credit that gathers while a chunk is read would never be spent.
        let of_time = if may_hurry { STEP_BYTES_MAX } else { of_time.min(STEP_BYTES_MAX) };
        pace.step_bytes = (2 * of_writes).max(of_time).max(STEP_BYTES);
        pace.credit_bytes = (pace.credit_bytes + earned).min(CREDIT_BYTES_MAX);
    }

    /// Time by which a poll continues the cleaning although nothing has happened. `None`: an event brings it about.
    pub(in crate::engine) fn clean_at(&self) -> Option<MonoMs> {
        let cleaner = &self.cleaner;
        if self.poisoned.is_some() || self.options.read_only || cleaner.is_at_rest() {
            return None;
        }
        let pace = &cleaner.pace;
        if self.has_cleaning_step() {
            return Some(self.now.mono);
        }
        if let Some(victim) = &cleaner.victim {
            // Otherwise a read is in flight that may still be waited for, or copies are not flushed or durable yet.
            let is_out_of_credit = !victim.is_reading() && !pace.has_credit();
            let credit = is_out_of_credit.then(|| pace.paid_at.plus_ms(STEP_MS));
            return [credit, victim.room_at(), self.leave_read_at(victim)].into_iter().flatten().min();
        }
        if self.sorted.is_gathering() {
            // The next segment is chosen by the next poll.
            return Some(self.now.mono);
        }
        let due = pace.due_at.map(|at| at.max(self.now.mono));
        let filing = self.has_retired().then(|| pace.paid_at.plus_ms(FILING_MS));
        let search = pace.repeats_search().then(|| self.search_at());
        let expires_at = pace.expires_at.filter(|&at| at != NEVER);
        let expiry = expires_at.map(|at| self.now.mono.plus_ms(at.0.saturating_sub(self.clock.get().0)));
        [due, filing, search, expiry].into_iter().flatten().min()
    }

    /// Whether the next poll continues the cleaning at once.
    pub(in crate::engine) fn has_cleaning_step(&self) -> bool {
        let cleaner = &self.cleaner;
        let is_active = self.poisoned.is_none() && !self.options.read_only && !cleaner.is_at_rest();
        is_active && cleaner.victim.as_ref().is_some_and(Victim::has_next_step)
    }

    /// Whether another result of the search for a victim is likely: at once, or after the commit of what was written.
    fn has_changed_since_search(&self) -> bool {
        let pace = &self.cleaner.pace;
        pace.due_at.is_some() || pace.searched_bytes != self.stats.record_bytes
    }

    /// Time of the next search for a victim, unless one is due before. Without any change the intervals grow: only time may
    /// make a segment worthwhile, and a search visits all of them.
    fn search_at(&self) -> MonoMs {
        let pace = &self.cleaner.pace;
        let first_ms = if self.full { RETRY_MS } else { SEARCH_MS };
        let doublings = if self.has_changed_since_search() { 0 } else { pace.repeats.min(16) };
        pace.searched_at.plus_ms((first_ms << doublings).min(SEARCH_MS_MAX))
    }

    /// Begins with the most worthwhile segment if the store has more segments than it should.
    pub(super) fn choose_victim(&mut self) -> bool {
        let now = self.now.mono;
        let (has_changed, is_time) = (self.has_changed_since_search(), now >= self.search_at());
        // Records may have expired while the store was closed.
        let expires_at = self.cleaner.pace.expires_at.unwrap_or_else(|| self.next_expiry(|_| TimeMs(0)));
        self.cleaner.pace.expires_at = Some(expires_at);
        let pace = &mut self.cleaner.pace;
        let has_expired = self.clock.get() >= expires_at;
        let is_due = has_expired || pace.due_at.is_some_and(|at| now >= at);
        if !(is_due || pace.repeats_search() && is_time) {
            return false;
        }
        pace.repeats = if has_changed { 0 } else { pace.repeats + 1 };
        (pace.due_at, pace.is_due_for_write, pace.dead_bytes) = (None, false, 0);
        (pace.searched_at, pace.searched_bytes) = (now, self.stats.record_bytes);
        let debt = self.space_debt();
        self.cleaner.pace.debt = debt;
        // The time of a chain may be behind the clock: no search follows at once.
        let soon = TimeMs(self.clock.get().0.saturating_add(SEARCH_MS_MAX));
        let next = self.next_expiry(|range| self.expired_by(range)).max(soon);
        self.cleaner.pace.expires_at = Some(next);
        let room = self.survivors_room();
        // In turns with victims that make space: one with old numbers may be live whole.
        let is_next = !core::mem::take(&mut self.cleaner.pace.was_for_numbers) || debt == 0;
        let is_begun = is_next && self.clean_old_numbers(room);
        self.cleaner.pace.has_old_numbers = self.has_long_lineages();
        if is_begun {
            return true;
        }
        if debt == 0 {
            return false;
        }
        debug_assert!(self.knows_dead_puts(), "a tombstone may go before a put that it hides");
        let Some(slot) = self.best_victim(room) else {
            self.seal_dead_survivors();
            return false;
        };
        let segment = self.segments.expect(slot);
        let dead_bytes = segment.dead_bytes(self.kept_tombstone_bytes(segment)) + self.expired_bytes(segment);
        // One that is chosen for its age may have hardly a dead byte.
        if !self.cleaner.pace.was_for_tombstones {
            self.cleaner.pace.bytes_per_dead = u64::from(segment.end).div_ceil(dead_bytes.max(1));
        }
        self.begin_cleaning(slot);
        true
    }

    /// Begins to clean the segment with the oldest number of lineages that are too long, if there is one.
    fn clean_old_numbers(&mut self, room: SurvivorsRoom) -> bool {
        let Some(slot) = self.oldest_victim(room) else { return false };
        self.cleaner.pace.was_for_numbers = true;
        self.begin_cleaning(slot);
        true
    }

    fn begin_cleaning(&mut self, slot: u32) {
        let segment = self.segments.expect_mut(slot);
        segment.pins += 1;
        let victim = Victim::new(slot, segment.end, VictimPurpose::Clean);
        self.cleaner.begin(victim, self.now.mono);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use fawn_flash::{SimDevice, SimDisk, SimOptions};
    use fawn_types::{HashSecret, Now};

    /// The poll that ends the filing of a segment does not search, although a search may have become due meanwhile.
    #[test]
    fn a_search_that_is_due_keeps_its_timer() {
        let device = SimDevice::attach(&SimDisk::new(SimOptions::default()));
        let options = Options { secret: Some(HashSecret([1; 16])), ..Options::default() };
        let (mut engine, _) = Engine::open(device, options, Now::at(1_000)).unwrap();
        engine.poll(Now::at(2_000), &mut Vec::new());
        assert_eq!(engine.clean_at(), None, "nothing to clean");
        (engine.cleaner.pace.debt, engine.cleaner.pace.due_at) = (1, None);
        engine.now = engine.now.plus_ms(SEARCH_MS_MAX);
        assert!(engine.clean_at().is_some_and(|at| at <= engine.now.mono));
        engine.poll(engine.now, &mut Vec::new());
        assert!(engine.clean_at().is_none_or(|at| at > engine.now.mono), "the search was made");
    }

    /// With one segment above the target, cleaning frees as much as clients write, however much of the victims is live.
    #[test]
    fn the_pace_follows_what_is_dead_of_a_victim() {
        let device = SimDevice::attach(&SimDisk::new(SimOptions::default()));
        let options = Options { secret: Some(HashSecret([1; 16])), ..Options::default() };
        let (mut engine, _) = Engine::open(device, options, Now::at(1_000)).unwrap();
        let mut earned = |debt, bytes_per_dead| {
            (engine.cleaner.pace.debt, engine.cleaner.pace.bytes_per_dead) = (debt, bytes_per_dead);
            engine.stats.record_bytes += 1_000;
            engine.earn_credit();
            core::mem::take(&mut engine.cleaner.pace.credit_bytes)
        };
        // An opening has given credit.
        earned(0, 0);
        assert_eq!([earned(1, 3), earned(1, 10)], [3_000, 10_000], "as much as is written");
        assert_eq!([earned(3, 3), earned(3, 10)], [6_000, 20_000], "twice as much");
        assert_eq!([earned(1, 0), earned(1, 1)], [2_000, 2_000], "before the first victim, and with nothing live");
        assert_eq!(earned(1, 10_000), 20_000, "hardly anything is dead");
    }

    /// A poll may spend more than writes have earned, and up to 256 KiB of what time has earned.
    #[test]
    fn a_step_is_longer_than_what_was_earned_since_the_last_one() {
        let device = SimDevice::attach(&SimDisk::new(SimOptions::default()));
        let options = Options { secret: Some(HashSecret([1; 16])), ..Options::default() };
        let (mut engine, _) = Engine::open(device, options, Now::at(1_000)).unwrap();
        (engine.cleaner.pace.debt, engine.cleaner.pace.bytes_per_dead) = (1, 10);
        let mut step_of = |written, passed_ms, is_full| {
            engine.stats.record_bytes += written;
            (engine.now, engine.full) = (engine.now.plus_ms(passed_ms), is_full);
            engine.earn_credit();
            engine.cleaner.pace.step_bytes
        };
        step_of(0, 0, false);
        assert_eq!([step_of(0, 0, false), step_of(1_000, 1, false)], [STEP_BYTES; 2]);
        assert_eq!(step_of(20_000, 0, false), 400_000, "twice what the writes have earned");
        assert_eq!([step_of(0, 4, false), step_of(0, 8, false)], [64 << 10, 128 << 10], "ticks of an embedded store");
        assert_eq!([step_of(0, 1_000, false), step_of(0, 0, true)], [STEP_BYTES_MAX; 2]);
    }

    /// Each delete of a full store may make a segment worth cleaning, and each search visits all segments.
    #[test]
    fn searches_for_writes_keep_a_distance() {
        let mut pace = Pace { searched_at: MonoMs(1_000), ..Pace::default() };
        pace.note_write();
        assert_eq!(pace.due_at, None, "nothing has changed");
        pace.note_retry();
        pace.note_write();
        assert_eq!(pace.due_at, Some(MonoMs(1_010)));
        pace.note_change();
        pace.note_retry();
        pace.note_write();
        assert_eq!(pace.due_at, Some(MonoMs(0)), "a segment was sealed or dropped");
    }
}
