//! Shard of a node in a cluster: its start, its cluster duties in an iteration, and its maps and status.
use super::Shard;
use crate::cluster::{
    HostConfig, MemberHost, NodeConfig, NodeControl, NodeError, NodeStatus, PeerLinks, RangeDigest, node_status,
};
use crate::forward::ClusterOps;
use crate::options::{ServerInfo, ShardOptions};
use crate::placement::Placement;
use crate::status::StoreStatus;
use fawn_chain::ClusterMap;
use fawn_ds::internals::{Engine, EngineError};
use fawn_flash::Device;
use fawn_types::{MonoMs, Now, RangeId, TimeMs};

impl<D: Device> Shard<D> {
    /// Creates a shard of a cluster's node from the state in its store. Blocks on the device.
    ///
    /// # Errors
    /// When the store belongs to another cluster, was opened with unsuitable options, or holds corrupt promises.
    pub fn in_cluster(
        engine: Engine<D>,
        config: NodeConfig,
        options: ShardOptions,
        server_info: ServerInfo,
        now: Now,
    ) -> Result<Self, NodeError> {
        let links = PeerLinks::new(config.id, config.boot, config.manager, config.limits.outbound_bytes_max);
        let mut cluster = ClusterOps::new(&config);
        let mut host = MemberHost::new(HostConfig::of(&config), engine);
        host.note_time(now);
        host.check_engine(&config.map)?;
        host.recover(&config.map)?;
        host.members.iter().filter_map(|member| member.replica.entry()).for_each(|entry| cluster.handle_entry(entry));
        let control = NodeControl::new(&config, &host)?;
        Ok(Self::with(host, Placement::ALONE, options, server_info, Some((control, links, cluster))))
    }

    /// Cluster duties at the start of an iteration: durable promises, heartbeat, timeouts.
    pub(super) fn begin_cluster_iteration(&mut self) {
        let Some(control) = &mut self.state.control else { return };
        let (host, links) = (&mut self.state.host, &mut self.state.links);
        let now = host.now;
        if let Some(revision) = host.reap_persists(now) {
            control.handle_map_durable(now, revision);
        }
        control.send_heartbeat(host, links);
        if let Some(cluster) = &mut self.state.forward.cluster {
            cluster.handle_timeout();
        }
    }

    /// When cluster duties next need an iteration.
    pub(super) fn cluster_deadline(&self) -> Option<MonoMs> {
        let control = self.state.control.as_ref()?;
        let of_operations = self.state.forward.cluster.as_ref().and_then(|cluster| cluster.next_timeout());
        let of_members = self.state.host.next_timeout();
        [Some(control.next_timeout()), of_operations, of_members].into_iter().flatten().min()
    }

    /// The cluster map as this shard knows it; it may be out of date. `None` on a standalone node.
    pub fn map(&self) -> Option<&ClusterMap> {
        self.state.forward.cluster.as_ref().map(|cluster| cluster.map())
    }

    /// The committed map, if this shard hosts the manager.
    pub fn manager_map(&self) -> Option<&ClusterMap> {
        self.state.control.as_ref()?.manager.as_ref().map(|host| host.manager.map())
    }

    /// The map of [`crate::cluster::NodeOutput::KeepMap`] is durable on enough disks.
    pub fn handle_map_kept(&mut self, now: Now, revision: u64) {
        let now = self.note_time(now);
        if let Some(host) = self.state.control.as_mut().and_then(|control| control.manager.as_mut()) {
            host.manager.handle_persisted(now, revision);
        }
    }

    /// Begins to store another shard's map here; [`Shard::poll_map_kept`] returns its revision once it is durable.
    pub(crate) fn keep_map(&mut self, revision: u64, image: &[u8]) {
        // A poisoned store has reported its failure; the other stores keep the map.
        if self.state.host.engine.poisoned().is_none() {
            self.state.host.persist_map(revision, image);
        }
    }

    pub(crate) fn poll_map_kept(&mut self) -> Option<u64> {
        self.state.control.as_mut()?.kept.take()
    }

    /// Statistics of all stores behind the sessions, for `INFO`.
    pub(crate) fn set_stores(&mut self, stores: StoreStatus) {
        self.state.stores = Some(stores);
    }

    /// Counters and the state of each chain member. Empty on a standalone node.
    pub fn node_status(&self) -> NodeStatus {
        let (Some(control), Some(cluster)) = (&self.state.control, &self.state.forward.cluster) else {
            return NodeStatus::default();
        };
        node_status(&self.state.host, &self.state.links, control, cluster.started())
    }

    /// Digest of the content of this shard's copy of `range` that is committed and not expired at `time`; `None`
    /// without a copy. For checks: blocks on the device.
    ///
    /// Members judge expiry by chain times that differ by the delay of a link, so copies are compared as of one time,
    /// not before that of any of them ([`crate::cluster::MemberStatus::time`]).
    ///
    /// # Errors
    /// When stored bytes are corrupt.
    pub fn digest(&mut self, range: RangeId, time: TimeMs) -> Result<Option<RangeDigest>, EngineError> {
        let slot = self.state.host.members.find(range);
        slot.map(|_| self.state.host.digest(range, time)).transpose()
    }
}
