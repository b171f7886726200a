//! Owns what a node tells about itself: counters, and where each of its chain members stands.
use fawn_types::{Durability, Epoch, RangeId, Version};

/// Counts since the node's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackEndCounters {
    /// Reads answered.
    pub reads: u64,
    /// Records appended as head.
    pub writes: u64,
    /// Operations answered as tail.
    pub replies: u64,
    /// Requests that waited for a device read.
    pub cold: u64,
    /// Requests refused: stale epoch, wrong range, overload.
    pub refused: u64,
    /// Retries answered from completions, not done again.
    pub retries_answered: u64,
    /// Requests that do not decode, or name another's session.
    pub malformed: u64,
    /// Record bytes sent to peers.
    pub records_sent_bytes: u64,
    /// Records appended from peers.
    pub records_received: u64,
    /// Frames of which the log did not take all records.
    pub frames_cut: u64,
    /// Copies of ranges begun here, because no donor's log reached back far enough.
    pub copies: u64,
    /// What must not happen and did, without harm.
    pub alarms: u64,
}

/// One chain member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberStatus {
    /// The range.
    pub range: RangeId,
    /// Its promised epoch.
    pub epoch: Epoch,
    /// Its phase in one word: idle, prepared, …, head, middle, tail, single, syncing, copying; failed, broken.
    pub phase: &'static str,
    /// When a write of its epoch counts as kept.
    pub durability: Durability,
    /// The end of its log.
    pub last: Version,
    /// Known to be committed.
    pub committed: Version,
    /// Keys indexed.
    pub keys: u64,
    /// While it is fully resynced: keys so far, and about how many there are.
    pub copied: Option<(u64, u64)>,
    /// Why it cannot go on, if so.
    pub broken: Option<String>,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeStatus {
    /// Its chain members.
    pub members: Vec<MemberStatus>,
    /// Of its back-end.
    pub counters: BackEndCounters,
    /// Requests that wait for a device read.
    pub parked: usize,
    /// Operations submitted here and not answered.
    pub under_way: usize,
    /// Frames dropped because a peer's buffer was full.
    pub frames_dropped: u64,
    /// Activations by the manager hosted here that may have lost acked writes.
    pub possible_losses: u64,
    /// Members that the manager hosted here dropped for more than silence.
    pub members_dropped: u64,
    /// The failure that ended its store's writes, if any.
    pub poisoned: Option<String>,
}
