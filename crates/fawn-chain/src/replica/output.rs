//! Owns what a replica asks of its node: effects with their order, and the answers to its events.
use crate::map::RangeEntry;
use crate::message::{Frame, TransferCursor};
use fawn_types::{BootId, Epoch, NodeId, Version};

/// What a node keeps for each of its replicas, durably.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PersistedState {
    /// The greatest epoch this node promised to, and so will never act below.
    pub promised: Epoch,
    /// The newest entry it knows: what `cluster recover-manager` rebuilds a lost map from.
    pub entry: Option<RangeEntry>,
    /// Where a boot that was cleanly shut down left the log. The next promise takes it away.
    pub closed: Option<Closed>,
}

/// The mark of a boot that was cleanly shut down: it acknowledged nothing that is not in its log, all of that is
/// synced, and nothing was done to the log since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed {
    /// Which boot.
    pub boot: BootId,
    /// The end of its log.
    pub last: Version,
    /// The boot that it went on from in turn without having lost anything, where it does not know that it ever served:
    /// what was acked then is here just as well.
    pub before: Option<BootId>,
}

/// An effect. Carried out in the order polled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaOutput {
    /// The index moves through here, waiting replies go out (at the tail), everything through here is readable.
    Commit {
        /// Cumulative.
        through: Version,
    },
    /// Drop every record above `after` from the log, before anything else is appended: it was never committed.
    Rollback {
        /// What stays.
        after: Version,
    },
    /// Discard all there is of the range, durably: it becomes a copy under way that stands on `base`, and the log goes on
    /// after that.
    BeginTransfer {
        /// As the tail named it.
        base: Version,
    },
    /// All parts of the copy were taken: have it durably whole, then call `handle_copy_finished(base)`. Asked for again
    /// until then.
    FinishTransfer {
        /// Which copy.
        base: Version,
    },
    /// Look up the next part of what is committed here at or below `base`, from `cursor` on, and send it as `Transfer`
    /// under `transfer_header(to)`.
    SendTransfer {
        /// To whom.
        to: NodeId,
        /// What the copy stands on.
        base: Version,
        /// Where the part begins.
        cursor: TransferCursor,
    },
    /// Keep this durably, then call `handle_persisted(number)`. The promise in it must be on the disk **before** the
    /// manager hears of it: the `Report` is therefore only given out after `handle_persisted`.
    Persist {
        /// To give back.
        number: u64,
        /// What to keep; replaces what was kept before.
        state: PersistedState,
    },
    /// Sync the log now whatever the durability mode: the handshake waits for it.
    Sync,
    /// A frame to a peer. Unordered with respect to earlier ones and may be lost: everything is repeated until answered.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frame: Frame<'static>,
    },
    /// A frame to wherever the manager is.
    SendManager {
        /// What.
        frame: Frame<'static>,
    },
    /// Replay the log from above `after`, at most `bytes_max` bytes (one record at least) and nothing above `through`;
    /// give the outcome to `handle_replayed`, which answers with the header to send these records under.
    SendRecords {
        /// To whom.
        to: NodeId,
        /// The receiver holds everything through here.
        after: Version,
        /// Not beyond.
        through: Version,
        /// The window's free part.
        bytes_max: u32,
    },
    /// This member serves in `epoch` from now on; requests may be tried again.
    NowServing {
        /// Since.
        epoch: Epoch,
    },
    /// This member serves no more; operations that wait here are answered with "try again".
    Stopped,
    /// Something that must not happen did, without harm so far: count it, log it.
    Alarm(Alarm),
}

/// What must not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Alarm {
    /// **committed-survives** would break: this member refuses to join the new epoch.
    #[error("asked to cut the log to {cut:?} below the committed {committed:?}: refused; compare the copies")]
    CutBelowCommitted {
        /// As asked.
        cut: Version,
        /// As known here.
        committed: Version,
    },
    /// An ack beyond what was sent, or kept here.
    #[error("peer {from:?} acknowledges {claimed:?}, this log ends at {last:?}: ignored")]
    AckBeyondLog {
        /// The peer.
        from: NodeId,
        /// Its claim.
        claimed: Version,
        /// What there is.
        last: Version,
    },
}

/// What the node does with the records of a frame it handed in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum FrameVerdict {
    /// Nothing: no records, duplicates, or not for this epoch.
    Nothing,
    /// Append those with `after < version`, all the way to `through`. If the log cannot take them, `retract`.
    Append {
        /// These are here already.
        after: Version,
        /// The last one.
        through: Version,
    },
    /// Take these copied records into the log, then call `handle_copied(next)`. If the log does not take all of them now,
    /// do not: taking some of them twice is harmless.
    Transfer {
        /// To give back.
        next: TransferCursor,
    },
}

/// What came of `SendRecords`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// Records above `after` through `last`, so many encoded bytes.
    Records {
        /// The last one's version.
        last: Version,
        /// All of them.
        bytes: u32,
    },
    /// The log no longer holds them.
    Gone,
}

/// How far this member's own log of the range is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogProgress {
    /// In memory.
    pub appended: Version,
    /// Survives `kill -9`.
    pub flushed: Version,
    /// Survives power loss.
    pub synced: Version,
}

/// Why a read or write is not done here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    /// No active epoch: the chain is changing.
    #[error("range unavailable, try again")]
    NotServing,
    /// The request names another epoch; answer with the newest entry.
    #[error("epoch {asked:?} asked, {current:?} is current: refresh the map, then retry")]
    StaleEpoch {
        /// As named.
        asked: Epoch,
        /// As known here.
        current: Epoch,
    },
    /// Another member's part.
    #[error("not this member's part of the chain: ask {right:?}")]
    WrongMember {
        /// Whose.
        right: Option<NodeId>,
    },
    /// Fewer members serve than a write is to survive on.
    #[error("too few copies for writes until a member was added, try again")]
    TooFewCopies,
    /// Too many writes wait for their commit.
    #[error("overloaded, try again")]
    Overloaded,
    /// Sequence numbers of this epoch are nearly used up; the manager must begin a new one.
    #[error("sequence numbers of the epoch are used up: a new epoch is needed, try again")]
    EpochFull,
}
