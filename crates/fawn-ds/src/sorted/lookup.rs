//! Lookup in a run: a plan of one page read, resumed with the page's bytes.
//!
//! One key in 256 shares its coordinate with a fence and has two candidate pages. The page that was read decides: its
//! first and last ring key say whether the key's place is in it, before it or behind it.
use super::{PageSpan, Run, RunError};
use crate::format::run::page::RunPage;
use crate::format::run::{RunRecord, Space, page_offset};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::RingKey;

/// Result of a lookup's step.
#[derive(Debug)]
pub enum RunLookup<'p> {
    /// The run's record of the key: a put, expired or not, or a tombstone.
    Found(RunRecord<'p>),
    /// The run has no record of the key.
    Absent,
    /// Read [`RunPlan::READ_BYTES`] at [`RunPlan::offset`], then pass them to [`Run::resume`].
    Read(RunPlan),
}

/// A lookup that waits for a page. One pointer, as a lookup's plan of the log.
#[derive(Debug)]
pub struct RunPlan(Box<RunPlanParams>);

#[derive(Debug)]
struct RunPlanParams {
    space: Space,
    ring_key: RingKey,
    key: Box<[u8]>,
    /// Pages that are still candidates.
    span: PageSpan,
    page: u32,
    /// Whether the page before the first candidate was read, and is below the key.
    is_lower_read: bool,
}

impl RunPlan {
    /// Size of its device read, bytes.
    pub const READ_BYTES: usize = PAGE_BYTES;

    /// Offset of its device read in the run's file, bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        page_offset(self.0.page)
    }

    /// The key of the lookup.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.0.key
    }

    fn new(mut params: Box<RunPlanParams>) -> Self {
        let PageSpan { first, last } = params.span;
        params.page = last - (last - first) / 2;
        Self(params)
    }
}

impl Run {
    /// Looks up `key`, which has this ring key.
    #[must_use]
    pub fn lookup(&self, space: Space, ring_key: RingKey, key: &[u8]) -> RunLookup<'static> {
        match self.candidates(space, &ring_key) {
            None => RunLookup::Absent,
            Some(span) => {
                let params =
                    RunPlanParams { space, ring_key, key: key.into(), span, page: span.last, is_lower_read: false };
                RunLookup::Read(RunPlan::new(Box::new(params)))
            }
        }
    }

    /// Continues a plan with the bytes of its page.
    ///
    /// # Errors
    /// [`RunError::Corrupt`] if they are other bytes than were written there, or contradict the fences.
    pub fn resume<'p>(&self, plan: RunPlan, bytes: &'p [u8]) -> Result<RunLookup<'p>, RunError> {
        let RunPlan(mut params) = plan;
        let page = params.page;
        let content =
            RunPage::decode(bytes, self.footer.header.uuid, page).map_err(|error| self.corrupt(page, error))?;
        let Some((first, last)) = content.ends() else { return Err(self.corrupt(page, "no record")) };
        if first.space() != params.space {
            return Err(self.corrupt(page, "a page of another space"));
        }
        if let Some(record) = content.find(&params.key) {
            return Ok(RunLookup::Found(record));
        }
        if params.ring_key < RingKey::of(&self.secret, first.key) {
            if page == params.span.first {
                return self.before_first(&params);
            }
            params.span.last = page - 1;
        } else if params.ring_key <= RingKey::of(&self.secret, last.key) || page == params.span.last {
            return Ok(RunLookup::Absent);
        } else {
            params.span.first = page + 1;
            params.is_lower_read = true;
        }
        Ok(RunLookup::Read(RunPlan::new(params)))
    }

    /// The key is below the first candidate's records: absent if the page before was read, or the space begins there.
    /// Otherwise the fence, which is certainly below the key, is not this page's.
    fn before_first(&self, params: &RunPlanParams) -> Result<RunLookup<'static>, RunError> {
        let start = self.footer.starts[usize::from(params.space.get())];
        if params.is_lower_read || start == params.page {
            return Ok(RunLookup::Absent);
        }
        Err(self.corrupt(params.page, "its first key is above that of its fence"))
    }
}
