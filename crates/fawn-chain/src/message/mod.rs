//! Owns the vocabulary of peer frames: what replicas, managers and front-ends tell each other.
//!
//! Every frame names `(from, range, epoch, boot)`; a receiver in another epoch answers with the newer side's entry
//! [replication.md §2.1], a frame of a peer's former boot is dropped.
mod copy;
mod decode;
mod encode;
mod stream;

pub use copy::CopyCursor;
pub use decode::decode_frame;
pub use encode::encode_frame;
pub use stream::{FrameStream, StreamError};

use crate::map::RangeEntry;
use fawn_types::{BootId, ClientTag, Epoch, NodeId, RangeId, TimeMs, Version, limits};

/// Bytes before a frame's body: checksum, body length, kind, layout version, check of these three.
pub const PREFIX_BYTES: usize = 16;
/// A whole frame at most: one record with a value and, as its result, a former value, both of the greatest length; or a
/// batch of records far below that.
pub const FRAME_BYTES_MAX: usize = 17 << 20;

const _: () = assert!(FRAME_BYTES_MAX > 2 * limits::VALUE_BYTES_MAX + limits::KEY_BYTES_MAX + 4096);
/// Layout of every frame.
pub const FRAME_VERSION: u8 = 2;

/// Where a frame comes from and what it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The sending machine.
    pub from: NodeId,
    /// The start of the sender's process.
    pub boot: BootId,
    /// The range; 0 for frames about a whole node.
    pub range: RangeId,
    /// The sender's epoch of that range.
    pub epoch: Epoch,
}

/// One frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Who, what, when.
    pub header: Header,
    /// What it says.
    pub body: Body<'a>,
}

/// What a member tells the manager of its log once it has promised, durably.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// The last version of its log, synced or not.
    pub last: Version,
    /// What it knows to be committed.
    pub committed: Version,
    /// The greatest chain time it has seen.
    pub time: TimeMs,
    /// The boot that this one goes on from without having lost anything, as it was closed in order.
    pub continues: Option<BootId>,
}

/// What a frame says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// Records down the chain: the sender's log from just above `after` through `last`.
    Append {
        /// The version before the first record in the sender's log; the receiver must hold it.
        after: Version,
        /// The last record's version.
        last: Version,
        /// The least watermark that the sender and all above it have reached (to a syncing member: committed).
        upstream: Version,
        /// Chain time.
        time: TimeMs,
        /// Encoded records, as the log holds them.
        records: &'a [u8],
    },
    /// No records: how far the upstream's watermarks are, and chain time. Always answered by `Ack`.
    Watermark {
        /// The last version that was sent on this link; more than the receiver holds means a gap.
        sent: Version,
        /// As in `Append`.
        upstream: Version,
        /// Chain time.
        time: TimeMs,
    },
    /// Up the chain, cumulative: frees the link's window through `received`, commits through `committed`.
    Ack {
        /// The receiver's log ends here.
        received: Version,
        /// The tail committed through here.
        committed: Version,
    },
    /// The receiver's log ends at `after` and something above it is missing: send again from there.
    ReplayWanted {
        /// The end of the asking log.
        after: Version,
    },
    /// The log no longer holds what `ReplayWanted { after }` asks for: the copy must be made anew.
    Gone {
        /// As asked.
        after: Version,
    },
    /// The newest entry the sender knows: the answer to an older epoch, and the manager's way to tell of
    /// `Prepare` and `Active`.
    Entry(RangeEntry),
    /// The sender's entry is older than what it was just shown: answered by `Entry`.
    EntryWanted,
    /// To the manager: promised, stopped, and this is my log.
    Report(Report),
    /// From the manager: make your log equal to the donor's, which ends at `base`.
    Align {
        /// The entry under preparation with the members decided on and their boots.
        entry: RangeEntry,
        /// Whose log counts.
        donor: NodeId,
        /// Where it ends.
        base: Version,
        /// How much of the receiver's log agrees with it; what is above is cut off.
        cut: Version,
    },
    /// To the manager: my log ends at `base` and is synced through it.
    Equal {
        /// As told by `Align`.
        base: Version,
    },
    /// To the manager: this syncing member has everything the tail had committed a moment ago.
    CaughtUp {
        /// The end of its log.
        last: Version,
    },
    /// To the manager: this log cannot be made equal in this epoch, go on without it; it is copied afterwards.
    CannotAlign,
    /// To the tail: the next part of a copy, please.
    CopyWanted {
        /// The version that the copy stands on; `None`: name one.
        base: Option<Version>,
        /// Everything before it is here.
        cursor: CopyCursor,
    },
    /// A part of a copy: everything of `base` between the cursors that was still there at `as_of`.
    Copy {
        /// Keys and results above it come by the stream of records.
        base: Version,
        /// Where this part begins: as asked.
        cursor: CopyCursor,
        /// Where the next one does.
        next: CopyCursor,
        /// What the sender had committed when it looked the records up. A receiver whose log is past it has perhaps
        /// seen one of them deleted, and does not take them.
        as_of: Version,
        /// About so many keys are to be copied in all.
        keys: u64,
        /// Encoded records: results, then puts.
        records: &'a [u8],
    },
    /// To the manager, at start and as a beat: this machine runs, in this boot.
    Hello,
    /// To the manager, and again until this boot ends: this member keeps nothing any more (its medium failed, say). Below
    /// the header's epoch it has stopped; in it, it answers reads at most, until it is asked to promise another.
    Failed,
    /// To the manager: the successor has not acknowledged for long what was sent to it.
    Suspect {
        /// The successor.
        node: NodeId,
    },
    /// To the manager, from a head: the epoch's sequence numbers are nearly used up.
    EpochWanted,
    /// To a head (updates) or a tail (reads): a front-end's operation.
    Request {
        /// Names it for the answer.
        op: u64,
        /// Names it for exactly-once.
        tag: ClientTag,
        /// The session's operations below this one are all answered.
        first_incomplete: u64,
        /// The operation, encoded by the node.
        payload: &'a [u8],
    },
    /// From a tail: what came of it.
    Reply {
        /// As asked.
        op: u64,
        /// The result, encoded by the node.
        payload: &'a [u8],
    },
    /// Instead of a reply: not done here; with what to do.
    Refused {
        /// As asked.
        op: u64,
        /// Why.
        reason: RefusedReason,
    },
}

/// Why a request was not done. It has had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedReason {
    /// Another epoch, not this member's part, or no chain active: an `Entry` follows if a newer one is known.
    StaleEpoch,
    /// Too much is under way.
    Overloaded,
    /// The key is not in the range.
    WrongRange,
}
