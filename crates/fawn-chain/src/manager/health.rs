//! Owns what the manager knows of machines besides the map: beats, boots, failures told, who caught up, who is held off.
use super::planner::Health;
use alloc::collections::{BTreeMap, BTreeSet};
use fawn_types::{BootId, MonoMs, NodeId, RangeId};

/// How long a suspicion counts against whoever uttered it.
const SUSPICION_MS: u64 = 60_000;

/// The machines.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes {
    pub(super) seen: BTreeMap<NodeId, (BootId, MonoMs)>,
    pub(super) caught_up: BTreeSet<(RangeId, NodeId, BootId)>,
    /// Members that can keep nothing any more, in this boot.
    failed: BTreeMap<(RangeId, NodeId), BootId>,
    /// Members that were suspected: not promoted before this time, nor kept in a chain that is as long without them.
    held_off: BTreeMap<(RangeId, NodeId), MonoMs>,
    /// Who suspected somebody, when.
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

    /// A beat, or anything else that says in which boot a machine is; whether it is another than before.
    pub(super) fn note_boot(&mut self, node: NodeId, boot: BootId) -> bool {
        let former = self.seen.insert(node, (boot, self.now));
        let is_new = former.is_some_and(|(former, _)| former != boot);
        if is_new {
            self.caught_up.retain(|(_, caught_up, _)| *caught_up != node);
            self.failed.retain(|(_, failed), _| *failed != node);
        }
        is_new
    }

    /// The member can keep nothing any more; whether that is news.
    pub(super) fn note_failed(&mut self, range: RangeId, node: NodeId, boot: BootId) -> bool {
        self.failed.insert((range, node), boot) != Some(boot)
    }

    pub(super) fn is_held_off(&self, range: RangeId, node: NodeId) -> bool {
        self.held_off.get(&(range, node)).is_some_and(|until| *until > self.now)
    }

    /// Those that are, of a range.
    pub(super) fn held_off(&self, range: RangeId) -> BTreeSet<NodeId> {
        let of_range = self.held_off.iter().filter(|((of, _), until)| *of == range && **until > self.now);
        of_range.map(|((_, node), _)| *node).collect()
    }

    /// `reporter` suspects `suspect`: who goes. Whoever suspects one after the other is itself the cause.
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
