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
    /// The system is out of descriptors or memory; nothing changed. Metadata operations only.
    Exhausted,
    /// The operation stays in flight until [`super::SimDisk::release_hung`]. Reads, writes and syncs only.
    Hang,
    /// The operation completes this many ticks after its kick, whatever the latency of the others. Reads, writes and
    /// syncs only. A tick is a reap, or whatever the test's clock counts: see [`super::SimOptions::ticks_per_reap`].
    Delay {
        /// Ticks from kick to completion.
        ticks: u64,
    },
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
    /// Faults of every operation of a kind, until ended.
    standing: Vec<(OpKind, Fault)>,
}

impl FaultPlan {
    pub(super) fn order(&mut self, kind: OpKind, nth: u64, fault: Fault) {
        assert!(nth > 0, "the next operation is the first");
        assert_possible(kind, &fault);
        self.ordered.push((kind, self.counts[kind as usize] + nth, fault));
    }

    pub(super) fn order_every(&mut self, kind: OpKind, fault: Fault) {
        assert_possible(kind, &fault);
        self.end_every(kind);
        self.standing.push((kind, fault));
    }

    pub(super) fn end_every(&mut self, kind: OpKind) {
        self.standing.retain(|(standing, _)| *standing != kind);
    }

    /// No operation submitted from now on hangs.
    pub(super) fn end_hanging(&mut self) {
        self.standing.retain(|(_, fault)| *fault != Fault::Hang);
    }

    /// Counts an operation and returns what goes wrong with it; an order for its number precedes one for its kind.
    pub(super) fn count(&mut self, kind: OpKind) -> Option<Fault> {
        self.counts[kind as usize] += 1;
        let due = (kind, self.counts[kind as usize]);
        if let Some(at) = self.ordered.iter().position(|(kind, nth, _)| (*kind, *nth) == due) {
            return Some(self.ordered.swap_remove(at).2);
        }
        let standing = self.standing.iter().find(|(standing, _)| *standing == kind);
        standing.map(|(_, fault)| fault.clone())
    }

    pub(super) const fn counted(&self, kind: OpKind) -> u64 {
        self.counts[kind as usize]
    }

    pub(super) fn clear(&mut self) {
        self.ordered.clear();
        self.standing.clear();
    }
}

/// Metadata operations block, so they can fail but neither hang nor come late; data operations need no resource.
fn assert_possible(kind: OpKind, fault: &Fault) {
    let is_data = matches!(kind, OpKind::Read | OpKind::Write | OpKind::Sync);
    match fault {
        Fault::Hang | Fault::Delay { .. } => assert!(is_data, "{kind:?} blocks its caller: it cannot be in flight"),
        Fault::Exhausted => assert!(!is_data, "{kind:?} needs neither a descriptor nor memory"),
        Fault::Fail | Fault::Full | Fault::Misdirect { .. } | Fault::Lose => (),
    }
}
