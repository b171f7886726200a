//! Orders from the rest of the process to a shard: a bounded queue, taken between iterations.
use super::cluster_report::{BackEndReport, ClusterReport};
use super::counters::{LoopCounters, StoreReport, table_json};
use super::listener::Listener;
use fawn_node::{ShardStatus, StoreStatus};
use fawn_types::Now;
use tokio::sync::oneshot;

/// Capacity of a shard's queue of orders; senders beyond it are refused.
pub(super) const QUEUE_LEN: usize = 16;

/// An order to a shard.
#[derive(Debug)]
pub(super) enum Control {
    /// Accept clients at these listeners: all shards are open.
    Listen(Vec<Listener>),
    /// Report state and statistics.
    Report(oneshot::Sender<ShardReport>),
    /// Accept no more connections, send pending replies, end.
    Stop,
}

/// State and statistics of one shard.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct ShardReport {
    /// The event loop and its connections.
    #[serde(serialize_with = "table_json")]
    pub(crate) server: LoopCounters,
    /// Sessions and requests; in a cluster, those of the node that serves the clients.
    #[serde(serialize_with = "table_json")]
    pub(crate) node: ShardStatus,
    /// The store; in a cluster, see its back-ends.
    pub(crate) store: Option<StoreReport>,
    /// Chains and back-ends of a cluster.
    pub(crate) cluster: Option<ClusterReport>,
}

impl ShardReport {
    pub(crate) fn new(server: LoopCounters, mut node: ShardStatus, now: Now) -> Self {
        let cluster = node.cluster.take().map(|cluster| ClusterReport::of(&cluster, now.mono));
        let store = std::mem::take(&mut node.store);
        Self { server, node, store: cluster.is_none().then_some(StoreReport(store)), cluster }
    }

    /// Its stores, each with its back-end if there are several.
    pub(crate) fn stores(&self) -> impl Iterator<Item = (Option<&BackEndReport>, &StoreStatus)> {
        let back_ends = self.cluster.iter().flat_map(|cluster| &cluster.back_ends);
        let own = self.store.iter().map(|store| (None, &store.0));
        own.chain(back_ends.map(|back_end| (Some(back_end), &back_end.store.0)))
    }

    /// Reason to send no clients here, if there is one. A full store still reads and deletes.
    pub(crate) fn trouble(&self) -> Option<String> {
        if let Some(cluster) = &self.cluster {
            // A missing back-end is repaired by the others; clients need not leave.
            return cluster.trouble();
        }
        let first = self.store.as_ref()?.0.poisoned.as_ref()?;
        Some(format!("the store takes no more writes: {first}; restart, and run `fawn check` on the data directory"))
    }
}
