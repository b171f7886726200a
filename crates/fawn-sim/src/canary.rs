//! Planted bugs (canaries): each makes the cluster behave as a known mistake would, and the oracles must detect it.
//!
//! They are planted at the simulator's boundary, in frames, on disks and in clients' bytes, so the product's code stays
//! unchanged. To all other machines, a machine whose frames or disk lie is a machine with the bug.
use std::fmt;

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Canary {
    /// Disks report syncs that have not happened: power loss reverts them by a few milliseconds.
    AckBeforeSync,
    /// Watermarks claim records that were only sent, so the tail commits them and makes them readable too early.
    ReadUncommitted,
    /// A head assigns a sequence number twice after a restart: its successor has another record with that version.
    SequenceReused,
    /// A promise is reported but not persisted: a restart forgets the epoch that the manager relies on.
    PromiseForgotten,
    /// The manager's map is reported as stored, but a restart finds an earlier one.
    MapForgotten,
    /// A retry is executed as a new operation.
    AppliedTwice,
    /// A gap in the stream of records is ignored.
    GapIgnored,
    /// A flipped bit in a record is not detected.
    ChecksumIgnored,
    /// A member whose disk failed continues as if it had not, so chains wait for it.
    FailureConcealed,
    /// A copy accepts a chunk that its log is already past: keys deleted since then come back.
    DeleteResurrected,
    /// A copy counts as complete although chunks are missing.
    TransferCutShort,
    /// A clean shutdown marks records that it has not synced.
    MarkBeforeSync,
    /// A kill counts as a clean shutdown.
    KillTakenForStop,
    /// Replies of two pipelined requests are sent in the wrong order.
    RepliesSwapped,
    /// A write overtakes an earlier read of the same connection and key.
    WriteOvertakesRead,
    /// `MSET` loses its second key.
    SecondKeyLost,
    /// `SCAN` skips a range.
    ScanSkipsRange,
    /// `FLUSHALL` misses a range.
    FlushMissesRange,
    /// Members judge expiry by their own wall clocks instead of chain time.
    ExpiryByOwnClock,
    /// A key that has expired, unless an uncommitted update keeps it, is missed.
    ExpiryGuessed,
    /// `MSET` sets its first key only, and is not answered.
    BatchTorn,
    /// `DBSIZE` misses a key.
    SizeTooLow,
    /// Requests are sent and queued without regard to the budget for them.
    RequestsUnbounded,
    /// Requests that no chain answers never fail, so clients of a process without a place in any chain wait for ever.
    RequestsKept,
}

impl Canary {
    /// All planted bugs, each with the number of seeds within which it must be detected.
    pub const ALL: [(Self, u64); 24] = [
        (Self::AckBeforeSync, 20),
        (Self::ReadUncommitted, 5),
        (Self::SequenceReused, 20),
        (Self::PromiseForgotten, 10),
        (Self::MapForgotten, 10),
        (Self::AppliedTwice, 5),
        (Self::GapIgnored, 5),
        (Self::ChecksumIgnored, 5),
        (Self::FailureConcealed, 60),
        (Self::DeleteResurrected, 60),
        (Self::TransferCutShort, 60),
        (Self::MarkBeforeSync, 60),
        (Self::KillTakenForStop, 60),
        (Self::RepliesSwapped, 5),
        (Self::WriteOvertakesRead, 5),
        (Self::SecondKeyLost, 10),
        (Self::ScanSkipsRange, 10),
        (Self::FlushMissesRange, 10),
        (Self::ExpiryByOwnClock, 60),
        (Self::ExpiryGuessed, 150),
        (Self::BatchTorn, 20),
        (Self::SizeTooLow, 20),
        (Self::RequestsUnbounded, 5),
        (Self::RequestsKept, 5),
    ];

    /// Whether this bug explains a finding. A finding of another oracle would mean that the plant broke something else.
    #[must_use]
    pub fn explains(self, finding: &str) -> bool {
        const CONTENT: &[&str] = &["not linearizable", "copies of"];
        let words: &[&str] = match self {
            Self::AckBeforeSync | Self::KillTakenForStop => &["committed-survives", "not linearizable"],
            Self::MarkBeforeSync => &["committed-survives", "not linearizable", "no process was killed"],
            Self::ReadUncommitted => &["committed-is-kept"],
            Self::PromiseForgotten => &["epochs-only-grow"],
            Self::MapForgotten => &["map-survives"],
            Self::AppliedTwice => &["not linearizable"],
            Self::FailureConcealed => &["although its disk failed"],
            Self::SequenceReused | Self::GapIgnored | Self::ChecksumIgnored => CONTENT,
            Self::DeleteResurrected | Self::TransferCutShort | Self::FlushMissesRange => CONTENT,
            Self::ExpiryByOwnClock => &["chain-time"],
            Self::BatchTorn | Self::ExpiryGuessed => &["not linearizable"],
            Self::SizeTooLow => &["DBSIZE counts"],
            Self::RequestsUnbounded => &["waiting requests"],
            Self::RequestsKept => &["clients of the process that serves nothing"],
            Self::RepliesSwapped => &["not linearizable", "was answered"],
            Self::WriteOvertakesRead | Self::SecondKeyLost => &["not linearizable"],
            Self::ScanSkipsRange => &["not linearizable", "SCAN returns", "a scan finds"],
        };
        words.iter().any(|word| finding.contains(word))
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AckBeforeSync => "ack-before-sync",
            Self::ReadUncommitted => "read-uncommitted",
            Self::SequenceReused => "sequence-reused",
            Self::PromiseForgotten => "promise-forgotten",
            Self::MapForgotten => "map-forgotten",
            Self::AppliedTwice => "applied-twice",
            Self::GapIgnored => "gap-ignored",
            Self::ChecksumIgnored => "checksum-ignored",
            Self::FailureConcealed => "failure-concealed",
            Self::DeleteResurrected => "delete-resurrected",
            Self::TransferCutShort => "copy-cut-short",
            Self::MarkBeforeSync => "mark-before-sync",
            Self::KillTakenForStop => "kill-taken-for-stop",
            Self::RepliesSwapped => "replies-swapped",
            Self::WriteOvertakesRead => "write-overtakes-read",
            Self::SecondKeyLost => "second-key-lost",
            Self::ScanSkipsRange => "scan-skips-range",
            Self::FlushMissesRange => "flush-misses-range",
            Self::ExpiryByOwnClock => "expiry-by-own-clock",
            Self::ExpiryGuessed => "expiry-guessed",
            Self::BatchTorn => "batch-torn",
            Self::SizeTooLow => "size-too-low",
            Self::RequestsUnbounded => "requests-unbounded",
            Self::RequestsKept => "requests-kept",
        }
    }

    /// The planted bug with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().map(|(canary, _)| *canary).find(|canary| canary.name() == name)
    }
}

impl fmt::Display for Canary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
