//! Operations on a simulated device, executed step by step.
use super::*;
use crate::options::Options;
use crate::store::PutOptions;
use crate::store::builder::open_engine;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, HashSecret};

fn open(disk: &SimDisk, durability: Durability) -> OpExecutor {
    let secret_if_new = Some(HashSecret(*b"a secret of test"));
    let options =
        Options { segment_bytes: 1 << 20, memory_bytes: 8 << 20, durability, secret_if_new, ..Options::default() };
    let engine = open_engine(Box::new(SimDevice::attach(disk)), options, Now::at(1)).unwrap();
    let mut executor = OpExecutor::new(engine);
    executor.set_time(Now::at(1));
    executor
}

fn put(key: u32, options: PutOptions) -> Op {
    Op::Put { key: key.to_be_bytes().to_vec(), value: vec![7; 3000], options }
}

fn delete(key: u32) -> Op {
    Op::Delete { key: key.to_be_bytes().to_vec(), condition: Condition::Always }
}

/// Responses by operation, once there are `count`.
fn run(executor: &mut OpExecutor, count: usize) -> Vec<(u64, Response)> {
    let mut done = Vec::new();
    for _ in 0..1000 {
        executor.turn();
        executor.take_done(&mut done);
        if done.len() >= count {
            done.sort_by_key(|(id, _)| *id);
            return done;
        }
        executor.wait();
    }
    panic!("{count} operations do not end: {done:?}");
}

fn is_busy(executor: &mut OpExecutor) -> bool {
    executor.start(99, Op::Tick);
    let mut done = Vec::new();
    executor.take_done(&mut done);
    matches!(done[..], [(99, Response::Ticked { is_busy: true, .. })])
}

/// Whether each operation wrote.
fn written(done: &[(u64, Response)]) -> Vec<bool> {
    done.iter().map(|(_, response)| matches!(response, Response::Written(Some(_)))).collect()
}

/// Two callers that create one key at the same time: one of them fails.
#[test]
fn conditions_hold_of_writes_that_are_not_committed_yet() {
    let disk = SimDisk::new(SimOptions::default());
    let mut executor = open(&disk, Durability::Sync);
    executor.start(1, put(1, PutOptions::new().if_absent()));
    executor.start(2, put(1, PutOptions::new().if_absent()));
    executor.start(3, delete(1));
    executor.start(4, delete(1));
    executor.start(5, put(1, PutOptions::new().if_absent()));
    let done = run(&mut executor, 5);
    assert_eq!(written(&done), [true, false, true, false, true], "{done:?}");
}

/// A write of another caller is as durable as the close makes it, and is reported so.
#[test]
fn a_close_acknowledges_what_it_makes_durable() {
    let disk = SimDisk::new(SimOptions::default());
    let mut executor = open(&disk, Durability::Sync);
    executor.start(1, put(1, PutOptions::new()));
    executor.start(2, Op::Sync);
    let mut done = Vec::new();
    executor.close(&mut done).unwrap();
    assert!(matches!(done[..], [(1, Response::Written(Some(_))), (2, Response::Written(None))]), "{done:?}");
}

#[test]
fn a_sync_that_cannot_be_made_fails() {
    let disk = SimDisk::new(SimOptions::default());
    let mut executor = open(&disk, Durability::Memory);
    executor.start(1, put(1, PutOptions::new()));
    assert_eq!(written(&run(&mut executor, 1)), [true]);
    disk.fail_nth(OpKind::Write, 1, DeviceFault::Fail);
    executor.start(2, Op::Sync);
    let done = run(&mut executor, 1);
    assert!(matches!(done[..], [(2, Response::Failed(Error::Poisoned { .. }))]), "{done:?}");
}

#[test]
fn a_store_is_busy_until_it_is_synced() {
    let disk = SimDisk::new(SimOptions::default());
    let mut executor = open(&disk, Durability::Memory);
    assert!(!is_busy(&mut executor));
    executor.start(1, put(1, PutOptions::new()));
    run(&mut executor, 1);
    assert!(is_busy(&mut executor));
    executor.start(2, Op::Sync);
    run(&mut executor, 1);
    (0..3).for_each(|_| executor.turn());
    assert!(!is_busy(&mut executor));
}

/// The writes after a sync are synced by the store's mode again, not one by one.
#[test]
fn a_sync_is_for_the_writes_before_it() {
    let disk = SimDisk::new(SimOptions::default());
    let mut executor = open(&disk, Durability::EverySecond);
    executor.start(1, put(1, PutOptions::new()));
    executor.start(2, Op::Sync);
    run(&mut executor, 2);
    let before = executor.engine.progress(RANGE);
    assert_eq!(before.synced, before.appended);
    for key in 2..20 {
        executor.start(3, put(key, PutOptions::new()));
        run(&mut executor, 1);
    }
    assert_eq!(executor.engine.progress(RANGE).synced, before.synced);
}

#[test]
fn reads_in_flight_are_bounded() {
    let disk = SimDisk::new(SimOptions::default());
    let keys = READS_IN_FLIGHT_MAX as u32 + 100;
    let mut executor = open(&disk, Durability::Memory);
    for key in 0..keys {
        executor.start(key.into(), put(key, PutOptions::new()));
    }
    run(&mut executor, keys as usize);
    executor.close(&mut Vec::new()).unwrap();
    let mut executor = open(&disk, Durability::Memory);
    for key in 0..keys {
        executor.start(key.into(), Op::Get { key: key.to_be_bytes().to_vec() });
    }
    let in_flight = executor.engine.in_flight();
    assert!((READS_IN_FLIGHT_MAX / 2..=READS_IN_FLIGHT_MAX).contains(&in_flight), "{in_flight} reads");
    let done = run(&mut executor, keys as usize);
    let is_found =
        |(_, response): &(u64, Response)| matches!(response, Response::Value(Some(value)) if value.len() == 3000);
    assert!(done.iter().all(is_found), "every read comes to its end");
}
