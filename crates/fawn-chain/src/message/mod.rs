//! Peer frames: the messages between replicas, managers and front-ends.
//!
//! Every frame contains `(from, range, epoch, boot)`. A receiver in another epoch replies with the newer side's entry
//! [replication.md §2.1]. A frame of a peer's former boot is dropped.
mod decode;
mod encode;
mod stream;
mod transfer;

pub use decode::decode_frame;
pub use encode::encode_frame;
pub use stream::{FrameStream, StreamError};
pub use transfer::TransferCursor;

use crate::boots::BootsMessage;
use crate::map::RangeEntry;
use alloc::vec::Vec;
use fawn_types::{BootId, ClientTag, Epoch, MemberId, RangeId, TimeMs, Version, limits};

/// Bytes before a frame's body: checksum, body length, kind, layout version, check of these three.
pub const PREFIX_BYTES: usize = 16;
/// Maximum length of a whole frame. It fits one record with a value and, as its result, a former value, both of maximum
/// length. Batches of records are far smaller.
pub const FRAME_BYTES_MAX: usize = 17 << 20;

const _: () = assert!(FRAME_BYTES_MAX > 2 * limits::VALUE_BYTES_MAX + limits::KEY_BYTES_MAX + 4096);
/// Layout of every frame.
pub const FRAME_VERSION: u8 = 8;

/// Sender and subject of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The sending shard.
    pub from: MemberId,
    /// The start of the sender's process.
    pub boot: BootId,
    /// The range; 0 for frames about a whole shard.
    pub range: RangeId,
    /// The sender's epoch of that range.
    pub epoch: Epoch,
}

/// One frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Sender, range and epoch.
    pub header: Header,
    /// The content.
    pub body: Body<'a>,
}

/// A member's report to the manager about its log, sent once its promise is durable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberReport {
    /// The last version of its log, synced or not.
    pub last: Version,
    /// The last version that it knows to be committed.
    pub committed: Version,
    /// The greatest chain time it has seen.
    pub time: TimeMs,
    /// The previous boot, if this one continues it without loss after a clean shutdown.
    pub continues: Option<BootId>,
    /// The promise that this boot found at its start: below what the member promised before, its disk is another one.
    pub found: Epoch,
    /// Members that answered a probe of this epoch: frames to them, and from them, arrive.
    pub reach: Vec<MemberId>,
}

/// The content of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// Records sent down the chain: the sender's log from directly above `after` through `last`.
    Append {
        /// The version before the first record in the sender's log; the receiver must hold it.
        after: Version,
        /// The last record's version.
        last: Version,
        /// The least watermark of the sender and all members above it (to a syncing member: the last committed
        /// version).
        upstream: Version,
        /// Chain time.
        time: TimeMs,
        /// The last version that the head had assigned at that time: all later ones were evaluated then or after it.
        assigned: Version,
        /// Encoded records, as in the log.
        records: &'a [u8],
    },
    /// The upstream's watermarks and chain time, without records. Always answered by `Ack`.
    Watermark {
        /// The last version sent on this link; if the receiver holds less, there is a gap.
        sent: Version,
        /// As in `Append`.
        upstream: Version,
        /// Chain time.
        time: TimeMs,
        /// The last version that the head had assigned at that time: all later ones were evaluated then or after it.
        assigned: Version,
    },
    /// Sent up the chain, cumulative: frees the link's window through `received`, commits through `committed`.
    Ack {
        /// The end of the receiver's log.
        received: Version,
        /// The last version committed by the tail.
        committed: Version,
    },
    /// The receiver's log ends at `after` and later records are missing: send again from there.
    ReplayWanted {
        /// The end of the receiver's log.
        after: Version,
    },
    /// The log no longer holds the records that `ReplayWanted { after }` requested: a full resync is needed.
    Gone {
        /// As requested.
        after: Version,
    },
    /// The newest entry known to the sender. Sent in reply to an older epoch, and by the manager to announce `Prepare`
    /// and `Active`.
    Entry(RangeEntry),
    /// The sender's entry is older than that of the frame it received. Answered by `Entry`.
    EntryWanted,
    /// To the manager: promised and stopped; the state of this log.
    Report(MemberReport),
    /// From the manager: make your log equal to the donor's, which ends at `base`.
    Align {
        /// The entry under preparation, with the chosen members and their boots.
        entry: RangeEntry,
        /// The member whose log is authoritative.
        donor: MemberId,
        /// The end of the donor's log.
        base: Version,
        /// The end of the part of the receiver's log that agrees with it; the rest is cut off.
        cut: Version,
    },
    /// To the manager: this log ends at `base` and is synced through it.
    Equal {
        /// As in `Align`.
        base: Version,
    },
    /// To the manager: this syncing member has everything that the tail had committed shortly before.
    CaughtUp {
        /// The end of its log.
        last: Version,
    },
    /// To the manager: this log cannot be made equal in this epoch. Continue without this member, which is copied
    /// afterwards.
    CannotAlign,
    /// To the tail: a request for the next part of a copy.
    TransferWanted {
        /// The version that the copy is based on; `None` asks the tail to choose one.
        base: Option<Version>,
        /// The receiver has everything before this cursor.
        cursor: TransferCursor,
    },
    /// A chunk of a transfer: everything of `base` between the cursors that still existed at `read_version`.
    Transfer {
        /// Keys and results above this version arrive through the stream of records.
        base: Version,
        /// The start of this part, as requested.
        cursor: TransferCursor,
        /// The start of the next part.
        next: TransferCursor,
        /// The sender's last committed version when it read the records. A receiver whose log is past it rejects the
        /// part, because it may have seen one of the keys deleted.
        read_version: Version,
        /// Approximate number of keys in the whole copy.
        keys: u64,
        /// Encoded records: results, then puts.
        records: &'a [u8],
    },
    /// To the manager, at start and as a heartbeat: this shard runs, in this boot.
    Hello,
    /// To the manager, repeated until this boot ends: this member can no longer store anything (for example, its disk
    /// failed). It has stopped all epochs below the header's. In the header's epoch it at most replies to reads, until
    /// it is asked to promise another epoch.
    Failed,
    /// To the manager, with each heartbeat: the sender's table of boots.
    BootsWanted {
        /// Its revision; 0 for none.
        held: u64,
    },
    /// From the manager: the present boot of each shard, to one that has another table; or changes of it, to all.
    Boots(BootsMessage),
    /// To the manager, in place of `Hello`: the disk of this shard has not completed a write or sync.
    Slow {
        /// For how long, ms.
        oldest_ms: u64,
    },
    /// To the manager: the successor has not acknowledged records for a long time.
    Suspect {
        /// The successor.
        member: MemberId,
    },
    /// To the manager, from a head: the epoch's sequence numbers are nearly used up.
    EpochWanted,
    /// To another member, while an epoch is prepared: do frames arrive?
    Probe,
    /// Reply to a probe: frames arrive.
    ProbeReply {
        /// The epoch of the probe.
        epoch: Epoch,
    },
    /// To the manager, instead of a promise: this member has promised a later epoch, the header's; with its newest
    /// entry.
    PromisedAbove(RangeEntry),
    /// To the manager: this member cannot read what its successor is to be sent.
    CannotSend {
        /// The successor.
        to: MemberId,
    },
    /// To a head (updates) or a tail (reads): a front-end's operation.
    Request {
        /// Identifies the operation in the reply.
        op: u64,
        /// Identifies the operation for exactly-once execution.
        tag: ClientTag,
        /// All operations of the session below this one are answered.
        first_incomplete: u64,
        /// The operation, encoded by the host.
        payload: &'a [u8],
    },
    /// From a tail: the outcome of an operation.
    Reply {
        /// As in the request.
        op: u64,
        /// The result, encoded by the host.
        payload: &'a [u8],
    },
    /// Instead of a reply: the operation was not executed here, for this reason.
    Refused {
        /// As in the request.
        op: u64,
        /// The reason.
        reason: RefusedReason,
    },
    /// From a head, to each front-end with more than its share of the results, when they use all of the memory that they
    /// may. Answered by a `Request` that changes nothing, unless an update of this range is on its way: its record
    /// acknowledges the replies that the front-end has.
    AcknowledgementWanted,
}

/// Reason why a request was rejected. It had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedReason {
    /// Another epoch, another member's role, no active chain, or a front-end whose identity another process has, as far
    /// as the head knows. An `Entry` follows if a newer one is known.
    StaleEpoch,
    /// Too many operations are in flight.
    Overloaded,
    /// The key is not in the range.
    WrongRange,
    /// The chain has fewer members than a write needs: writes are rejected until one is added.
    TooFewCopies,
    /// The reply has a longer value than the request grants.
    Larger {
        /// Length of the value.
        bytes: u32,
    },
}
