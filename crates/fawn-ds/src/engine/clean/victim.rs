//! The victim: the segment being cleaned, read in chunks and walked record by record.
use super::super::prefetch::PREFETCH_KEYS_MAX;
use super::super::segments::RETRY_MS;
use super::super::sorted::{CleanGoal, SortJobId};
use super::super::{Engine, InFlight};
use super::WRITE_BYTES;
use super::copy::{Cleaned, CopyRefused};
use super::deferred_tombstones::DeferredTombstones;
use super::pace::SEARCH_MS_MAX;
use crate::format::record::{self, PEEK_BYTES, PeekedKey, RecordKind, RecordPlace, RecordRef};
use crate::format::segment::StreamKind;
use crate::format::{FRAMES_OFFSET, frame};
use crate::log::segments::RangeShare;
use crate::log::unfinished::CopiedPart;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Completion, Device, DeviceError, IoClass, Token};
use fawn_types::{KeyHash, MonoMs};

/// Length of a read, bytes; a longer record gets a read of its own length.
const READ_BYTES: u32 = 512 << 10;

/// Purpose for which a segment is read.
#[derive(Debug)]
pub(super) enum VictimPurpose {
    /// Copies what is still needed.
    Clean,
    /// Takes what is still needed into a run of this job.
    Sort(SortJobId),
    /// Files records of retired ranges, with the counts so far.
    File(Vec<RangeShare>),
}

#[derive(Debug)]
pub(super) struct Victim {
    purpose: VictimPurpose,
    pub(super) slot: u32,
    /// Offset of the next record or frame.
    at: u32,
    /// Deletes before it, and puts that expire, bytes.
    tombstone_bytes: u64,
    expiring_bytes: u64,
    /// Ends of the current frame's records, and of the frame.
    records_end: u32,
    frame_end: u32,
    /// End of the segment's frames.
    end: u32,
    /// Bytes of the segment from this offset on.
    chunk: Option<(u32, AlignedBuf)>,
    /// Records before this offset were prefetched.
    prefetched_to: u32,
    /// The read in flight, and the time when it was submitted.
    reading: Option<(Token, MonoMs)>,
    /// The last poll has ended its step, with credit left.
    has_next_step: bool,
    /// Records that had to stay, and the part before the first of them.
    stays: u64,
    before_stays: Option<CopiedPart>,
    /// The longest time for which one of them has to stay, ms, if that is known.
    stays_ms: u64,
    deferred: DeferredTombstones,
    /// Time of the next attempt while copies have no room, and attempts in a row before it.
    room_at: Option<MonoMs>,
    room_attempts: u32,
    /// The rest of it is left where it is: cleaning ends once the copies so far are moved to.
    pub(super) is_given_up: bool,
}

impl Victim {
    pub(super) fn new(slot: u32, end: u32, purpose: VictimPurpose) -> Self {
        let at = FRAMES_OFFSET;
        Self {
            purpose,
            slot,
            at,
            tombstone_bytes: 0,
            expiring_bytes: 0,
            records_end: at,
            frame_end: at,
            end,
            chunk: None,
            prefetched_to: at,
            reading: None,
            has_next_step: false,
            stays: 0,
            before_stays: None,
            stays_ms: 0,
            deferred: DeferredTombstones::default(),
            room_at: None,
            room_attempts: 0,
            is_given_up: false,
        }
    }

    pub(super) const fn is_to_clean(&self) -> bool {
        matches!(self.purpose, VictimPurpose::Clean)
    }

    pub(super) const fn is_filed(&self) -> bool {
        matches!(self.purpose, VictimPurpose::File(_))
    }

    pub(super) const fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    pub(super) const fn has_next_step(&self) -> bool {
        self.has_next_step
    }

    /// Time of the next attempt while copies have no room. No event reports that there is some: the device may have refused a
    /// segment although it has space for one.
    pub(super) const fn room_at(&self) -> Option<MonoMs> {
        self.room_at
    }

    /// The part before its position.
    const fn walked(&self) -> CopiedPart {
        CopiedPart { end: self.at, tombstone_bytes: self.tombstone_bytes, expiring_bytes: self.expiring_bytes }
    }

    /// Its position passes a record of this length.
    fn pass(&mut self, record: &RecordRef<'_>, len_bytes: usize) {
        self.at += len_bytes as u32;
        match record.kind {
            RecordKind::Tombstone => self.tombstone_bytes += len_bytes as u64,
            _ if record.expires_at_ms != 0 => self.expiring_bytes += len_bytes as u64,
            _ => {}
        }
    }

    /// The record at its position stays in the segment for this time, ms; 0: for an unknown one.
    fn note_stay(&mut self, ms: u64) {
        (self.stays, self.stays_ms) = (self.stays + 1, self.stays_ms.max(ms));
        let walked = self.walked();
        self.before_stays.get_or_insert(walked);
    }

    /// The part of which all tombstones that are needed were copied: those that are still deferred are dropped, and a record that
    /// stays may be needed as a tombstone later.
    fn copied_part(&self) -> CopiedPart {
        [self.before_stays, self.deferred.before_first()].into_iter().flatten().fold(self.walked(), CopiedPart::min)
    }

    fn wait_for_room(&mut self, now: MonoMs) {
        if self.room_at.is_none_or(|at| now >= at) {
            self.room_at = Some(now.plus_ms((RETRY_MS << self.room_attempts.min(16)).min(SEARCH_MS_MAX)));
            self.room_attempts += 1;
        }
    }
}

/// Why the walk over a victim paused.
pub(super) enum Pause {
    /// The bytes from its position on are needed, this many at least.
    NeedsBytes(usize),
    /// The pace allows no more now.
    OutOfCredit,
    /// This poll may clean no more; the next one continues at once.
    StepEnded,
    /// The survivors' stream has no room for a record of this length.
    NoRoom(usize),
    /// The job writes a batch of records, and takes no more until that is done.
    Unsorted,
    /// Copies are not flushed, so their index entries have not moved.
    Unmoved,
    /// A crash could undo removals of the victim's records.
    Undurable,
    /// Bytes of the victim are corrupt.
    Corrupt(String),
    End,
}

impl<D: Device> Engine<D> {
    pub(super) fn clean_victim(&mut self) {
        let Some(mut victim) = self.cleaner.victim.take() else { return };
        if victim.is_reading() {
            if self.leave_read_at(&victim).is_some_and(|at| self.now.mono >= at) {
                return self.leave_read(victim);
            }
            self.cleaner.victim = Some(victim);
            return;
        }
        if victim.is_given_up && victim.is_filed() {
            return self.release_victim(&victim);
        }
        let at = victim.at;
        let pause = self.walk(&mut victim);
        if victim.at > at {
            self.cleaner.note_progress(self.now.mono);
        }
        if !matches!(pause, Pause::NoRoom(_)) {
            (victim.room_at, victim.room_attempts) = (None, 0);
        }
        victim.has_next_step = matches!(pause, Pause::StepEnded);
        match pause {
            Pause::End => return self.finish_victim(victim),
            Pause::Corrupt(detail) => return self.give_up_corrupt(victim, &detail),
            // Its records were more than expected, or the device lost space since. Another victim may still fit.
            Pause::NoRoom(len) if self.has_no_room_for_copy(len) => return self.give_up_without_room(victim),
            Pause::NeedsBytes(len) => self.read_victim(&mut victim, len),
            Pause::NoRoom(_) => victim.wait_for_room(self.now.mono),
            // The writes of the job are the victim's progress meanwhile.
            Pause::Unsorted => self.cleaner.note_progress(self.cleaner.progressed_at.max(self.sorted.worked_at())),
            Pause::OutOfCredit | Pause::StepEnded | Pause::Unmoved | Pause::Undurable => {}
        }
        self.cleaner.victim = Some(victim);
    }

    /// Cleans records as far as bytes, pace and room allow.
    fn walk(&mut self, victim: &mut Victim) -> Pause {
        let chunk = victim.chunk.take();
        let pause = loop {
            let is_at_end = victim.at >= victim.records_end && victim.frame_end >= victim.end;
            if (is_at_end || victim.deferred.is_full())
                && !victim.is_given_up
                && let Err(pause) = self.copy_deferred(victim.slot, &mut victim.deferred)
            {
                break pause;
            }
            if victim.at >= victim.records_end {
                victim.at = victim.frame_end;
                if victim.at >= victim.end {
                    break Pause::End;
                }
            }
            let start = chunk.as_ref().and_then(|(from, _)| victim.at.checked_sub(*from)).unwrap_or(u32::MAX) as usize;
            let bytes = chunk.as_ref().and_then(|(_, buf)| buf.get(start..)).unwrap_or(&[]);
            if !self.cleaner.pace.has_credit() {
                break Pause::OutOfCredit;
            }
            // Without bytes the next read begins in any case.
            if !self.cleaner.pace.has_step() && !bytes.is_empty() {
                break Pause::StepEnded;
            }
            if let VictimPurpose::Sort(id) = victim.purpose
                && !self.may_gather(id)
            {
                break Pause::Unsorted;
            }
            let step = if victim.at == victim.frame_end {
                self.enter_frame(victim, bytes)
            } else {
                if victim.at >= victim.prefetched_to {
                    self.prefetch_victim(victim, bytes);
                }
                self.walk_record(victim, bytes)
            };
            if let Err(pause) = step {
                break pause;
            }
        };
        match (&pause, chunk) {
            (Pause::NeedsBytes(_) | Pause::End | Pause::Corrupt(_), Some((_, buf))) => self.pool.give(buf),
            (_, chunk) => victim.chunk = chunk,
        }
        pause
    }

    fn enter_frame(&mut self, victim: &mut Victim, bytes: &[u8]) -> Result<(), Pause> {
        if bytes.len() < frame::HEADER_BYTES {
            return Err(Pause::NeedsBytes(frame::HEADER_BYTES));
        }
        let uuid = self.segments.expect(victim.slot).uuid;
        let header = frame::decode_header(bytes, uuid, victim.at, victim.end)
            .map_err(|error| Pause::Corrupt(error.to_string()))?;
        victim.at += frame::HEADER_BYTES as u32;
        victim.records_end = victim.at + header.record_bytes;
        victim.frame_end = header.end();
        Ok(())
    }

    /// Prefetches the index entries of the next records. Their bytes are not verified yet: a corrupt key is prefetched in vain.
    fn prefetch_victim(&self, victim: &mut Victim, bytes: &[u8]) {
        let left = &bytes[..bytes.len().min((victim.records_end - victim.at) as usize)];
        let Ok(PeekedKey { number, .. }) = record::peek_key(left) else { return };
        let (mut hashes, mut count, mut at) = ([KeyHash(0); PREFETCH_KEYS_MAX], 0, 0);
        while count < PREFETCH_KEYS_MAX
            && let Ok(next) = record::peek_key(&left[at..])
            && next.number == number
        {
            hashes[count] = KeyHash::of(&self.secret, next.key);
            (count, at) = (count + 1, at + next.encoded_len);
        }
        victim.prefetched_to = victim.at + at as u32;
        // A single record gains nothing: it has no other misses to overlap with.
        if count > 1
            && let Some(range) = self.ranges.iter().find(|range| range.number == number)
        {
            range.index.prefetch(&hashes[..count]);
        }
    }

    fn walk_record(&mut self, victim: &mut Victim, bytes: &[u8]) -> Result<(), Pause> {
        let left = (victim.records_end - victim.at) as usize;
        let place = RecordPlace { segment_id: self.segments.expect(victim.slot).id, offset: victim.at };
        let stored = match record::decode(&bytes[..bytes.len().min(left)], place) {
            Ok(stored) => stored,
            Err(error) if error.is_truncated() => {
                let len = record::peek_len(bytes).unwrap_or(PEEK_BYTES.min(left));
                let is_longer = len <= left && len > bytes.len();
                return Err(if is_longer { Pause::NeedsBytes(len) } else { Pause::Corrupt(error.to_string()) });
            }
            Err(error) => return Err(Pause::Corrupt(error.to_string())),
        };
        match &mut victim.purpose {
            VictimPurpose::Clean | VictimPurpose::Sort(_) => {
                let goal = match victim.purpose {
                    VictimPurpose::Sort(id) => CleanGoal::Sort(id),
                    _ => CleanGoal::Copy,
                };
                let no_room = |CopyRefused(len)| Pause::NoRoom(len);
                let cleaned = self.clean_record((victim.slot, victim.at), &stored, goal).map_err(no_room)?;
                match cleaned {
                    Cleaned::Gone => {}
                    Cleaned::Stays => victim.note_stay(0),
                    Cleaned::StaysFor(ms) => victim.note_stay(ms),
                    Cleaned::TombstoneOnceMoved => victim.deferred.push(victim.walked(), &stored, None),
                    Cleaned::TombstoneOnceDurable(committed) => {
                        victim.deferred.push(victim.walked(), &stored, Some(committed))
                    }
                }
            }
            VictimPurpose::File(counts) => self.file_and_count((victim.slot, victim.at), &stored, counts),
        }
        victim.pass(&stored.record, stored.encoded_len);
        self.cleaner.pace.spend(stored.encoded_len as u64);
        self.write_survivors_if_many();
        Ok(())
    }

    /// Writes the copies in the open frame.
    pub(super) fn write_survivors(&mut self) {
        let flush = &mut self.streams[StreamKind::Survivors].flush;
        flush.wanted |= flush.open.is_some();
        self.advance_flush();
    }

    fn write_survivors_if_many(&mut self) {
        let stream = &mut self.streams[StreamKind::Survivors];
        let Some(open) = stream.flush.open else { return };
        if stream.window.active().is_some_and(|chunk| chunk.end() - open.offset >= WRITE_BYTES) {
            stream.flush.wanted = true;
            self.advance_flush();
        }
    }

    fn read_victim(&mut self, victim: &mut Victim, len: usize) {
        let page = PAGE_BYTES as u32;
        let from = victim.at - victim.at % page;
        let wanted = (victim.at - from) + len as u32;
        let to = (from + wanted.max(READ_BYTES)).min(victim.end).next_multiple_of(page);
        let len = (to - from) as usize;
        let buf = self.pool.take_exact(len);
        let token = Token(self.in_flight.insert(InFlight::Clean { slot: victim.slot, from, len }) as u64);
        self.read_bytes_in_flight += len;
        self.device.submit_read(self.segments.expect(victim.slot).file, u64::from(from), buf, IoClass::Cleaning, token);
        victim.reading = Some((token, self.now.mono));
    }

    /// Takes a chunk of the victim; the next step continues with it.
    pub(crate) fn clean_read(&mut self, slot: u32, from: u32, len: usize, completion: Completion) {
        let Completion { token, result, buf } = completion;
        self.read_bytes_in_flight -= len;
        self.cleaner.note_progress(self.now.mono);
        let is_awaited = |victim: &mut Victim| victim.reading.is_some_and(|(awaited, _)| awaited == token);
        let Some(mut victim) = self.cleaner.victim.take_if(is_awaited) else {
            return self.left_read_ended(slot, result, buf);
        };
        if matches!(victim.purpose, VictimPurpose::Sort(_)) {
            self.sorted.note_work(self.now.mono, len as u64);
        }
        victim.reading = None;
        match (result, buf) {
            (Ok(_), Some(buf)) => {
                self.stats.cleaning_read_bytes += len as u64;
                victim.chunk = Some((from, buf));
                self.cleaner.victim = Some(victim);
            }
            (Ok(_), None) => unreachable!("a read brings its buffer back"),
            (Err(error), _) => {
                if !victim.is_filed() {
                    self.segments.expect_mut(slot).failures.note_unreadable(self.now.mono);
                }
                self.give_up_unreadable(victim, &error.to_string());
            }
        }
    }

    /// Time when the victim's read has hung for so long that it is left in flight; `None` without a read, or if too many were left.
    pub(super) fn leave_read_at(&self, victim: &Victim) -> Option<MonoMs> {
        let (_, since) = victim.reading.filter(|_| self.may_leave_reads() > 0)?;
        Some(since.plus_ms(self.segments.expect(victim.slot).failures.patience_ms()))
    }

    /// Leaves a read that does not end, and the rest of its segment: the device may read others all the same.
    fn leave_read(&mut self, mut victim: Victim) {
        victim.reading = None;
        self.cleaner.reads_left += 1;
        let segment = self.segments.expect_mut(victim.slot);
        // The read keeps its file when the victim is released.
        segment.pins += 1;
        segment.failures.note_left();
        self.give_up_unreadable(victim, "a read hangs");
    }

    /// A read that was left has ended: its segment may be a victim again, from the start.
    fn left_read_ended(&mut self, slot: u32, result: Result<usize, DeviceError>, buf: Option<AlignedBuf>) {
        if let Some(buf) = buf {
            self.pool.give(buf);
        }
        self.cleaner.reads_left -= 1;
        if result.is_err() {
            self.segments.expect_mut(slot).failures.note_unreadable(self.now.mono);
        }
        self.left_segment_read_ended(slot);
    }

    /// Unpins a segment of which a read was left in flight, and has ended.
    pub(crate) fn left_segment_read_ended(&mut self, slot: u32) {
        let segment = self.segments.expect_mut(slot);
        segment.pins -= 1;
        segment.failures.note_ended();
        self.examine_if_dead(slot);
        self.cleaner.note_change();
        self.sorted.note_change();
    }

    /// Releases the victim once all its copies are flushed.
    fn finish_victim(&mut self, mut victim: Victim) {
        if let VictimPurpose::File(counts) = &mut victim.purpose {
            let counts = core::mem::take(counts);
            self.end_filing(victim.slot, counts);
            return self.release_victim(&victim);
        }
        if !self.cleaner.moves.is_empty() {
            self.write_survivors();
            self.cleaner.victim = Some(victim);
            return;
        }
        if !victim.is_given_up {
            self.segments.expect_mut(victim.slot).failures.note_whole();
        }
        if let VictimPurpose::Sort(id) = victim.purpose {
            return self.gathered(victim.slot, id, victim.stays == 0 && !victim.is_given_up);
        }
        let end = self.survivors_end();
        let segment = self.segments.expect_mut(victim.slot);
        // An earlier cleaning may have come further, or met records that have not stayed since.
        segment.copied_part = segment.copied_part.max(victim.copied_part());
        // Also if it was given up: at each retry the tombstones behind would be copied again.
        segment.had_unconfirmed = victim.stays > 0 || (victim.is_given_up && segment.had_unconfirmed);
        if !victim.is_given_up {
            if victim.stays == 0 {
                segment.end_cleaning(end);
            }
            if victim.stays_ms > 0 {
                // Not earlier: with hardly a live record it would be the best victim again and again.
                segment.clean_again_at = self.now.mono.plus_ms(victim.stays_ms.max(RETRY_MS));
            }
            self.stats.segments_cleaned += 1;
        }
        self.release_victim(&victim);
    }

    /// Leaves the rest of a segment with wrong bytes. It is tried again later, since only the read may have been wrong. If the next
    /// one is wrong at the same offset, the segment stays, with all that was not copied, until the next open.
    fn give_up_corrupt(&mut self, victim: Victim, detail: &str) {
        if victim.is_filed() {
            self.filing_failed(victim.slot, detail);
            return self.release_victim(&victim);
        }
        let now = self.now.mono;
        let segment = self.segments.expect_mut(victim.slot);
        if !segment.failures.note_wrong(u64::from(victim.at), now) {
            return self.give_up_unreadable(victim, detail);
        }
        // While it has live records, its first death keeps all tombstones and sorted segments since then, whatever their keys. Nothing
        // bounds these: a store gets full in time, unless the segment is repaired or its live records are overwritten.
        segment.is_cleaned = true;
        tracing::warn!(file = %segment.name, offset = victim.at, %detail, "a segment cannot be cleaned: it stays");
        self.stats.cleaning_failed += 1;
        self.give_up_victim(victim);
    }

    /// Leaves the rest of a segment whose read failed or hangs: it is tried again later.
    fn give_up_unreadable(&mut self, victim: Victim, detail: &str) {
        if victim.is_filed() {
            self.filing_failed(victim.slot, detail);
            return self.release_victim(&victim);
        }
        let segment = self.segments.expect(victim.slot);
        tracing::warn!(file = %segment.name, offset = victim.at, %detail, "a segment is not cleaned now");
        self.stats.cleaning_failed += 1;
        self.give_up_victim(victim);
    }

    /// Leaves the rest of a segment whose copies have no room.
    fn give_up_without_room(&mut self, victim: Victim) {
        let refused = self.refused_copies(self.segments.expect(victim.slot));
        let segment = self.segments.expect_mut(victim.slot);
        if matches!(victim.purpose, VictimPurpose::Sort(_)) {
            // Only records that are too long for a run are copied.
            segment.too_long = segment.too_long.max(1);
        } else {
            // Chosen again at once, it would stop the cleaning of others that fit.
            segment.refused_copies = Some(refused);
        }
        self.give_up_victim(victim);
    }

    /// Leaves the rest of the victim where it is.
    fn give_up_victim(&mut self, mut victim: Victim) {
        victim.is_given_up = true;
        (victim.records_end, victim.frame_end, victim.end) = (victim.at, victim.at, victim.at);
        // Without its pin the segment could be dropped and its slot used again, while copies are written. A newer record
        // may then lie where an original was, and its index entry would move to the older copy.
        self.finish_victim(victim);
    }

    fn release_victim(&mut self, victim: &Victim) {
        self.segments.expect_mut(victim.slot).pins -= 1;
        self.examine_if_dead(victim.slot);
        if victim.is_filed() {
            return;
        }
        self.cleaner.note_change();
        // A segment of copies may have been sealed before they counted as live there.
        self.sorted.note_change();
        // The copies must be synced before the segment can be dropped.
        let flush = &mut self.streams[StreamKind::Survivors].flush;
        flush.wanted |= flush.open.is_some();
    }
}

#[cfg(test)]
mod tests;
