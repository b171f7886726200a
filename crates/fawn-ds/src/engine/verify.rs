//! Verification: checks, off the ack path, whether the index entry of an overwritten key is really its own.
//!
//! A fragment match alone never counts as the key. A record in memory costs no I/O to check (a read-modify-write has
//! just loaded its page). Others are read in bounded batches, and appends wait when too many are queued. If an old
//! version is unreadable or corrupt, its entry is *set apart*: the overlay keeps answering for the key, no write waits
//! for it, and the read is retried with back-off.
use super::fetch::{Expected, FetchResume, Probe, ReadSpan, Rejected};
use super::verify_reads::VerifyRead;
use super::{Engine, InFlight};
use crate::error::EngineError;
use crate::index::Pointer;
use crate::overlay::{APART_BYTES, CopyRank, ENTRY_BYTES, KeyName, OverlayBase, ReplacedRecord, Written};
use crate::range::PendingRecord;
use fawn_flash::{AlignedBuf, Device, DeviceError, IoClass};
use fawn_types::{KeyHash, MonoMs, Version};
use smallvec::SmallVec;

const IN_FLIGHT_MAX: usize = 64;
/// Verifications in flight at most of those that an opening deferred, next to any number of others: a store that is always
/// busy confirms them too, and writes checkpoints again. Lookups wait little for so few.
const DEFERRED_IN_FLIGHT_MAX: usize = 4;
/// Deferred verifications begun per poll: most need no read if a page has many of the keys.
const DEFERRED_PER_POLL_MAX: usize = 64;
/// Keys queued for verification at most; beyond that, appends return [`EngineError::Overloaded`].
const WAITING_MAX: usize = 4096;
/// Entries apart per retry.
const RETRY_KEYS_MAX: usize = 64;
/// Delay of the first retry; it doubles with each further failure.
const RETRY_MS_MIN: u64 = 100;
const RETRY_MS_MAX: u64 = 60_000;
/// Time for which writes of a full store wait for a verification, ms.
const VERIFYING_MS_MAX: u64 = 1_000;

/// Retry state of the entries apart: the next time, and the cursor.
#[derive(Debug, Default)]
pub(crate) struct ApartRetry {
    retry_at: MonoMs,
    delay_ms: u64,
    after: (usize, u64, u64),
}

/// Maximum memory of so many records between append and commit, of so many keys, bytes.
pub(super) const fn pending_bytes(records: usize, keys: usize) -> usize {
    records * 2 * size_of::<PendingRecord>() + keys * ENTRY_BYTES
}

impl<D: Device> Engine<D> {
    /// Checks whether memory for another record in flight is left; otherwise the caller waits for commits and
    /// verifications. Entries apart have their own bound: one bad place on the disk must not stop all writes.
    pub(crate) fn check_pending(&self) -> Result<(), EngineError> {
        let waiting = self.verify_queue.len() + self.verify_reads.len();
        let keys = self.overlay.len() - self.overlay.apart();
        let bytes = pending_bytes(self.pending_records, keys);
        let is_full = waiting >= WAITING_MAX || bytes >= self.options.pending_bytes_max();
        if is_full { Err(EngineError::Overloaded) } else { Ok(()) }
    }

    /// Whether memory for another entry apart is left.
    fn has_apart_room(&self) -> bool {
        self.overlay.apart() * (ENTRY_BYTES + APART_BYTES) < self.options.apart_bytes_max()
    }

    /// Whether polls confirm what the opening deferred. If nothing is in flight, no event says that the next poll is due.
    pub fn is_confirming(&self) -> bool {
        self.overlay.deferred() > 0 && self.has_apart_room()
    }

    /// Refuses a write that may add an entry apart once memory for them is used up. Waiting would not help.
    pub(crate) fn check_apart(&mut self, at: usize, hash: KeyHash, key: &[u8]) -> Result<(), EngineError> {
        if self.has_apart_room() {
            return Ok(());
        }
        self.check_base(at, hash, key)
    }

    #[cold]
    fn check_base(&mut self, at: usize, hash: KeyHash, key: &[u8]) -> Result<(), EngineError> {
        match self.base_of(at, hash, key) {
            // A deferred record takes less memory than an entry.
            (name, None) if !self.overlay.has_entry(at, name) => {
                Err(EngineError::TooCorrupt { keys: self.overlay.apart() as u64 })
            }
            (_, Some(OverlayBase::Unknown)) => Err(EngineError::TooCorrupt { keys: self.overlay.apart() as u64 }),
            _ => Ok(()),
        }
    }

    /// The key's name, and its base as far as memory can tell; no base if the overlay has the key.
    // Every append looks the base up: a call of its own would pass the result through memory.
    #[inline(always)]
    pub(crate) fn base_of(&mut self, at: usize, hash: KeyHash, key: &[u8]) -> (KeyName, Option<OverlayBase>) {
        let name = self.name_of(hash.0, key);
        if !self.overlay.is_empty() && self.overlay.find(at, hash.0, || name.ident).is_some() {
            return (name, None);
        }
        let first = self.ranges[at].index.candidates(hash).next();
        let Some(pointer) = first.or_else(|| self.first_inherited(at, hash)) else {
            return (name, Some(OverlayBase::Absent));
        };
        // The first candidate is nearly always the key's own record, and in memory.
        if let Some(hit) = self.find_in_memory(pointer, key, false) {
            self.stats.verifications_free += 1;
            return (name, Some(OverlayBase::At(ReplacedRecord { pointer, len_bytes: hit.len_bytes })));
        }
        match self.confirm(at, name, Expected::Key(key), &mut Rejected::new()) {
            Ok((base, _)) => (name, Some(base)),
            Err(_) => (name, Some(OverlayBase::Unknown)),
        }
    }

    /// Enters a record that recovery found beyond the last commit mark.
    pub(crate) fn pend_recovered(&mut self, at: usize, name: KeyName, written: Written) {
        if let Some(entry) = self.overlay.find_mut(at, name) {
            entry.push_pending(written);
            return;
        }
        let has_candidates = self.candidates(at, KeyHash(name.hash)).next().is_some();
        let base = if has_candidates { OverlayBase::Unknown } else { OverlayBase::Absent };
        self.overlay.insert(at, name, base, written);
        if base == OverlayBase::Unknown {
            self.queue_verification(at, name);
        }
    }

    /// Queues the key for verification, unless it is queued.
    pub(crate) fn queue_verification(&mut self, at: usize, name: KeyName) {
        if let Some(entry) = self.overlay.find_mut(at, name)
            && !core::mem::replace(&mut entry.is_queued, true)
        {
            if self.verify_queue.is_empty() && self.verify_reads.len() == 0 {
                self.verified_at = self.now.mono;
            }
            self.verify_queue.push_back((at, name));
        }
    }

    /// Whether old versions of overwritten records are being looked for. Not if nothing was found for long: the device may hang.
    pub(crate) fn is_verifying(&self) -> bool {
        let has_some = !self.verify_queue.is_empty() || self.verify_reads.len() > 0;
        has_some && self.now.mono.ms_since(self.verified_at) < VERIFYING_MS_MAX
    }

    /// Checks the candidates: returns the key's base in the index and its version; `Err` is the first device read
    /// needed.
    pub(crate) fn confirm(
        &mut self,
        at: usize,
        name: KeyName,
        wanted: Expected<'_>,
        rejected: &mut Rejected,
    ) -> Result<(OverlayBase, Version), ReadSpan> {
        let candidates: SmallVec<[Pointer; 4]> = self.candidates(at, KeyHash(name.hash)).collect();
        let (looked, mut is_damaged) = (!candidates.is_empty(), false);
        for pointer in candidates {
            match self.probe_once(at, pointer, wanted, rejected) {
                Ok(Probe::Match(hit)) => {
                    self.stats.verifications_free += 1;
                    return Ok((OverlayBase::At(ReplacedRecord { pointer, len_bytes: hit.len_bytes }), hit.version));
                }
                Ok(Probe::Missing(span)) => return Err(span),
                Ok(Probe::Other) => {}
                // An unreadable record may be this key's: a second index entry could bring the old value back.
                Err(_) => is_damaged = true,
            }
        }
        if is_damaged {
            return Ok((OverlayBase::Unknown, Version::ZERO));
        }
        self.stats.verifications_free += u64::from(looked);
        Ok((OverlayBase::Absent, Version::ZERO))
    }

    /// Starts queued verifications, as many as may be in flight.
    pub(crate) fn pump_verifications(&mut self) {
        self.leave_hanging_verifications();
        self.retry_apart();
        for (at, name) in self.overlay.take_woken() {
            self.queue_verification(at, name);
        }
        while self.verify_reads.len() < IN_FLIGHT_MAX {
            let Some((at, name)) = self.verify_queue.pop_front() else { break };
            self.verify_step(at, name, Rejected::new(), false);
        }
        for _ in 0..DEFERRED_PER_POLL_MAX {
            // In the list, they take a fraction of the memory of entries apart.
            if self.verify_reads.deferred() >= DEFERRED_IN_FLIGHT_MAX || !self.has_apart_room() {
                return;
            }
            let Some((at, name)) = self.overlay.wake_next() else { return };
            self.verify_step(at, name, Rejected::new(), true);
        }
    }

    /// Queues a bounded number of entries apart again once their retry time has come. There may be as many as a segment
    /// has records, and every attempt is a device read.
    fn retry_apart(&mut self) {
        if self.overlay.apart() == 0 || self.now.mono < self.apart.retry_at {
            return;
        }
        let ApartRetry { delay_ms, after, .. } = self.apart;
        let keys = self.overlay.apart_after(after, RETRY_KEYS_MAX);
        let after = keys.last().map_or(after, |&(at, name)| (at, name.hash, name.ident));
        let retry_at = self.now.mono.plus_ms(delay_ms);
        self.apart = ApartRetry { retry_at, delay_ms: (2 * delay_ms).min(RETRY_MS_MAX), after };
        for (at, name) in keys {
            self.queue_verification(at, name);
        }
    }

    /// Sets the entry apart: the key's old version is unreadable or corrupt, so the overlay keeps answering for it.
    fn keep_apart(&mut self, at: usize, name: KeyName, reason: &dyn core::fmt::Display) {
        self.stats.verifications_failed += 1;
        let is_first = self.overlay.apart() == 0;
        if self.overlay.set_apart(at, name) && is_first {
            tracing::warn!(%reason, "an overwritten key's old version cannot be verified: its entry stays in memory");
            let retry_at = self.now.mono.plus_ms(RETRY_MS_MIN);
            self.apart = ApartRetry { retry_at, delay_ms: 2 * RETRY_MS_MIN, after: self.apart.after };
        }
    }

    fn is_unknown(&mut self, at: usize, name: KeyName) -> bool {
        self.overlay.find_mut(at, name).is_some_and(|entry| entry.base == OverlayBase::Unknown)
    }

    /// Confirms one key's base, or submits the read it needs. Does nothing if the key has settled otherwise.
    pub(crate) fn verify_step(&mut self, at: usize, name: KeyName, mut rejected: Rejected, is_deferred: bool) {
        if !self.is_unknown(at, name) {
            return;
        }
        match self.confirm(at, name, Expected::Name(name), &mut rejected) {
            // The next recovery sees both records and decides by version.
            Ok((OverlayBase::Unknown, _)) => self.keep_apart(at, name, &"the record is corrupt"),
            Ok((base, version)) => self.settle(at, name, base, version),
            Err(span) if self.verify_reads.hangs(&span) => self.keep_apart(at, name, &"its read hangs"),
            Err(mut span) => {
                span.cacheable_to = self.cacheable_to(span.slot);
                self.stats.verification_reads += 1;
                let of_range = (at, self.ranges[at].number);
                let id = self.verify_reads.begin(of_range, name, span, is_deferred, self.now.mono);
                let read = InFlight::Verify { id, span, rejected };
                self.submit_span(&span, IoClass::Verification, read);
            }
        }
    }

    /// Time by which a read hangs, and is left in flight.
    pub(crate) fn leave_verification_at(&self) -> Option<MonoMs> {
        self.verify_reads.leave_at().filter(|_| self.has_apart_room())
    }

    /// Sets keys apart whose read hangs, as after a failed one: 64 of them would stop all writes. The end of the read, whenever it
    /// comes, confirms the key. Once too many hang, queued keys are set apart without a read, and retried as all others.
    fn leave_hanging_verifications(&mut self) {
        while self.has_apart_room()
            && let Some(read) = self.verify_reads.leave_hanging(self.now.mono)
        {
            if self.ranges[read.at].number == read.number && self.is_unknown(read.at, read.name) {
                self.keep_apart(read.at, read.name, &"its read hangs");
            }
        }
        while self.has_apart_room() && self.verify_reads.has_left_most(self.now.mono) {
            let Some((at, name)) = self.verify_queue.pop_front() else { break };
            if self.is_unknown(at, name) {
                self.keep_apart(at, name, &"too many reads hang");
            }
        }
    }

    pub(crate) fn verified(&mut self, id: u64, rejected: Rejected, read: Result<AlignedBuf, DeviceError>) {
        let VerifyRead { at, number, name, is_deferred, span, .. } = self.verify_reads.end(id);
        // Another range has the place by now, with keys of the same names.
        if self.ranges[at].number != number {
            if let Ok(buf) = read {
                self.pool.give(buf);
            }
            return;
        }
        match read {
            Ok(buf) => {
                self.set_resume(Some(FetchResume { span, buf }));
                self.verify_step(at, name, rejected, is_deferred);
            }
            Err(error) if self.is_unknown(at, name) => self.keep_apart(at, name, &error),
            Err(_) => {}
        }
    }

    /// Sets the confirmed base; a commit that waited for it moves the index now.
    fn settle(&mut self, at: usize, name: KeyName, base: OverlayBase, version: Version) {
        self.verified_at = self.now.mono;
        if self.full {
            // An overwritten record died: its segment may be worth cleaning now.
            self.cleaner.note_retry();
        }
        let apart = self.overlay.apart();
        let waiting = self.overlay.confirm(at, name, base);
        if self.overlay.apart() < apart {
            // This place of the disk is readable again: the other entries need not wait.
            self.apart = ApartRetry { retry_at: self.now.mono, delay_ms: RETRY_MS_MIN, after: self.apart.after };
        }
        // Of equal versions, a put of the index counts beside its copy, and beside the trace of a sorted one.
        let is_newest = |written: &Written, rank| (version, CopyRank::Put) < (written.version, rank);
        match waiting {
            // A newer survivor that an opening read first would stay. This is a guard: an opening compares records that may
            // be older than a survivor, and defers none of them.
            Some((written, rank)) if !is_newest(&written, rank) && !written.is_put => {}
            // The same of a put, or a transferred record that came twice: the first one stays.
            Some((written, rank)) if !is_newest(&written, rank) => {
                self.records.remove(at, KeyHash(name.hash));
                self.release_old(
                    at,
                    ReplacedRecord { pointer: written.pointer, len_bytes: written.len_bytes },
                    version,
                );
            }
            Some((written, _)) => self.move_index(at, name, base, written),
            None => {}
        }
        self.overlay.remove_if_settled(at, name);
    }
}
