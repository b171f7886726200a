//! Callers that wait for each other.
use super::*;
use crate::options::Options;
use crate::store::builder::open_engine;
use crate::store::{ManualClock, PutOptions};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{HashSecret, Now};
use std::sync::mpsc;

fn open(disk: &SimDisk) -> Arc<EngineQueue> {
    let secret_if_new = Some(HashSecret(*b"a secret of test"));
    let options = Options { segment_bytes: 1 << 20, secret_if_new, ..Options::default() };
    let engine = open_engine(Box::new(SimDevice::attach(disk)), options, Now::at(1)).unwrap();
    Arc::new(EngineQueue::new(Driver::new(engine), Arc::new(ManualClock::new())))
}

/// The leader's own operation takes longer than another caller's: that caller does not wait for both.
#[test]
fn a_caller_returns_while_the_leader_still_waits() {
    let disk = SimDisk::new(SimOptions { blocking_waits: true, ..SimOptions::default() });
    let shared = open(&disk);
    let caller = |op: Op| {
        let (shared, (send, receive)) = (Arc::clone(&shared), mpsc::channel());
        std::thread::spawn(move || send.send(shared.call(op).is_ok()).unwrap());
        receive
    };
    disk.hang(OpKind::Write);
    let options = PutOptions::new();
    let leader = caller(Op::Put { key: b"key".to_vec(), value: b"value".to_vec(), options });
    while disk.hung() == 0 {
        std::thread::yield_now();
    }
    let returned = caller(Op::Get { key: b"absent".to_vec() }).recv_timeout(Duration::from_secs(20));
    assert_eq!((returned, leader.try_recv()), (Ok(true), Err(mpsc::TryRecvError::Empty)));
    disk.release_hung();
    assert_eq!(leader.recv_timeout(Duration::from_secs(20)), Ok(true));
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
    shared.call(Op::Get { key: b"key".to_vec() }).unwrap();
    assert_eq!(ticker.try_recv(), Err(mpsc::TryRecvError::Empty), "a read is no reason for a tick");
    let options = PutOptions::new();
    shared.call(Op::Put { key: b"key".to_vec(), value: b"value".to_vec(), options }).unwrap();
    assert_eq!(ticker.recv_timeout(Duration::from_secs(20)), Ok(Some(true)), "a write");
    let ticker = sleeping_ticker();
    shared.close().unwrap();
    assert_eq!(ticker.recv_timeout(Duration::from_secs(20)), Ok(None), "the close");
}

/// Nothing takes operations of a failed store any more: a thousand refused values would stay in memory.
#[test]
fn a_failed_store_takes_no_operations() {
    let shared = open(&SimDisk::new(SimOptions::default()));
    shared.inbox().has_failed = true;
    let get = || Op::Get { key: b"key".to_vec() };
    assert!(shared.call(get()).is_err());
    let refused = shared.call_many([get(), get()].into_iter());
    assert!(refused.len() == 2 && refused.iter().all(Result::is_err));
    assert_eq!(shared.inbox().queue.len(), 0);
}
