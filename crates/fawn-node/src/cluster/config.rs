//! Configuration of a shard in a cluster: its identity, the initial cluster map, and its limits.
use crate::status::SLOW_AFTER_MS;
use fawn_chain::completions::CompletionLimits;
use fawn_chain::{ClusterMap, ManagerOptions, ReplicaOptions, RouterOptions};
use fawn_types::{BootId, Durability, MemberId, limits};

/// Configuration of one shard of a node in a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    /// This shard.
    pub id: MemberId,
    /// This run of the shard's process; never used twice.
    pub boot: BootId,
    /// Durability mode that the engine was opened with. At the manager it is also the mode of future epochs; an
    /// active epoch keeps the mode that it was activated with.
    pub durability: Durability,
    /// The map as of the cluster's creation, the same on every shard. Later changes are stored in the engine.
    pub map: ClusterMap,
    /// The shard that hosts the manager; it may be this one.
    pub manager: Option<MemberId>,
    /// Where the manager stores its map.
    pub map_place: MapPlace,
    /// Bounds and intervals.
    pub limits: NodeLimits,
}

/// Configuration of the members of one store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HostConfig {
    pub(crate) id: MemberId,
    pub(crate) boot: BootId,
    pub(crate) durability: Durability,
    pub(crate) limits: NodeLimits,
}

impl HostConfig {
    pub(crate) const fn of(config: &NodeConfig) -> Self {
        let NodeConfig { id, boot, durability, limits, .. } = *config;
        Self { id, boot, durability, limits }
    }
}

/// Where a manager stores its map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum MapPlace {
    /// In the store of the manager's shard. If that disk fails, no chain can be changed any more.
    #[default]
    OwnStore,
    /// In several stores of the host, which replies to [`super::NodeOutput::KeepMap`] with
    /// [`crate::Shard::handle_map_kept`].
    Host {
        /// The newest map found in these stores.
        kept: Option<Box<ClusterMap>>,
    },
}

/// Limits and intervals of a shard in a cluster. They bound each of its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeLimits {
    /// Longest value, bytes.
    pub value_bytes_max: u32,
    /// Maximum number of requests, over all ranges, that wait for a device read. Further requests are refused as
    /// overload.
    pub parked_max: usize,
    /// Maximum number of concurrent device reads for lookups; further reads are queued.
    pub reads_in_flight_max: usize,
    /// Maximum bytes of frames buffered for one peer. Further frames are dropped and retransmitted later.
    pub outbound_bytes_max: usize,
    /// Maximum bytes of records in one chunk of a transfer. A longer record has a chunk of its own.
    pub transfer_chunk_bytes_max: usize,
    /// Maximum number of records per range that the log retains for retransmission. It applies after recovery, which
    /// reads the whole log. A member that missed more records is fully resynced.
    pub retained_records_max: usize,
    /// A write or sync in flight for longer makes the shard report that its disk is slow.
    pub slow_after_ms: u64,
    /// Interval between heartbeats to the manager, milliseconds.
    pub heartbeat_ms: u64,
    /// Options of the front-end.
    pub router: RouterOptions,
    /// Options of each chain member.
    pub replica: ReplicaOptions,
    /// Options of the manager.
    pub manager: ManagerOptions,
    /// Limits of each range's completions.
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
            slow_after_ms: SLOW_AFTER_MS,
            heartbeat_ms: 200,
            router: RouterOptions::default(),
            replica: ReplicaOptions::default(),
            manager: ManagerOptions::default(),
            completions: CompletionLimits::default(),
        }
    }
}

/// The front-end session of one boot of a shard.
///
/// It contains the shard, so a tail finds the receiver of a reply in the record alone. It also contains a hash of the
/// boot, so sessions of earlier boots differ.
pub(crate) const fn session_of(id: MemberId, boot: BootId) -> u64 {
    let boot = fawn_types::random::SplitMix64::mix(boot.0) as u32;
    // 0 means "no session".
    let session = (id.0 as u64) << 32 | boot as u64;
    if session == 0 { 1 } else { session }
}

/// The shard that opened the session.
pub(crate) const fn member_of(session: u64) -> MemberId {
    MemberId((session >> 32) as u32)
}
