//! The frames that an earlier process left in the tail file, laid over reads of their segments.
//!
//! A frame's bytes at an offset never change within a generation. So it does no harm to lay them over a segment that has
//! them already; the scan then finds a longer log, and judges it as if it had been written.
use super::Scanned;
use super::begin::read_verified;
use super::io::Io;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::format::frame::FrameHeader;
use crate::format::manifest::{ManifestState, SegmentEntry};
use crate::format::segment::StreamKind;
use crate::format::tail;
use crate::format::{SegmentUuid, Watermark};
use crate::log::window::Chunk;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, DeviceError, IoClass};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// The tail's frames of one segment, by offset.
#[derive(Debug, Default)]
pub(crate) struct SegmentTail {
    frames: BTreeMap<u32, Vec<u8>>,
}

impl SegmentTail {
    /// Lays the frames over bytes of the segment from `offset` on. Returns the offset of the first byte that changed.
    pub(crate) fn lay_over(&self, offset: u64, bytes: &mut [u8]) -> Option<u32> {
        let end = offset + bytes.len() as u64;
        let mut changed = None;
        // The last frame that begins before may reach into them.
        let before = self.frames.range(..=u32::try_from(offset).unwrap_or(u32::MAX)).next_back();
        let within = self.frames.range(before.map_or(0, |(&at, _)| at)..);
        for (&at, frame) in within.take_while(|(at, _)| u64::from(**at) < end) {
            let (start, stop) = (u64::from(at).max(offset), (u64::from(at) + frame.len() as u64).min(end));
            if start >= stop {
                continue;
            }
            let from = &frame[(start - u64::from(at)) as usize..(stop - u64::from(at)) as usize];
            let to = &mut bytes[(start - offset) as usize..(stop - offset) as usize];
            if from != to {
                to.copy_from_slice(from);
                changed = changed.or(Some(start as u32));
            }
        }
        changed
    }

    /// The parts of the segment that the frames cover, from the one with the byte at `offset` on.
    fn parts_from(&self, offset: u32) -> Vec<Range<u32>> {
        let first = self.frames.range(..=offset).next_back().map_or(offset, |(&at, _)| at);
        let mut parts: Vec<Range<u32>> = Vec::new();
        for (&at, frame) in self.frames.range(first..) {
            let end = at + frame.len() as u32;
            match parts.last_mut() {
                Some(part) if part.end >= at => part.end = part.end.max(end),
                _ => parts.push(at..end),
            }
        }
        parts
    }

    /// Offset of the first frame and end of the last.
    pub(crate) fn extent(&self) -> Option<(u32, u32)> {
        let ((&first, _), (&last, bytes)) = (self.frames.first_key_value()?, self.frames.last_key_value()?);
        Some((first, last + bytes.len() as u32))
    }
}

/// Reads of the tail file: a single misdirected one would lose what a killed process acknowledged last.
const READS: usize = 2;

/// The tail file's frames that segments may lack.
#[derive(Debug, Default)]
pub(crate) struct TailFrames {
    segments: BTreeMap<SegmentUuid, Arc<SegmentTail>>,
    /// Other segments with frames there: complete ones, dropped ones, and those whose listing the manifest has lost.
    others: BTreeSet<SegmentUuid>,
    /// The generation of the frames of `segments`.
    pub(super) generation: u32,
    pub(super) has_file: bool,
}

impl TailFrames {
    /// Reads the frames of the manifest's last generation from the tail file, if the directory has one: those of unsealed
    /// segments, behind the recorded end of the log.
    ///
    /// # Errors
    /// If it cannot be read: what a killed process acknowledged last may be there alone.
    pub(crate) fn read<D: Device>(device: &mut D, state: &ManifestState) -> Result<Self, DeviceError> {
        let Some(identity) = &state.identity else { return Ok(Self::default()) };
        let file = match device.open(tail::FILE_NAME) {
            Ok(file) => file,
            Err(DeviceError::NotFound { .. }) => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let is_unsealed = |entry: &&SegmentEntry| entry.stream == StreamKind::Foreground && entry.seal.is_none();
        let unsealed = state.segments.values().filter(is_unsealed);
        let unsealed: BTreeMap<_, _> = unsealed.map(|entry| (entry.uuid, entry.sequence)).collect();
        let (mut newest, mut segments) = (state.generation, BTreeMap::<SegmentUuid, SegmentTail>::new());
        let mut others = BTreeSet::new();
        let mut add = |header: &FrameHeader, frame: &[u8]| {
            // A manifest that lost its end may know an older generation than frames that a later opening cut off.
            if header.generation > newest {
                (newest, segments) = (header.generation, BTreeMap::new());
            }
            let Some(&sequence) = unsealed.get(&header.uuid) else {
                others.insert(header.uuid);
                return;
            };
            let is_behind = Watermark { sequence, offset: header.offset } >= state.ends_of_log[StreamKind::Foreground];
            if header.generation == newest && is_behind {
                segments.entry(header.uuid).or_default().frames.insert(header.offset, frame.to_vec());
            }
        };
        let mut read = Ok(());
        for _ in 0..READS {
            let bytes = Io::new(device).read(file, 0, tail::TAIL_BYTES, IoClass::Recovery);
            read =
                read.and(bytes.map(|bytes| tail::frames(&bytes, state.generation, identity.segment_bytes, &mut add)));
        }
        device.close(file);
        read?;
        let segments = segments.into_iter().map(|(uuid, frames)| (uuid, Arc::new(frames))).collect();
        Ok(Self { segments, others, generation: newest, has_file: true })
    }

    pub(crate) fn of(&self, uuid: SegmentUuid) -> Option<Arc<SegmentTail>> {
        self.segments.get(&uuid).cloned()
    }

    /// Whether a segment that the manifest does not list has a frame there, of the manifest's generation or a later one.
    pub(crate) fn has_frame_of_unlisted(&self, uuid: SegmentUuid) -> bool {
        self.others.contains(&uuid)
    }
}

impl<D: Device> Engine<D> {
    /// Lookups of a store that is only read find the tail's frames in the window, as in the process that appended them.
    /// Records in the window are decoded without their checksums, so the pages are as the scan has verified them.
    pub(super) fn hold_left_tail(&mut self, scanned: &[Scanned]) -> Result<(), OpenError> {
        for scanned in scanned {
            let (slot, sequence, valid_len) = (scanned.slot, scanned.entry.sequence, scanned.report.valid_len);
            // The segment has what is before, of which the tail file may have single old frames.
            let lacking = scanned.tail.as_ref().filter(|_| scanned.tail_from < valid_len);
            let parts = lacking.map_or(Vec::new(), |tail| tail.parts_from(scanned.tail_from));
            for part in parts.into_iter().filter(|part| part.start < valid_len) {
                let page = PAGE_BYTES as u32;
                // The page in which the part ends may be whole, by frames of the segment behind it. These are found in the file.
                let (base, end) = (part.start - part.start % page, part.end.min(valid_len));
                let read_end = end.next_multiple_of(page).min(valid_len);
                let (segment, len) = (self.segments.expect(slot), (end - base) as usize);
                let place = (segment.file, u64::from(base), (read_end - base) as usize);
                let buf = read_verified(&mut Io::new(&mut self.device), &segment.name, scanned, place)?;
                self.streams[StreamKind::Foreground].window.push(Chunk { slot, sequence, base, len, buf: buf.into() });
            }
        }
        Ok(())
    }
}
