//! Health of machines as the manager knows it: heartbeats, boots, failures, members that caught up, suspicions.
use super::hold_off::{HoldOffOptions, HoldOffs};
use super::planner::Health;
use alloc::collections::BTreeMap;
use fawn_types::{BootId, MonoMs, NodeId, RangeId};

/// How long a suspicion counts against its reporter.
const SUSPICION_MS: u64 = 60_000;
/// How long a chain counts as stalled after a member's report that it suspects its successor. The report is repeated.
const STANDS_STILL_MS: u64 = 3_000;
/// A syncing member repeats ten times a second that it has caught up. After a longer silence its time starts from zero.
const KEEPS_UP_GAP_MS: u64 = 6_000;

/// A syncing member that has caught up.
#[derive(Clone, Copy, Debug)]
struct CaughtUp {
    boot: BootId,
    since: MonoMs,
    heard_at: MonoMs,
    /// Reported in the range's present epoch.
    is_current: bool,
}

/// Health of all machines.
#[derive(Clone, Debug, Default)]
pub(super) struct HealthTable {
    pub(super) seen: BTreeMap<NodeId, (BootId, MonoMs)>,
    caught_up: BTreeMap<(RangeId, NodeId), CaughtUp>,
    /// Members that can no longer store anything in this boot.
    failed: BTreeMap<(RangeId, NodeId), BootId>,
    pub(super) hold_offs: HoldOffs,
    /// The last suspicion of each reporter: its time, and the successor.
    suspicions: BTreeMap<(RangeId, NodeId), (MonoMs, NodeId)>,
    /// Chains that are too short to drop a suspected member.
    stands_still: BTreeMap<RangeId, MonoMs>,
    /// Machines whose disk hangs: how long their oldest write or sync has been in flight, ms.
    slow: BTreeMap<NodeId, u64>,
    pub(super) now: MonoMs,
    dead_after_ms: u64,
    disk_dead_after_ms: u64,
}

impl Health for HealthTable {
    fn boot(&self, range: RangeId, node: NodeId) -> Option<BootId> {
        let (boot, at) = self.seen.get(&node)?;
        let is_live = self.now.ms_since(*at) < self.dead_after_ms && !self.is_hung(node);
        let has_failed = self.failed.get(&(range, node)) == Some(boot);
        (is_live && !has_failed).then_some(*boot)
    }

    fn caught_up(&self, range: RangeId, node: NodeId) -> bool {
        !self.is_slow(node) && self.keeps_up_since(range, node).is_some()
    }

    fn is_held_off(&self, range: RangeId, node: NodeId) -> bool {
        let pause_ms = self.hold_offs.pause_ms((range, node));
        pause_ms > 0 && self.keeps_up_since(range, node).is_none_or(|since| self.now.ms_since(since) < pause_ms)
    }

    fn stands_still(&self, range: RangeId) -> bool {
        self.stands_still.get(&range).is_some_and(|at| self.now.ms_since(*at) < STANDS_STILL_MS)
    }
}

impl HealthTable {
    pub(super) fn new(dead_after_ms: u64, disk_dead_after_ms: u64) -> Self {
        Self { dead_after_ms, disk_dead_after_ms, ..Self::default() }
    }

    /// The machine's disk has not completed a write or sync for this long. Its members must keep up from zero again.
    pub(super) fn note_slow(&mut self, node: NodeId, oldest_ms: u64) {
        self.slow.insert(node, oldest_ms);
        self.caught_up.retain(|(_, caught_up), _| *caught_up != node);
    }

    /// The machine's disk completes writes.
    pub(super) fn note_fast(&mut self, node: NodeId) {
        self.slow.remove(&node);
    }

    pub(super) fn is_slow(&self, node: NodeId) -> bool {
        self.slow.contains_key(&node)
    }

    /// The machine's disk has been slow for so long that it counts as dead.
    pub(super) fn is_hung(&self, node: NodeId) -> bool {
        self.slow.get(&node).is_some_and(|oldest_ms| *oldest_ms >= self.disk_dead_after_ms)
    }

    /// The newest boot of the node that sent a frame; zero if none did.
    pub(super) fn boot_of(&self, node: NodeId) -> BootId {
        self.seen.get(&node).map_or(BootId::default(), |(boot, _)| *boot)
    }

    /// Records a heartbeat, or any other frame that names the boot. Returns whether the boot changed. The caller has
    /// checked that it is not older.
    pub(super) fn note_boot(&mut self, node: NodeId, boot: BootId) -> bool {
        let former = self.seen.insert(node, (boot, self.now));
        let is_new = former.is_some_and(|(former, _)| former != boot);
        if is_new {
            self.caught_up.retain(|(_, caught_up), _| *caught_up != node);
            self.slow.remove(&node);
            self.failed.retain(|(_, failed), _| *failed != node);
        }
        is_new
    }

    /// Records that the member can no longer store anything. Returns whether that is new.
    pub(super) fn note_failed(&mut self, range: RangeId, node: NodeId, boot: BootId) -> bool {
        self.failed.insert((range, node), boot) != Some(boot)
    }

    /// Records that a syncing member has everything that the tail had committed shortly before.
    pub(super) fn note_caught_up(&mut self, range: RangeId, node: NodeId, boot: BootId) {
        let now = self.now;
        let since = match self.caught_up.get(&(range, node)) {
            Some(held) if held.boot == boot && now.ms_since(held.heard_at) < KEEPS_UP_GAP_MS => held.since,
            _ => now,
        };
        self.caught_up.insert((range, node), CaughtUp { boot, since, heard_at: now, is_current: true });
    }

    /// The time since which the syncing member has kept up without a gap, if it does in the current epoch.
    fn keeps_up_since(&self, range: RangeId, node: NodeId) -> Option<MonoMs> {
        let (boot, _) = self.seen.get(&node)?;
        let held = self.caught_up.get(&(range, node))?;
        let keeps_up = held.boot == *boot && held.is_current && self.now.ms_since(held.heard_at) < KEEPS_UP_GAP_MS;
        keeps_up.then_some(held.since)
    }

    /// Records that a chain became active. Syncing members must catch up with the new tail; serving members are no
    /// longer syncing ones.
    pub(super) fn note_active(&mut self, range: RangeId, serves: impl Fn(NodeId) -> bool, options: HoldOffOptions) {
        self.stands_still.remove(&range);
        self.caught_up.retain(|(of, node), _| *of != range || !serves(*node));
        for (_, held) in self.caught_up.iter_mut().filter(|((of, _), _)| *of == range) {
            held.is_current = false;
        }
        self.hold_offs.note_active(range, serves, self.now, options);
    }

    /// Records that a member suspects its successor in a chain that is too short to drop one.
    pub(super) fn note_stands_still(&mut self, range: RangeId) {
        self.stands_still.insert(range, self.now);
    }

    /// Records that `reporter` suspects `suspect`, and returns which of them to drop. A reporter that suspects two
    /// successors in a row is itself the cause. The same successor twice means that this successor stalls repeatedly.
    pub(super) fn judge(&mut self, range: RangeId, reporter: NodeId, suspect: NodeId) -> NodeId {
        let now = self.now;
        self.suspicions.retain(|_, (at, _)| now.ms_since(*at) < SUSPICION_MS);
        let former = self.suspicions.insert((range, reporter), (now, suspect));
        if former.is_some_and(|(_, former)| former != suspect) { reporter } else { suspect }
    }
}
