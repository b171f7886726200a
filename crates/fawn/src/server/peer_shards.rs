//! The other shards of the process, as one shard sees them: message exchange, statistics, joint shutdown.
use super::event_loop::EventLoop;
use super::mailbox::Mailbox;
use super::process_state::ProcessState;
use fawn_node::{ClientService, MessageBatch};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum age of the statistics that shards publish and read while they work.
const STATUS_AGE: Duration = Duration::from_millis(100);
/// Retry interval for a batch that found a full queue.
const RETRY: Duration = Duration::from_millis(1);
/// Maximum batches received per iteration; more make the next iteration due at once.
const BATCHES_MAX: usize = 256;

/// The other shards. A shard that is alone has none.
#[derive(Debug)]
pub(super) struct PeerShards {
    shard: usize,
    pub(super) mailbox: Mailbox<MessageBatch>,
    shared: Arc<ProcessState>,
    published_at: Instant,
    /// Something has happened since the last publication.
    has_news: bool,
    read_at: Instant,
    ending: DrainState,
}

/// Progress of a shutdown. A shard serves the others' requests until no shard has clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DrainState {
    /// Not asked to stop, or still has clients.
    Serving,
    /// No clients; other shards may still have some.
    Drained,
    /// No shard has clients: one more iteration receives what was sent before.
    LastIteration,
}

impl PeerShards {
    pub(super) fn new(shard: usize, mailbox: Mailbox<MessageBatch>, shared: Arc<ProcessState>) -> Self {
        let now = Instant::now();
        // The first iteration publishes at once: until then other shards see an empty shard.
        let published_at = now.checked_sub(STATUS_AGE).unwrap_or(now);
        Self {
            shard,
            mailbox,
            shared,
            published_at,
            has_news: true,
            read_at: published_at,
            ending: DrainState::Serving,
        }
    }

    /// When the next iteration is due for the other shards' sake.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let retry = self.mailbox.has_unsent().then(|| now + RETRY);
        let status = self.has_news.then(|| self.published_at + STATUS_AGE);
        [retry, status].into_iter().flatten().min()
    }

    /// Whether this shard has no clients and the others know it.
    pub(super) fn is_drained(&self) -> bool {
        self.ending != DrainState::Serving
    }

    fn count_drained(&mut self) {
        self.ending = DrainState::Drained;
        if self.shared.count_drained() {
            self.mailbox.wake_others();
        }
    }
}

impl Drop for PeerShards {
    fn drop(&mut self) {
        // The shard ends without a request to stop, perhaps before it began: the others must not wait for it.
        if self.ending == DrainState::Serving {
            self.count_drained();
        }
    }
}

impl<S: ClientService> EventLoop<S> {
    /// Start of an iteration: receives batches and statistics.
    pub(super) fn receive_batches(&mut self) {
        let Some(peers) = &mut self.peers else { return };
        if self.instant.duration_since(peers.read_at) >= STATUS_AGE {
            peers.read_at = self.instant;
            self.shard.set_peer_stats(peers.shared.stats_of_others(peers.shard));
        }
        for _ in 0..BATCHES_MAX {
            let Some((from, batch)) = peers.mailbox.take() else { break };
            self.counters.batches_received += 1;
            peers.has_news = true;
            self.shard.handle_batch(self.now, from, batch);
        }
    }

    /// End of an iteration: sends this shard's batches, as far as the queues accept them.
    pub(super) fn send_batches(&mut self) {
        let Some(peers) = &mut self.peers else { return };
        let (shard, sent) = (&mut self.shard, &mut self.counters.batches_sent);
        peers.mailbox.deliver(|to| shard.take_batch(to).inspect(|_| *sent += 1));
    }

    /// End of an iteration that had `news`: publishes the statistics if the published ones are old.
    pub(super) fn publish_stats(&mut self, news: bool) {
        let Some(peers) = &mut self.peers else { return };
        peers.has_news |= news;
        if peers.has_news && self.instant.duration_since(peers.published_at) >= STATUS_AGE {
            (peers.published_at, peers.has_news) = (self.instant, false);
            peers.shared.publish_stats(peers.shard, self.shard.status());
        }
    }

    /// Whether a shard that was asked to stop has nothing left to do, for its own clients or other shards.
    pub(super) fn may_end(&mut self) -> bool {
        let Some(by) = self.shutdown_deadline else { return false };
        let is_late = self.instant >= by;
        let Some(peers) = &mut self.peers else { return self.conns.is_empty() || is_late };
        // Fire-and-forget messages must be sent before this shard counts as drained.
        let has_drained = self.conns.is_empty() && !peers.mailbox.has_unsent();
        if !peers.is_drained() && !has_drained && !is_late {
            return false;
        }
        if peers.ending == DrainState::Serving {
            peers.count_drained();
        }
        if peers.ending != DrainState::LastIteration && peers.shared.are_all_drained() {
            peers.ending = DrainState::LastIteration;
            self.needs_another_iteration = true;
            return false;
        }
        peers.ending == DrainState::LastIteration
    }
}
