//! Owns iterating: whole cells of the index in hash order, keys read from their records.
use super::fetch::{Look, Wanted};
use super::{Engine, LookupPlan};
use crate::error::EngineError;
use crate::index::Pointer;
use fawn_flash::Device;
use fawn_types::{RangeId, TimeMs, Version};

/// A key that a scan met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanItem {
    /// The key.
    pub key: Vec<u8>,
    /// Its version then.
    pub version: Version,
    /// Length of its value, bytes.
    pub value_bytes: u32,
}

/// How a scan goes on.
#[derive(Debug)]
pub enum ScanStep {
    /// At least `count` items, or the end: see [`Scan::cursor`].
    Done,
    /// Pass it to [`Engine::read`], its event's plan to [`Engine::absorb`], then step again.
    Read(LookupPlan),
}

/// One step of a scan: from a cursor to at least `count` items.
#[derive(Debug)]
pub struct Scan {
    range: RangeId,
    count: usize,
    /// Where the next step goes on; 0 after the last. A position in hash order, so it stays valid for ever.
    pub cursor: u64,
    /// What was met, whole cells of it.
    pub items: Vec<ScanItem>,
    /// The cell under way: pointers not yet read, with their segments' sequence numbers.
    todo: Vec<(Pointer, u64)>,
    cell_items: usize,
    cell: Option<Option<u64>>,
}

impl Scan {
    /// From `cursor`, 0 being the start.
    #[must_use]
    pub fn new(range: RangeId, cursor: u64, count: usize) -> Self {
        Self { range, count, cursor, items: Vec::new(), todo: Vec::new(), cell_items: 0, cell: None }
    }
}

impl<D: Device> Engine<D> {
    /// Goes on with a scan. Every key that is there throughout the scan is met at least once.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`], [`EngineError::UnknownRange`].
    pub fn scan_step(&mut self, scan: &mut Scan, now: TimeMs) -> Result<ScanStep, EngineError> {
        let at = self.range_at(scan.range)?;
        loop {
            let next = match scan.cell {
                Some(next) => next,
                None => self.begin_cell(at, scan),
            };
            if let Some(read) = self.read_cell(at, scan, now)? {
                return Ok(read);
            }
            scan.cell = None;
            scan.cursor = next.unwrap_or(0);
            if next.is_none() || scan.items.len() >= scan.count {
                return Ok(ScanStep::Done);
            }
        }
    }

    fn begin_cell(&self, at: usize, scan: &mut Scan) -> Option<u64> {
        let cell = self.ranges[at].index.cell(scan.cursor);
        let sequence_of = |pointer| self.segments.expect(self.segments.place(pointer).0).sequence;
        scan.todo = cell.pointers().map(|pointer| (pointer, sequence_of(pointer))).collect();
        scan.cell_items = scan.items.len();
        scan.cell = Some(cell.next);
        cell.next
    }

    fn read_cell(&mut self, at: usize, scan: &mut Scan, now: TimeMs) -> Result<Option<ScanStep>, EngineError> {
        while let Some(&(pointer, sequence)) = scan.todo.last() {
            let (slot, _) = self.segments.place(pointer);
            if self.segments.get(slot).is_none_or(|segment| segment.sequence != sequence) {
                // Its segment was dropped during a read: the cell is read anew.
                scan.items.truncate(scan.cell_items);
                self.begin_cell(at, scan);
                continue;
            }
            match self.look(at, pointer, Wanted::Any)? {
                Look::Match(hit) => {
                    let is_expired = hit.expires_at_ms != 0 && now.0 >= hit.expires_at_ms;
                    if !is_expired {
                        let key_at = hit.value.start - hit.key_bytes;
                        let key = self.bytes_at(hit.spot)[key_at..hit.value.start].to_vec();
                        scan.items.push(ScanItem { key, version: hit.version, value_bytes: hit.value.len() as u32 });
                    }
                }
                Look::Missing(span) => {
                    return Ok(Some(ScanStep::Read(LookupPlan::of_span(scan.range, span))));
                }
                Look::Other => unreachable!("any record was wanted"),
            }
            scan.todo.pop();
        }
        Ok(None)
    }
}
