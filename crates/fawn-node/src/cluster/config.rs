//! Owns what a cluster node is told at its start: who it is, the map it begins with, and its bounds.
use fawn_chain::completions::CompletionLimits;
use fawn_chain::{ClusterMap, ManagerOptions, ReplicaOptions, RouterOptions};
use fawn_types::{BootId, Durability, NodeId, limits};

/// A node of a cluster. It is a back-end if it is given an engine; every node can submit operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    /// This machine.
    pub node: NodeId,
    /// This start of its process; never drawn twice.
    pub boot: BootId,
    /// When a write counts as kept: what the engine was opened with. Where the manager lives, what epochs to come serve
    /// in; an epoch under way, or the last one, had its own.
    pub durability: Durability,
    /// The cluster's map as of its creation, the same on every node; what a node learnt later is in its engine.
    pub map: ClusterMap,
    /// Where the manager lives; this node hosts it if it is its own.
    pub manager: Option<NodeId>,
    /// Where the manager keeps its map.
    pub map_place: MapPlace,
    /// Bounds and intervals.
    pub limits: NodeLimits,
}

/// Where a manager keeps its map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum MapPlace {
    /// In the store of the node that hosts it: one disk less, and no chain changes any more.
    #[default]
    OwnStore,
    /// Where its host says, who has several stores at hand: [`super::Output::KeepMap`] is answered by
    /// [`super::Node::handle_map_kept`].
    Host {
        /// The newest one that was found in them.
        kept: Option<Box<ClusterMap>>,
    },
}

/// Every buffer of a node is bounded by one of these, or by its parts'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeLimits {
    /// Longest value, bytes.
    pub value_bytes_max: u32,
    /// Requests of all ranges that may wait for a device read; beyond, they are refused as overload.
    pub parked_max: usize,
    /// Device reads for lookups at a time; further ones queue.
    pub reads_in_flight_max: usize,
    /// Frames for one peer that wait for the host, bytes; beyond, they are dropped, to be repeated later.
    pub outbound_bytes_max: usize,
    /// Records in one part of a copy, bytes, unless one is longer.
    pub transfer_chunk_bytes_max: usize,
    /// Records of each range that the log keeps to send again, at most, once its start has looked through all that the
    /// log has: a member that missed more is fully resynced.
    pub retained_records_max: usize,
    /// A write or sync in flight for longer makes the machine report that its disk is slow.
    pub slow_after_ms: u64,
    /// How often a back-end tells the manager that it lives.
    pub heartbeat_ms: u64,
    /// Of the front-end.
    pub router: RouterOptions,
    /// Of each chain member.
    pub replica: ReplicaOptions,
    /// Of the manager.
    pub manager: ManagerOptions,
    /// Of each range's completions.
    pub completions: CompletionLimits,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            value_bytes_max: limits::VALUE_BYTES_MAX as u32,
            parked_max: 1 << 14,
            reads_in_flight_max: 256,
            outbound_bytes_max: 64 << 20,
            transfer_chunk_bytes_max: 256 << 10,
            retained_records_max: usize::MAX,
            slow_after_ms: 2_000,
            heartbeat_ms: 200,
            router: RouterOptions::default(),
            replica: ReplicaOptions::default(),
            manager: ManagerOptions::default(),
            completions: CompletionLimits::default(),
        }
    }
}

/// The front-end session of one boot of a node. The node is in it, so that a tail knows from a record alone whom to
/// answer; the boot tells it from the sessions before.
pub(super) const fn session_of(node: NodeId, boot: BootId) -> u64 {
    let boot = fawn_types::random::SplitMix64::mix(boot.0) as u32;
    // Session 0 is no session.
    let session = (node.0 as u64) << 32 | boot as u64;
    if session == 0 { 1 } else { session }
}

/// Whose front-end the session is.
pub(super) const fn node_of(session: u64) -> NodeId {
    NodeId((session >> 32) as u32)
}
