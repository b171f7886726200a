//! State shared by all shards of a process: connection permits, published statistics, shutdown progress.
//!
//! No request touches it: permits are taken per connection, statistics ten times a second, the rest at the end.
use fawn_node::{Counted, ShardStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// State shared by the shards of a process.
#[derive(Debug)]
pub(super) struct ProcessState {
    pub(super) connections: Arc<ConnectionLimit>,
    pub(super) stats: SharedStats,
    drained: AtomicUsize,
}

impl ProcessState {
    pub(super) fn new(shards: u16, connections_max: usize) -> Self {
        Self {
            connections: Arc::new(ConnectionLimit { taken: AtomicUsize::new(0), most: connections_max }),
            stats: SharedStats { slots: (0..shards).map(|_| Mutex::default()).collect() },
            drained: AtomicUsize::new(0),
        }
    }

    /// Counts one more shard without clients, or ended. Returns `true` for the last.
    pub(super) fn count_drained(&self) -> bool {
        // Release here, acquire below: batches sent before a shard counted itself are visible when all are counted.
        self.drained.fetch_add(1, Ordering::AcqRel) + 1 >= self.stats.slots.len()
    }

    /// Whether no shard has clients any more.
    pub(super) fn are_all_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire) >= self.stats.slots.len()
    }
}

/// Connection permits of the whole process, whichever shard accepts.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    taken: AtomicUsize,
    most: usize,
}

impl ConnectionLimit {
    /// Takes a permit, if one is left.
    pub(super) fn take(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let is_free = |taken: usize| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_free).ok()?;
        Some(ConnectionPermit(Arc::clone(self)))
    }
}

/// The right to one connection, returned when it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit(Arc<ConnectionLimit>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Last published statistics of each shard.
#[derive(Debug)]
pub(super) struct SharedStats {
    slots: Vec<Mutex<ShardStatus>>,
}

impl SharedStats {
    /// Publishes this shard's statistics.
    pub(super) fn publish(&self, shard: usize, status: ShardStatus) {
        *self.slot(shard) = status;
    }

    /// The sum of all but this shard.
    pub(super) fn others(&self, shard: usize) -> ShardStatus {
        let mut sum = ShardStatus::default();
        for other in (0..self.slots.len()).filter(|other| *other != shard) {
            sum.add(&self.slot(other));
        }
        sum
    }

    /// Statistics are stored whole, so a thread that panicked left the previous ones.
    fn slot(&self, shard: usize) -> MutexGuard<'_, ShardStatus> {
        self.slots[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_counted_for_all_shards_together() {
        let shared = ProcessState::new(3, 100);
        let mut takers: Vec<_> = std::thread::scope(|scope| {
            let taker = || (0..1000).filter_map(|_| shared.connections.take()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(taker)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(takers.len(), 100);
        drop(takers.pop());
        let next = shared.connections.take();
        assert!(next.is_some() && shared.connections.take().is_none());
    }

    #[test]
    fn the_board_sums_the_others() {
        let shared = ProcessState::new(3, 1);
        for shard in 0..3 {
            shared.stats.publish(shard, ShardStatus { sessions: 10_usize.pow(shard as u32), ..ShardStatus::default() });
        }
        assert_eq!([0, 1, 2].map(|shard| shared.stats.others(shard).sessions), [110, 101, 11]);
        assert!(!shared.count_drained() && !shared.count_drained() && !shared.are_all_drained());
        assert!(shared.count_drained() && shared.are_all_drained());
    }
}
