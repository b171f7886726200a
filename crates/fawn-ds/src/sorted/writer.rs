//! Writer of a run: takes records in order, writes large sequential pieces in budgeted steps, and proves the whole by a
//! footer.
//!
//! Order: pages, tail, sync, footer (a durable write), sync of the directory, and only then the listing. A crash before
//! leaves an orphan without a listing. Memory: [`BUFFERS_MAX`] buffers, one filter's hashes, and 20 B per page.
use super::fences::prefix_of;
use super::filter;
use super::{FenceBuilder, Fences, Run};
use crate::format::Expiries;
use crate::format::checkpoint::PIECE_BYTES;
use crate::format::record::RecordKind;
use crate::format::run::page::{PageBuilder, RunPage};
use crate::format::run::tail::{FilterParts, RunTail, encode_next_piece};
use crate::format::run::{
    self, FOOTER_BYTES, HEADER_BYTES, KeyBounds, PAGES_MAX, PageChain, RunFooter, RunHeader, RunRecord, SPACES, Space,
    filter_hash, page_offset,
};
use crate::format::segment::RecordFacts;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Completion, Device, DeviceError, FileId, IoClass, Token};
use fawn_types::{HashSecret, RingKey, TimeMs};
use std::collections::VecDeque;

/// Buffers being filled, waiting, or in flight.
const BUFFERS_MAX: usize = 3;
/// Space that is allocated at once, bytes.
const ALLOCATE_BYTES: u64 = 8 << 20;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct RunWriterOptions {
    /// Its identity.
    pub header: RunHeader,
    /// The secret of the store's key hashes.
    pub secret: HashSecret,
    /// Bits per key of its filters: 4 for the oldest run, 10 for later ones.
    pub filter_bits: u8,
    /// Keys per filter. Building a filter is the longest step without a pause.
    pub filter_keys: usize,
    /// Length of a write, bytes: a multiple of a page, at least 64 KiB.
    pub write_bytes: usize,
    /// Maximum number of pages.
    pub pages_max: u32,
    /// Ring keys that begin another run, by their highest 32 bits, in order.
    pub cuts: Vec<u32>,
    /// Time of the expiry clock, from which expiries are counted.
    pub now: TimeMs,
}

impl RunWriterOptions {
    /// The usual parameters: filters of 8,192 keys, writes of 1 MiB, runs of 256 MiB.
    #[must_use]
    pub const fn new(header: RunHeader, secret: HashSecret, filter_bits: u8) -> Self {
        Self {
            header,
            secret,
            filter_bits,
            filter_keys: 8192,
            write_bytes: 1 << 20,
            pages_max: 65_536,
            cuts: Vec::new(),
            now: TimeMs(0),
        }
    }
}

/// Result of passing a record to the writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// The record is in the run.
    Taken,
    /// The buffers are full: step, and pass the record again once a write is complete.
    Wait,
    /// The run has its maximum length, or ends before the record: finish it, and pass the record to the next one.
    Full,
}

/// Records that the writer refuses; the run is unharmed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunWriteError {
    /// The record is longer than a run's may be, or is no put and no tombstone.
    #[error("a record of {found_bytes} bytes is no record of a run: it stays in the log")]
    NotForRuns {
        /// Its length in a page.
        found_bytes: usize,
    },
    /// The record is not above the one before in (space, ring key).
    #[error("records out of order: {found:?} after {last:?}")]
    Order {
        /// Space and ring key of the record before.
        last: (Space, RingKey),
        /// Space and ring key of the record.
        found: (Space, RingKey),
    },
}

/// A complete, synced run: the facts for the manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunListing {
    /// Its identity.
    pub header: RunHeader,
    /// Length of its file, bytes.
    pub file_bytes: u64,
    /// Facts of its records.
    pub facts: RecordFacts,
}

/// State of the writer after a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WriterState {
    /// It takes records, or has work left for later steps.
    Working,
    /// It waits for the device.
    Waiting,
    /// The run is complete and durable.
    Done(Box<RunListing>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriterStep {
    Pages,
    Tail,
    Drain,
    Syncing,
    Footer,
    FooterInFlight,
    Name,
    NameInFlight,
    Done,
}

/// Writes one run.
#[derive(Debug)]
pub struct RunWriter {
    options: RunWriterOptions,
    file: FileId,
    step: WriterStep,
    page: PageBuilder,
    /// The run takes no ring key with these highest 32 bits, nor a higher one.
    cut: u64,
    /// The buffer being filled, and its filled length.
    buf: Option<(AlignedBuf, usize)>,
    full: VecDeque<(AlignedBuf, usize)>,
    free: Vec<AlignedBuf>,
    in_flight: usize,
    /// Bytes submitted, and space allocated.
    offset: u64,
    allocated: u64,
    contents: Contents,
    /// The tail's content, the length already encoded, and the offset of the next piece.
    content: Vec<u8>,
    taken: usize,
    piece_offset: u64,
}

/// Counts and memory structures of the pages so far.
#[derive(Debug)]
pub(super) struct Contents {
    last: Option<(Space, RingKey)>,
    starts: [u32; SPACES + 1],
    bounds: [KeyBounds; SPACES],
    pages: u32,
    chain: PageChain,
    facts: RecordFacts,
    expiries: Expiries,
    fences: FenceBuilder,
    filters: Vec<FilterParts>,
    hashes: Vec<u64>,
    filter_page: u32,
    tail_bytes: u64,
    /// The parts that stay in memory, once they are encoded.
    tail: RunTail,
}

impl RunWriter {
    /// Creates the run's file. Its name is durable once the run is complete.
    ///
    /// # Errors
    /// The device's; [`DeviceError::is_retryable`] says whether nothing was changed.
    ///
    /// # Panics
    /// If an option is out of its bounds: a caller's error.
    pub fn create<D: Device>(device: &mut D, options: RunWriterOptions) -> Result<Self, DeviceError> {
        assert!(options.write_bytes >= PIECE_BYTES && options.write_bytes.is_multiple_of(PAGE_BYTES), "write length");
        assert!((1..=PAGES_MAX).contains(&options.pages_max) && options.filter_keys > 0, "bounds of a run");
        let file = device.create(&run::file_name(options.header.uuid))?;
        let mut buf = AlignedBuf::zeroed(options.write_bytes);
        run::encode_header(&options.header, &mut buf);
        Ok(Self {
            options,
            file,
            step: WriterStep::Pages,
            page: PageBuilder::default(),
            cut: u64::MAX,
            buf: Some((buf, HEADER_BYTES)),
            full: VecDeque::new(),
            free: Vec::new(),
            in_flight: 0,
            offset: 0,
            allocated: 0,
            contents: Contents::empty(),
            content: Vec::new(),
            taken: 0,
            piece_offset: 0,
        })
    }

    /// The run's file.
    #[must_use]
    pub const fn file(&self) -> FileId {
        self.file
    }

    /// Adds the next record.
    ///
    /// # Errors
    /// If the record is not for runs, or not above the one before.
    ///
    /// # Panics
    /// After [`Self::finish`]: a caller's error.
    pub fn push(&mut self, record: &RunRecord<'_>) -> Result<Pushed, RunWriteError> {
        assert!(self.step == WriterStep::Pages, "records come before the end");
        if !record.fits() {
            return Err(RunWriteError::NotForRuns { found_bytes: record.encoded_len() });
        }
        let found = (record.space(), RingKey::of(&self.options.secret, record.key));
        if let Some(last) = self.contents.last.filter(|last| *last >= found) {
            return Err(RunWriteError::Order { last, found });
        }
        let is_new_space = self.contents.last.is_none_or(|(space, _)| space != found.0);
        if !self.page.is_empty() && (is_new_space || !self.page.has_space(record)) {
            if !self.has_page_space() {
                return Ok(Pushed::Wait);
            }
            self.end_page();
        }
        if self.contents.last.is_none() {
            let next = self.options.cuts.iter().find(|cut| **cut > found.1.highest());
            self.cut = next.map_or(u64::MAX, |cut| u64::from(*cut));
        }
        if u64::from(found.1.highest()) >= self.cut {
            return Ok(Pushed::Full);
        }
        if self.page.is_empty() {
            if self.contents.pages == self.options.pages_max {
                return Ok(Pushed::Full);
            }
            self.contents.begin_page(found);
        }
        self.page.push(record);
        self.contents.count(record, found);
        // A put that has expired and is kept all the same is no reason for the next merge.
        let now = self.options.now;
        if record.expires_at_ms > now.0 {
            let len_bytes = record.encoded_len() as u32;
            self.contents.expiries.add(len_bytes, record.expires_at_ms, now);
        }
        Ok(Pushed::Taken)
    }

    /// No record follows.
    ///
    /// # Panics
    /// If it is called twice, or while the writer waits: a caller's error.
    pub fn finish(&mut self) {
        assert!(self.step == WriterStep::Pages, "a run ends once");
        self.step = WriterStep::Tail;
    }

    /// Whether no page fits into the buffers before a write is complete.
    pub(super) fn is_full(&self) -> bool {
        self.buf.is_none() && self.full.len() + self.in_flight >= BUFFERS_MAX
    }

    /// Whether one more page fits into the buffers.
    fn has_page_space(&mut self) -> bool {
        if self.buf.is_some() {
            return true;
        }
        if self.is_full() {
            return false;
        }
        let buf = self.free.pop().unwrap_or_else(|| AlignedBuf::zeroed(self.options.write_bytes));
        self.buf = Some((buf, 0));
        true
    }

    /// Moves the page to the buffers, which have space for it.
    fn end_page(&mut self) {
        let Some((buf, used)) = &mut self.buf else { unreachable!("the caller made space for a page") };
        let contents = &mut self.contents;
        let checksum = self.page.finish(self.options.header.uuid, contents.pages, &mut buf[*used..]);
        *used += PAGE_BYTES;
        contents.end_page(checksum, &self.options);
        self.queue_full(PAGE_BYTES);
    }

    /// Queues the buffer if it has less than `next` bytes left.
    fn queue_full(&mut self, next: usize) {
        if let Some((buf, used)) = self.buf.take_if(|(buf, used)| *used + next > buf.len()) {
            self.full.push_back((buf, used));
        }
    }

    /// Continues: submits at most about `budget_bytes` of writes under tokens of the caller, whose completions return to
    /// [`Self::completed`].
    ///
    /// # Errors
    /// The device's. If it [is retryable](DeviceError::is_retryable), step again later, or [abandon](Self::abandon).
    pub fn step<D: Device>(
        &mut self,
        device: &mut D,
        budget_bytes: usize,
        token: &mut dyn FnMut() -> Token,
    ) -> Result<WriterState, DeviceError> {
        let mut left = budget_bytes.max(1);
        while left > 0 {
            if let Some(written) = self.submit_full(device, token)? {
                left = left.saturating_sub(written);
                continue;
            }
            let step = self.step;
            match step {
                WriterStep::Pages => return Ok(WriterState::Working),
                WriterStep::Tail if self.end_content() => {}
                WriterStep::Drain if self.in_flight == 0 => self.sync(device, token)?,
                WriterStep::Footer => self.write_footer(device, token()),
                WriterStep::Name => self.sync_name(device, token()),
                WriterStep::Done => return Ok(self.listing()),
                _ => return Ok(WriterState::Waiting),
            }
        }
        Ok(WriterState::Working)
    }

    /// Submits one full buffer, if there is one; returns its length.
    fn submit_full<D: Device>(
        &mut self,
        device: &mut D,
        token: &mut dyn FnMut() -> Token,
    ) -> Result<Option<usize>, DeviceError> {
        let Some(len) = self.full.front().map(|(_, len)| *len) else { return Ok(None) };
        let end = self.offset + len as u64;
        if end > self.allocated {
            let pages_bytes = u64::from(self.options.pages_max) * PAGE_BYTES as u64;
            let more = ALLOCATE_BYTES.min(pages_bytes).max(len as u64);
            device.allocate(self.file, self.allocated, more)?;
            self.allocated += more;
        }
        let Some((buf, len)) = self.full.pop_front() else { return Ok(None) };
        device.submit_write(self.file, self.offset, buf, len, IoClass::Sort, token());
        self.offset = end;
        self.in_flight += 1;
        Ok(Some(len))
    }

    /// Moves the last page and the next pieces of the tail to the buffers; false if they have no space.
    fn end_content(&mut self) -> bool {
        if !self.has_page_space() {
            return false;
        }
        if !self.page.is_empty() {
            self.end_page();
            return true;
        }
        if self.piece_offset == 0 {
            self.contents.end_tail(self.options.filter_bits);
            self.contents.tail.encode(&mut self.content);
            self.piece_offset = page_offset(self.contents.pages);
        }
        let rest = &self.content[self.taken..];
        if rest.is_empty() {
            self.contents.tail_bytes = self.piece_offset - page_offset(self.contents.pages);
            self.content = Vec::new();
            self.step = WriterStep::Drain;
            // An empty buffer has nothing to write.
            let last = self.buf.take().filter(|(_, used)| *used > 0);
            self.full.extend(last);
            return true;
        }
        self.queue_full(PIECE_BYTES);
        if !self.has_page_space() {
            return false;
        }
        let Some((buf, used)) = &mut self.buf else { return false };
        let rest = &self.content[self.taken..];
        let (written, taken) = encode_next_piece(self.options.header.uuid, self.piece_offset, rest, &mut buf[*used..]);
        *used += written;
        self.taken += taken;
        self.piece_offset += written as u64;
        true
    }

    /// Allocates the footer's space or cuts off what was allocated in excess, and syncs pages and tail.
    fn sync<D: Device>(&mut self, device: &mut D, token: &mut dyn FnMut() -> Token) -> Result<(), DeviceError> {
        let end = self.footer().file_bytes();
        if end > self.allocated {
            device.allocate(self.file, self.allocated, end - self.allocated)?;
            self.allocated = end;
        }
        device.truncate(self.file, end)?;
        self.step = WriterStep::Syncing;
        // Only now: a token without an operation would count as a write in flight for ever.
        device.submit_sync(self.file, IoClass::Sort, token());
        self.in_flight += 1;
        Ok(())
    }

    fn footer(&self) -> RunFooter {
        self.contents.footer(self.options.header)
    }

    /// The footer, once pages and tail are synced: it proves that they are.
    fn write_footer<D: Device>(&mut self, device: &mut D, token: Token) {
        self.step = WriterStep::FooterInFlight;
        let footer = self.footer();
        let mut buf = AlignedBuf::zeroed(FOOTER_BYTES);
        run::encode_footer(&footer, &mut buf);
        let offset = footer.file_bytes() - FOOTER_BYTES as u64;
        device.submit_write_durable(self.file, offset, buf, FOOTER_BYTES, IoClass::Sort, token);
        self.in_flight += 1;
    }

    /// Makes the run's name durable; after that it may be listed.
    fn sync_name<D: Device>(&mut self, device: &mut D, token: Token) {
        self.step = WriterStep::NameInFlight;
        device.submit_sync_dir(IoClass::Sort, token);
        self.in_flight += 1;
    }

    fn listing(&self) -> WriterState {
        let footer = self.footer();
        let facts = self.contents.facts.clone();
        let listing = RunListing { header: footer.header, file_bytes: footer.file_bytes(), facts };
        WriterState::Done(Box::new(listing))
    }

    /// A write or sync of the run is complete.
    ///
    /// # Errors
    /// The operation's failure; it poisoned the device.
    pub fn completed(&mut self, completion: Completion) -> Result<(), DeviceError> {
        self.in_flight -= 1;
        completion.result?;
        match self.step {
            WriterStep::Syncing => self.step = WriterStep::Footer,
            WriterStep::FooterInFlight => self.step = WriterStep::Name,
            WriterStep::NameInFlight => self.step = WriterStep::Done,
            _ => {}
        }
        if let Some(buf) = completion.buf.filter(|buf| buf.len() == self.options.write_bytes) {
            self.free.push(buf);
        }
        Ok(())
    }

    /// Whether it has no record.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.contents.last.is_none()
    }

    const fn has_footer(&self) -> bool {
        use WriterStep::{Done, FooterInFlight, Name, NameInFlight};
        matches!(self.step, FooterInFlight | Name | NameInFlight | Done)
    }

    /// Bytes written or in flight; from the footer on: the length of the run's file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        if self.has_footer() { self.footer().file_bytes() } else { self.offset }
    }

    /// The complete run, open.
    ///
    /// # Panics
    /// Before it is [`WriterState::Done`]: a caller's error.
    #[must_use]
    pub fn into_run(self) -> (Run, FileId) {
        assert!(self.step == WriterStep::Done, "only a complete run is opened");
        (self.contents.into_run(&self.options), self.file)
    }

    /// Operations in flight.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Gives the run up: closes its file. Returns the file's name, to be unlinked.
    ///
    /// # Panics
    /// While operations are in flight: a caller's error.
    pub fn abandon<D: Device>(self, device: &mut D) -> String {
        assert!(self.in_flight == 0, "the device still has buffers of the run");
        device.close(self.file);
        run::file_name(self.options.header.uuid)
    }
}

impl Contents {
    pub(super) fn empty() -> Self {
        Self {
            last: None,
            starts: [0; SPACES + 1],
            bounds: [KeyBounds::NONE; SPACES],
            pages: 0,
            chain: PageChain::default(),
            facts: RecordFacts::default(),
            expiries: Expiries::default(),
            fences: FenceBuilder::default(),
            filters: Vec::new(),
            hashes: Vec::new(),
            filter_page: 0,
            tail_bytes: 0,
            tail: RunTail::default(),
        }
    }

    /// Counts a page that was written before, and those between the last one and it as corrupt ones. False: it is not intact.
    pub(super) fn take_page(&mut self, options: &RunWriterOptions, number: u32, bytes: &[u8]) -> bool {
        let Ok(page) = RunPage::decode(bytes, options.header.uuid, number) else { return false };
        let place = |record: &RunRecord<'_>| (record.space(), RingKey::of(&options.secret, record.key));
        // Fences of keys out of order do not exist.
        let places = self.last.into_iter().chain(page.records().map(|record| place(&record)));
        if !places.is_sorted_by(|place, next| place < next) {
            return false;
        }
        while self.pages < number {
            // Its keys are above the last one, and below those of the next page.
            self.begin_page(self.last.unwrap_or((Space::KEYS, RingKey::MIN)));
            self.pages += 1;
        }
        for (at, record) in page.records().enumerate() {
            let found = place(&record);
            if at == 0 {
                self.begin_page(found);
            }
            self.count(&record, found);
        }
        self.end_page(page.checksum(), options);
        true
    }

    /// The next page begins with this key.
    fn begin_page(&mut self, (space, key): (Space, RingKey)) {
        let space = usize::from(space.get());
        if self.starts[space] == self.pages {
            self.bounds[space].lowest = key;
        }
        self.starts[space + 1..].fill(self.pages + 1);
        self.fences.push(key);
    }

    fn count(&mut self, record: &RunRecord<'_>, found: (Space, RingKey)) {
        let (space, key) = found;
        if let Some((_, last)) = self.last.filter(|(last, _)| *last == space)
            && last.boundary() != key.boundary()
            && prefix_of(&last) == prefix_of(&key)
        {
            self.fences.note_shared_prefix(&key);
        }
        self.last = Some(found);
        self.bounds[usize::from(space.get())].highest = key;
        self.hashes.push(filter_hash(space, &key));
        self.facts.tombstones += u32::from(record.kind == RecordKind::Tombstone);
        self.facts.latest_expiry_ms = self.facts.latest_expiry_ms.max(record.expires_at_ms);
        self.facts.count_version(record.number, record.version);
    }

    fn end_page(&mut self, checksum: u32, options: &RunWriterOptions) {
        self.chain = self.chain.then(checksum);
        self.pages += 1;
        if self.hashes.len() >= options.filter_keys {
            self.end_filter(options.filter_bits);
        }
    }

    /// Builds the filter of the pages since the last one.
    fn end_filter(&mut self, bits: u8) {
        if !self.hashes.is_empty() {
            self.filters.push(filter::build(&self.hashes, bits, self.filter_page));
            self.hashes.clear();
            self.filter_page = self.pages;
        }
    }

    /// Builds the tail; no page follows.
    pub(super) fn end_tail(&mut self, filter_bits: u8) {
        self.end_filter(filter_bits);
        let fences = core::mem::take(&mut self.fences).finish(&self.starts, &self.bounds);
        let (facts, filters) = (self.facts.clone(), core::mem::take(&mut self.filters));
        self.tail = RunTail { facts, fences, filters };
    }

    fn footer(&self, header: RunHeader) -> RunFooter {
        let Self { starts, bounds, pages, chain, facts, expiries, tail_bytes, .. } = self;
        let (pages, tail_bytes, chain, expiries) = (*pages, *tail_bytes, *chain, *expiries);
        let records = facts.records();
        RunFooter { header, pages, records, tail_bytes, starts: *starts, bounds: *bounds, chain, expiries }
    }

    /// The run with this content, open.
    pub(super) fn into_run(self, options: &RunWriterOptions) -> Run {
        let footer = self.footer(options.header);
        let RunTail { facts, fences, filters } = self.tail;
        let Ok(fences) = Fences::load(fences, &footer) else { unreachable!("these fences were just made") };
        let name = run::file_name(footer.header.uuid);
        Run { name, footer, secret: options.secret, facts, fences, filters }
    }
}
