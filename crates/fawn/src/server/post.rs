//! Owns how the shards of a process hand each other letters: bounded queues without locks, and bells that wake sleepers.
//!
//! A letter is never lost and never overtakes an earlier one of its sender. One that finds the receiver's queue full is
//! kept by its sender and offered again a moment later; meanwhile the next is not taken from the shard.
//!
//! # No wake-up is lost
//! A receiver that finds nothing to do (1) says that it sleeps, (2) looks once more, and only then waits. A sender
//! (3) puts its letter into the queue, (4) looks whether the receiver sleeps, and wakes it if so. Between (1) and (2), and
//! between (3) and (4), stands a sequentially consistent fence. The two fences have one order for everybody: if the
//! receiver's is first, (4) sees what (1) said, and wakes; if the sender's is first, (2) sees what (3) put there, and does
//! not wait. Without the fences both may look before the other's word is out: a letter in the queue of a sleeper. (The
//! standard library's queue has barriers of its own that do the same on some machines; nothing promises that.)
//! A waking is not lost either: the bell's event stays pending in the readiness queue until the receiver takes it.
use fawn_types::ShardId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Letters that wait for one shard, of all others together.
const QUEUE_LEN: usize = 256;

/// One shard's end of the queues between all shards.
#[derive(Debug)]
pub(super) struct Post<T> {
    inbox: Receiver<(ShardId, T)>,
    /// Came while falling asleep: the first to be taken.
    early: Option<(ShardId, T)>,
    bell: Arc<Bell>,
    peers: Vec<Peer<T>>,
    own: ShardId,
}

/// The way to another shard.
#[derive(Debug)]
struct Peer<T> {
    shard: ShardId,
    queue: SyncSender<(ShardId, T)>,
    bell: Arc<Bell>,
    /// Found the queue full.
    kept: Option<T>,
}

/// Wakes a shard that sleeps; of one that does not it costs a look at a flag.
#[derive(Debug)]
struct Bell {
    sleeps: AtomicBool,
    waker: mio::Waker,
}

impl Bell {
    /// After something was put where the shard looks before it sleeps.
    fn ring(&self) {
        fence(Ordering::SeqCst);
        // Of several who find it asleep one wakes it.
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "a shard could not be woken; it goes on at its next event");
        }
    }
}

/// Connects shards, each with the waker of its readiness queue. In the order of their numbers.
pub(super) fn connect<T>(wakers: Vec<mio::Waker>) -> Vec<Post<T>> {
    let bells: Vec<_> =
        wakers.into_iter().map(|waker| Arc::new(Bell { sleeps: AtomicBool::new(false), waker })).collect();
    let (queues, inboxes): (Vec<_>, Vec<_>) = bells.iter().map(|_| sync_channel(QUEUE_LEN)).unzip();
    let shards = || (0_u16..).map(ShardId);
    let post = |((own, inbox), bell): ((ShardId, _), &Arc<Bell>)| {
        let others = shards().zip(queues.iter().zip(&bells)).filter(|(shard, _)| *shard != own);
        let peer = |(shard, (queue, bell)): (_, (&SyncSender<_>, &Arc<Bell>))| Peer {
            shard,
            queue: queue.clone(),
            bell: bell.clone(),
            kept: None,
        };
        Post { inbox, early: None, bell: bell.clone(), peers: others.map(peer).collect(), own }
    };
    shards().zip(inboxes).zip(&bells).map(post).collect()
}

impl<T> Post<T> {
    /// The next letter that has come, and who sent it.
    pub(super) fn take(&mut self) -> Option<(ShardId, T)> {
        self.early.take().or_else(|| self.receive())
    }

    fn receive(&self) -> Option<(ShardId, T)> {
        // An error: none is there, or all others have ended and what they sent has been taken.
        self.inbox.try_recv().ok()
    }

    /// Hands over what `next` has for each other shard, as long as that one's queue takes it.
    pub(super) fn deliver(&mut self, mut next: impl FnMut(ShardId) -> Option<T>) {
        for peer in &mut self.peers {
            while let Some(letter) = peer.kept.take().or_else(|| next(peer.shard)) {
                match peer.queue.try_send((self.own, letter)) {
                    Ok(()) => peer.bell.ring(),
                    Err(TrySendError::Full((_, letter))) => {
                        peer.kept = Some(letter);
                        break;
                    }
                    // It has ended, which ends the process: nobody waits for this any more.
                    Err(TrySendError::Disconnected(_)) => break,
                }
            }
        }
    }

    /// Whether some letter found a queue full: [`Post::deliver`] is due again soon.
    pub(super) fn has_kept(&self) -> bool {
        self.peers.iter().any(|peer| peer.kept.is_some())
    }

    /// Says that this shard is about to wait. `false`: it must not, a letter has come.
    pub(super) fn may_sleep(&mut self) -> bool {
        if self.early.is_some() {
            return false;
        }
        self.bell.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.early = self.receive();
        if self.early.is_some() {
            self.woke();
        }
        self.early.is_none()
    }

    /// This shard does not wait any more: nobody needs to wake it.
    pub(super) fn woke(&self) {
        self.bell.sleeps.store(false, Ordering::Relaxed);
    }

    /// Wakes all others, whether they sleep or are about to.
    pub(super) fn wake_others(&self) {
        self.peers.iter().for_each(|peer| peer.bell.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TOKEN: mio::Token = mio::Token(0);
    /// Nothing here takes longer, however busy the machine: what waits so long was not woken.
    const DEADLINE: Duration = Duration::from_secs(5);

    fn posts(count: usize) -> (Vec<mio::Poll>, Vec<Post<u64>>) {
        let queues: Vec<_> = (0..count).map(|_| mio::Poll::new().expect("a queue")).collect();
        let wakers = queues.iter().map(|queue| mio::Waker::new(queue.registry(), TOKEN).expect("a waker")).collect();
        (queues, connect(wakers))
    }

    /// As a shard waits: until a letter has come.
    fn wait(queue: &mut mio::Poll, post: &mut Post<u64>, spins: u64) -> (ShardId, u64) {
        let mut events = mio::Events::with_capacity(8);
        loop {
            if let Some(letter) = post.take() {
                return letter;
            }
            // The rest of a turn: a letter that comes now is not rung for.
            (0..spins % 67).for_each(|_| std::hint::spin_loop());
            if post.may_sleep() {
                queue.poll(&mut events, Some(DEADLINE)).expect("a poll");
                assert!(!events.is_empty() || post.inbox.try_recv().is_err(), "a letter came and nobody rang");
                assert!(!events.is_empty(), "nothing came");
                post.woke();
            }
        }
    }

    #[test]
    fn nobody_sleeps_over_a_letter() {
        const ROUNDS: usize = 50_000;
        let (mut queues, mut posts) = posts(2);
        let (mut queue, mut receiver) = (queues.remove(1), posts.remove(1));
        let heard = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS as u64 {
                    assert_eq!(wait(&mut queue, &mut receiver, round), (ShardId(0), round));
                    heard.fetch_add(1, Ordering::Release);
                }
            });
            for round in 0..ROUNDS {
                // The receiver falls asleep now: a letter is to meet it in every step of that.
                let mut spins = 0;
                while heard.load(Ordering::Acquire) < round {
                    spins += 1;
                    // On a busy machine the receiver may need this core.
                    if spins % 4096 == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
                }
                (0..round % 61).for_each(|_| std::hint::spin_loop());
                let mut letter = Some(round as u64);
                posts[0].deliver(|_| letter.take());
            }
        });
    }

    #[test]
    fn every_letter_comes_once_and_in_its_senders_order() {
        const LETTERS: u64 = 20_000;
        let (queues, posts) = posts(3);
        let threads = queues.into_iter().zip(posts).map(|(mut queue, mut post)| {
            std::thread::spawn(move || {
                // All send to all at once, many times more than the queues hold.
                let (mut sent, mut heard) = ([0; 3], [0; 3]);
                let total = |counts: [u64; 3]| counts.iter().sum::<u64>();
                loop {
                    post.deliver(|to| {
                        let sent = &mut sent[usize::from(to.0)];
                        (*sent < LETTERS).then(|| std::mem::replace(sent, *sent + 1))
                    });
                    let has_sent = total(sent) == 2 * LETTERS && !post.has_kept();
                    let letter = match post.take() {
                        None if has_sent && total(heard) < 2 * LETTERS => Some(wait(&mut queue, &mut post, 0)),
                        letter => letter,
                    };
                    match letter {
                        Some((from, letter)) => {
                            assert_eq!(letter, heard[usize::from(from.0)], "of {from:?}");
                            heard[usize::from(from.0)] += 1;
                        }
                        None if has_sent => break,
                        None => {}
                    }
                }
                // Ends only when all are done: a queue without a receiver takes nothing.
                post
            })
        });
        let threads: Vec<_> = threads.collect();
        let posts: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("all came")).collect();
        assert!(posts.iter().all(|post| post.inbox.try_recv().is_err()), "none came twice");
    }

    #[test]
    fn one_letter_is_kept_for_a_full_queue_and_no_more_are_taken() {
        let (_queues, mut posts) = posts(2);
        let mut taken = 0;
        for _ in 0..3 {
            posts[0].deliver(|to| {
                assert_eq!(to, ShardId(1));
                taken += 1;
                Some(taken)
            });
            assert!(posts[0].has_kept());
            assert_eq!(taken, QUEUE_LEN as u64 + 1);
        }
        assert_eq!(posts[1].take(), Some((ShardId(0), 1)));
        posts[0].deliver(|_| None);
        assert!(!posts[0].has_kept());
        assert!(!posts[1].may_sleep(), "letters wait");
        let rest: Vec<_> = std::iter::from_fn(|| posts[1].take()).map(|(_, letter)| letter).collect();
        assert_eq!(rest, (2..=taken).collect::<Vec<_>>());
    }
}
