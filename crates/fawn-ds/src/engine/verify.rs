//! Owns verification: finding out, off the ack path, whether an overwritten key's index entry is really its own.
//!
//! A fragment match is never assumed to be the key. What memory knows is free (a read-modify-write has just loaded the
//! page); the rest is read in batches, bounded, and appends wait when too much of it waits.
use super::fetch::{Look, Resume, RuledOut, Span, Wanted};
use super::{Engine, InFlight};
use crate::index::Pointer;
use crate::overlay::{Base, KeyName, Old, Written};
use fawn_flash::{AlignedBuf, Cause, Device, DeviceError};
use fawn_types::{KeyHash, Version};
use smallvec::SmallVec;

/// Verification reads in flight at most.
const IN_FLIGHT_MAX: usize = 64;
/// Keys waiting for verification at most; beyond, appends are told to wait.
pub(crate) const WAITING_MAX: usize = 4096;

impl<D: Device> Engine<D> {
    /// The key's name, and what the index holds for it as far as memory can tell; no base where the overlay has it.
    pub(crate) fn base_of(&mut self, at: usize, hash: KeyHash, key: &[u8]) -> (KeyName, Option<Base>) {
        let name = self.name_of(hash.0, key);
        if !self.overlay.is_empty() && self.overlay.find(at, hash.0, || name.ident).is_some() {
            return (name, None);
        }
        let Some(pointer) = self.ranges[at].index.candidates(hash).next() else {
            return (name, Some(Base::Absent));
        };
        // Nearly always the first candidate is the key's own, and at hand.
        if let Some(hit) = self.plain_at(pointer, key, false) {
            self.stats.verifications_free += 1;
            return (name, Some(Base::At(Old { pointer, len_bytes: hit.len_bytes })));
        }
        match self.confirm(at, name, Wanted::Key(key), &mut RuledOut::new()) {
            Ok((base, _)) => (name, Some(base)),
            Err(_) => (name, Some(Base::Unknown)),
        }
    }

    /// Enters a record that opening found beyond the last commit mark.
    pub(crate) fn pend_recovered(&mut self, at: usize, name: KeyName, written: Written) {
        if let Some(entry) = self.overlay.find_mut(at, name) {
            entry.pending.push(written);
            return;
        }
        let has_candidates = self.ranges[at].index.candidates(KeyHash(name.hash)).next().is_some();
        let base = if has_candidates { Base::Unknown } else { Base::Absent };
        self.overlay.insert(at, name, base, written);
        if base == Base::Unknown {
            self.verify_queue.push_back((at, name));
        }
    }

    /// Goes through the candidates: what the index holds for the key, and its version; `Err` names the first device read
    /// needed.
    pub(crate) fn confirm(
        &mut self,
        at: usize,
        name: KeyName,
        wanted: Wanted<'_>,
        ruled_out: &mut RuledOut,
    ) -> Result<(Base, Version), Span> {
        let candidates: SmallVec<[Pointer; 4]> = self.ranges[at].index.candidates(KeyHash(name.hash)).collect();
        let (looked, mut is_damaged) = (!candidates.is_empty(), false);
        for pointer in candidates {
            match self.look_once(at, pointer, wanted, ruled_out) {
                Ok(Look::Match(hit)) => {
                    self.stats.verifications_free += 1;
                    return Ok((Base::At(Old { pointer, len_bytes: hit.len_bytes }), hit.version));
                }
                Ok(Look::Missing(span)) => return Err(span),
                Ok(Look::Other) => {}
                // What cannot be read may be this very key's: another entry for it would bring the old value back.
                Err(_) => is_damaged = true,
            }
        }
        if is_damaged {
            return Ok((Base::Unknown, Version::ZERO));
        }
        self.stats.verifications_free += u64::from(looked);
        Ok((Base::Absent, Version::ZERO))
    }

    /// Starts queued verifications, as many as may be in flight.
    pub(crate) fn pump_verifications(&mut self) {
        while self.verify_in_flight < IN_FLIGHT_MAX {
            let Some((at, name)) = self.verify_queue.pop_front() else { return };
            self.verify_step(at, name, RuledOut::new());
        }
    }

    /// Confirms one key's base or reads what it takes to; nothing to do if the key has settled otherwise.
    pub(crate) fn verify_step(&mut self, at: usize, name: KeyName, mut ruled_out: RuledOut) {
        let is_unknown = self.overlay.find_mut(at, name).is_some_and(|entry| entry.base == Base::Unknown);
        if !is_unknown {
            return;
        }
        match self.confirm(at, name, Wanted::Name(name), &mut ruled_out) {
            // The overlay goes on answering for the key; the next opening sees both records and decides by version.
            Ok((Base::Unknown, _)) => {
                tracing::warn!("a damaged record may be an overwritten key's: its entry stays apart")
            }
            Ok((base, version)) => self.settle(at, name, base, version),
            Err(mut span) => {
                span.cacheable_to = self.cacheable_to(span.slot);
                self.stats.verification_reads += 1;
                self.verify_in_flight += 1;
                self.submit_span(&span, Cause::Verification, InFlight::Verify { range: at, name, span, ruled_out });
            }
        }
    }

    /// A verification's read is done.
    pub(crate) fn verified(
        &mut self,
        at: usize,
        name: KeyName,
        span: Span,
        ruled_out: RuledOut,
        read: Result<AlignedBuf, DeviceError>,
    ) {
        self.verify_in_flight -= 1;
        match read {
            Ok(buf) => {
                self.set_resume(Some(Resume { span, buf }));
                self.verify_step(at, name, ruled_out);
            }
            // The old version stays unconfirmed and the overlay goes on answering; a later poll tries again.
            Err(_) => self.verify_queue.push_back((at, name)),
        }
    }

    /// The base is known: a commit that waited for it moves the index now.
    fn settle(&mut self, at: usize, name: KeyName, base: Base, version: Version) {
        match self.overlay.confirm(at, name, base) {
            // A copied record that came twice: the first stays.
            Some(written) if version >= written.version && written.is_put => {
                self.bury(at, Old { pointer: written.pointer, len_bytes: written.len_bytes });
            }
            Some(written) => self.move_index(at, name, base, written),
            None => {}
        }
        self.overlay.remove_if_settled(at, name);
    }
}
