//! The other shards of the process, as one shard sees them: message exchange, statistics, joint shutdown.
use super::backing::Backing;
use super::post::Post;
use super::shared::Shared;
use super::turn::Turn;
use fawn_node::Letter;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum age of the statistics that shards publish and read while they work.
const STATUS_AGE: Duration = Duration::from_millis(100);
/// Retry interval for a batch that found a full queue.
const RETRY: Duration = Duration::from_millis(1);
/// Maximum batches received per iteration; more make the next iteration due at once.
const LETTERS_MAX: usize = 256;

/// The other shards. A shard that is alone has none.
#[derive(Debug)]
pub(super) struct Company {
    shard: usize,
    post: Post<Letter>,
    shared: Arc<Shared>,
    told_at: Instant,
    /// Something has happened since the last publication.
    has_news: bool,
    read_at: Instant,
    ending: Ending,
}

/// Progress of a shutdown. A shard serves the others' requests until no shard has clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// Not asked to stop, or still has clients.
    Serving,
    /// No clients; other shards may still have some.
    Drained,
    /// No shard has clients: one more iteration receives what was sent before.
    LastTurn,
}

impl Company {
    pub(super) fn new(shard: usize, post: Post<Letter>, shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        // The first iteration publishes at once: until then other shards see an empty shard.
        let told_at = now.checked_sub(STATUS_AGE).unwrap_or(now);
        Self { shard, post, shared, told_at, has_news: true, read_at: told_at, ending: Ending::Serving }
    }

    /// When the next iteration is due for the other shards' sake.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let retry = self.post.has_kept().then(|| now + RETRY);
        let status = self.has_news.then(|| self.told_at + STATUS_AGE);
        [retry, status].into_iter().flatten().min()
    }

    /// See [`Post::may_sleep`].
    pub(super) fn may_sleep(&mut self) -> bool {
        self.post.may_sleep()
    }

    /// See [`Post::woke`].
    pub(super) fn woke(&self) {
        self.post.woke();
    }

    /// Whether this shard has no clients and the others know it.
    pub(super) fn is_drained(&self) -> bool {
        self.ending != Ending::Serving
    }

    fn count_drained(&mut self) {
        self.ending = Ending::Drained;
        if self.shared.count_drained() {
            self.post.wake_others();
        }
    }

    /// Advances the shutdown of a shard that was asked to stop, once its clients are gone or
    /// their time is over.
    fn step_to_end(&mut self) -> Step {
        if self.ending == Ending::Serving {
            self.count_drained();
        }
        match self.ending {
            Ending::LastTurn => Step::End,
            _ if self.shared.are_all_drained() => {
                self.ending = Ending::LastTurn;
                Step::Turn
            }
            _ => Step::Wait,
        }
    }
}

/// The next step of a stopping shard.
enum Step {
    Wait,
    Turn,
    End,
}

impl Drop for Company {
    fn drop(&mut self) {
        // The shard ends without a request to stop, perhaps before it began: the others must not wait for it.
        if self.ending == Ending::Serving {
            self.count_drained();
        }
    }
}

impl<B: Backing> Turn<B> {
    /// Start of an iteration: receives batches and statistics.
    pub(super) fn take_letters(&mut self) {
        let Some(company) = &mut self.company else { return };
        if self.instant.duration_since(company.read_at) >= STATUS_AGE {
            company.read_at = self.instant;
            self.shard.set_others(company.shared.board.others(company.shard));
        }
        for _ in 0..LETTERS_MAX {
            let Some((from, letter)) = company.post.take() else { break };
            self.counters.letters_received += 1;
            company.has_news = true;
            self.shard.handle_letter(self.now, from, letter);
        }
    }

    /// End of an iteration: sends this shard's batches, as far as the queues accept them.
    pub(super) fn hand_letters(&mut self) {
        let Some(company) = &mut self.company else { return };
        let (shard, sent) = (&mut self.shard, &mut self.counters.letters_sent);
        company.post.deliver(|to| shard.take_letter(to).inspect(|_| *sent += 1));
    }

    /// End of an iteration that had `news`: publishes the statistics if the published ones are old.
    pub(super) fn tell_status(&mut self, news: bool) {
        let Some(company) = &mut self.company else { return };
        company.has_news |= news;
        if company.has_news && self.instant.duration_since(company.told_at) >= STATUS_AGE {
            (company.told_at, company.has_news) = (self.instant, false);
            company.shared.board.publish(company.shard, self.shard.status());
        }
    }

    /// Whether a shard that was asked to stop has nothing left to do, for its own clients or other shards.
    pub(super) fn may_end(&mut self) -> bool {
        let Some(by) = self.stop_by else { return false };
        let is_late = self.instant >= by;
        let Some(company) = &mut self.company else { return self.conns.is_empty() || is_late };
        // Fire-and-forget messages must be sent before this shard counts as drained.
        let has_drained = self.conns.is_empty() && !company.post.has_kept();
        if !company.is_drained() && !has_drained && !is_late {
            return false;
        }
        match company.step_to_end() {
            Step::Wait => false,
            Step::Turn => {
                self.owes_turn = true;
                false
            }
            Step::End => true,
        }
    }
}
