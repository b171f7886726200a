//! Mailboxes between the shards of a process: bounded lock-free queues, and wakers for parked shards.
//!
//! Batches are never lost and never overtake earlier ones of the same sender. A batch that finds the receiver's queue
//! full stays with the sender and is offered again shortly; until then the shard's next batch is not taken.
//!
//! # Why no wake-up is lost
//! A receiver without work (1) announces that it parks, (2) checks its queue once more, and only then blocks. A sender
//! (3) puts its batch into the queue, (4) checks whether the receiver is parked, and wakes it if so. A sequentially
//! consistent fence separates (1) from (2), and (3) from (4). All threads see the two fences in one order. If the
//! receiver's fence is first, (4) sees (1) and wakes. If the sender's is first, (2) sees (3) and does not block.
//! Without the fences both checks may miss the other side's store, and a parked shard would have a batch in its queue.
//! (The standard library's queue happens to contain such barriers on some machines; its contract does not promise
//! them.) A wake-up is not lost either: the waker's event stays pending in the readiness queue until the receiver takes
//! it.
use fawn_types::ShardId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Capacity of a shard's queue, in batches of all other shards together.
const QUEUE_LEN: usize = 256;

/// One shard's end of the queues between all shards.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    inbox: Receiver<(ShardId, T)>,
    /// Received while parking: delivered first.
    received_while_parking: Option<(ShardId, T)>,
    waker: Arc<Waker>,
    peers: Vec<PeerQueue<T>>,
    own: ShardId,
}

/// The sending end towards another shard.
#[derive(Debug)]
struct PeerQueue<T> {
    shard: ShardId,
    queue: SyncSender<(ShardId, T)>,
    waker: Arc<Waker>,
    /// A batch that found the queue full.
    unsent: Option<T>,
}

/// Wakes a parked shard. For a shard that runs, the cost is a load of a flag.
#[derive(Debug)]
struct Waker {
    parked: AtomicBool,
    waker: mio::Waker,
}

impl Waker {
    /// Call after a store that the shard checks before it parks.
    fn wake_if_parked(&self) {
        fence(Ordering::SeqCst);
        // Of several senders that find it parked, one wakes it.
        if self.parked.load(Ordering::Relaxed) && self.parked.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake a shard; it continues at its next event");
        }
    }
}

/// Connects shards, each with the waker of its readiness queue, in the order of their numbers.
pub(super) fn connect<T>(wakers: Vec<mio::Waker>) -> Vec<Mailbox<T>> {
    let wakers: Vec<_> =
        wakers.into_iter().map(|waker| Arc::new(Waker { parked: AtomicBool::new(false), waker })).collect();
    let (queues, inboxes): (Vec<_>, Vec<_>) = wakers.iter().map(|_| sync_channel(QUEUE_LEN)).unzip();
    let shards = || (0_u16..).map(ShardId);
    let mailbox = |((own, inbox), waker): ((ShardId, _), &Arc<Waker>)| {
        let others = shards().zip(queues.iter().zip(&wakers)).filter(|(shard, _)| *shard != own);
        let peer = |(shard, (queue, waker)): (_, (&SyncSender<_>, &Arc<Waker>))| PeerQueue {
            shard,
            queue: queue.clone(),
            waker: waker.clone(),
            unsent: None,
        };
        Mailbox { inbox, received_while_parking: None, waker: waker.clone(), peers: others.map(peer).collect(), own }
    };
    shards().zip(inboxes).zip(&wakers).map(mailbox).collect()
}

impl<T> Mailbox<T> {
    /// The next received batch and its sender.
    pub(super) fn take(&mut self) -> Option<(ShardId, T)> {
        self.received_while_parking.take().or_else(|| self.receive())
    }

    fn receive(&self) -> Option<(ShardId, T)> {
        // Err: the queue is empty, or all senders have ended and their batches were taken.
        self.inbox.try_recv().ok()
    }

    /// Sends the batches of `next` to each other shard while that shard's queue accepts them.
    pub(super) fn deliver(&mut self, mut next: impl FnMut(ShardId) -> Option<T>) {
        for peer in &mut self.peers {
            while let Some(batch) = peer.unsent.take().or_else(|| next(peer.shard)) {
                match peer.queue.try_send((self.own, batch)) {
                    Ok(()) => peer.waker.wake_if_parked(),
                    Err(TrySendError::Full((_, batch))) => {
                        peer.unsent = Some(batch);
                        break;
                    }
                    // The receiver has ended, which ends the process: the batch has no reader.
                    Err(TrySendError::Disconnected(_)) => break,
                }
            }
        }
    }

    /// Whether a batch found a full queue: [`Mailbox::deliver`] is due again soon.
    pub(super) fn has_unsent(&self) -> bool {
        self.peers.iter().any(|peer| peer.unsent.is_some())
    }

    /// Announces that this shard is about to block. Returns `false` if it must not, because a batch has arrived.
    pub(super) fn prepare_park(&mut self) -> bool {
        if self.received_while_parking.is_some() {
            return false;
        }
        self.waker.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.received_while_parking = self.receive();
        if self.received_while_parking.is_some() {
            self.unpark();
        }
        self.received_while_parking.is_none()
    }

    /// Announces that this shard runs again.
    pub(super) fn unpark(&self) {
        self.waker.parked.store(false, Ordering::Relaxed);
    }

    /// Wakes all other shards, parked or parking.
    pub(super) fn wake_others(&self) {
        self.peers.iter().for_each(|peer| peer.waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TOKEN: mio::Token = mio::Token(0);
    /// Test deadline: a wait this long means a lost wake-up, however busy the machine.
    const DEADLINE: Duration = Duration::from_secs(5);

    fn mailboxes(count: usize) -> (Vec<mio::Poll>, Vec<Mailbox<u64>>) {
        let queues: Vec<_> = (0..count).map(|_| mio::Poll::new().expect("a queue")).collect();
        let wakers = queues.iter().map(|queue| mio::Waker::new(queue.registry(), TOKEN).expect("a waker")).collect();
        (queues, connect(wakers))
    }

    /// Waits as a shard does, until a batch has arrived.
    fn wait(queue: &mut mio::Poll, mailbox: &mut Mailbox<u64>, spins: u64) -> (ShardId, u64) {
        let mut events = mio::Events::with_capacity(8);
        loop {
            if let Some(batch) = mailbox.take() {
                return batch;
            }
            // The rest of an iteration: a batch that arrives now needs no wake-up.
            (0..spins % 67).for_each(|_| std::hint::spin_loop());
            if mailbox.prepare_park() {
                queue.poll(&mut events, Some(DEADLINE)).expect("a poll");
                assert!(!events.is_empty() || mailbox.inbox.try_recv().is_err(), "a batch arrived without a wake-up");
                assert!(!events.is_empty(), "nothing came");
                mailbox.unpark();
            }
        }
    }

    #[test]
    fn no_shard_stays_parked_over_a_batch() {
        const ROUNDS: usize = 50_000;
        let (mut queues, mut mailboxes) = mailboxes(2);
        let (mut queue, mut receiver) = (queues.remove(1), mailboxes.remove(1));
        let received = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS as u64 {
                    assert_eq!(wait(&mut queue, &mut receiver, round), (ShardId(0), round));
                    received.fetch_add(1, Ordering::Release);
                }
            });
            for round in 0..ROUNDS {
                // The receiver parks now: batches must meet it in every step of that.
                let mut spins = 0;
                while received.load(Ordering::Acquire) < round {
                    spins += 1;
                    // On a busy machine the receiver may need this core.
                    if spins % 4096 == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
                }
                (0..round % 61).for_each(|_| std::hint::spin_loop());
                let mut batch = Some(round as u64);
                mailboxes[0].deliver(|_| batch.take());
            }
        });
    }

    #[test]
    fn every_batch_arrives_once_and_in_its_senders_order() {
        const BATCHES: u64 = 20_000;
        let (queues, mailboxes) = mailboxes(3);
        let threads = queues.into_iter().zip(mailboxes).map(|(mut queue, mut mailbox)| {
            std::thread::spawn(move || {
                // All send to all at once, many times more than the queues hold.
                let (mut sent, mut received) = ([0; 3], [0; 3]);
                let total = |counts: [u64; 3]| counts.iter().sum::<u64>();
                loop {
                    mailbox.deliver(|to| {
                        let sent = &mut sent[usize::from(to.0)];
                        (*sent < BATCHES).then(|| std::mem::replace(sent, *sent + 1))
                    });
                    let has_sent = total(sent) == 2 * BATCHES && !mailbox.has_unsent();
                    let batch = match mailbox.take() {
                        None if has_sent && total(received) < 2 * BATCHES => Some(wait(&mut queue, &mut mailbox, 0)),
                        batch => batch,
                    };
                    match batch {
                        Some((from, batch)) => {
                            assert_eq!(batch, received[usize::from(from.0)], "of {from:?}");
                            received[usize::from(from.0)] += 1;
                        }
                        None if has_sent => break,
                        None => {}
                    }
                }
                // Ends only when all are done: a queue without a receiver accepts nothing.
                mailbox
            })
        });
        let threads: Vec<_> = threads.collect();
        let mailboxes: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("all came")).collect();
        assert!(mailboxes.iter().all(|mailbox| mailbox.inbox.try_recv().is_err()), "no batch arrived twice");
    }

    #[test]
    fn one_batch_is_kept_for_a_full_queue_and_no_more_are_taken() {
        let (_queues, mut mailboxes) = mailboxes(2);
        let mut taken = 0;
        for _ in 0..3 {
            mailboxes[0].deliver(|to| {
                assert_eq!(to, ShardId(1));
                taken += 1;
                Some(taken)
            });
            assert!(mailboxes[0].has_unsent());
            assert_eq!(taken, QUEUE_LEN as u64 + 1);
        }
        assert_eq!(mailboxes[1].take(), Some((ShardId(0), 1)));
        mailboxes[0].deliver(|_| None);
        assert!(!mailboxes[0].has_unsent());
        assert!(!mailboxes[1].prepare_park(), "batches wait");
        let rest: Vec<_> = std::iter::from_fn(|| mailboxes[1].take()).map(|(_, batch)| batch).collect();
        assert_eq!(rest, (2..=taken).collect::<Vec<_>>());
    }
}
