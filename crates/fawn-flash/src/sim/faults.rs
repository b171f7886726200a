//! Faults that a test can order: the kind of operation, its number, and the effect.
use crate::request::Work;

/// Kinds of operations; each is counted separately.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
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
    /// `rename` and `exchange`.
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
    /// `map`.
    Map,
    /// `list`, `lock`, `len` and `free_bytes`.
    Inspect,
}

impl OpKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 14] = [
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
        Self::Map,
        Self::Inspect,
    ];

    pub(super) const fn of(work: Work) -> Self {
        match work {
            Work::Read => Self::Read,
            Work::Write { .. } => Self::Write,
            Work::Sync => Self::Sync,
            Work::SyncDir => Self::SyncDir,
        }
    }
}

/// The effect of a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceFault {
    /// The operation fails. A failed write has applied any subset of its sectors. A failed sync has marked its pages
    /// clean: they still read, but a crash may lose them and no later sync covers them.
    Fail,
    /// No space, as if another program had filled the disk; nothing changed.
    Full,
    /// The system is out of descriptors or memory; nothing changed. Metadata operations and reads only.
    Exhausted,
    /// The operation stays in flight until [`super::SimDisk::release_hung`]. Reads, writes and syncs only.
    Hang,
    /// The operation completes this many ticks after its kick, regardless of the latency of the others. Reads, writes
    /// and syncs only. A tick is one reap, or one unit of the test's clock: see [`super::SimOptions::ticks_per_reap`].
    Delay {
        /// Ticks from kick to completion.
        ticks: u64,
    },
    /// A read returns the bytes at another place of the same disk, without an error.
    Misdirect {
        /// File to read instead; `None` for the same file.
        name: Option<String>,
        /// Offset to read from instead.
        offset: u64,
    },
    /// A write is acknowledged, but has no effect: a lost write.
    Lose,
}

/// Ordered faults and operation counts.
#[derive(Clone, Default, Debug)]
pub(super) struct FaultPlan {
    counts: [u64; OpKind::ALL.len()],
    ordered: Vec<(OpKind, u64, DeviceFault)>,
    /// Faults for every operation of a kind, until ended.
    standing: Vec<(OpKind, DeviceFault)>,
}

impl FaultPlan {
    pub(super) fn order(&mut self, kind: OpKind, nth: u64, fault: DeviceFault) {
        assert!(nth > 0, "`nth` counts from 1, the next operation");
        assert_possible(kind, &fault);
        self.ordered.push((kind, self.counts[kind as usize] + nth, fault));
    }

    pub(super) fn order_every(&mut self, kind: OpKind, fault: DeviceFault) {
        assert_possible(kind, &fault);
        self.end_every(kind);
        self.standing.push((kind, fault));
    }

    pub(super) fn end_every(&mut self, kind: OpKind) {
        self.standing.retain(|(standing, _)| *standing != kind);
    }

    /// Removes all faults that make later operations hang.
    pub(super) fn end_hanging(&mut self) {
        self.standing.retain(|(_, fault)| *fault != DeviceFault::Hang);
    }

    /// Counts an operation and returns its fault, if any. A fault for its number takes precedence over one for its
    /// kind.
    pub(super) fn count(&mut self, kind: OpKind) -> Option<DeviceFault> {
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

/// Metadata operations block, so they can fail but neither hang nor be delayed, except for a queued sync of the directory. Among
/// data operations, reads may have to open their file again.
fn assert_possible(kind: OpKind, fault: &DeviceFault) {
    let is_data = matches!(kind, OpKind::Read | OpKind::Write | OpKind::Sync);
    match fault {
        DeviceFault::Hang | DeviceFault::Delay { .. } => {
            assert!(is_data || kind == OpKind::SyncDir, "{kind:?} is synchronous: it cannot be in flight")
        }
        DeviceFault::Exhausted => {
            assert!(!is_data || kind == OpKind::Read, "{kind:?} needs neither a descriptor nor memory")
        }
        DeviceFault::Fail | DeviceFault::Full | DeviceFault::Misdirect { .. } | DeviceFault::Lose => (),
    }
}
