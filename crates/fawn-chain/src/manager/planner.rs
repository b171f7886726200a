//! Planner: compares the map with the ring's layout and returns the next safe change of each chain.
//!
//! Pure and idempotent: after a crash it returns the same change. Splits and merges will be two more changes.
use crate::map::{ClusterMap, MemberRole, RangeEntry};
use alloc::vec::Vec;
use fawn_types::{BootId, Durability, NodeId, RangeId};

/// Health of machines as seen by the planner.
pub trait Health {
    /// The machine's current boot, if its heartbeats arrive and its copy of the range is not known to have failed.
    fn boot(&self, range: RangeId, node: NodeId) -> Option<BootId>;
    /// Whether this syncing copy reported, in its current boot, that it caught up.
    fn caught_up(&self, range: RangeId, node: NodeId) -> bool;
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
        promote: Vec<NodeId>,
    },
    /// Add this machine as a syncing member behind the tail; the epoch continues.
    AddSyncing {
        /// The range.
        range: RangeId,
        /// The machine.
        node: NodeId,
        /// Its boot.
        boot: BootId,
    },
}

/// The next change of `entry`'s chain, if any. `desired` is the ring's chain, `durability` the requested mode.
#[must_use]
pub fn next_change(
    entry: &RangeEntry,
    durability: Durability,
    desired: &[NodeId],
    health: &impl Health,
) -> Option<Change> {
    let range = entry.range;
    let boot = |node| health.boot(range, node);
    if !entry.is_active() {
        return Some(Change::Reform { range, promote: Vec::new() });
    }
    let is_sick = entry.serving().any(|member| boot(member.node) != Some(member.boot));
    if is_sick || entry.durability != durability {
        // If no member is left to continue, an epoch that still replies to reads is better than one that cannot begin.
        let somebody = entry.serving().any(|member| boot(member.node).is_some());
        return somebody.then_some(Change::Reform { range, promote: Vec::new() });
    }
    let ready =
        entry.syncing().filter(|member| boot(member.node) == Some(member.boot) && health.caught_up(range, member.node));
    let promote: Vec<NodeId> = ready.map(|member| member.node).collect();
    if !promote.is_empty() {
        return Some(Change::Reform { range, promote });
    }
    desired.iter().find_map(|&node| {
        let boot = boot(node)?;
        let there = entry.member(node);
        // A syncing member that rebooted is added again under its new boot.
        let stale = there.is_some_and(|member| member.role == MemberRole::Syncing && member.boot != boot);
        (there.is_none() || stale).then_some(Change::AddSyncing { range, node, boot })
    })
}

/// The next change of every chain.
#[must_use]
pub fn plan(map: &ClusterMap, health: &impl Health) -> Vec<Change> {
    let layout = map.ring().layout();
    // A range that is not divided along the ring (yet) uses the ring's chain at its start.
    let desired = |entry: &RangeEntry| layout.iter().find(|range| range.keys.contains(&entry.keys.start));
    map.ranges
        .iter()
        .filter_map(|entry| {
            let desired = desired(entry).map_or(&[][..], |range| &range.chain);
            next_change(entry, map.durability, desired, health)
        })
        .collect()
}
