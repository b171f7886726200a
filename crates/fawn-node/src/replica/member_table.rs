//! Table of a shard's chain members: each one's replica, completions, and the state of its log.
use fawn_chain::{Completions, Replica};
use fawn_ds::internals::LogPosition;
use fawn_types::{MonoMs, RangeId, Version};
use std::ops::{Index, IndexMut};

/// Index of a member in its table. Members are only added, so it stays valid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct RangeSlot(u32);

impl RangeSlot {
    /// The member of a shard with one range.
    pub(crate) const ONLY: Self = Self(0);
}

/// One chain member of this shard.
#[derive(Debug)]
pub(crate) struct HostedMember {
    pub(crate) id: RangeId,
    pub(crate) replica: Replica,
    pub(crate) completions: Completions,
    /// When front-ends may be asked again to acknowledge their results.
    pub(crate) acknowledge_at: MonoMs,
    pub(crate) transfer: TransferProgress,
    /// A cut that is due. Until it is made, the member ignores records and acks.
    pub(crate) cut: Option<Cut>,
    /// The log rejected records of the predecessor: they are requested again.
    pub(crate) rejected: Option<RejectedRecords>,
    /// Why this member is unusable until a restart. The member reports the failure to the manager, which drops it.
    pub(crate) broken: Option<String>,
}

/// A cut of a member's log that waits for buffers or space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) after: Version,
    pub(crate) look_at: MonoMs,
}

/// When records that the log rejected are requested again: after a write has freed buffers, or at a time, because other
/// memory and the next segment become free without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RejectedRecords {
    /// The store's flushed end when it rejected them.
    pub(crate) flushed: LogPosition,
    pub(crate) look_at: MonoMs,
}

/// State while the store empties the range before a transfer. The member ignores all frames until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferBegin {
    pub(crate) base: Version,
    /// The store has accepted the request and is making it durable.
    pub(crate) is_started: bool,
    /// The store has refused the request: that was logged.
    pub(crate) was_refused: bool,
    pub(crate) look_at: MonoMs,
}

/// Progress of the transfer into a member's own copy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransferProgress {
    pub(crate) begin: Option<TransferBegin>,
    /// Base of a transfer that is completely in the log and is becoming durable.
    pub(crate) finishing: Option<Version>,
    /// Session and number of the last result received. Senders order results by these.
    pub(crate) last_result: Option<(u64, u64)>,
    /// Keys received so far.
    pub(crate) keys: u64,
    /// Approximate total, from the sender's key count.
    pub(crate) keys_estimated: u64,
}

impl HostedMember {
    pub(crate) fn new(replica: Replica, completions: Completions) -> Self {
        let (id, acknowledge_at, transfer) = (replica.range(), MonoMs(0), TransferProgress::default());
        Self { id, replica, completions, acknowledge_at, transfer, cut: None, rejected: None, broken: None }
    }

    /// Whether the member accepts frames; not while the store discards its old copy.
    pub(crate) const fn is_receiving(&self) -> bool {
        self.transfer.begin.is_none() && self.cut.is_none()
    }

    pub(crate) fn next_timeout(&self) -> Option<MonoMs> {
        let waits_until = self.transfer.begin.map(|begin| begin.look_at).or(self.cut.map(|cut| cut.look_at));
        let look_at = self.rejected.map(|rejected| rejected.look_at);
        waits_until.or_else(|| self.replica.next_timeout().into_iter().chain(look_at).min())
    }
}

/// All chain members of a shard.
#[derive(Debug, Default)]
pub(crate) struct MemberTable(Vec<HostedMember>);

impl MemberTable {
    pub(crate) fn push(&mut self, member: HostedMember) {
        self.0.push(member);
    }

    /// The member of this range, if there is one.
    pub(crate) fn find(&self, range: RangeId) -> Option<RangeSlot> {
        self.0.iter().position(|member| member.id == range).map(|at| RangeSlot(at as u32))
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = RangeSlot> + use<> {
        (0..self.0.len() as u32).map(RangeSlot)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &HostedMember> {
        self.0.iter()
    }
}

impl Index<RangeSlot> for MemberTable {
    type Output = HostedMember;

    #[inline]
    fn index(&self, slot: RangeSlot) -> &HostedMember {
        &self.0[slot.0 as usize]
    }
}

impl IndexMut<RangeSlot> for MemberTable {
    #[inline]
    fn index_mut(&mut self, slot: RangeSlot) -> &mut HostedMember {
        &mut self.0[slot.0 as usize]
    }
}
