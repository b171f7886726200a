//! Time of the next checkpoint: as soon as an opening would take much longer for the log behind the last one than for an image.
use super::super::Engine;
use crate::format::Watermark;
use crate::format::segment::PerStream;
use crate::options::Options;
use fawn_flash::Device;
use fawn_types::MonoMs;

/// The log behind the last checkpoint may be this many times as long as the next image.
const LOG_PER_IMAGE: u64 = 10;
/// It is at least so many times as long, also if an opening would find about as many overwritten keys there as it can defer:
/// a checkpoint adds a byte to each byte of the log at most.
const LOG_PER_IMAGE_MIN: u64 = 1;
/// Records behind the last checkpoint from which the log need not be longer than the images demand: an opening takes half a
/// microsecond for each.
const SHORT_LOG_RECORDS_MAX: u64 = 1 << 20;
/// Share of [`Options::checkpoint_log_bytes_min`] that is enough with so many records, or with many overwritten keys.
const LEAST_SHARE: u64 = 4;
/// Share of the capacity that is enough however small the image is: an opening keeps the segments that it scanned from being
/// cleaned for a while.
const CAPACITY_SHARE: u64 = 8;

/// The log behind the last checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastCheckpoint {
    /// Where it begins.
    pub(crate) from: PerStream<Watermark>,
    /// Bytes of log frames since it began.
    pub(crate) log_bytes: u64,
    /// Records of these frames.
    pub(crate) records: u64,
    /// Records of the image that were replaced or deleted since, and records of these frames that were.
    pub(crate) overwritten: u64,
    pub(crate) rewritten: u64,
}

impl LastCheckpoint {
    /// State without a listed checkpoint, behind a log of this length.
    pub(super) fn of_none(log_bytes: u64) -> Self {
        Self { log_bytes, ..Self::default() }
    }

    /// Keys that an opening would find an older record of, at most. A key that is written again and again counts once: each
    /// record that was not replaced is another key's.
    fn overwritten_keys_max(&self) -> u64 {
        (self.overwritten + self.rewritten).min(self.records.saturating_sub(self.rewritten))
    }

    /// Whether an image of this length is due, beside which an opening can defer so many overwritten keys.
    fn is_due(&self, limits: DueLimits, image_bytes: u64, deferred_keys_max: impl FnOnce() -> u64) -> bool {
        if self.log_bytes < (LOG_PER_IMAGE_MIN * image_bytes).max(limits.least_log_bytes) {
            return false;
        }
        // Further keys are overwritten while the checkpoint is written.
        let is_many = self.overwritten_keys_max() >= deferred_keys_max() / 3 * 2;
        let is_short = self.records < SHORT_LOG_RECORDS_MAX;
        let log_bytes_min = if is_short { limits.log_bytes_min } else { limits.least_log_bytes };
        is_many || self.log_bytes >= (LOG_PER_IMAGE * image_bytes).max(log_bytes_min)
    }
}

/// Log behind a checkpoint with less of which no next one is due, however small its image is.
#[derive(Clone, Copy, Debug)]
struct DueLimits {
    log_bytes_min: u64,
    /// The same with many records or overwritten keys.
    least_log_bytes: u64,
}

impl DueLimits {
    fn of(options: &Options) -> Self {
        let least_log_bytes = options.checkpoint_log_bytes_min / LEAST_SHARE;
        let of_capacity = options.capacity_bytes.unwrap_or(u64::MAX) / CAPACITY_SHARE;
        let log_bytes_min = options.checkpoint_log_bytes_min.min(of_capacity).max(least_log_bytes);
        Self { log_bytes_min, least_log_bytes }
    }
}

impl<D: Device> Engine<D> {
    pub(super) fn is_checkpoint_due(&mut self) -> bool {
        if self.now.mono < self.checkpoints.retry_at {
            return false;
        }
        let (log_bytes, least) = (self.checkpoints.last.log_bytes, self.least_log_bytes());
        let seen_at = self.checkpoints.image_seen_at;
        if (seen_at..seen_at + least).contains(&log_bytes) && !self.has_log_for_image(self.checkpoints.image_bytes) {
            return false;
        }
        (self.checkpoints.image_bytes, self.checkpoints.image_seen_at) = (self.image_bytes(), log_bytes);
        self.has_log_for_image(self.checkpoints.image_bytes)
    }

    /// Time by which a checkpoint that had to wait is due again, or the file of one that was given up is removed, although nothing
    /// completes any more.
    pub(in crate::engine) fn checkpoint_at(&self) -> Option<MonoMs> {
        let checkpoints = &self.checkpoints;
        if let Some(writer) = &checkpoints.writer {
            return writer.is_given_up_and_idle().then_some(self.now.mono);
        }
        let waits = self.now.mono < checkpoints.retry_at;
        (waits && self.has_log_for_image(checkpoints.image_bytes)).then_some(checkpoints.retry_at)
    }

    fn has_log_for_image(&self, image_bytes: u64) -> bool {
        let limits = DueLimits::of(&self.options);
        self.checkpoints.last.is_due(limits, image_bytes, || self.deferred_keys_max() as u64)
    }

    /// Shortest log behind a checkpoint, bytes, for which the next one is due before a close.
    pub(super) fn least_log_bytes(&self) -> u64 {
        DueLimits::of(&self.options).least_log_bytes
    }

    /// Overwritten keys that an opening beside the present indexes can defer.
    fn deferred_keys_max(&self) -> usize {
        let index_bytes = self.ranges.iter().map(|range| range.index.resident_bytes() as u64).sum();
        self.options.deferred_keys_max().min(self.options.deferred_keys_max_beside(index_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn last(log_mib: u64, records: u64) -> LastCheckpoint {
        LastCheckpoint { log_bytes: log_mib * MIB, records, ..LastCheckpoint::default() }
    }

    fn is_due(last: LastCheckpoint, image_mib: u64, capacity_bytes: Option<u64>) -> bool {
        let limits = DueLimits::of(&Options { capacity_bytes, ..Options::default() });
        last.is_due(limits, image_mib * MIB, || 300)
    }

    #[test]
    fn a_small_image_waits_for_a_log_of_some_length_or_a_million_records() {
        assert!(!is_due(last(255, 1000), 1, None));
        assert!(is_due(last(256, 1000), 1, None));
        assert!(!is_due(last(255, (1 << 20) - 1), 1, None));
        assert!(is_due(last(64, 1 << 20), 1, None));
        assert!(!is_due(last(63, 1 << 20), 1, None));
    }

    #[test]
    fn a_large_image_waits_for_ten_times_its_length() {
        assert!(!is_due(last(299, 10 << 20), 30, None));
        assert!(is_due(last(300, 1000), 30, None));
    }

    #[test]
    fn a_small_capacity_bounds_the_log() {
        assert!(!is_due(last(99, 1000), 1, Some(800 * MIB)));
        assert!(is_due(last(100, 1000), 1, Some(800 * MIB)));
        assert!(!is_due(last(63, 1000), 1, Some(80 * MIB)));
        assert!(is_due(last(64, 1000), 1, Some(80 * MIB)));
    }

    #[test]
    fn many_overwritten_keys_make_it_due() {
        let overwritten = |keys| LastCheckpoint { overwritten: keys, ..last(64, 1000) };
        assert!(!is_due(overwritten(199), 1, None));
        assert!(is_due(overwritten(200), 1, None));
        assert!(!is_due(LastCheckpoint { log_bytes: 64 * MIB - 1, ..overwritten(200) }, 1, None));
        assert!(!is_due(overwritten(200), 65, None), "an image adds a byte to each byte of the log at most");
        // All 1000 records are of one key.
        assert!(!is_due(LastCheckpoint { overwritten: 1, rewritten: 999, ..last(64, 1000) }, 1, None));
    }
}
