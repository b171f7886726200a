//! Check of a run: all pages, in sequential chunks, against its counts, facts, fences and filters.
use super::source::SourceHead;
use super::{PageSpan, ReadRange, Run, RunError, RunSource};
use crate::format::Expiries;
use crate::format::record::RecordKind;
use crate::format::run::{KeyBounds, SPACES};
use crate::format::segment::RecordFacts;

/// Reads all of a run, and finds every difference from what is written about it.
#[derive(Debug)]
pub struct RunCheck {
    source: RunSource,
    facts: RecordFacts,
    expiries: Expiries,
    bounds: [KeyBounds; SPACES],
    has_records: [bool; SPACES],
    damage: Vec<RunError>,
}

impl RunCheck {
    /// Faults that are listed at most; a run with more is no better known.
    const DAMAGE_MAX: usize = 100;

    /// A check from the first page on.
    #[must_use]
    pub fn new(run: &Run) -> Self {
        let (facts, expiries, bounds) = (RecordFacts::default(), Expiries::default(), [KeyBounds::NONE; SPACES]);
        Self { source: RunSource::all(run), facts, expiries, bounds, has_records: [false; SPACES], damage: Vec::new() }
    }

    /// The next read; `None`: [`Self::finish`].
    pub fn next_read(&mut self, bytes_max: usize) -> Option<ReadRange> {
        self.source.next_read(bytes_max)
    }

    /// Checks the bytes of a read.
    pub fn feed(&mut self, run: &Run, range: ReadRange, bytes: Vec<u8>) {
        self.source.feed(range, bytes);
        loop {
            match self.check_record(run) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    self.note(error);
                    self.source.skip_page();
                }
            }
        }
    }

    /// Checks the next record; false if there is none.
    fn check_record(&mut self, run: &Run) -> Result<bool, RunError> {
        let page = self.source.page();
        let SourceHead::Record(ring_key, record) = self.source.head()? else { return Ok(false) };
        let space = record.space();
        let at = usize::from(space.get());
        if !core::mem::replace(&mut self.has_records[at], true) {
            self.bounds[at].lowest = ring_key;
        }
        self.bounds[at].highest = ring_key;
        self.facts.tombstones += u32::from(record.kind == RecordKind::Tombstone);
        self.facts.latest_expiry_ms = self.facts.latest_expiry_ms.max(record.expires_at_ms);
        self.facts.count_version(record.number, record.version);
        let base = run.footer.expiries.base();
        if record.expires_at_ms > base.0 {
            self.expiries.add(record.encoded_len() as u32, record.expires_at_ms, base);
        }
        let is_located = |PageSpan { first, last }: PageSpan| (first..=last).contains(&page);
        if !run.locate(space, &ring_key).is_some_and(is_located) {
            let error = run.corrupt(page, format!("the fences lead {ring_key:?} elsewhere"));
            self.note(error);
        } else if !run.may_contain(space, &ring_key) {
            let error = run.corrupt(page, format!("the filter lacks {ring_key:?}"));
            self.note(error);
        }
        self.source.advance()?;
        Ok(true)
    }

    /// Memory of the pages fed and not yet passed, bytes.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.source.resident_bytes()
    }

    fn note(&mut self, error: RunError) {
        if self.damage.len() < Self::DAMAGE_MAX {
            self.damage.push(error);
        }
    }

    /// The faults found; none if the run is intact.
    #[must_use]
    pub fn finish(mut self, run: &Run) -> Vec<RunError> {
        let end = run.footer.pages;
        if !self.damage.is_empty() {
            // The counts of the rest differ because of it.
            return self.damage;
        }
        // Earlier builds did not count them.
        let has_expiries = [self.expiries, Expiries::default()].contains(&run.footer.expiries);
        for (is_equal, what) in [
            (self.source.chain() == run.footer.chain, "the pages are others than the footer's"),
            (self.facts == run.facts, "the records have other facts"),
            (self.bounds == run.footer.bounds, "the records have other bounds"),
            (has_expiries, "the records have other expiries"),
            (self.source.pages_left() == 0, "not all pages were read"),
        ] {
            if !is_equal {
                let error = run.corrupt(end, what);
                self.note(error);
            }
        }
        self.damage
    }
}
