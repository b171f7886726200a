//! Effects that a replica requests of its host, in order, and the results of its events.
use crate::map::RangeEntry;
use crate::message::{Frame, TransferCursor};
use fawn_types::{BootId, Durability, Epoch, MemberId, Version};

/// State that a host persists for each of its replicas.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PersistedState {
    /// The greatest epoch that this member promised; it never acts below it.
    pub promised: Epoch,
    /// The newest entry that this member knows, for rebuilding a lost map. No command does so yet.
    pub entry: Option<RangeEntry>,
    /// Durability mode of the last epoch that the log agrees with. The entry may be newer, and of another mode.
    pub log_durability: Durability,
    /// The mark of a clean shutdown. The next promise removes it.
    pub closed: Option<Closed>,
}

/// The mark of a boot that was cleanly shut down. Everything that the boot acknowledged is in its log, the log is
/// synced, and it has not changed since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed {
    /// The boot that wrote the mark.
    pub boot: BootId,
    /// The last version of its log.
    pub last: Version,
    /// The earlier boot that it continued without loss, if it does not know whether it ever served itself. The log then
    /// also contains everything that the earlier boot acknowledged.
    pub before: Option<BootId>,
}

/// An effect. The host executes effects in the order polled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaOutput {
    /// Advance the index through this version and make it readable; at the tail, also send the replies that wait.
    Commit {
        /// The last committed version; cumulative.
        through: Version,
    },
    /// Drop every record above `after`, before anything else is appended: none of them was committed.
    Rollback {
        /// The last version to keep.
        after: Version,
    },
    /// Durably discard this copy of the range. A transfer based on `base` begins, and the log continues above `base`.
    BeginTransfer {
        /// The base chosen by the tail.
        base: Version,
    },
    /// All chunks were accepted: make the copy durable, then call `handle_transfer_finished(base)`. Repeated until
    /// then.
    FinishTransfer {
        /// The base of the transfer.
        base: Version,
    },
    /// Read the next chunk from `cursor` on, of the records committed at or below `base`. Send it as `Transfer` with
    /// the header that `handle_transfer_read` returns.
    SendTransfer {
        /// The receiver.
        to: MemberId,
        /// The base of the transfer.
        base: Version,
        /// The start of the chunk.
        cursor: TransferCursor,
    },
    /// Store this durably, then call `handle_persisted(number)`. The promise in it must be on disk **before** the
    /// manager receives it, so the `Report` is output only after `handle_persisted`.
    Persist {
        /// To pass to `handle_persisted`.
        number: u64,
        /// The state; replaces the previous one.
        state: PersistedState,
    },
    /// Sync the log now, in every durability mode: the handshake waits for it.
    Sync,
    /// A frame to a peer. It may be lost or reordered; the replica repeats it until answered.
    Send {
        /// The receiver.
        to: MemberId,
        /// The frame.
        frame: Frame<'static>,
    },
    /// A frame to the manager, whichever shard hosts it.
    SendManager {
        /// The frame.
        frame: Frame<'static>,
    },
    /// Replay the log from above `after` through at most `through`: up to `bytes_max` bytes, but at least one record.
    /// Pass the outcome to `handle_replayed`, which returns the frame to send these records in.
    SendRecords {
        /// The receiver.
        to: MemberId,
        /// The receiver holds everything through this version.
        after: Version,
        /// The last version to send.
        through: Version,
        /// Maximum encoded bytes: free bytes of the link's window, or the limit of a frame.
        bytes_max: u32,
    },
    /// This member serves in `epoch` from now on; rejected requests may be retried.
    NowServing {
        /// The new epoch.
        epoch: Epoch,
    },
    /// This member no longer serves; reply "try again" to the operations that wait here.
    Stopped,
    /// A protocol violation was detected and had no effect: count and log it.
    Alarm(Alarm),
}

/// A protocol violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Alarm {
    /// **committed-survives** would be violated, so this member refuses to join the new epoch.
    #[error("asked to cut the log to {cut:?} below the committed {committed:?}: refused; compare the copies")]
    CutBelowCommitted {
        /// The requested end of the log.
        cut: Version,
        /// The last version that this member knows to be committed.
        committed: Version,
    },
    /// A peer acknowledged versions that this member does not hold.
    #[error("peer {from:?} acknowledges {claimed:?}, this log ends at {last:?}: ignored")]
    AckBeyondLog {
        /// The peer.
        from: MemberId,
        /// The acknowledged version.
        claimed: Version,
        /// The end of this member's log.
        last: Version,
    },
}

/// Instruction to the host about the records of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum FrameVerdict {
    /// Ignore the frame's records: there are none, or they are duplicates or of another epoch.
    Nothing,
    /// Append the records with `after < version <= through`. If the log rejects them, call `retract`.
    Append {
        /// Records through this version are already in the log.
        after: Version,
        /// The last record's version.
        through: Version,
    },
    /// Append these transferred records, then call `handle_transferred(next)`. If the log rejects any of them now, do
    /// not call it: they are sent again, and appending some of them twice is harmless.
    Transfer {
        /// To pass to `handle_transferred`.
        next: TransferCursor,
    },
}

/// Outcome of `SendRecords`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// The records above `after` through `last`.
    Records {
        /// The last record's version.
        last: Version,
        /// Encoded bytes of all the records.
        bytes: u32,
    },
    /// The log no longer holds these records, or cannot read them.
    Gone,
}

/// Watermarks of this member's own log of the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogProgress {
    /// Last version in memory.
    pub appended: Version,
    /// Last version that survives `kill -9`.
    pub flushed: Version,
    /// Last version that survives power loss.
    pub synced: Version,
}

/// Reason why a replica rejects a read or a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    /// No active epoch: the chain is changing.
    #[error("range unavailable, try again")]
    NotServing,
    /// The request has another epoch; reply with the newest entry.
    #[error("epoch {asked:?} asked, {current:?} is current: refresh the map, then retry")]
    StaleEpoch {
        /// The request's epoch.
        asked: Epoch,
        /// This member's epoch.
        current: Epoch,
    },
    /// Another member has the role that the request needs.
    #[error("not this member's part of the chain: ask {right:?}")]
    WrongMember {
        /// The member with that role, if known.
        right: Option<MemberId>,
    },
    /// Fewer members serve than a write needs.
    #[error("too few copies for writes until a member was added, try again")]
    TooFewCopies,
    /// Too many writes are uncommitted.
    #[error("overloaded, try again")]
    Overloaded,
    /// The epoch's sequence numbers are nearly used up; the manager must begin a new epoch.
    #[error("sequence numbers of the epoch are used up: a new epoch is needed, try again")]
    EpochFull,
}
