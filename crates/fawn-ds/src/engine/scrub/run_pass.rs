//! One pass of the scrub over a run: the check of its pages, then of its ends as an opening reads them.
use super::ScrubFinding;
use super::pass::Judged;
use crate::format::run::{FOOTER_BYTES, HEADER_BYTES};
use crate::sorted::{Run, RunCheck, RunError};
use core::ops::Range;
use fawn_flash::buffer::PAGE_BYTES;

/// A pass in progress; the file's bytes are pushed in order, from its start.
#[derive(Debug)]
pub(super) struct RunPass {
    check: RunCheck,
    /// The block before the pages, and the bytes behind them.
    header: Vec<u8>,
    end: Vec<u8>,
    /// The error of a read that failed too often: pages that cannot be read are passed. `None`: the file is read again.
    unreadable: Option<String>,
}

impl RunPass {
    pub(super) fn new(run: &Run, unreadable: Option<String>) -> Self {
        let end_bytes = run.footer().file_bytes() - run.footer().tail_offset();
        let (header, end) = (Vec::with_capacity(HEADER_BYTES), Vec::with_capacity(end_bytes as usize));
        Self { check: RunCheck::new(run), header, end, unreadable }
    }

    pub(super) const fn passes_unreadable(&self) -> bool {
        self.unreadable.is_some()
    }

    /// Takes the next bytes of the file, whole pages from this offset on.
    pub(super) fn push(&mut self, run: &Run, mut bytes: &[u8], at: u64) {
        if at == 0 {
            let (header, pages) = bytes.split_at(HEADER_BYTES.min(bytes.len()));
            self.header.extend_from_slice(header);
            bytes = pages;
        }
        while !bytes.is_empty()
            && let Some(read) = self.check.next_read(bytes.len())
        {
            let (pages, rest) = bytes.split_at(read.len_bytes);
            self.check.feed(run, read, pages.to_vec());
            bytes = rest;
        }
        self.end.extend_from_slice(bytes);
    }

    /// Ends the pass over the run.
    pub(super) fn judge(self, run: &Run) -> Judged {
        let Self { check, header, end, unreadable } = self;
        let mut errors = check.finish(run);
        let (tail, footer) = end.split_at(end.len().saturating_sub(FOOTER_BYTES));
        errors.extend(Run::load(run.header(), run.secret(), &header, footer, tail).err());
        if errors.is_empty() {
            return Judged::Sound;
        }
        Judged::Lost(errors.into_iter().map(|error| finding_of(run, error, unreadable.as_deref())).collect())
    }

    /// Bytes of pages that wait for the next ones, and of the ends.
    pub(super) fn resident_bytes(&self) -> usize {
        self.check.resident_bytes() + self.header.capacity() + self.end.capacity()
    }
}

fn finding_of(run: &Run, error: RunError, unreadable: Option<&str>) -> ScrubFinding {
    let (tail_offset, file_bytes) = (run.footer().tail_offset(), run.footer().file_bytes());
    let (bytes, detail): (Range<u64>, String) = match error {
        RunError::Corrupt { offset_bytes, detail, .. } if offset_bytes < tail_offset => {
            (offset_bytes..offset_bytes + PAGE_BYTES as u64, detail)
        }
        RunError::Corrupt { offset_bytes, detail, .. } => (offset_bytes..file_bytes, detail),
        // The header's or the footer's.
        error => (0..file_bytes, error.to_string()),
    };
    let detail = unreadable.map_or(detail, str::to_owned);
    // Its records could not be counted.
    ScrubFinding { file: run.name().to_owned(), bytes, records: 1, detail }
}
