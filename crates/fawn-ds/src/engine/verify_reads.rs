//! Reads of verifications in flight: one that hangs is left in flight, so that it counts no more against their maximum number.
use super::fetch::ReadSpan;
use crate::format::RangeNumber;
use crate::log::failures::HANGING_MS;
use crate::overlay::KeyName;
use fawn_types::MonoMs;

/// Reads that are left in flight at most. Keys whose old version is in a page of one need no further read.
const LEFT_MAX: usize = 64;

/// A read for one key's verification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VerifyRead {
    pub(crate) id: u64,
    pub(crate) at: usize,
    /// The range's number: another range may have its place by the end of the read.
    pub(crate) number: RangeNumber,
    pub(crate) name: KeyName,
    pub(crate) is_deferred: bool,
    pub(crate) span: ReadSpan,
    since: MonoMs,
    is_left: bool,
}

impl VerifyRead {
    const fn may_be_left(&self) -> bool {
        !self.is_left && !self.is_deferred
    }
}

/// All of them, in the order of their submission.
#[derive(Debug, Default)]
pub(crate) struct VerifyReads {
    reads: Vec<VerifyRead>,
    last_id: u64,
    left: usize,
    deferred: usize,
}

impl VerifyReads {
    /// Number of reads in flight but the ones that were left.
    pub(crate) const fn len(&self) -> usize {
        self.reads.len() - self.left
    }

    /// Number of them for keys that an opening deferred. None of these is left: nothing waits for their keys.
    pub(crate) const fn deferred(&self) -> usize {
        self.deferred
    }

    /// Enters a read that is submitted now. Returns its id.
    pub(crate) fn begin(
        &mut self,
        (at, number): (usize, RangeNumber),
        name: KeyName,
        span: ReadSpan,
        is_deferred: bool,
        since: MonoMs,
    ) -> u64 {
        self.last_id += 1;
        self.deferred += usize::from(is_deferred);
        let id = self.last_id;
        self.reads.push(VerifyRead { id, at, number, name, is_deferred, span, since, is_left: false });
        id
    }

    /// Removes a read that has ended.
    pub(crate) fn end(&mut self, id: u64) -> VerifyRead {
        let place = self.reads.iter().position(|read| read.id == id);
        let Some(place) = place else { unreachable!("a read ends once") };
        let read = self.reads.remove(place);
        self.deferred -= usize::from(read.is_deferred);
        self.left -= usize::from(read.is_left);
        read
    }

    /// Time by which the oldest read hangs that may be left then.
    pub(crate) fn leave_at(&self) -> Option<MonoMs> {
        if self.left >= LEFT_MAX {
            return None;
        }
        self.reads.iter().find(|read| read.may_be_left()).map(|read| read.since.plus_ms(HANGING_MS))
    }

    /// The oldest read if it hangs. It counts no more.
    pub(crate) fn leave_hanging(&mut self, now: MonoMs) -> Option<VerifyRead> {
        self.leave_at().filter(|at| now >= *at)?;
        let read = self.reads.iter_mut().find(|read| read.may_be_left())?;
        read.is_left = true;
        self.left += 1;
        Some(*read)
    }

    /// Whether the oldest read hangs, and as many were left before as may be: others are likely to wait as long.
    pub(crate) fn has_left_most(&self, now: MonoMs) -> bool {
        let hangs = |read: &VerifyRead| now >= read.since.plus_ms(HANGING_MS);
        self.left >= LEFT_MAX && self.reads.iter().find(|read| read.may_be_left()).is_some_and(hangs)
    }

    /// Whether a read that was left is of a page of this one.
    pub(crate) fn hangs(&self, span: &ReadSpan) -> bool {
        self.left > 0 && self.reads.iter().any(|read| read.is_left && read.span.overlaps(span))
    }
}
