//! Sequencer of a range with one member: assigns versions and decides commits.
//!
//! With one member the head is the tail: versions are dense in the epoch of this open, and
//! a version is committed once the log's watermark of the durability mode reaches it. Members of a chain use
//! `fawn_chain::Replica` instead.
use fawn_ds::internals::Progress;
use fawn_types::{Durability, Epoch, RangeId, Version};

/// One range's sequencer.
#[derive(Debug)]
pub(crate) struct Replica {
    range: RangeId,
    durability: Durability,
    /// Newest version assigned.
    assigned: Version,
    committed: Version,
}

impl Replica {
    /// Starts the epoch, which must be above every earlier one of this store.
    pub(crate) fn new(range: RangeId, epoch: Epoch, durability: Durability, progress: Progress) -> Self {
        let base = Version::new(epoch, 0).unwrap_or(progress.appended);
        assert!(progress.appended < base || progress.appended.seq() == 0, "an epoch is used once: {epoch:?}");
        Self { range, durability, assigned: base, committed: base }
    }

    pub(crate) const fn range(&self) -> RangeId {
        self.range
    }

    /// The next `count` versions; `None` when the epoch is used up. They count as assigned after [`Replica::assigned`].
    pub(crate) fn assign(&self, count: u64) -> Option<Version> {
        let last = Version::new(self.assigned.epoch(), self.assigned.seq() + count)?;
        (last.seq() <= Version::SEQ_SOFT_MAX).then(|| self.assigned.next())?
    }

    /// The log accepted the versions up to `through`.
    pub(crate) fn assigned(&mut self, through: Version) {
        assert!(through > self.assigned, "sequence numbers are used once: {through:?} after {:?}", self.assigned);
        self.assigned = through;
    }

    pub(crate) const fn last_assigned(&self) -> Version {
        self.assigned
    }

    pub(crate) const fn committed(&self) -> Version {
        self.committed
    }

    /// Number of versions assigned and not committed.
    pub(crate) const fn uncommitted(&self) -> u64 {
        self.assigned.seq() - self.committed.seq()
    }

    /// The version whose commit a reader of `seen` must wait for; none if it is committed.
    pub(crate) fn wait_for(&self, seen: Version) -> Option<Version> {
        (seen > self.committed).then_some(seen)
    }

    /// The version to commit through, if the watermarks allow any further.
    pub(crate) fn advance(&mut self, progress: Progress) -> Option<Version> {
        let reached = progress.kept_under(self.durability);
        assert!(reached <= self.assigned || self.uncommitted() == 0, "{reached:?} was never assigned");
        if reached <= self.committed {
            return None;
        }
        self.committed = reached;
        Some(reached)
    }
}
