//! Owns how the rest of the process speaks to a shard: a bounded queue of orders, taken between turns.
use super::cluster_report::ClusterReport;
use super::counters::{Counters, NodeCounts, StoreCounts};
use super::listener::Listener;
use fawn_node::ShardStatus;
use fawn_types::Now;
use tokio::sync::oneshot;

/// Orders that may wait for a shard; more are refused to whoever asks.
pub(super) const QUEUE_LEN: usize = 16;

/// An order.
#[derive(Debug)]
pub(super) enum Control {
    /// Let clients in there: all shards are open.
    Listen(Vec<Listener>),
    /// Tell how things stand.
    Report(oneshot::Sender<Report>),
    /// Accept no more, send what is owed, end.
    Stop,
}

/// How things stand with one shard.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Report {
    /// The loop and its connections.
    pub(crate) server: Counters,
    /// Sessions and requests: of a cluster, its front-end's.
    pub(crate) node: NodeCounts,
    /// The store; of a cluster, see its back-ends.
    pub(crate) store: Option<StoreCounts>,
    /// Of a cluster: its chains and back-ends.
    pub(crate) cluster: Option<ClusterReport>,
}

impl Report {
    pub(crate) fn new(server: Counters, status: &ShardStatus, now: Now) -> Self {
        Self {
            server,
            node: NodeCounts::of(status),
            store: status.cluster.is_none().then(|| StoreCounts::of(&status.store, status.poisoned.as_ref())),
            cluster: status.cluster.as_ref().map(|cluster| ClusterReport::of(cluster, now.mono)),
        }
    }

    /// Its stores, each with the back-end it belongs to if it is one of several.
    pub(crate) fn stores(&self) -> impl Iterator<Item = (Option<u32>, &StoreCounts)> {
        let back_ends = self.cluster.iter().flat_map(|cluster| &cluster.back_ends);
        let own = self.store.iter().map(|store| (None, store));
        own.chain(back_ends.map(|back_end| (Some(back_end.node), &back_end.store)))
    }

    /// Why clients should not be sent here, if so. A full store still reads and deletes.
    pub(crate) fn trouble(&self) -> Option<String> {
        if let Some(cluster) = &self.cluster {
            // A back-end less is the others' work, not the clients'.
            return cluster.trouble();
        }
        let first = self.store.as_ref()?.poisoned.as_ref()?;
        Some(format!("the store takes no more writes: {first}; restart, and run `fawn check` on the data directory"))
    }
}
