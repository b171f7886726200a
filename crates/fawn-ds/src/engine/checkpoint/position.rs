//! The position at which a checkpoint begins: all records of each stream before it are settled, and none of them hides a
//! put behind it.
use super::image::PartialSegment;
use crate::engine::Engine;
use crate::format::segment::{PerStream, StreamKind};
use crate::format::{FRAMES_OFFSET, Watermark};
use crate::log::segments::Segment;
use crate::overlay::Written;
use fawn_flash::Device;
use fawn_types::Version;

impl<D: Device> Engine<D> {
    /// The segment in which the survivors' position is, and its live records: all of them are before it, since an entry
    /// moves to a copy when that is flushed.
    pub(super) fn partial_segment(&self, from: Watermark) -> Option<PartialSegment> {
        let Watermark { sequence, offset } = from;
        let segment = self.segments.iter().find(|segment| segment.sequence == sequence)?;
        let live = segment.shares.iter().map(|share| (share.range, (share.live_records, share.live_bytes)));
        let is_partial = segment.stream == StreamKind::Survivors && offset > FRAMES_OFFSET;
        is_partial.then(|| PartialSegment { slot: segment.slot, sequence, live: live.collect() })
    }

    /// The position at which a checkpoint can begin now.
    pub(super) fn checkpoint_position(&self) -> PerStream<Watermark> {
        let mut from = PerStream::from_fn(|kind| match kind {
            StreamKind::Foreground => Watermark { sequence: self.begun_sequence(), offset: 0 },
            // Copies that are not flushed have not moved their index entries yet.
            StreamKind::Survivors => self.flushed_end(kind),
        });
        // The segment of an unconfirmed delete is dropped once nothing is left that the delete could hide.
        let sequence_of = |pointer| Some(self.segments.get(self.segments.slot_and_offset(pointer).0)?.sequence);
        let pending = self.ranges.iter().filter_map(|range| range.pending.front()).map(|pending| pending.pointer);
        let unconfirmed = self.overlay.all_unconfirmed().map(|written| written.pointer);
        let unsettled = pending.chain(unconfirmed).filter_map(sequence_of).min().unwrap_or(u64::MAX);
        let begun = &mut from[StreamKind::Foreground].sequence;
        *begun = unsettled.min(*begun);
        let in_flight = from[StreamKind::Survivors];
        while let Some(lower) = self.hiding_position(&from, in_flight) {
            from = lower;
        }
        from
    }

    /// The foreground's segment at which a checkpoint begins if nothing holds its position.
    fn begun_sequence(&self) -> u64 {
        let flushed = self.flushed_end(StreamKind::Foreground).sequence;
        self.streams[StreamKind::Foreground].window.active().map_or(flushed, |chunk| chunk.sequence.min(flushed))
    }

    /// Whether a record that is not committed or confirmed, or hides others, holds the position.
    pub(super) fn is_position_held(&self) -> bool {
        self.checkpoint_position()[StreamKind::Foreground].sequence < self.begun_sequence()
    }

    /// Whether a survivor that an opening deferred still waits for its verification: no position would be before it.
    pub(super) fn has_unconfirmed_survivor(&self) -> bool {
        self.overlay.all_unconfirmed().any(|written| self.is_survivor(written))
    }

    /// Whether the old version of one of them cannot be read.
    pub(super) fn has_survivor_apart(&self) -> bool {
        self.overlay.unconfirmed_apart().any(|written| self.is_survivor(written))
    }

    fn is_survivor(&self, written: &Written) -> bool {
        let segment = self.segments.get(self.segments.slot_and_offset(written.pointer).0);
        segment.is_some_and(|segment| segment.stream == StreamKind::Survivors)
    }

    /// End of the stream's flushed records: the end of a full segment is not the start of the next.
    fn flushed_end(&self, kind: StreamKind) -> Watermark {
        let (segment_bytes, flushed) = (self.options.segment_bytes, self.streams[kind].flush.flushed);
        match flushed.offset(segment_bytes) {
            0 => Watermark { sequence: flushed.sequence(segment_bytes).saturating_sub(1), offset: segment_bytes },
            offset => Watermark { sequence: flushed.sequence(segment_bytes), offset },
        }
    }

    /// A lower position, if a segment before this one hides puts that lie behind it. Survivors from `in_flight` on are
    /// current: nothing hides them.
    fn hiding_position(&self, from: &PerStream<Watermark>, in_flight: Watermark) -> Option<PerStream<Watermark>> {
        let start_of = |segment: &Segment| Watermark { sequence: segment.sequence, offset: 0 };
        let is_scanned = |segment: &Segment| start_of(segment) >= from[segment.stream];
        let is_current = |segment: &Segment| segment.stream == StreamKind::Survivors && start_of(segment) >= in_flight;
        let mut lowest = vec![Version::from_u64(u64::MAX); self.ranges.len()];
        let may_be_hidden = self.segments.iter().filter(|segment| is_scanned(segment) && !is_current(segment));
        for share in may_be_hidden.flat_map(|segment| &segment.shares) {
            for at in self.family(share.range) {
                lowest[at] = lowest[at].min(share.lowest_put);
            }
        }
        let mut lower = *from;
        for segment in self.segments.iter().filter(|segment| !is_scanned(segment)) {
            // Versions grow in a range's own history, so only its transferred records can be older than earlier ones. The
            // second condition is a guard: an opening compares each transferred record with the index.
            let is_hiding = segment.shares.iter().any(|share| {
                share.hides_below >= lowest[share.range] || lowest[share.range] <= self.range_base(share.range)
            });
            if is_hiding {
                lower[segment.stream] = lower[segment.stream].min(start_of(segment));
            }
        }
        (lower != *from).then_some(lower)
    }

    /// Version up to which the range's records were transferred.
    fn range_base(&self, at: usize) -> Version {
        let state = self.manifest.state();
        let Some(listed) = self.range_ids[at].and_then(|id| state.ranges.get(&id)) else {
            let number = self.ranges[at].number;
            let ancestor = state.ancestors().find(|ancestor| ancestor.number == number);
            return ancestor.map_or(Version::ZERO, |ancestor| ancestor.base);
        };
        let base = listed.beginning.map_or(Version::ZERO, |beginning| beginning.base);
        // Records taken over from one range are in the order of that one's history, apart from what was transferred to that.
        let transferred = listed.lineage.iter().map(|ancestor| ancestor.base).max();
        if listed.lineage.len() == 1 { transferred.unwrap_or(base) } else { base }
    }
}
