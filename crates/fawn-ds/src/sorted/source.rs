//! Sources of records in the order of (space, ring key): a run read in sequential chunks, and a sorted buffer in memory.
use super::{Run, RunError};
use crate::format::SegmentUuid;
use crate::format::run::page::RunPage;
use crate::format::run::{PageChain, RunRecord, SPACES, Space, page_offset};
use core::cmp::Reverse;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{HashSecret, RingKey, Version};
use std::collections::VecDeque;
use std::collections::binary_heap::{BinaryHeap, PeekMut};
use std::ops::Range;

/// Length of a chunk, bytes, at which reads are sequential for any disk.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Head of a source.
#[derive(Debug)]
pub enum SourceHead<'s> {
    /// The next record, and its ring key.
    Record(RingKey, RunRecord<'s>),
    /// The source waits for bytes: [`RunSource::next_read`], then [`RunSource::feed`].
    Wait,
    /// All records were passed.
    End,
}

/// A read of consecutive pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRange {
    /// Offset in the run's file, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len_bytes: usize,
    first_page: u32,
}

/// Reads a run's records, or those of a key range of a space, from one contiguous extent of pages.
#[derive(Debug)]
pub struct RunSource {
    name: String,
    uuid: SegmentUuid,
    secret: HashSecret,
    starts: [u32; SPACES + 1],
    /// Bounds of the keys; `None`: all of the run.
    keys: Option<(Space, RingKey, Option<RingKey>)>,
    /// Pages not yet requested.
    pages: Range<u32>,
    /// A record behind the key range was met: nothing that is still read counts.
    is_past_range: bool,
    /// Reads whose bytes were not fed yet.
    unfed: usize,
    /// Chunks fed and not yet passed; the first one is being read.
    chunks: VecDeque<PageChunk>,
    head: Option<Head>,
    last: Option<(Space, RingKey)>,
    chain: PageChain,
}

#[derive(Debug)]
struct PageChunk {
    first_page: u32,
    bytes: Vec<u8>,
    at: usize,
}

/// Position of the current record in the first chunk.
#[derive(Clone, Copy, Debug)]
struct Head {
    at: usize,
    end: usize,
    ring_key: RingKey,
}

impl RunSource {
    /// All records of a run.
    #[must_use]
    pub fn all(run: &Run) -> Self {
        Self::of(run, 0..run.footer.pages, None)
    }

    /// The records of a space with ring keys from `from` to before `to`.
    #[must_use]
    pub fn extent(run: &Run, space: Space, from: RingKey, to: Option<RingKey>) -> Self {
        Self::of(run, run.fences.extent(space, &from, to.as_ref()), Some((space, from, to)))
    }

    fn of(run: &Run, pages: Range<u32>, keys: Option<(Space, RingKey, Option<RingKey>)>) -> Self {
        Self {
            name: run.name.clone(),
            uuid: run.footer.header.uuid,
            secret: run.secret,
            starts: run.footer.starts,
            keys,
            pages,
            is_past_range: false,
            unfed: 0,
            chunks: VecDeque::new(),
            head: None,
            last: None,
            chain: PageChain::default(),
        }
    }

    /// Pages that are not requested yet.
    #[must_use]
    pub fn pages_left(&self) -> u32 {
        self.pages.len() as u32
    }

    /// The next read, of at most this many bytes; `None` if all pages are requested. Reads are fed in this order.
    pub fn next_read(&mut self, bytes_max: usize) -> Option<ReadRange> {
        let first_page = self.pages.start;
        let pages = (bytes_max.clamp(PAGE_BYTES, CHUNK_BYTES_MAX) / PAGE_BYTES).min(self.pages.len());
        self.pages.start += pages as u32;
        let range = ReadRange { offset: page_offset(first_page), len_bytes: pages * PAGE_BYTES, first_page };
        self.unfed += usize::from(pages > 0);
        (pages > 0).then_some(range)
    }

    /// Whether the next read should begin now, so that its bytes are there when those before them are passed.
    pub(super) fn wants_read(&self) -> bool {
        self.unfed == 0 && self.chunks.len() <= 1 && !self.pages.is_empty()
    }

    /// The bytes of a read. Missing ones are zeros, which no page has.
    pub fn feed(&mut self, range: ReadRange, mut bytes: Vec<u8>) {
        self.unfed -= 1;
        if self.is_past_range {
            return;
        }
        bytes.resize(range.len_bytes, 0);
        self.chunks.push_back(PageChunk { first_page: range.first_page, bytes, at: 0 });
    }

    /// Memory of the pages fed and not yet passed, bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes.capacity()).sum()
    }

    /// The next record.
    ///
    /// # Errors
    /// [`RunError::Corrupt`] if a page has other bytes than were written there, or its keys are not in order.
    /// [`Self::skip_page`] continues behind it.
    pub fn head(&mut self) -> Result<SourceHead<'_>, RunError> {
        while self.head.is_none() {
            let Some(chunk) = self.chunks.front() else {
                let is_end = self.is_past_range || (self.pages.is_empty() && self.unfed == 0);
                return Ok(if is_end { SourceHead::End } else { SourceHead::Wait });
            };
            if chunk.at >= chunk.bytes.len() {
                self.chunks.pop_front();
                continue;
            }
            self.enter_page()?;
            self.pass_keys_below()?;
        }
        let (Some(Head { at, ring_key, .. }), Some(chunk)) = (self.head, self.chunks.front()) else {
            return Ok(SourceHead::End);
        };
        match RunRecord::decode(&chunk.bytes[at..]) {
            Some((record, _)) => Ok(SourceHead::Record(ring_key, record)),
            None => Err(self.corrupt("a record that was intact when its page was entered")),
        }
    }

    /// Passes the record of [`Self::head`].
    ///
    /// # Errors
    /// As [`Self::head`].
    pub fn advance(&mut self) -> Result<(), RunError> {
        let Some(head) = self.head.take() else { return Ok(()) };
        let Some(chunk) = self.chunks.front() else { return Ok(()) };
        let next = head.at + RunRecord::decode(&chunk.bytes[head.at..]).map_or(0, |(_, len)| len);
        if next >= head.end {
            self.end_page();
            return Ok(());
        }
        self.enter_record(next, head.end)
    }

    /// Continues behind a corrupt page.
    pub fn skip_page(&mut self) {
        self.head = None;
        self.end_page();
    }

    /// Chain over all pages passed.
    #[must_use]
    pub const fn chain(&self) -> PageChain {
        self.chain
    }

    pub(super) fn page(&self) -> u32 {
        self.chunks.front().map_or(0, |chunk| chunk.first_page + (chunk.at / PAGE_BYTES) as u32)
    }

    /// Offset of the page that is being read, bytes.
    #[must_use]
    pub fn page_offset(&self) -> u64 {
        page_offset(self.page())
    }

    fn corrupt(&self, detail: impl ToString) -> RunError {
        let offset_bytes = page_offset(self.page());
        RunError::Corrupt { file: self.name.clone(), offset_bytes, detail: detail.to_string() }
    }

    fn end_page(&mut self) {
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.at += PAGE_BYTES;
        }
    }

    /// Verifies the page at the front, and enters its first record.
    fn enter_page(&mut self) -> Result<(), RunError> {
        let page = self.page();
        let Some(chunk) = self.chunks.front() else { return Ok(()) };
        let decoded = RunPage::decode(&chunk.bytes[chunk.at..], self.uuid, page);
        let (content, at) = (decoded.map_err(|error| self.corrupt(error))?, chunk.at + content_offset());
        let end = at + content.used_bytes();
        self.chain = self.chain.then(content.checksum());
        self.enter_record(at, end)
    }

    /// Enters the record at `at` of the first chunk, whose page's records end at `end`.
    fn enter_record(&mut self, at: usize, end: usize) -> Result<(), RunError> {
        let Some(chunk) = self.chunks.front() else { return Ok(()) };
        let Some((record, _)) = RunRecord::decode(&chunk.bytes[at..]) else { return Err(self.corrupt("no record")) };
        let found = (record.space(), RingKey::of(&self.secret, record.key));
        let space = usize::from(found.0.get());
        if !(self.starts[space]..self.starts[space + 1]).contains(&self.page()) {
            return Err(self.corrupt("a record of another space"));
        }
        if self.last.is_some_and(|last| last >= found) {
            return Err(self.corrupt("ring keys out of order"));
        }
        self.last = Some(found);
        self.head = Some(Head { at, end, ring_key: found.1 });
        if let Some((_, _, Some(to))) = self.keys
            && found.1 >= to
        {
            // All later keys are above it too.
            self.head = None;
            self.chunks.clear();
            self.pages = 0..0;
            self.is_past_range = true;
        }
        Ok(())
    }

    /// Passes records below the first key of the range.
    fn pass_keys_below(&mut self) -> Result<(), RunError> {
        let Some((_, from, _)) = self.keys else { return Ok(()) };
        while self.head.is_some_and(|head| head.ring_key < from) {
            self.advance()?;
        }
        Ok(())
    }
}

const fn content_offset() -> usize {
    crate::format::run::page::PAGE_HEADER_BYTES
}

/// Length of a block of records in memory, bytes: thousands of short records, which are sorted within a millisecond or so.
const BLOCK_BYTES: usize = 256 << 10;

/// Records of log segments, gathered in memory up to a bound and sorted.
///
/// They are in blocks: each is sorted once it is full, and the records are merged as they are passed. To sort all at once would take up
/// to a second, in which nothing else is done.
#[derive(Debug)]
pub struct SortBuffer {
    secret: HashSecret,
    bytes_max: usize,
    /// Length of the records, bytes, and their number.
    len_bytes: usize,
    records: usize,
    blocks: Vec<SortBlock>,
    /// The next record of each block, once all are sorted.
    heads: BinaryHeap<Reverse<BlockHead>>,
}

#[derive(Debug)]
struct SortBlock {
    bytes: Vec<u8>,
    order: Vec<SortEntry>,
}

/// Records of a key are in the order of their versions, the newest one first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct SortKey {
    space: Space,
    ring_key: RingKey,
    version: Reverse<Version>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct SortEntry {
    key: SortKey,
    at: u32,
}

/// A block's next record. Of equal keys that of the first block comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct BlockHead {
    key: SortKey,
    block: usize,
    nth: usize,
}

impl SortBlock {
    fn head(&self, block: usize, nth: usize) -> Option<BlockHead> {
        self.order.get(nth).map(|entry| BlockHead { key: entry.key, block, nth })
    }

    /// Sorts its records. No others are added.
    fn sort(&mut self) {
        self.order.shrink_to_fit();
        self.order.sort_unstable();
    }
}

impl SortBuffer {
    /// A buffer for at most this many bytes of records.
    #[must_use]
    pub const fn new(secret: HashSecret, bytes_max: usize) -> Self {
        Self { secret, bytes_max, len_bytes: 0, records: 0, blocks: Vec::new(), heads: BinaryHeap::new() }
    }

    /// Memory of so many records of this length together, bytes: their order counts too.
    #[must_use]
    pub const fn memory_of(len_bytes: u64, records: u64) -> u64 {
        len_bytes + records * size_of::<SortEntry>() as u64
    }

    /// Adds a record that [fits](RunRecord::fits) a run; false if the buffer is full.
    pub fn push(&mut self, record: &RunRecord<'_>) -> bool {
        let len = record.encoded_len();
        if self.len_bytes + len > self.bytes_max {
            return false;
        }
        if self.blocks.last().is_none_or(|last| last.bytes.len() + len > BLOCK_BYTES) {
            if let Some(full) = self.blocks.last_mut() {
                full.sort();
            }
            let bytes = Vec::with_capacity(BLOCK_BYTES.min(self.bytes_max));
            self.blocks.push(SortBlock { bytes, order: Vec::new() });
        }
        let Some(block) = self.blocks.last_mut() else { unreachable!("a block was just added") };
        let at = block.bytes.len();
        block.bytes.resize(at + len, 0);
        record.encode(&mut block.bytes[at..]);
        let ring_key = RingKey::of(&self.secret, record.key);
        let key = SortKey { space: record.space(), ring_key, version: Reverse(record.version) };
        block.order.push(SortEntry { key, at: at as u32 });
        (self.len_bytes, self.records) = (self.len_bytes + len, self.records + 1);
        true
    }

    /// Takes all of its records out.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let empty = Self::new(self.secret, self.bytes_max);
        core::mem::replace(self, empty)
    }

    /// Memory that the records and their order use, bytes.
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        Self::memory_of(self.len_bytes as u64, self.records as u64)
    }

    /// Memory that is taken for the records and their order, bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        let of_block = |block: &SortBlock| block.bytes.capacity() + block.order.capacity() * size_of::<SortEntry>();
        self.blocks.iter().map(of_block).sum::<usize>() + self.heads.capacity() * size_of::<BlockHead>()
    }

    /// Ends the additions: begins at the first record by space, ring key, then newest version first.
    pub fn sort(&mut self) {
        if let Some(last) = self.blocks.last_mut() {
            last.sort();
        }
        let heads = self.blocks.iter().enumerate().filter_map(|(at, block)| block.head(at, 0));
        self.heads = heads.map(Reverse).collect();
    }

    /// The next record.
    #[must_use]
    pub fn head(&self) -> SourceHead<'_> {
        let record = self.heads.peek().and_then(|Reverse(head)| {
            let block = &self.blocks[head.block];
            let (record, _) = RunRecord::decode(&block.bytes[block.order[head.nth].at as usize..])?;
            Some(SourceHead::Record(head.key.ring_key, record))
        });
        record.unwrap_or(SourceHead::End)
    }

    /// Passes the record of [`Self::head`].
    pub fn advance(&mut self) {
        let Some(mut head) = self.heads.peek_mut() else { return };
        let Reverse(BlockHead { block, nth, .. }) = *head;
        match self.blocks[block].head(block, nth + 1) {
            Some(next) => *head = Reverse(next),
            None => _ = PeekMut::pop(head),
        }
    }
}
