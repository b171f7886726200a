//! Second reads where scans found damage or the end of the log: a single misdirected read must be taken for neither.
use super::io::Io;
use super::left_tail::SegmentTail;
use super::{Scanned, synced_logs};
use crate::check;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::format::frame::{self, FrameHeader};
use crate::format::scan::{ScanInput, ScanReport, SegmentVerdict};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, DeviceError, FileId, IoClass};

/// Reads again where a scan found the end of the frames. Returns a whole frame's header if this read finds one there, so
/// the scan read other bytes. Sealed segments are passed: the seal has their end.
pub(crate) fn frame_at_end<D: Device>(
    device: &mut D,
    file: FileId,
    scan: &ScanReport,
    tail: Option<&SegmentTail>,
) -> Result<Option<FrameHeader>, DeviceError> {
    let (at, ScanInput { uuid, segment_bytes, sealed_len, .. }) = (scan.valid_len, scan.input);
    if at >= segment_bytes || sealed_len.is_some() {
        return Ok(None);
    }
    let base = at - at % PAGE_BYTES as u32;
    let mut io = Io::new(device);
    let mut read_to = |end: u32| {
        let len = (end.min(segment_bytes) - base) as usize;
        let mut buf = io.read(file, u64::from(base), len.next_multiple_of(PAGE_BYTES), IoClass::Recovery)?;
        if let Some(tail) = tail {
            tail.lay_over(u64::from(base), &mut buf);
        }
        Ok::<_, DeviceError>(buf)
    };
    let bytes = read_to(at.saturating_add(frame::HEADER_BYTES as u32))?;
    let bytes = &bytes[(at - base) as usize..];
    let Ok(header) = frame::decode_header(bytes, uuid, at, segment_bytes) else { return Ok(None) };
    if header.generation < scan.generation {
        return Ok(None);
    }
    let bytes = read_to(header.end())?;
    let is_whole = frame::verify(&header, &bytes[(at - base) as usize..]).is_ok();
    Ok(is_whole.then_some(header))
}

impl<D: Device> Engine<D> {
    /// Scans segments again that are damaged by the first scan, and refuses an opening in which the two differ: one misdirected read
    /// must not be taken for damage, for which a backup is restored.
    pub(super) fn confirm_damage(&mut self, scanned: &[Scanned]) -> Result<(), OpenError> {
        let known = synced_logs(self.manifest.state(), scanned);
        for Scanned { entry, slot, report, tail, .. } in scanned {
            let facts = entry.seal.as_ref().map(|seal| &seal.facts);
            let verdict = report.validate(&known[entry.stream], facts);
            if matches!(verdict, SegmentVerdict::Clean | SegmentVerdict::TornAt { .. }) {
                continue;
            }
            let segment = self.segments.expect(*slot);
            let again = match check::scan_confirmed(&mut self.device, segment.file, report.input, tail.clone()) {
                Ok((again, ..)) => again,
                Err(error) if error.is_retryable() => return Err(error.into()),
                Err(_) => continue,
            };
            if (again.valid_len, &again.facts) != (report.valid_len, &report.facts) {
                let from_bytes = again.valid_len.min(report.valid_len);
                return Err(OpenError::ReadsDiffer { file: segment.name.clone(), from_bytes });
            }
        }
        Ok(())
    }

    /// Refuses an opening whose scan ended before a frame that a second read finds.
    pub(super) fn confirm_ends(&mut self, scanned: &[Scanned]) -> Result<(), OpenError> {
        for Scanned { slot, report, tail, .. } in scanned {
            let segment = self.segments.expect(*slot);
            if let Some(header) = frame_at_end(&mut self.device, segment.file, report, tail.as_deref())? {
                return Err(OpenError::ReadsDiffer { file: segment.name.clone(), from_bytes: header.offset });
            }
        }
        Ok(())
    }
}
