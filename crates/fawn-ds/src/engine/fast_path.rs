//! Fast path of lookups: the first candidate, a plain put of the key, in the append window or the page cache, or a key
//! without a candidate.
//!
//! Nearly all lookups take it. All others take the slow path in [`super::lookup`], which alone reads from the device,
//! finds corruption and handles expiry. The two must agree.
use super::Engine;
use super::prefetch::record_range_in_page;
use crate::format::record::{PlainRecord, RecordPlace, decode_plain};
use crate::index::Pointer;
use fawn_flash::Device;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::Version;

/// Metadata of a record found in memory, and the location of its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryHit {
    pub(crate) flags: u32,
    pub(crate) expires_at_ms: u64,
    pub(crate) version: Version,
    pub(crate) len_bytes: u32,
    location: MemoryLocation,
}

#[derive(Clone, Copy, Debug)]
enum MemoryLocation {
    /// Value at `from..to` of a record in the window.
    Window { slot: u32, offset: u32, from: usize, to: usize },
    /// All of the scratch buffer.
    Scratch,
}

impl MemoryHit {
    /// Whether the record is in the page cache, and its value in the scratch buffer.
    pub(crate) const fn is_in_page(&self) -> bool {
        matches!(self.location, MemoryLocation::Scratch)
    }
}

impl<D: Device> Engine<D> {
    /// Finds the record at `pointer` if it is in memory, plain, and the key's. With `with_value`, [`Engine::value_of`]
    /// returns its value until the next use of the engine.
    #[inline]
    pub(crate) fn find_in_memory(&mut self, pointer: Pointer, key: &[u8], with_value: bool) -> Option<MemoryHit> {
        let (slot, offset) = self.segments.slot_and_offset(pointer);
        let segment = self.segments.get(slot)?;
        let hit = |plain: &PlainRecord<'_>, location| {
            let PlainRecord { flags, expires_at_ms, version, encoded_len: len_bytes, .. } = *plain;
            MemoryHit { flags, expires_at_ms, version, len_bytes, location }
        };
        if let Some(bytes) = self.streams[segment.stream].window.record(slot, offset) {
            // This process encoded the record, and it has not left memory since: no checksum needed.
            let plain = decode_plain(bytes, key, None)?;
            let from = plain.value.as_ptr() as usize - bytes.as_ptr() as usize;
            let to = from + plain.value.len();
            return Some(hit(&plain, MemoryLocation::Window { slot, offset, from, to }));
        }
        let (place, within) = (RecordPlace { segment_id: segment.id, offset }, offset as usize % PAGE_BYTES);
        let needed = record_range_in_page(segment, offset);
        let scratch = &mut self.scratch;
        self.cache.get_if(segment.file, offset / PAGE_BYTES as u32, needed, |page| {
            let plain = decode_plain(&page[within..], key, Some(place))?;
            if with_value {
                scratch.clear();
                scratch.extend_from_slice(plain.value);
            }
            Some(hit(&plain, MemoryLocation::Scratch))
        })
    }

    #[inline]
    pub(crate) fn value_of(&self, hit: &MemoryHit) -> &[u8] {
        match hit.location {
            MemoryLocation::Window { slot, offset, from, to } => {
                self.in_window(slot, offset).map_or(&[], |record| &record[from..to])
            }
            MemoryLocation::Scratch => &self.scratch,
        }
    }
}
