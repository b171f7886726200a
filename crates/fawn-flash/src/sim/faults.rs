//! Owns the faults a test can order: which operation, the how-manieth, and what goes wrong.
use crate::request::Work;

/// Kinds of operations, each counted on its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum OpKind {
    /// `submit_read`.
    Read,
    /// `submit_write` and `submit_write_durable`.
    Write,
    /// `submit_sync`.
    Sync,
    /// `sync_dir`.
    SyncDir,
    /// `create`.
    Create,
    /// `open`.
    Open,
    /// `rename`.
    Rename,
    /// `link`.
    Link,
    /// `unlink`.
    Unlink,
    /// `truncate`.
    Truncate,
    /// `allocate`.
    Allocate,
    /// `punch`.
    Punch,
    /// `list`, `lock`, `len` and `free_bytes`.
    Inspect,
}

impl OpKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::Read,
        Self::Write,
        Self::Sync,
        Self::SyncDir,
        Self::Create,
        Self::Open,
        Self::Rename,
        Self::Link,
        Self::Unlink,
        Self::Truncate,
        Self::Allocate,
        Self::Punch,
        Self::Inspect,
    ];

    pub(super) const fn of(work: Work) -> Self {
        match work {
            Work::Read => Self::Read,
            Work::Write { .. } => Self::Write,
            Work::Sync => Self::Sync,
        }
    }
}

/// What goes wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The operation fails. A write has then moved any subset of its sectors; a sync has marked its pages clean, so
    /// that they still read but a crash may lose them and no later sync covers them.
    Fail,
    /// No space, as when another program filled the medium; nothing changed.
    Full,
    /// A read returns the bytes at another place of the same medium, without an error.
    Misdirect {
        /// Whose bytes; `None` for the same file.
        name: Option<String>,
        /// From where.
        offset: u64,
    },
    /// A write is acknowledged and never reaches anything: a lost write.
    Lose,
}

/// Faults ordered and operations counted.
#[derive(Clone, Default, Debug)]
pub(super) struct FaultPlan {
    counts: [u64; OpKind::ALL.len()],
    ordered: Vec<(OpKind, u64, Fault)>,
}

impl FaultPlan {
    pub(super) fn order(&mut self, kind: OpKind, nth: u64, fault: Fault) {
        assert!(nth > 0, "the next operation is the first");
        self.ordered.push((kind, self.counts[kind as usize] + nth, fault));
    }

    /// Counts an operation and says what goes wrong with it.
    pub(super) fn count(&mut self, kind: OpKind) -> Option<Fault> {
        self.counts[kind as usize] += 1;
        let due = (kind, self.counts[kind as usize]);
        let at = self.ordered.iter().position(|(kind, nth, _)| (*kind, *nth) == due)?;
        Some(self.ordered.swap_remove(at).2)
    }

    pub(super) const fn counted(&self, kind: OpKind) -> u64 {
        self.counts[kind as usize]
    }

    pub(super) fn clear(&mut self) {
        self.ordered.clear();
    }
}
