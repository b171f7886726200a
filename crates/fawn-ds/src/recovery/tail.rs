//! The frames that an earlier process left in the tail file, laid over reads of their segments.
//!
//! A frame's bytes at an offset never change within a generation. So it does no harm to lay them over a segment that has
//! them already; the scan then finds a longer log, and judges it as if it had been written.
use super::OpenReport;
use super::io::Io;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::format::frame::FrameHeader;
use crate::format::manifest::{ManifestState, SegmentEntry};
use crate::format::segment::StreamKind;
use crate::format::tail::{self, TAIL_BYTES};
use crate::format::{SegmentUuid, Watermark};
use crate::log::tail::TailFile;
use crate::log::window::Chunk;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, DeviceError, FileId, IoClass};
use fawn_types::Durability;
use std::collections::BTreeMap;
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
        for (&at, frame) in &self.frames {
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
    has_file: bool,
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
        let mut add = |header: &FrameHeader, frame: &[u8]| {
            // A manifest that lost its end may know an older generation than frames that a later opening cut off.
            if header.generation > newest {
                (newest, segments) = (header.generation, BTreeMap::new());
            }
            let Some(&sequence) = unsealed.get(&header.uuid) else { return };
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
        Ok(Self { segments, has_file: true })
    }

    pub(crate) fn of(&self, uuid: SegmentUuid) -> Option<Arc<SegmentTail>> {
        self.segments.get(&uuid).cloned()
    }
}

impl<D: Device> Engine<D> {
    /// Lookups of a store that is only read find the tail's frames in the window, as in the process that appended them.
    pub(super) fn hold_left_tail(&mut self) {
        let mut segments: Vec<_> = self.segments.iter().map(|segment| (segment.sequence, segment.slot)).collect();
        segments.sort_unstable();
        for (sequence, slot) in segments {
            let segment = self.segments.expect(slot);
            let Some(tail) = self.tail.left.of(segment.uuid) else { continue };
            let (file, end) = (segment.file, segment.end);
            let Some((first, _)) = tail.extent().filter(|(first, _)| *first < end) else { continue };
            let base = first - first % PAGE_BYTES as u32;
            let (len, offset) = ((end - base) as usize, u64::from(base));
            let pages_bytes = len.next_multiple_of(PAGE_BYTES);
            let mut buf = Io::new(&mut self.device).read_pages(file, offset, pages_bytes, IoClass::Recovery);
            tail.lay_over(offset, &mut buf);
            self.streams[StreamKind::Foreground].window.push(Chunk { slot, sequence, base, len, buf: buf.into() });
        }
    }

    /// Creates the tail file or takes the old one, whose frames the log has by now.
    pub(super) fn begin_tail(&mut self, report: &mut OpenReport) -> Result<(), OpenError> {
        let has_file = core::mem::take(&mut self.tail.left).has_file;
        if self.options.durability != Durability::EverySecond {
            if has_file {
                self.unlink_tail();
            }
            return Ok(());
        }
        match self.map_tail() {
            Ok(file) => self.tail.file = Some(TailFile::new(file)),
            // No space for it, or a file system without shared mappings: each frame is written to the log at once.
            Err(error) if self.device.poisoned().is_none() => report.tail_refused = Some(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Removes the tail file, whose frames the log has: no later damage to it can stand in the way of an opening.
    pub(crate) fn unlink_tail(&mut self) {
        if let Some(tail) = self.tail.file.take() {
            self.device.close(tail.file);
        }
        // A file that stays has no frame that counts.
        let _ = self.device.unlink(tail::FILE_NAME);
    }

    fn map_tail(&mut self) -> Result<FileId, DeviceError> {
        let file = match self.device.open(tail::FILE_NAME) {
            Ok(file) => file,
            Err(DeviceError::NotFound { .. }) => self.device.create(tail::FILE_NAME)?,
            Err(error) => return Err(error),
        };
        let mapped = self.fill_tail(file).and_then(|()| self.device.map(file, TAIL_BYTES));
        if mapped.is_err() {
            self.device.close(file);
        }
        mapped.map(|()| file)
    }

    /// Writes the whole file once: the system then never allocates blocks when it writes pages back.
    fn fill_tail(&mut self, file: FileId) -> Result<(), DeviceError> {
        let is_new = self.device.len(file)? != TAIL_BYTES as u64;
        // Also a file that was there: a copied one may have holes.
        self.device.allocate(file, 0, TAIL_BYTES as u64)?;
        if is_new {
            let mut io = Io::new(&mut self.device);
            io.write_durable(file, 0, &[0; TAIL_BYTES], IoClass::Manifest)?;
            io.sync(file, IoClass::Manifest)?;
            self.device.sync_dir()?;
        }
        Ok(())
    }
}
