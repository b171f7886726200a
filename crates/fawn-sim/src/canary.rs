//! Owns the planted bugs: each makes the cluster behave as a known mistake would, and the oracles must see it.
//!
//! They are planted at the simulator's boundary, in what the network carries and what disks remember, so that the code
//! of the product stays as it ships: a machine whose frames or disk lie is, to everybody else, a machine with the bug.
use std::fmt;

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Canary {
    /// Disks report syncs that have not happened: what power loss finds is a few milliseconds old.
    AckBeforeSync,
    /// Watermarks tell the tail that everybody above has what was only sent: it commits, and shows, too early.
    ReadUncommitted,
    /// A head gives a number out a second time after a restart: its successor keeps another record under that version.
    SequenceReused,
    /// A promise is told and not kept: a restart forgets the epoch that the manager heard of.
    PromiseForgotten,
    /// A retry is taken for a new operation.
    AppliedTwice,
    /// A lost record in the middle is passed over.
    GapIgnored,
    /// A flipped bit in a record is believed.
    ChecksumIgnored,
    /// A member whose disk failed goes on as if it had not: chains wait for it.
    FailureConcealed,
    /// A copy takes a part that its log is past already: what was deleted meanwhile comes back.
    DeleteResurrected,
    /// A copy counts as whole although parts are missing.
    TransferCutShort,
    /// An orderly stop marks what it has not synced.
    MarkBeforeSync,
    /// A kill is taken for an orderly stop.
    KillTakenForStop,
}

impl Canary {
    /// All, each with the number of seeds within which it must be seen.
    pub const ALL: [(Self, u64); 12] = [
        (Self::AckBeforeSync, 20),
        (Self::ReadUncommitted, 5),
        (Self::SequenceReused, 5),
        (Self::PromiseForgotten, 10),
        (Self::AppliedTwice, 5),
        (Self::GapIgnored, 5),
        (Self::ChecksumIgnored, 5),
        (Self::FailureConcealed, 60),
        (Self::DeleteResurrected, 60),
        (Self::TransferCutShort, 60),
        (Self::MarkBeforeSync, 60),
        (Self::KillTakenForStop, 60),
    ];

    /// Whether a finding is this bug's: another oracle's word would only show that the plant broke something else.
    #[must_use]
    pub fn explains(self, finding: &str) -> bool {
        const CONTENT: &[&str] = &["not linearizable", "copies of"];
        let words: &[&str] = match self {
            Self::AckBeforeSync | Self::KillTakenForStop => &["committed-survives", "not linearizable"],
            Self::MarkBeforeSync => &["committed-survives", "not linearizable", "nobody was killed"],
            Self::ReadUncommitted => &["committed-is-kept"],
            Self::PromiseForgotten => &["epochs-only-grow"],
            Self::AppliedTwice => &["not linearizable"],
            Self::FailureConcealed => &["although its disk failed"],
            Self::SequenceReused | Self::GapIgnored | Self::ChecksumIgnored => CONTENT,
            Self::DeleteResurrected | Self::TransferCutShort => CONTENT,
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
            Self::AppliedTwice => "applied-twice",
            Self::GapIgnored => "gap-ignored",
            Self::ChecksumIgnored => "checksum-ignored",
            Self::FailureConcealed => "failure-concealed",
            Self::DeleteResurrected => "delete-resurrected",
            Self::TransferCutShort => "copy-cut-short",
            Self::MarkBeforeSync => "mark-before-sync",
            Self::KillTakenForStop => "kill-taken-for-stop",
        }
    }

    /// From its name.
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
