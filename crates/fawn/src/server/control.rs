//! Owns how the rest of the process speaks to a shard: a bounded queue of orders, taken between turns.
use super::counters::{Counters, DeviceCounts, NodeCounts};
use fawn_node::ShardStatus;
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
    /// The failure that ended writes, if any.
    pub(crate) poisoned: Option<String>,
}

impl Report {
    pub(super) fn new(server: Counters, status: &ShardStatus) -> Self {
        Self {
            server,
            node: NodeCounts::of(status),
            device: DeviceCounts::all(&status.device),
            device_name: status.device_name,
            poisoned: status.poisoned.clone(),
        }
    }

    /// Why clients should not be sent here, if so. A full store still reads and deletes.
    pub(crate) fn trouble(&self) -> Option<String> {
        let first = self.poisoned.as_ref()?;
        Some(format!("the store takes no more writes: {first}; restart, and run `fawn check` on the data directory"))
    }
}
