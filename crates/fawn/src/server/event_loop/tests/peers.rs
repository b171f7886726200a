//! Two shards in one thread: their batches, their statistics, and their common end.
use super::*;
use crate::server::mailbox;

/// Two event loops that know each other.
fn pair() -> [Rig; 2] {
    let shared = Arc::new(ProcessState::new(2, 100));
    let queues = [(); 2].map(|()| mio::Poll::new().expect("a queue"));
    let wakers = queues.iter().map(|queue| mio::Waker::new(queue.registry(), WAKER_TOKEN).expect("a waker"));
    let mut mailboxes = mailbox::connect(wakers.collect()).into_iter();
    let mut shard = 0;
    queues.map(|queue| {
        let peers = PeerShards::new(shard, mailboxes.next().expect("one each"), Arc::clone(&shared));
        shard += 1;
        Rig::on(queue, 1 << 20, Arc::clone(&shared), Some(peers))
    })
}

/// Iterates as a running loop does; returns whether the shard has ended.
fn run_once(rig: &mut Rig) -> bool {
    rig.step_without_events();
    rig.event_loop.may_end()
}

/// A batch that was sent before its sender had no clients any more is received: it may carry writes without replies.
#[test]
fn the_last_batches_are_received_before_a_shard_ends() {
    let [mut first, mut second] = pair();
    first.event_loop.stop();
    assert!(!run_once(&mut first), "the other shard may still send");
    second.event_loop.shard.batches_to_send = 1;
    second.event_loop.stop();
    first.step_without_events();
    run_once(&mut second);
    // Between an iteration and its end all shards have drained.
    let mut has_ended = first.event_loop.may_end();
    for _ in 0..3 {
        if has_ended {
            break;
        }
        has_ended = run_once(&mut first);
    }
    assert_eq!((has_ended, first.event_loop.shard.batches_received), (true, 1));
}

/// Nothing wakes the sender when the other shard's queue has space again.
#[test]
fn a_batch_that_found_a_full_queue_is_sent_again_soon() {
    let [mut first, _second] = pair();
    first.event_loop.shard.batches_to_send = 600;
    first.step_without_events();
    let now = first.event_loop.instant;
    let peers = first.event_loop.peers.as_ref().expect("two shards");
    assert!(peers.mailbox.has_unsent());
    assert!(peers.next_due(now).is_some_and(|due| due <= now + std::time::Duration::from_millis(1)));
}

#[test]
fn a_shard_drains_with_all_its_batches_sent() {
    const BATCHES: usize = 600;
    let [mut first, mut second] = pair();
    second.event_loop.shard.batches_to_send = BATCHES;
    first.event_loop.stop();
    second.event_loop.stop();
    let mut ended = [false; 2];
    for _ in 0..20 {
        if !ended[1] {
            ended[1] = run_once(&mut second);
        }
        if !ended[0] {
            ended[0] = run_once(&mut first);
        }
    }
    assert_eq!((ended, first.event_loop.shard.batches_received), ([true; 2], BATCHES));
}

#[test]
fn a_shard_that_failed_holds_up_no_stop() {
    let [mut first, second] = pair();
    drop(second);
    first.event_loop.stop();
    assert!((0..3).any(|_| run_once(&mut first)));
}

/// Requests of other shards change the statistics of a shard that has no events of its own.
#[test]
fn statistics_are_published_after_other_shards_requests() {
    let [mut first, mut second] = pair();
    first.step_without_events();
    assert_eq!(first.due, None, "nothing is new");
    second.event_loop.shard.batches_to_send = 1;
    second.step_without_events();
    first.step_without_events();
    assert_eq!(first.event_loop.shard.batches_received, 1);
    assert!(first.due.is_some());
}

/// The counters of the last request reach the other shards although nothing follows it.
#[test]
fn statistics_are_published_although_nothing_follows_the_last_request() {
    let [first, mut second] = pair();
    second.step_without_events();
    let (mut client, _) = second.connect();
    second.send(&mut client, &part(8, 8));
    let shared = &first.event_loop.shared;
    while shared.stats_of_others(0).counters.commands == 0 {
        let due = second.due.expect("the statistics are due");
        assert!(due <= Instant::now() + Duration::from_millis(100), "they are due within 100 ms");
        while Instant::now() < due {
            std::thread::yield_now();
        }
        second.step_without_events();
    }
}

/// A completion of the device is no event of the loop's queue, and may be the last thing that happens.
#[test]
fn statistics_are_published_after_the_last_completion() {
    let dir = tempfile::tempdir().expect("a directory");
    let (group, limits) = open(Service::Standalone, &dir);
    let shared = Arc::new(ProcessState::new(2, 100));
    let queue = mio::Poll::new().expect("a queue");
    let waker = mio::Waker::new(queue.registry(), WAKER_TOKEN).expect("a waker");
    let mailbox = mailbox::connect(vec![waker]).into_iter().next().expect("one each");
    let peers = PeerShards::new(0, mailbox, Arc::clone(&shared));
    let mut event_loop = EventLoop::new(queue, group, limits, Arc::clone(&shared), Some(peers));
    let id = event_loop.shard.open_session(Protocol::Resp);
    let set = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";
    assert_eq!(event_loop.shard.handle_input(clock::now(), id, set), set.len());
    let events = Events::with_capacity(1);
    event_loop.run_once(&events);
    let published = || shared.stats_of_others(1);
    assert_eq!((published().counters.writes, published().uncommitted), (1, 1), "it is published, not committed");
    let start = Instant::now();
    while published().uncommitted > 0 {
        assert!(start.elapsed() < PATIENCE, "the published statistics remain those before the completion");
        event_loop.run_once(&events);
    }
}
