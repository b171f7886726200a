//! Owns how the rest of the process speaks to a shard: a bounded queue of orders, taken between turns.
use super::cluster_report::ClusterReport;
use super::counters::{Counters, DeviceCounts, NodeCounts};
use fawn_node::ShardStatus;
use fawn_types::TimeMs;
use tokio::sync::oneshot;

/// Orders that may wait for a shard; more are refused to whoever asks.
pub(super) const QUEUE_LEN: usize = 16;

/// An order.
#[derive(Debug)]
pub(super) enum Control {
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
    /// Sessions, requests, store and memory.
    pub(crate) node: NodeCounts,
    /// The device, by cause, in the order of their names.
    pub(crate) device: Vec<DeviceCounts>,
    /// The device's name.
    pub(crate) device_name: &'static str,
    /// The failure that ended a store's writes, if any.
    pub(crate) poisoned: Option<String>,
    /// Of a cluster: its chains and back-ends.
    pub(crate) cluster: Option<ClusterReport>,
}

impl Report {
    pub(super) fn new(server: Counters, status: &ShardStatus, now: TimeMs) -> Self {
        Self {
            server,
            node: NodeCounts::of(status),
            device: DeviceCounts::all(&status.device),
            device_name: status.device_name,
            poisoned: status.poisoned.clone(),
            cluster: status.cluster.as_ref().map(|cluster| ClusterReport::of(cluster, now)),
        }
    }

    /// Why clients should not be sent here, if so. A full store still reads and deletes.
    pub(crate) fn trouble(&self) -> Option<String> {
        if let Some(cluster) = &self.cluster {
            // A back-end less is the others' work, not the clients'.
            return cluster.trouble();
        }
        let first = self.poisoned.as_ref()?;
        Some(format!("the store takes no more writes: {first}; restart, and run `fawn check` on the data directory"))
    }
}
