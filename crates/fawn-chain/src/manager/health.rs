//! Health of machines: heartbeats, boots, reported failures, caught-up copies, hold-off after suspicion.
use super::planner::Health;
use alloc::collections::{BTreeMap, BTreeSet};
use fawn_types::{BootId, MonoMs, NodeId, RangeId};

/// How long a suspicion also counts against the member that reported it.
const SUSPICION_MS: u64 = 60_000;

/// Health of all machines.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes {
    pub(super) seen: BTreeMap<NodeId, (BootId, MonoMs)>,
    pub(super) caught_up: BTreeSet<(RangeId, NodeId, BootId)>,
    /// Members that can no longer store anything in this boot.
    failed: BTreeMap<(RangeId, NodeId), BootId>,
    /// Suspected members, until this time: they are not promoted, and a chain that is as long without them drops them.
    held_off: BTreeMap<(RangeId, NodeId), MonoMs>,
    /// Time of the last suspicion that each member reported.
    suspicions: BTreeMap<(RangeId, NodeId), MonoMs>,
    pub(super) now: MonoMs,
    dead_after_ms: u64,
}

impl Health for Nodes {
    fn boot(&self, range: RangeId, node: NodeId) -> Option<BootId> {
        let (boot, at) = self.seen.get(&node)?;
        let is_live = self.now.ms_since(*at) < self.dead_after_ms;
        let has_failed = self.failed.get(&(range, node)) == Some(boot);
        (is_live && !has_failed).then_some(*boot)
    }

    fn caught_up(&self, range: RangeId, node: NodeId) -> bool {
        let caught_up = |boot| self.caught_up.contains(&(range, node, boot));
        !self.is_held_off(range, node) && self.seen.get(&node).is_some_and(|(boot, _)| caught_up(*boot))
    }
}

impl Nodes {
    pub(super) fn new(dead_after_ms: u64) -> Self {
        Self { dead_after_ms, ..Self::default() }
    }

    /// Handles a heartbeat, or any other frame that contains a machine's boot. Returns whether the boot changed.
    pub(super) fn note_boot(&mut self, node: NodeId, boot: BootId) -> bool {
        let former = self.seen.insert(node, (boot, self.now));
        let is_new = former.is_some_and(|(former, _)| former != boot);
        if is_new {
            self.caught_up.retain(|(_, caught_up, _)| *caught_up != node);
            self.failed.retain(|(_, failed), _| *failed != node);
        }
        is_new
    }

    /// Records that the member can no longer store anything. Returns whether that is new.
    pub(super) fn note_failed(&mut self, range: RangeId, node: NodeId, boot: BootId) -> bool {
        self.failed.insert((range, node), boot) != Some(boot)
    }

    pub(super) fn is_held_off(&self, range: RangeId, node: NodeId) -> bool {
        self.held_off.get(&(range, node)).is_some_and(|until| *until > self.now)
    }

    /// The members of a range that are held off.
    pub(super) fn held_off(&self, range: RangeId) -> BTreeSet<NodeId> {
        let of_range = self.held_off.iter().filter(|((of, _), until)| *of == range && **until > self.now);
        of_range.map(|((_, node), _)| *node).collect()
    }

    /// The member to drop if `reporter` suspects `suspect`. A member that suspects one after another is itself the
    /// cause.
    pub(super) fn judge(&mut self, range: RangeId, reporter: NodeId, suspect: NodeId, hold_off_ms: u64) -> NodeId {
        let now = self.now;
        self.suspicions.retain(|_, at| now.ms_since(*at) < SUSPICION_MS);
        let again = self.suspicions.insert((range, reporter), now).is_some();
        let goes = if again { reporter } else { suspect };
        self.held_off.retain(|_, until| *until > now);
        self.held_off.insert((range, goes), now.plus_ms(hold_off_ms));
        goes
    }
}
