//! The tail file in use: closed frames that are not written to the log yet, in a ring.
//!
//! In `everysec` durability a frame is acknowledged once it survives the end of the process. A copy into a mapped file does
//! that without a write of the device, which for a record or two would write a whole page each time.
use super::LogPosition;
use crate::format::tail::{FRAME_ALIGNMENT, TAIL_BYTES};
use fawn_flash::FileId;
use std::collections::VecDeque;

/// A frame in the tail file.
#[derive(Debug)]
struct TailFrame {
    start: usize,
    end: usize,
    /// End of the frame in the log.
    log_end: LogPosition,
}

#[derive(Debug)]
pub(crate) struct TailFile {
    pub(crate) file: FileId,
    /// Frames that the log does not have yet, oldest first. None is overwritten.
    frames: VecDeque<TailFrame>,
}

impl TailFile {
    pub(crate) const fn new(file: FileId) -> Self {
        Self { file, frames: VecDeque::new() }
    }

    /// The place for a frame of this length; `None`: there is no room until the log has older frames.
    pub(crate) fn place(&self, len_bytes: usize) -> Option<usize> {
        let (Some(first), Some(last)) = (self.frames.front(), self.frames.back()) else {
            return (len_bytes <= TAIL_BYTES).then_some(0);
        };
        let (oldest, next) = (first.start, last.end.next_multiple_of(FRAME_ALIGNMENT));
        if next <= oldest {
            return (next + len_bytes <= oldest).then_some(next);
        }
        let is_before_end = next + len_bytes <= TAIL_BYTES;
        if is_before_end { Some(next) } else { (len_bytes <= oldest).then_some(0) }
    }

    /// Notes a frame that was copied to its [`TailFile::place`].
    pub(crate) fn add(&mut self, start: usize, len_bytes: usize, log_end: LogPosition) {
        self.frames.push_back(TailFrame { start, end: start + len_bytes, log_end });
    }

    /// The log is written up to this position.
    pub(crate) fn release(&mut self, written: LogPosition) {
        while self.frames.pop_front_if(|frame| frame.log_end <= written).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::random::SplitMix64;

    #[test]
    fn no_frame_is_placed_over_one_that_the_log_lacks() {
        let mut rng = SplitMix64::new(1);
        let mut tail = TailFile::new(FileId(0));
        let (mut end, mut refused, mut wrapped) = (0, 0, 0);
        for _ in 0..20_000 {
            let len = rng.below(3000) as usize * 16 + 80;
            match tail.place(len) {
                Some(start) => {
                    assert!(start + len <= TAIL_BYTES && start.is_multiple_of(FRAME_ALIGNMENT));
                    let overlaps = tail.frames.iter().any(|frame| frame.start < start + len && start < frame.end);
                    assert!(!overlaps, "{start} + {len} in {tail:?}");
                    wrapped += usize::from(start == 0);
                    end += len as u64;
                    tail.add(start, len, LogPosition(end));
                }
                None => {
                    refused += 1;
                    assert!(!tail.frames.is_empty(), "an empty ring has room");
                    tail.release(LogPosition(end - rng.below(TAIL_BYTES as u64).min(end)));
                }
            }
        }
        assert!(refused > 100 && wrapped > 100, "{refused} {wrapped}");
        tail.release(LogPosition(end));
        assert_eq!(tail.place(TAIL_BYTES), Some(0));
    }
}
