//! Owns a shard's dealings with the other shards of its process, turn by turn: letters, statuses, and the end together.
use super::backing::Backing;
use super::post::Post;
use super::shared::Shared;
use super::turn::Turn;
use fawn_node::Letter;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How old a shard's status on the board may be while it works, and what it knows of the others'.
const STATUS_AGE: Duration = Duration::from_millis(100);
/// When a letter that found a queue full is offered again.
const RETRY: Duration = Duration::from_millis(1);
/// Letters taken in one turn; more go on in the next, which is due at once.
const LETTERS_MAX: usize = 256;

/// One shard among the others. A shard that is alone has none of this.
#[derive(Debug)]
pub(super) struct Company {
    shard: usize,
    post: Post<Letter>,
    shared: Arc<Shared>,
    /// When the status was put on the board.
    told_at: Instant,
    /// Something has happened since.
    has_news: bool,
    /// When the others' were read there.
    read_at: Instant,
    ending: Ending,
}

/// How far the end has come. A shard serves the others' letters until none of them has clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// Not told to stop, or it still has clients.
    Serving,
    /// Its clients are gone; others may still have some.
    Drained,
    /// Nobody has clients: what was sent before that is taken in one more turn.
    LastTurn,
}

impl Company {
    pub(super) fn new(shard: usize, post: Post<Letter>, shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        // The first turn tells at once: others that ask before are told of an empty shard.
        let told_at = now.checked_sub(STATUS_AGE).unwrap_or(now);
        Self { shard, post, shared, told_at, has_news: true, read_at: told_at, ending: Ending::Serving }
    }

    /// When the next turn is due for the others' sake.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let retry = self.post.has_kept().then(|| now + RETRY);
        let status = self.has_news.then(|| self.told_at + STATUS_AGE);
        [retry, status].into_iter().flatten().min()
    }

    /// As [`Post::may_sleep`].
    pub(super) fn may_sleep(&mut self) -> bool {
        self.post.may_sleep()
    }

    /// As [`Post::woke`].
    pub(super) fn woke(&self) {
        self.post.woke();
    }

    /// Whether its clients are gone, and the others know.
    pub(super) fn is_drained(&self) -> bool {
        self.ending != Ending::Serving
    }

    fn count_drained(&mut self) {
        self.ending = Ending::Drained;
        if self.shared.count_drained() {
            self.post.wake_others();
        }
    }

    /// Takes the next step to the end, if there is one, of a shard that was told to stop: its clients are gone, or
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

/// What a stopping shard does next.
enum Step {
    Wait,
    Turn,
    End,
}

impl Drop for Company {
    fn drop(&mut self) {
        // It ends without having been told to, maybe before it began: nobody is to wait for it.
        if self.ending == Ending::Serving {
            self.count_drained();
        }
    }
}

impl<B: Backing> Turn<B> {
    /// At the start of a turn: what others have handed over, and how they stand.
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

    /// After the shard's turn: what it has for others, as far as their queues take it.
    pub(super) fn hand_letters(&mut self) {
        let Some(company) = &mut self.company else { return };
        let (shard, sent) = (&mut self.shard, &mut self.counters.letters_sent);
        company.post.deliver(|to| shard.take_letter(to).inspect(|_| *sent += 1));
    }

    /// At the end of a turn that had `news`: puts the shard's status on the board if the one there is old.
    pub(super) fn tell_status(&mut self, news: bool) {
        let Some(company) = &mut self.company else { return };
        company.has_news |= news;
        if company.has_news && self.instant.duration_since(company.told_at) >= STATUS_AGE {
            (company.told_at, company.has_news) = (self.instant, false);
            company.shared.board.publish(company.shard, self.shard.status());
        }
    }

    /// Whether a shard that was told to stop has nothing left to do, for its own clients or others'.
    pub(super) fn may_end(&mut self) -> bool {
        let Some(by) = self.stop_by else { return false };
        let is_late = self.instant >= by;
        let Some(company) = &mut self.company else { return self.conns.is_empty() || is_late };
        // What it asked of others for nobody's reply is on its way, too, before it counts as drained.
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
