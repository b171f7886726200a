//! Replay for retransmission: a range's records after a version, from memory or flash; the log is the buffer.
use super::fetch::{Expected, FetchResume, GATHER_BYTES_MAX, Hit, Probe, ReadSpan};
use super::{Engine, LookupPlan};
use crate::error::EngineError;
use crate::format::record::{self, RecordRef};
use crate::format::segment::StreamKind;
use crate::range::{RangeState, Retained};
use fawn_flash::Device;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{RangeId, Version};

/// Maximum bytes per read of a replay, within what the page cache keeps of one read. If the last record of a batch is
/// not in memory, the caller restarts at an earlier one, and then finds the others cached.
const READ_AHEAD_BYTES_MAX: u32 = GATHER_BYTES_MAX as u32;

/// Share of the capacity, one in so many, that retained records may take, as the log between the oldest of them and its end.
const RETAINED_SHARE: u64 = 20;
/// Segments of retained records that a store keeps in any case.
const RETAINED_SEGMENTS_MIN: u64 = 2;

/// Result of a replay step.
#[derive(Debug)]
pub enum Replay {
    /// These records were visited, in order and without a gap; continue after `through`.
    Records {
        /// Version of the last record.
        through: Version,
        /// Number of records.
        count: usize,
    },
    /// Pass it to [`Engine::read`], its event's plan to [`Engine::absorb`], then replay again.
    Read(LookupPlan),
    /// Not all records after that version are retained: the range needs a full resync.
    Gone,
    /// There are no records after that version.
    UpToDate,
}

impl<D: Device> Engine<D> {
    /// Retains a range's records above `floor` for [`Engine::replay`]; older ones may go, and so may copies of their results. Three
    /// bounds take precedence: [`crate::Options::retained_records_max`]; a twentieth of the capacity, two segments at least; and on a
    /// full store, the segment that is being written. They spare needed records ([`Engine::set_needed_from`]) until their results are
    /// copied.
    pub fn set_retain_floor(&mut self, range: RangeId, floor: Version) {
        let Ok(at) = self.range_at(range) else { return };
        let range = &mut self.ranges[at];
        if range.retain_floor.replace(floor).is_none_or(|former| former < floor) {
            range.result_copies.kept.retain(|copy| copy.record.version > floor);
        }
        range.drop_retained_through(floor);
        self.release_held(at);
    }

    /// Keeps a range's records from this version on, also above the number of [`Engine::set_retained_max`]: their
    /// results may be requested again after a restart. The bounds take precedence once [`Engine::copy_results`] has copied the
    /// results, and eight times [`crate::Options::retained_records_max`] and an eighth of the budget in any case.
    ///
    /// After an opening all records count as needed until this is called.
    pub fn set_needed_from(&mut self, range: RangeId, oldest: Option<Version>) {
        if let Ok(at) = self.range_at(range) {
            self.ranges[at].needed_from = oldest;
        }
    }

    /// The version below which the results of all records have durable copies, as far as they are open: the log need not keep these
    /// records.
    pub fn results_copied_below(&self, range: RangeId) -> Version {
        self.range_at(range).map_or(Version::ZERO, |at| self.ranges[at].result_copies.copied_below)
    }

    /// Lowers the number of records retained per range for [`Engine::replay`] below
    /// [`crate::Options::retained_records_max`]. Recovery retains up to that option, so that the caller can read them
    /// all before lowering it.
    pub fn set_retained_max(&mut self, records_max: usize) {
        self.retained_max = records_max.min(self.options.retained_records_max);
        self.bound_retained();
    }

    /// Applies the bounds, and the number of ranges that share the budget, to each range's retained records.
    pub(crate) fn bound_retained(&mut self) {
        self.retained_share = self.options.retained_share(self.serving_ranges());
        self.needed_max = self.options.needed_max(self.serving_ranges());
        let (retained_max, needed_max) = (self.retained_max.min(self.retained_share), self.needed_max);
        for at in 0..self.ranges.len() {
            let has_dropped_needed = self.ranges[at].bound_retained(retained_max, needed_max);
            if self.ranges[at].bound_copied_results(needed_max) || has_dropped_needed {
                self.warn_of_dropped_results(at);
            }
            self.release_held(at);
        }
    }

    /// Drops retained records outside the newest segments, a twentieth of the capacity. A member that missed more gets a full resync.
    pub(crate) fn bound_retained_log(&mut self) {
        let keeps_nothing = |range: &RangeState| {
            range.retained.is_empty() && range.copied_results.is_empty() && range.result_copies.kept.is_empty()
        };
        if self.ranges.iter().all(keeps_nothing) {
            return;
        }
        let segments = (self.capacity_segments() / RETAINED_SHARE).max(RETAINED_SEGMENTS_MIN);
        let foreground = self.segments.iter().filter(|segment| segment.stream == StreamKind::Foreground);
        let mut sequences: Vec<u64> = foreground.map(|segment| segment.sequence).collect();
        sequences.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(&first) = usize::try_from(segments - 1).ok().and_then(|at| sequences.get(at)) {
            self.drop_retained_before(first);
        }
    }

    /// Gives up what is retained in sealed segments, because a write finds no space. Returns whether there was any, or results are to
    /// be copied first.
    pub(crate) fn give_up_retained(&mut self) -> bool {
        let active = self.streams[StreamKind::Foreground].window.active();
        // Without one, as after an opening on a full device, all segments are sealed.
        let first = active.map_or(u64::MAX, |chunk| self.segments.expect(chunk.slot).sequence);
        let has_some = self.drop_retained_before(first);
        if has_some {
            // The segments can be dropped or cleaned now: the write waits for that.
            self.cleaner.note_change();
        }
        has_some
    }

    /// Drops what is retained in segments before this sequence number. Needed records stay until their results are copied: without
    /// these an operation could be applied twice. Returns whether there was any, or results are to be copied.
    ///
    /// The number is the same for all ranges: the few records of a slow range would otherwise keep many segments.
    fn drop_retained_before(&mut self, first: u64) -> bool {
        let mut has_some = false;
        for at in 0..self.ranges.len() {
            if self.ranges[at].drop_retained_before(first) {
                has_some = true;
                self.release_held(at);
            }
            has_some |= self.note_due_results(at, first);
        }
        has_some
    }

    /// Visits a range's records after `after`, oldest first, committed or not, up to about `bytes_max` bytes of them.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`], [`EngineError::UnknownRange`].
    pub fn replay(
        &mut self,
        range: RangeId,
        after: Version,
        bytes_max: usize,
        mut visit: impl FnMut(&RecordRef<'_>),
    ) -> Result<Replay, EngineError> {
        let at = self.range_at(range)?;
        if after >= self.ranges[at].progress.appended {
            return Ok(Replay::UpToDate);
        }
        if after < self.ranges[at].complete_above {
            return Ok(Replay::Gone);
        }
        let (mut bytes, mut count, mut through) = (0, 0, after);
        let first = self.ranges[at].retained.partition_point(|kept| kept.version <= after);
        let mut i = first;
        while bytes < bytes_max {
            let Some(kept) = self.kept(at, i, after) else { break };
            let hit = match self.probe(at, kept.pointer, Expected::Any)? {
                Probe::Match(hit) => hit,
                Probe::Missing(span) if count == 0 => {
                    let span = self.ahead(at, (i, after), span, bytes_max);
                    return Ok(Replay::Read(LookupPlan::of_span(range, span)));
                }
                Probe::Missing(_) => break,
                Probe::Other => unreachable!("any record was wanted"),
            };
            self.visit(&hit, &mut visit)?;
            bytes += kept.len_bytes as usize;
            count += 1;
            through = kept.version;
            i += 1;
        }
        Ok(if count == 0 { Replay::UpToDate } else { Replay::Records { through, count } })
    }

    /// Extends `span` over the next records of this replay, which are contiguous. With one read per record, a restart
    /// would issue as many reads as the log retains records.
    fn ahead(&self, at: usize, (mut i, after): (usize, Version), mut span: ReadSpan, bytes_max: usize) -> ReadSpan {
        let most_bytes = u32::try_from(bytes_max).unwrap_or(u32::MAX).min(READ_AHEAD_BYTES_MAX);
        let limit = span.from.saturating_add(most_bytes).min(self.options.segment_bytes);
        while let Some(kept) = self.kept(at, i, after) {
            let (slot, offset) = self.segments.slot_and_offset(kept.pointer);
            let end = offset.saturating_add(kept.len_bytes);
            if slot != span.slot || end > limit {
                break;
            }
            span.to = span.to.max(end.next_multiple_of(PAGE_BYTES as u32).min(self.options.segment_bytes));
            i += 1;
        }
        span
    }

    /// The `i`-th retained record: committed ones first, then pending ones after `after`.
    fn kept(&self, at: usize, i: usize, after: Version) -> Option<Retained> {
        let range = &self.ranges[at];
        if let Some(kept) = range.retained.get(i) {
            return Some(*kept);
        }
        let skipped = range.pending.partition_point(|pending| pending.version <= after);
        let pending = range.pending.get(i - range.retained.len() + skipped)?;
        let (version, pointer, len_bytes) = (pending.version, pending.pointer, pending.len_bytes);
        let sequence = self.segments.expect(self.segments.slot_and_offset(pointer).0).sequence;
        Some(Retained { version, pointer, len_bytes, sequence })
    }

    pub(super) fn visit(&self, hit: &Hit, visit: &mut impl FnMut(&RecordRef<'_>)) -> Result<(), EngineError> {
        let (slot, offset) = self.segments.slot_and_offset(hit.pointer);
        let stored = record::decode_verified(self.bytes_at(hit.location), offset)
            .map_err(|error| self.corrupt(slot, offset, &error.to_string()))?;
        visit(&stored.record);
        Ok(())
    }

    /// Takes in what a replay's or copy's read brought, for the next call of it.
    ///
    /// # Errors
    /// The read's own failure.
    pub fn absorb(&mut self, mut plan: LookupPlan) -> Result<(), EngineError> {
        match plan.0.result.take() {
            Some(Ok(buf)) => self.set_resume(Some(FetchResume { span: plan.0.span, buf })),
            Some(Err(error)) => return Err(error.into()),
            None => {}
        }
        Ok(())
    }
}
