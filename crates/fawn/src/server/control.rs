//! Control messages from the main thread to a shard: a bounded queue, received between iterations.
use super::cluster_report::{cluster_json, unready_reason};
use super::counters::{LoopCounters, object, store_json};
use super::listener::Listener;
use fawn_node::status::SLOW_AFTER_MS;
use fawn_node::{BackEndStatus, ShardStatus, StoreStatus};
use fawn_types::MonoMs;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// Capacity of a shard's queue of control messages. A `Report` beyond it is refused, a `Stop` waits for space.
pub(super) const QUEUE_LEN: usize = 16;

/// A control message to a shard.
#[derive(Debug)]
pub(super) enum Control {
    /// Accept clients at these listeners. Sent once all shards have opened their stores.
    Listen(Vec<Listener>),
    /// Report state and statistics.
    Report(oneshot::Sender<ShardReport>),
    /// Accept no more connections, execute received requests, send their replies, end.
    Stop,
}

/// State and statistics of one shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardReport {
    /// The event loop and its connections.
    pub(crate) server: LoopCounters,
    /// Sessions, requests and stores; in a cluster, the requests of the node that serves the clients.
    pub(crate) node: ShardStatus,
    /// Time of the report.
    pub(crate) now: MonoMs,
}

impl ShardReport {
    /// The report for `/status`.
    pub(crate) fn json(&self) -> Value {
        let cluster = self.node.cluster.as_ref();
        json!({
            "server": object(&self.server),
            "node": object(&self.node),
            // A cluster has a store per back-end, listed under `cluster`.
            "store": cluster.is_none().then(|| store_json(&self.node.store)),
            "cluster": cluster.map(|cluster| cluster_json(cluster, self.now)),
        })
    }

    /// The shard's own store, or in a cluster the store of each back-end.
    pub(crate) fn stores(&self) -> impl Iterator<Item = (Option<&BackEndStatus>, &StoreStatus)> {
        let own = self.node.cluster.is_none().then_some((None, &self.node.store));
        let back_ends = self.node.cluster.iter().flat_map(|cluster| &cluster.back_ends);
        own.into_iter().chain(back_ends.map(|back_end| (Some(back_end), &back_end.store)))
    }

    /// Reason for `/readyz` to fail, if there is one. A full store is none: it still reads and deletes.
    pub(crate) fn unready_reason(&self) -> Option<String> {
        if let Some(cluster) = &self.node.cluster {
            // A failed back-end is no reason by itself: the other members of its chains serve its keys.
            return unready_reason(cluster, self.now);
        }
        let Some(first) = &self.node.store.poisoned else {
            let oldest_write_ms = Some(self.node.store.oldest_write_ms).filter(|age_ms| *age_ms > SLOW_AFTER_MS)?;
            return Some(format!("the disk has not completed a write for {oldest_write_ms} ms: writes wait for it"));
        };
        Some(format!("the store takes no more writes: {first}; restart, and run `fawn check` on the data directory"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_whose_disk_hangs_is_not_ready() {
        let reason = |oldest_write_ms| {
            let store = StoreStatus { oldest_write_ms, ..StoreStatus::default() };
            let node = ShardStatus { store, ..ShardStatus::default() };
            ShardReport { server: LoopCounters::default(), node, now: MonoMs::default() }.unready_reason()
        };
        assert_eq!(reason(2_000), None);
        let hung = reason(2_001);
        assert!(hung.as_ref().is_some_and(|words| words.contains("2001 ms")), "{hung:?}");
    }
}
