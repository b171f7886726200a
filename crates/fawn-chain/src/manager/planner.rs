//! Planner: compares the map with the ring's layout and returns the next safe change of each chain.
//!
//! Pure and idempotent: after a crash it returns the same change. Splits and merges will be two more changes.
use crate::map::{ClusterMap, MemberRole, RangeEntry};
use crate::ring::RangeLayout;
use alloc::vec::Vec;
use fawn_types::{BootId, Durability, MemberId, RangeId};

/// A chain with fewer serving members takes a member back at once, whatever the reason it was left out for.
const SERVING_ENOUGH: usize = 2;

/// Health of shards as seen by the planner.
pub trait Health {
    /// The shard's current boot, if its heartbeats arrive and its copy of the range is not known to have failed.
    fn boot(&self, range: RangeId, id: MemberId) -> Option<BootId>;
    /// Whether this syncing copy reported, in its current boot, that it caught up.
    fn caught_up(&self, range: RangeId, id: MemberId) -> bool;
    /// Whether this syncing copy was left out of its chain, and has not kept up for long enough since.
    fn is_held_off(&self, range: RangeId, id: MemberId) -> bool;
    /// Whether the chain is stalled, and too short to drop the member that it waits for.
    fn is_stalled(&self, range: RangeId) -> bool;
}

/// One change of one chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Begin a new epoch. Either the chain was never active, or its durability mode changes; or a serving member is
    /// gone, failed or rebooted; or a member is promoted.
    Reform {
        /// The range.
        range: RangeId,
        /// Syncing members that become serving.
        promote: Vec<MemberId>,
    },
    /// Add this shard as a syncing member behind the tail; the epoch continues.
    AddSyncing {
        /// The range.
        range: RangeId,
        /// The shard.
        member: MemberId,
        /// Its boot.
        boot: BootId,
    },
}

/// The next change of `entry`'s chain, if any. `desired` is the ring's chain, `durability` the requested mode.
#[must_use]
pub fn next_change(
    entry: &RangeEntry,
    durability: Durability,
    desired: &[MemberId],
    health: &impl Health,
) -> Option<Change> {
    let range = entry.range;
    let boot = |id| health.boot(range, id);
    if !entry.is_active() {
        return Some(Change::Reform { range, promote: Vec::new() });
    }
    let is_sick = entry.serving().any(|member| boot(member.id) != Some(member.boot));
    if is_sick || entry.durability != durability {
        // If no member is left to continue, an epoch that still replies to reads is better than one that cannot begin.
        let has_member = entry.serving().any(|member| boot(member.id).is_some());
        return has_member.then_some(Change::Reform { range, promote: Vec::new() });
    }
    // A hold-off protects a working chain from a member that stalls it. A chain that is short or stalled has nothing to
    // lose.
    let is_short = entry.serving().count() < SERVING_ENOUGH || !entry.takes_writes();
    let is_urgent = is_short || health.is_stalled(range);
    let ready = entry.syncing().filter(|member| {
        let has_caught_up = boot(member.id) == Some(member.boot) && health.caught_up(range, member.id);
        has_caught_up && (is_urgent || !health.is_held_off(range, member.id))
    });
    let promote: Vec<MemberId> = ready.map(|member| member.id).collect();
    if !promote.is_empty() {
        return Some(Change::Reform { range, promote });
    }
    desired.iter().find_map(|&id| {
        let boot = boot(id)?;
        let there = entry.member(id);
        // A syncing member that rebooted is added again under its new boot.
        let stale = there.is_some_and(|member| member.role == MemberRole::Syncing && member.boot != boot);
        (there.is_none() || stale).then_some(Change::AddSyncing { range, member: id, boot })
    })
}

/// The ring's layout, as of one revision of the map: hundreds of points are sorted once, not with each frame.
#[derive(Clone, Debug, Default)]
pub struct RingLayout {
    revision: Option<u64>,
    ranges: Vec<RangeLayout>,
    computed: u64,
}

impl RingLayout {
    /// Computes the layout again if `map` is of another revision.
    pub fn refresh(&mut self, map: &ClusterMap) {
        if self.revision != Some(map.revision) {
            self.revision = Some(map.revision);
            self.ranges = map.ring().layout();
            self.computed += 1;
        }
    }

    /// The ring's chain of a range; one that is not cut along the ring (yet) follows the ring's chain at its start.
    #[must_use]
    pub fn chain(&self, entry: &RangeEntry) -> &[MemberId] {
        let above = self.ranges.partition_point(|range| range.keys.start <= entry.keys.start);
        let range = above.checked_sub(1).and_then(|at| self.ranges.get(at));
        range.filter(|range| range.keys.contains(&entry.keys.start)).map_or(&[], |range| &range.chain)
    }

    /// How often it was computed.
    #[must_use]
    pub const fn computed(&self) -> u64 {
        self.computed
    }
}

/// The next change of each of these chains.
#[must_use]
pub fn plan<'a>(
    entries: impl Iterator<Item = &'a RangeEntry>,
    durability: Durability,
    layout: &RingLayout,
    health: &impl Health,
) -> Vec<Change> {
    entries.filter_map(|entry| next_change(entry, durability, layout.chain(entry), health)).collect()
}
