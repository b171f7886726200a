//! Hand-made segments for format tests: frames written one after the other into a buffer.
use fawn_ds::internals::format::frame::{Chain, FrameHeader, HEADER_BYTES, encode_header};
use fawn_ds::internals::format::record::{Envelope, RecordPlace, RecordRef, encode_into, encoded_len};
use fawn_ds::internals::format::{FRAMES_OFFSET, RangeNumber, SegmentUuid, Watermark};
use fawn_types::Version;

pub(crate) const UUID: SegmentUuid = SegmentUuid([7; 16]);
pub(crate) const SEGMENT_BYTES: u32 = 64 << 10;

/// A segment under construction.
pub(crate) struct SegmentImage {
    pub(crate) bytes: Vec<u8>,
    /// End of the last frame.
    pub(crate) end: u32,
    /// Start of each frame.
    pub(crate) frames: Vec<u32>,
    seq: u64,
}

impl SegmentImage {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; SEGMENT_BYTES as usize], end: FRAMES_OFFSET, frames: Vec::new(), seq: 0 }
    }

    pub(crate) fn frame(&mut self, generation: u32, synced: Watermark, records: &[(&[u8], &[u8])]) {
        self.frame_padded(generation, synced, records, 0);
    }

    pub(crate) fn frame_padded(
        &mut self,
        generation: u32,
        synced: Watermark,
        records: &[(&[u8], &[u8])],
        padding: u32,
    ) {
        let mut at = self.end as usize + HEADER_BYTES;
        let mut chain = Chain::EMPTY;
        for (key, value) in records {
            self.seq += 1;
            let record = RecordRef::put(Version::from_u64(self.seq), key, value);
            let place = RecordPlace { segment_id: UUID.fold(), offset: at as u32 };
            let envelope = Envelope { number: RangeNumber(0), continues: false };
            chain = chain.then(encode_into(&record, envelope, place, &mut self.bytes[at..]));
            at += encoded_len(&record);
        }
        let record_bytes = at as u32 - self.end - HEADER_BYTES as u32;
        let header = FrameHeader {
            uuid: UUID,
            generation,
            offset: self.end,
            frame_bytes: HEADER_BYTES as u32 + record_bytes + padding,
            record_bytes,
            count: records.len() as u32,
            synced,
            chain,
        };
        encode_header(&header, &mut self.bytes[self.end as usize..]);
        self.frames.push(self.end);
        self.end = header.end();
    }
}
