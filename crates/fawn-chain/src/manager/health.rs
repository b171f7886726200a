//! Health of shards as the manager knows it: heartbeats, boots, failures, members that caught up, suspicions.
use super::hold_off::{HoldOffOptions, HoldOffs};
use super::planner::Health;
use crate::map::ChainMember;
use alloc::collections::BTreeMap;
use fawn_types::{BootId, MemberId, MonoMs, RangeId};

/// How long a suspicion counts against its reporter.
const SUSPICION_MS: u64 = 60_000;
/// How long a chain counts as stalled after a member's report that it suspects its successor. The report is repeated.
const STALLED_MS: u64 = 3_000;
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

/// Health of all shards.
#[derive(Clone, Debug, Default)]
pub(super) struct HealthTable {
    pub(super) seen: BTreeMap<MemberId, (BootId, MonoMs)>,
    caught_up: BTreeMap<(RangeId, MemberId), CaughtUp>,
    /// Members that can no longer store anything in this boot.
    failed: BTreeMap<(RangeId, MemberId), BootId>,
    pub(super) hold_offs: HoldOffs,
    /// The last suspicion of each reporter: its time, and the successor.
    suspicions: BTreeMap<(RangeId, MemberId), (MonoMs, MemberId)>,
    /// Chains that are too short to drop a suspected member.
    stalled_at: BTreeMap<RangeId, MonoMs>,
    /// Shards whose disk hangs: how long their oldest write or sync has been in flight, ms.
    slow: BTreeMap<MemberId, u64>,
    pub(super) now: MonoMs,
    dead_after_ms: u64,
    disk_dead_after_ms: u64,
}

impl Health for HealthTable {
    fn boot(&self, range: RangeId, id: MemberId) -> Option<BootId> {
        let boot = self.live_boot(id)?;
        let has_failed = self.failed.get(&(range, id)) == Some(&boot);
        (!self.is_hung(id) && !has_failed).then_some(boot)
    }

    fn caught_up(&self, range: RangeId, id: MemberId) -> bool {
        !self.is_slow(id) && self.keeps_up_since(range, id).is_some()
    }

    fn is_held_off(&self, range: RangeId, id: MemberId) -> bool {
        let pause_ms = self.hold_offs.pause_ms((range, id));
        pause_ms > 0 && self.keeps_up_since(range, id).is_none_or(|since| self.now.ms_since(since) < pause_ms)
    }

    fn is_stalled(&self, range: RangeId) -> bool {
        self.stalled_at.get(&range).is_some_and(|at| self.now.ms_since(*at) < STALLED_MS)
    }
}

impl HealthTable {
    pub(super) fn new(dead_after_ms: u64, disk_dead_after_ms: u64) -> Self {
        Self { dead_after_ms, disk_dead_after_ms, ..Self::default() }
    }

    /// The shard's disk has not completed a write or sync for this long. Its members must keep up from zero again.
    pub(super) fn note_slow(&mut self, id: MemberId, oldest_ms: u64) {
        self.slow.insert(id, oldest_ms);
        self.caught_up.retain(|(_, caught_up), _| *caught_up != id);
    }

    /// The shard's disk completes writes.
    pub(super) fn note_fast(&mut self, id: MemberId) {
        self.slow.remove(&id);
    }

    pub(super) fn is_slow(&self, id: MemberId) -> bool {
        self.slow.contains_key(&id)
    }

    /// The shard's disk has been slow for so long that it counts as dead.
    pub(super) fn is_hung(&self, id: MemberId) -> bool {
        self.slow.get(&id).is_some_and(|oldest_ms| *oldest_ms >= self.disk_dead_after_ms)
    }

    /// The shard's current boot, if its heartbeats arrive.
    fn live_boot(&self, id: MemberId) -> Option<BootId> {
        let (boot, at) = self.seen.get(&id)?;
        (self.now.ms_since(*at) < self.dead_after_ms).then_some(*boot)
    }

    /// Whether the shard's disk counts as dead, while its heartbeats arrive.
    pub(super) fn is_hung_alive(&self, id: MemberId) -> bool {
        self.is_hung(id) && self.live_boot(id).is_some()
    }

    /// The newest boot of the shard that sent a frame; zero if none did.
    pub(super) fn boot_of(&self, id: MemberId) -> BootId {
        self.seen.get(&id).map_or(BootId::default(), |(boot, _)| *boot)
    }

    /// Records a heartbeat, or any other frame that names the boot. Returns whether the boot changed. The caller has
    /// checked that it is not older.
    pub(super) fn note_boot(&mut self, id: MemberId, boot: BootId) -> bool {
        let former = self.seen.insert(id, (boot, self.now));
        let is_new = former.is_some_and(|(former, _)| former != boot);
        if is_new {
            self.caught_up.retain(|(_, caught_up), _| *caught_up != id);
            self.slow.remove(&id);
        }
        is_new
    }

    /// Records that the member can no longer store anything. Returns whether that is new.
    pub(super) fn note_failed(&mut self, range: RangeId, id: MemberId, boot: BootId) -> bool {
        self.failed.insert((range, id), boot) != Some(boot)
    }

    /// Records that a syncing member has everything that the tail had committed shortly before.
    pub(super) fn note_caught_up(&mut self, range: RangeId, id: MemberId, boot: BootId) {
        let now = self.now;
        let since = match self.caught_up.get(&(range, id)) {
            Some(held) if held.boot == boot && now.ms_since(held.heard_at) < KEEPS_UP_GAP_MS => held.since,
            _ => now,
        };
        self.caught_up.insert((range, id), CaughtUp { boot, since, heard_at: now, is_current: true });
    }

    /// Whether the syncing member has ever reported, in the current epoch, that it caught up.
    pub(super) fn has_caught_up(&self, range: RangeId, member: &ChainMember) -> bool {
        let held = self.caught_up.get(&(range, member.id));
        held.is_some_and(|held| held.boot == member.boot && held.is_current)
    }

    /// The time since which the syncing member has kept up without a gap, if it does in the current epoch.
    fn keeps_up_since(&self, range: RangeId, id: MemberId) -> Option<MonoMs> {
        let (boot, _) = self.seen.get(&id)?;
        let held = self.caught_up.get(&(range, id))?;
        let keeps_up = held.boot == *boot && held.is_current && self.now.ms_since(held.heard_at) < KEEPS_UP_GAP_MS;
        keeps_up.then_some(held.since)
    }

    /// Records that a chain became active. Syncing members must catch up with the new tail; serving members are no
    /// longer syncing ones.
    pub(super) fn note_active(&mut self, range: RangeId, serves: impl Fn(MemberId) -> bool, options: HoldOffOptions) {
        self.stalled_at.remove(&range);
        self.caught_up.retain(|(of, id), _| *of != range || !serves(*id));
        for (_, held) in self.caught_up.iter_mut().filter(|((of, _), _)| *of == range) {
            held.is_current = false;
        }
        self.hold_offs.note_active(range, serves, self.now, options);
    }

    /// Records that a member suspects its successor in a chain that is too short to drop one.
    pub(super) fn note_stands_still(&mut self, range: RangeId) {
        self.stalled_at.insert(range, self.now);
    }

    /// Records that `reporter` suspects `suspect`, and returns which of them to drop. A reporter that suspects two
    /// successors in a row is itself the cause. The same successor twice means that this successor stalls repeatedly.
    pub(super) fn judge(&mut self, range: RangeId, reporter: MemberId, suspect: MemberId) -> MemberId {
        let now = self.now;
        self.suspicions.retain(|_, (at, _)| now.ms_since(*at) < SUSPICION_MS);
        let former = self.suspicions.insert((range, reporter), (now, suspect));
        if former.is_some_and(|(_, former)| former != suspect) { reporter } else { suspect }
    }
}
