//! Callers that wait for each other.
use super::*;
use crate::options::Options;
use crate::store::builder::open_engine;
use crate::store::{ManualClock, PutOptions};
use fawn_flash::sim::{DeviceFault, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, HashSecret, Now};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::ThreadId;
use std::time::{SystemTime, UNIX_EPOCH};

fn open(disk: &SimDisk) -> Arc<EngineQueue> {
    open_with(disk, Durability::Sync, Arc::new(ManualClock::new()))
}

fn open_with(disk: &SimDisk, durability: Durability, clock: Arc<dyn Clock>) -> Arc<EngineQueue> {
    let secret_if_new = Some(HashSecret(*b"a secret of test"));
    let options = Options { segment_bytes: 1 << 20, durability, secret_if_new, ..Options::default() };
    let engine = open_engine(Box::new(SimDevice::attach(disk)), options, Now::at(1)).unwrap();
    Arc::new(EngineQueue::new(Driver::new(engine), clock))
}

fn put(key: &[u8]) -> Op {
    Op::Put { key: key.to_vec(), value: b"value".to_vec(), options: PutOptions::new() }
}

fn get(key: &[u8]) -> Op {
    Op::Get { key: key.to_vec() }
}

/// A clock whose time passes only between turns: 10 ms each, at whose beginning it is read.
#[derive(Default)]
struct TurnClock {
    turns: AtomicU64,
}

impl Clock for TurnClock {
    fn wall(&self) -> SystemTime {
        UNIX_EPOCH
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(10 * self.turns.fetch_add(1, Ordering::Relaxed))
    }
}

/// A clock that a leader reads once a turn: it records the leader's thread, and releases hanging operations at turn 100.
struct LeaderClock {
    disk: SimDisk,
    turns: AtomicU64,
    leader: Mutex<Option<ThreadId>>,
}

impl Clock for LeaderClock {
    fn wall(&self) -> SystemTime {
        UNIX_EPOCH
    }

    fn monotonic(&self) -> Duration {
        *self.leader.lock().unwrap() = Some(std::thread::current().id());
        if self.turns.fetch_add(1, Ordering::Relaxed) == 100 {
            self.disk.release_hung();
        }
        Duration::ZERO
    }
}

/// A clock that panics when a leader reads it.
struct PanickingClock;

impl Clock for PanickingClock {
    fn wall(&self) -> SystemTime {
        UNIX_EPOCH
    }

    fn monotonic(&self) -> Duration {
        panic!("the test ordered this panic")
    }
}

/// The result of `operation`, once it has ended.
fn in_thread<T: Send + 'static>(
    shared: &Arc<EngineQueue>,
    operation: impl FnOnce(&EngineQueue) -> T + Send + 'static,
) -> mpsc::Receiver<T> {
    let (shared, (send, receive)) = (Arc::clone(shared), mpsc::channel());
    std::thread::spawn(move || send.send(operation(&shared)));
    receive
}

/// The leader's own operation takes longer than another caller's: that caller does not wait for both.
#[test]
fn a_caller_returns_while_the_leader_still_waits() {
    let disk = SimDisk::new(SimOptions { blocking_waits: true, ..SimOptions::default() });
    let shared = open(&disk);
    disk.hang(OpKind::Write);
    let leader = in_thread(&shared, |shared| shared.call(put(b"key")).is_ok());
    while disk.hung() == 0 {
        std::thread::yield_now();
    }
    let other = in_thread(&shared, |shared| shared.call(get(b"absent")).is_ok());
    let returned = other.recv_timeout(Duration::from_secs(20));
    assert_eq!((returned, leader.try_recv()), (Ok(true), Err(mpsc::TryRecvError::Empty)));
    disk.release_hung();
    assert_eq!(leader.recv_timeout(Duration::from_secs(20)), Ok(true));
}

/// Its caller got the response only behind the checkpoint of the close, and a later caller waited as long.
#[test]
fn only_its_own_caller_waits_for_a_close() {
    let disk = SimDisk::new(SimOptions { blocking_waits: true, ..SimOptions::default() });
    let shared = open(&disk);
    shared.call(put(b"first")).unwrap();
    disk.hang(OpKind::Write);
    let written = in_thread(&shared, |shared| shared.call(put(b"key")).is_ok());
    while disk.hung() == 0 {
        std::thread::yield_now();
    }
    let closed = in_thread(&shared, |shared| shared.close().is_ok());
    let is_closing = || {
        let inbox = shared.inbox();
        inbox.close.is_some() && inbox.queue.is_empty()
    };
    while !is_closing() {
        std::thread::yield_now();
    }
    // A write of the close.
    disk.fail_nth(OpKind::Write, 1, DeviceFault::Hang);
    disk.release_hung();
    assert_eq!(written.recv_timeout(Duration::from_secs(20)), Ok(true));
    while disk.hung() == 0 {
        std::thread::yield_now();
    }
    let later = in_thread(&shared, |shared| shared.call(get(b"key")));
    assert!(
        matches!(later.recv_timeout(Duration::from_secs(20)), Ok(Err(Error::Closed))),
        "it does not wait for the close"
    );
    assert_eq!(closed.try_recv(), Err(mpsc::TryRecvError::Empty));
    disk.release_hung();
    assert_eq!(closed.recv_timeout(Duration::from_secs(20)), Ok(true));
}

/// A calm store's ticker sleeps until the next write, or until the close. Without the wake-up, the last write of a store
/// that syncs every second would stay unsynced, and the close would wait for the ticker for ever.
#[test]
fn a_write_and_a_close_wake_the_ticker() {
    let shared = open(&SimDisk::new(SimOptions::default()));
    let sleeping_ticker = || {
        let (shared_with, (send, receive)) = (Arc::clone(&shared), mpsc::channel());
        std::thread::spawn(move || send.send(shared_with.wait_for_tick(None, true)).unwrap());
        while !shared.inbox().ticker_sleeps {
            std::thread::yield_now();
        }
        receive
    };
    let ticker = sleeping_ticker();
    shared.call(get(b"key")).unwrap();
    assert_eq!(ticker.try_recv(), Err(mpsc::TryRecvError::Empty), "a read is no reason for a tick");
    shared.call(put(b"key")).unwrap();
    assert_eq!(ticker.recv_timeout(Duration::from_secs(20)), Ok(Some(true)), "a write");
    let ticker = sleeping_ticker();
    shared.close().unwrap();
    assert_eq!(ticker.recv_timeout(Duration::from_secs(20)), Ok(None), "the close");
}

/// The caller of a put that was queued before the close got `Closed`, but the put took place.
#[test]
fn a_store_takes_no_operations_once_its_close_has_given_up() {
    let disk = SimDisk::new(SimOptions::default());
    let shared = open(&disk);
    shared.give_up();
    assert!(matches!(shared.call(put(b"late")), Err(Error::Closed)));
    assert!(matches!(shared.call_many([get(b"late")].into_iter())[..], [Err(Error::Closed)]));
    shared.close().unwrap();
    let found = open(&disk).call(get(b"late"));
    assert!(matches!(found, Ok(Response::Value(None))), "{found:?}");
}

#[test]
fn an_operation_that_no_leader_has_taken_is_not_executed_once_it_is_given_up() {
    let disk = SimDisk::new(SimOptions::default());
    let shared = open(&disk);
    // A leader that is between two turns.
    shared.inbox().has_leader = true;
    let queued = in_thread(&shared, |shared| shared.call(put(b"queued")));
    while shared.inbox().queue.is_empty() {
        std::thread::yield_now();
    }
    shared.give_up();
    let ended = queued.recv_timeout(Duration::from_secs(20));
    assert!(matches!(ended, Ok(Err(Error::Closed))), "{ended:?}");
    shared.inbox().has_leader = false;
    shared.close().unwrap();
    let found = open(&disk).call(get(b"queued"));
    assert!(matches!(found, Ok(Response::Value(None))), "{found:?}");
}

/// Responses that came after their callers had returned stayed in memory until the last handle went.
#[test]
fn responses_to_operations_that_are_given_up_are_not_kept() {
    let disk = SimDisk::new(SimOptions { blocking_waits: true, ..SimOptions::default() });
    let shared = open(&disk);
    disk.hang(OpKind::Write);
    let leader = in_thread(&shared, |shared| shared.call(put(b"key")));
    while disk.hung() == 0 {
        std::thread::yield_now();
    }
    let other = in_thread(&shared, |shared| shared.call(put(b"other")));
    while shared.inbox().next_id < 2 {
        std::thread::yield_now();
    }
    let closed = in_thread(&shared, EngineQueue::close);
    let is_closing = || {
        let inbox = shared.inbox();
        inbox.close.is_some() && inbox.queue.is_empty()
    };
    while !is_closing() {
        std::thread::yield_now();
    }
    shared.give_up();
    for caller in [leader, other] {
        let ended = caller.recv_timeout(Duration::from_secs(20));
        assert!(matches!(ended, Ok(Err(Error::Closed))), "{ended:?}");
    }
    disk.release_hung();
    assert!(closed.recv_timeout(Duration::from_secs(20)).is_ok_and(|closed| closed.is_ok()));
    assert!(shared.inbox().done.is_empty(), "{shared:?}");
}

/// Nothing takes operations of a failed store any more: a thousand refused values would stay in memory.
#[test]
fn a_failed_store_takes_no_operations() {
    let shared = open(&SimDisk::new(SimOptions::default()));
    shared.inbox().has_failed = true;
    assert!(shared.call(get(b"key")).is_err());
    let refused = shared.call_many([get(b"key"), get(b"key")].into_iter());
    assert!(refused.len() == 2 && refused.iter().all(Result::is_err));
    assert_eq!(shared.inbox().queue.len(), 0);
}

#[test]
fn a_leader_that_panics_leaves_no_operations() {
    let disk = SimDisk::new(SimOptions::default());
    let shared = open_with(&disk, Durability::Sync, Arc::new(PanickingClock));
    let many = || shared.call_many((0..2 * OPS_QUEUED_MAX).map(|_| get(b"key")));
    assert!(catch_unwind(AssertUnwindSafe(many)).is_err());
    let inbox = shared.inbox();
    assert!(inbox.has_failed && inbox.queue.is_empty() && inbox.many.is_empty());
}

/// All of them were executed in one turn: nothing was flushed or synced meanwhile, and no other caller's operation began.
#[test]
fn a_caller_with_many_gets_does_not_hold_up_the_flush_of_a_put() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let shared = open_with(&disk, Durability::Memory, Arc::new(TurnClock::default()));
    // The first one is flushed at once, the second one 50 ms later.
    shared.call(put(b"one")).unwrap();
    shared.call(put(b"two")).unwrap();
    let found = shared.call_many((0..100 * OPS_QUEUED_MAX).map(|_| get(b"two")));
    assert!(found.iter().all(|response| matches!(response, Ok(Response::Value(Some(_))))));
    let killed = disk.image(Loss::Process, 1);
    drop(shared);
    let found = open(&killed).call(get(b"two"));
    assert!(matches!(found, Ok(Response::Value(Some(_)))), "{found:?}");
}

/// The operations of a caller with many come to their end in their order, also if each needs a device read.
#[test]
fn many_cold_gets_are_answered_in_order() {
    let disk = SimDisk::new(SimOptions::default());
    let shared = open(&disk);
    fill(&shared);
    shared.close().unwrap();
    let found = open(&disk).call_many(keys().map(|key| get(&key)));
    expect_values(found);
}

/// The leader waited a millisecond for its own write after each 512 gets of the other caller.
#[test]
fn a_leader_waits_for_no_device_while_another_caller_has_many_cached_gets() {
    let disk = SimDisk::new(SimOptions { blocking_waits: true, ..SimOptions::default() });
    let shared = open(&disk);
    shared.call(put(b"key")).unwrap();
    disk.hang(OpKind::Write);
    let leader = in_thread(&shared, |shared| shared.call(put(b"other")).is_ok());
    while disk.hung() == 0 {
        std::thread::yield_now();
    }
    let turns = 200;
    let gets: Vec<Op> = (0..turns * OPS_QUEUED_MAX).map(|_| get(b"key")).collect();
    let before = shared.waits.load(Ordering::Relaxed);
    let found = shared.call_many(gets.into_iter());
    let waits = shared.waits.load(Ordering::Relaxed) - before;
    assert!(found.iter().all(|response| matches!(response, Ok(Response::Value(Some(_))))));
    assert!(waits < turns / 2, "{waits} waits in {turns} turns");
    disk.release_hung();
    assert_eq!(leader.recv_timeout(Duration::from_secs(20)), Ok(true));
}

/// Turns without a wait between them take in completions, too.
#[test]
fn a_leader_gets_its_response_while_another_caller_has_many_cached_gets() {
    let disk = SimDisk::new(SimOptions { blocking_waits: true, ..SimOptions::default() });
    let (turns, leader) = (AtomicU64::new(1 << 32), Mutex::new(None));
    let clock = Arc::new(LeaderClock { disk: disk.clone(), turns, leader });
    let shared = open_with(&disk, Durability::Sync, Arc::clone(&clock) as Arc<dyn Clock>);
    shared.call(put(b"key")).unwrap();
    disk.hang(OpKind::Write);
    let leader = in_thread(&shared, |shared| shared.call(put(b"other")).is_ok());
    while disk.hung() == 0 {
        std::thread::yield_now();
    }
    let gets: Vec<Op> = (0..200 * OPS_QUEUED_MAX).map(|_| get(b"key")).collect();
    clock.turns.store(0, Ordering::Relaxed);
    let found = shared.call_many(gets.into_iter());
    assert!(found.iter().all(|response| matches!(response, Ok(Response::Value(Some(_))))));
    let last = *clock.leader.lock().unwrap();
    assert_eq!(last, Some(std::thread::current().id()), "the first leader has not returned");
    assert_eq!(leader.recv_timeout(Duration::from_secs(20)), Ok(true));
}

#[test]
fn several_callers_with_many_get_each_its_own_responses() {
    let disk = SimDisk::new(SimOptions { blocking_waits: true, ..SimOptions::default() });
    let shared = open(&disk);
    fill(&shared);
    shared.close().unwrap();
    let shared = open(&disk);
    disk.hang(OpKind::Write);
    let leader = in_thread(&shared, |shared| shared.call(put(b"other")).is_ok());
    while disk.hung() == 0 {
        std::thread::yield_now();
    }
    let callers = [(); 3].map(|()| in_thread(&shared, |shared| shared.call_many(keys().map(|key| get(&key)))));
    for caller in callers {
        expect_values(caller.recv_timeout(Duration::from_secs(60)).unwrap());
    }
    disk.release_hung();
    assert_eq!(leader.recv_timeout(Duration::from_secs(20)), Ok(true));
}

#[test]
fn a_close_does_not_wait_for_the_unqueued_operations_of_a_caller_with_many() {
    let shared = open(&SimDisk::new(SimOptions::default()));
    shared.call(put(b"key")).unwrap();
    // A leader that is between two turns.
    shared.inbox().has_leader = true;
    let caller = in_thread(&shared, |shared| shared.call_many((0..10 * OPS_QUEUED_MAX).map(|_| get(b"key"))));
    while shared.inbox().queue.is_empty() {
        std::thread::yield_now();
    }
    let closed = in_thread(&shared, EngineQueue::close);
    while shared.inbox().close.is_none() {
        std::thread::yield_now();
    }
    shared.inbox().has_leader = false;
    shared.changed.notify_all();
    let ended = caller.recv_timeout(Duration::from_secs(20)).unwrap();
    let (queued, unqueued) = ended.split_at(OPS_QUEUED_MAX);
    assert!(queued.iter().all(|response| matches!(response, Ok(Response::Value(Some(_))))));
    assert_eq!(unqueued.len(), 9 * OPS_QUEUED_MAX);
    assert!(
        unqueued.iter().all(|response| matches!(response, Err(Error::Closed))),
        "no operation is taken after the close"
    );
    assert!(closed.recv_timeout(Duration::from_secs(20)).is_ok_and(|closed| closed.is_ok()));
}

/// Behind one read that hangs, all others are made.
#[test]
fn a_slow_read_holds_up_no_other_read_of_its_caller() {
    let disk = SimDisk::new(SimOptions { blocking_waits: true, ..SimOptions::default() });
    let shared = open(&disk);
    fill(&shared);
    shared.close().unwrap();
    let shared = open(&disk);
    let before = disk.counted(OpKind::Read);
    disk.fail_nth(OpKind::Read, 1, DeviceFault::Hang);
    let caller = std::thread::spawn(move || shared.call_many(keys().map(|key| get(&key))));
    let begun = std::time::Instant::now();
    while disk.counted(OpKind::Read) - before < keys().len() as u64 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} reads", disk.counted(OpKind::Read) - before);
        std::thread::yield_now();
    }
    disk.release_hung();
    expect_values(caller.join().unwrap());
}

fn keys() -> impl ExactSizeIterator<Item = [u8; 4]> {
    (0..4 * OPS_QUEUED_MAX as u32).map(u32::to_be_bytes)
}

/// Puts all keys, each with a value that needs a page of its own.
fn fill(shared: &EngineQueue) {
    let put = |key: [u8; 4]| Op::Put { key: key.to_vec(), value: key.repeat(1024), options: PutOptions::new() };
    keys().for_each(|key| _ = shared.call(put(key)).unwrap());
}

fn expect_values(found: Vec<Result<Response>>) {
    assert_eq!(found.len(), keys().len());
    for (key, response) in keys().zip(found) {
        let Ok(Response::Value(Some(value))) = response else { panic!("{response:?}") };
        assert_eq!(*value, key.repeat(1024));
    }
}
