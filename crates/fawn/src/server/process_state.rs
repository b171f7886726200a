//! State shared by all shards of a process: connection permits, published statistics, shutdown progress.
//!
//! No request touches it: permits are taken per connection, statistics ten times a second, the rest at the end.
use fawn_node::{Counted, ShardStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// State shared by the shards of a process.
#[derive(Debug)]
pub(super) struct ProcessState {
    /// Permits for connections, whichever shard accepts them.
    pub(super) connections: Arc<Semaphore>,
    /// Last published statistics of each shard.
    stats: Vec<Mutex<ShardStatus>>,
    drained: AtomicUsize,
}

impl ProcessState {
    pub(super) fn new(shards: u16, connections_max: usize) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS))),
            stats: (0..shards).map(|_| Mutex::default()).collect(),
            drained: AtomicUsize::new(0),
        }
    }

    /// Counts one more shard without clients, or ended. Returns `true` for the last.
    pub(super) fn count_drained(&self) -> bool {
        // Release here, acquire below: batches sent before a shard counted itself are visible when all are counted.
        self.drained.fetch_add(1, Ordering::AcqRel) + 1 >= self.stats.len()
    }

    /// Whether no shard has clients any more.
    pub(super) fn are_all_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire) >= self.stats.len()
    }

    /// Publishes this shard's statistics.
    pub(super) fn publish_stats(&self, shard: usize, status: ShardStatus) {
        *self.stats(shard) = status;
    }

    /// The sum of all but this shard.
    pub(super) fn stats_of_others(&self, shard: usize) -> ShardStatus {
        let mut sum = ShardStatus::default();
        for other in (0..self.stats.len()).filter(|other| *other != shard) {
            sum.add(&self.stats(other));
        }
        sum
    }

    /// Statistics are stored whole, so a thread that panicked left the previous ones.
    fn stats(&self, shard: usize) -> MutexGuard<'_, ShardStatus> {
        self.stats[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_for_all_shards_together() {
        let shared = ProcessState::new(3, 100);
        let take = || shared.connections.clone().try_acquire_owned();
        let mut takers: Vec<_> = std::thread::scope(|scope| {
            let taker = || (0..1000).filter_map(|_| take().ok()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(taker)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(takers.len(), 100);
        drop(takers.pop());
        let next = take();
        assert!(next.is_ok() && take().is_err());
    }

    #[test]
    fn statistics_of_others_are_summed() {
        let shared = ProcessState::new(3, 1);
        for shard in 0..3 {
            shared.publish_stats(shard, ShardStatus { sessions: 10_usize.pow(shard as u32), ..ShardStatus::default() });
        }
        assert_eq!([0, 1, 2].map(|shard| shared.stats_of_others(shard).sessions), [110, 101, 11]);
        assert!(!shared.count_drained() && !shared.count_drained() && !shared.are_all_drained());
        assert!(shared.count_drained() && shared.are_all_drained());
    }
}
