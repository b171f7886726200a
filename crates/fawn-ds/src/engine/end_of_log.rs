//! The recorded end of the log: written to the manifest when the store is closed, and once when it is idle.
//!
//! A later frame proves that the frames before it were synced. The last frame of an idle log has no later one, so
//! damage to it would look like a torn write. With the recorded end, recovery reports it as corruption.
use super::Engine;
use super::segments::IDLE_RETRY_MS;
use crate::format::manifest::ManifestEdit;
use crate::format::segment::StreamKind;
use crate::format::{FRAMES_OFFSET, Watermark};
use crate::log::stream::Stream;
use fawn_flash::Device;
use fawn_types::MonoMs;

/// Idle time after the last write of the log before its end is recorded.
const IDLE_MS: u64 = 1000;
/// Maximum size of the record in the manifest, bytes.
const RECORD_BYTES_MAX: u64 = 256;

impl<D: Device> Engine<D> {
    pub(crate) fn record_end_when_idle(&mut self) {
        for kind in StreamKind::ALL {
            let Stream { flush, recorded_end, end_retry_at, .. } = &self.streams[kind];
            let is_idle = flush.synced != *recorded_end && self.now.mono.ms_since(flush.last_flush) >= IDLE_MS;
            // One comparison at every poll. The rest runs only in the few polls after the stream became idle.
            if is_idle && self.now.mono >= *end_retry_at {
                self.record_end_of_log(kind);
            }
        }
    }

    /// Time by which the end of a stream is due to be recorded, although nothing completes any more.
    pub(super) fn record_end_at(&self) -> Option<MonoMs> {
        let is_due = |stream: &&Stream| stream.flush.synced != stream.recorded_end && stream.is_at_rest();
        let due = StreamKind::ALL.into_iter().map(|kind| &self.streams[kind]).filter(is_due);
        due.map(|stream| stream.flush.last_flush.plus_ms(IDLE_MS).max(stream.end_retry_at)).min()
    }

    /// Records the end of a stream in the manifest, if all of it is synced and its end is not recorded yet.
    pub(crate) fn record_end_of_log(&mut self, kind: StreamKind) {
        if self.poisoned.is_some() || self.options.read_only || !self.streams[kind].is_at_rest() {
            return;
        }
        let active = self.streams[kind].window.active().map(|chunk| self.segments.expect(chunk.slot));
        let end = active
            .map_or(Watermark::default(), |segment| Watermark { sequence: segment.sequence, offset: segment.end });
        // Without an active segment, or frames in it, the last one with frames is sealed, and its seal says the same.
        if end.offset > FRAMES_OFFSET && end > self.manifest.state().ends_of_log[kind] {
            match self.manifest.reserve(&mut self.device, RECORD_BYTES_MAX) {
                Ok(()) => {}
                // The record is an extra safeguard: on a full device, deletes and drops come first.
                Err(error) if error.is_retryable() => {
                    self.streams[kind].end_retry_at = self.now.mono.plus_ms(IDLE_RETRY_MS);
                    return;
                }
                Err(error) => return drop(self.poison(&error)),
            }
            self.manifest.commit(&[ManifestEdit::EndOfLog { stream: kind, end }]);
            self.start_manifest();
        }
        let stream = &mut self.streams[kind];
        stream.recorded_end = stream.flush.synced;
    }
}
