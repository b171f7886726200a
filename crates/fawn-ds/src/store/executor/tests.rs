//! Operations on a simulated device, executed step by step.
use super::*;
use crate::index::IndexOptions;
use crate::options::{Options, RecordLayout};
use crate::store::PutOptions;
use crate::store::builder::open_engine;
use crate::store::put_options::PutExpiry;
use crate::store::ticker::Calm;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{Device, IoClass, SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, HashSecret};

/// Interval of the ticks of a store that was written to lately, at most.
const UNTIL_NEXT_TICK_MS: u64 = 250;

fn open(disk: &SimDisk, durability: Durability) -> OpExecutor {
    open_with(disk, durability, IndexOptions::default())
}

fn open_with(disk: &SimDisk, durability: Durability, index: IndexOptions) -> OpExecutor {
    let secret_if_new = Some(HashSecret(*b"a secret of test"));
    let options = Options {
        segment_bytes: 1 << 20,
        memory_bytes: 8 << 20,
        durability,
        secret_if_new,
        index,
        ..Options::default()
    };
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
    matches!(done[..], [(99, Response::Ticked(TickReport { is_busy: true, .. }))])
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
    let mut executor = open(&disk, Durability::EverySecond);
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

/// Each attempt looked the key up again, and logged the loss.
#[test]
fn a_delete_of_a_lost_record_that_is_refused_for_now_reads_it_once() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut executor = open(&disk, Durability::Sync);
    for key in 1..50 {
        executor.start(key.into(), put(key, PutOptions::new()));
        run(&mut executor, 1);
    }
    executor.close(&mut Vec::new()).unwrap();
    let mut executor = open(&disk, Durability::Sync);
    let segments = disk.names().into_iter().filter(|name| name.starts_with("segment-"));
    segments.for_each(|name| (4096..8192).step_by(16).for_each(|at| disk.flip_bits(&name, at, 1)));
    disk.hang(OpKind::Write);
    let mut id = 0;
    // A long record first, then one as short as a delete.
    for (deferred, len) in [(1, 3_000), (2, 0)] {
        while executor.deferred.len() < deferred {
            id += 1;
            let (key, value) = (b"other".to_vec(), vec![7; len]);
            executor.start(id, Op::Put { key, value, options: PutOptions::new() });
            executor.turn();
        }
    }
    let reads = |executor: &OpExecutor| executor.engine.device().stats().of(IoClass::Foreground).reads;
    let before = reads(&executor);
    executor.start(id + 1, delete(1));
    (0..20).for_each(|_| executor.turn());
    assert_eq!((reads(&executor) - before, executor.deferred.len()), (1, 3));
    // Only one of two deletes has deleted it.
    executor.start(id + 2, delete(1));
    (0..20).for_each(|_| executor.turn());
    assert_eq!(executor.deferred.len(), 4);
    disk.release_hung();
    let written = written(&run(&mut executor, id as usize + 2));
    assert_eq!(written.iter().filter(|is_written| **is_written).count(), id as usize + 1, "{written:?}");
}

/// A caller must not wait for ever for a read that nothing will complete, whether it was begun or is queued.
#[test]
fn a_close_fails_what_waits_for_a_read() {
    let disk = SimDisk::new(SimOptions::default());
    let keys = READS_IN_FLIGHT_MAX as u32 + 10;
    let mut executor = open(&disk, Durability::Memory);
    (0..keys).for_each(|key| executor.start(key.into(), put(key, PutOptions::new())));
    run(&mut executor, keys as usize);
    executor.close(&mut Vec::new()).unwrap();
    let mut executor = open(&disk, Durability::Memory);
    (0..keys).for_each(|key| executor.start(key.into(), Op::Get { key: key.to_be_bytes().to_vec() }));
    let mut done = Vec::new();
    executor.close(&mut done).unwrap();
    let failed = done.iter().filter(|(_, response)| matches!(response, Response::Failed(Error::Closed))).count();
    let found = done.iter().filter(|(_, response)| matches!(response, Response::Value(Some(_)))).count();
    assert!(failed > 10 && failed + found == keys as usize, "{failed} failed, {found} found");
}

/// A batch takes a version per write: the next write's is above all of them.
#[test]
fn writes_follow_a_batch_with_higher_versions() {
    let disk = SimDisk::new(SimOptions::default());
    let mut executor = open(&disk, Durability::Sync);
    let write = |key: u8| KeyWrite { key: vec![key], value: Some(vec![key]), expiry: PutExpiry::Never };
    executor.start(1, Op::Batch((0..5).map(write).collect()));
    executor.start(2, put(1, PutOptions::new()));
    executor.start(3, Op::Batch((5..9).map(write).collect()));
    executor.start(4, put(2, PutOptions::new()));
    let version_of = |(_, response): (u64, Response)| match response {
        Response::Written(Some(version)) => version.seq(),
        other => panic!("{other:?}"),
    };
    let versions: Vec<u64> = run(&mut executor, 4).into_iter().map(version_of).collect();
    assert_eq!(versions, [5, 6, 10, 11]);
}

/// A stretch that begins within a cell of the index leaves out the cell's keys before it: they are of the stretch before.
#[test]
fn a_scan_returns_only_keys_of_its_stretch() {
    let disk = SimDisk::new(SimOptions::default());
    let mut executor = open_with(&disk, Durability::Sync, IndexOptions { entries_min: 1, ..IndexOptions::default() });
    (0..100).for_each(|key| executor.start(key.into(), put(key, PutOptions::new())));
    run(&mut executor, 100);
    let secret = *executor.engine.secret();
    let hash_of = |key: &[u8]| KeyHash::of(&secret, key).0;
    let mut hashes: Vec<u64> = (0..100_u32).map(|key| hash_of(&key.to_be_bytes())).collect();
    hashes.sort_unstable();
    for (from, to) in [(hashes[40] + 1, None), (hashes[40], Some(hashes[60])), (hashes[99], None)] {
        let (mut next, mut met) = (Some(from), Vec::new());
        while let Some(from) = next {
            executor.start(1, Op::Scan(Stretch { from, to, since: None, value_bytes_max: None }));
            let mut done = run(&mut executor, 1);
            let Some((_, Response::Scanned { items, next: after, .. })) = done.pop() else { panic!("a scan") };
            met.extend(items.iter().map(|item| hash_of(&item.key)));
            next = after;
        }
        met.sort_unstable();
        let is_inside = |hash: &u64| *hash >= from && to.is_none_or(|to| *hash < to);
        let expected: Vec<u64> = hashes.iter().copied().filter(is_inside).collect();
        assert_eq!(met, expected, "{from:x} to {to:x?}");
    }
}

/// Ticks as the timer's thread does, until the store has no upkeep or so much time has passed. Returns the ticks.
fn tick_for(executor: &mut OpExecutor, ms: u64) -> (u64, bool) {
    let (mut calm, mut ticks, since) = (Calm::new(Durability::Sync), 0, executor.now);
    while executor.now.mono.ms_since(since.mono) < ms {
        let interval = calm.interval().unwrap();
        let passed_ms = u64::try_from(interval.as_millis()).unwrap();
        executor.set_time(executor.now.plus_ms(passed_ms.max(1)));
        executor.start(99, Op::Tick);
        executor.turn();
        let mut done = Vec::new();
        executor.take_done(&mut done);
        let [(99, Response::Ticked(report))] = done[..] else { unreachable!("only ticks are done") };
        if ticks > 0 && !report.has_upkeep {
            return (ticks, true);
        }
        calm.note(false, report);
        ticks += 1;
    }
    (ticks, false)
}

/// The guide's table of durability holds when nobody calls after the last write: only ticks flush and sync it.
#[test]
fn the_last_write_is_flushed_and_synced_in_time_without_callers() {
    for (durability, within_ms) in [(Durability::Memory, 50), (Durability::EverySecond, 1_010)] {
        // The second write comes right after the flush of the first one, at each time between two ticks.
        for after_ms in 0..UNTIL_NEXT_TICK_MS {
            let disk = SimDisk::new(SimOptions::instant(1));
            let mut executor = open(&disk, durability);
            let mut calm = Calm::new(durability);
            (0..2).for_each(|_| tick(&mut executor, &mut calm, true));
            let mut wake_at = executor.now.mono.plus_ms(calm.interval().unwrap().as_millis() as u64);
            for key in 0..2 {
                executor.set_time(
                    executor.now.plus_ms(after_ms.min(wake_at.ms_since(executor.now.mono) - 1) * u64::from(key == 0)),
                );
                executor.start(1, put(key, PutOptions::new()));
                run(&mut executor, 1);
            }
            let written_at = executor.now.mono;
            let is_safe = |executor: &OpExecutor| {
                let progress = executor.engine.progress(RANGE);
                let safe = if durability == Durability::Memory { progress.flushed } else { progress.synced };
                safe == progress.appended
            };
            assert!(!is_safe(&executor), "{durability:?}: nothing is left to do");
            while !is_safe(&executor) {
                executor.set_time(executor.now.plus_ms(wake_at.ms_since(executor.now.mono)));
                tick(&mut executor, &mut calm, true);
                wake_at = executor.now.mono.plus_ms(calm.interval().unwrap().as_millis() as u64);
                let passed_ms = executor.now.mono.ms_since(written_at);
                assert!(passed_ms <= within_ms, "{durability:?}, {after_ms}: {passed_ms} ms");
            }
        }
    }
}

/// One write had a `memory` store, or one whose sync had failed, ticked for ever.
#[test]
fn a_store_rests_after_its_last_write() {
    for (durability, fails) in [
        (Durability::Memory, false),
        (Durability::Memory, true),
        (Durability::EverySecond, false),
        (Durability::EverySecond, true),
        (Durability::Sync, false),
        (Durability::Sync, true),
    ] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let (mut executor, mut calm) = (open(&disk, durability), Calm::new(durability));
        executor.start(1, put(1, PutOptions::new()));
        if fails {
            disk.fail_nth(OpKind::Write, 1, DeviceFault::Fail);
            disk.fail_nth(OpKind::Sync, 1, DeviceFault::Fail);
        }
        run(&mut executor, 1);
        tick(&mut executor, &mut calm, true);
        let mut ticks = 0;
        while let Some(interval) = calm.interval().filter(|interval| *interval < Duration::from_secs(1)) {
            executor.set_time(executor.now.plus_ms(interval.as_millis() as u64));
            tick(&mut executor, &mut calm, false);
            ticks += 1;
            assert!(ticks < 100, "{durability:?}, {fails}: it is ticked each {interval:?}");
        }
        let progress = executor.engine.progress(RANGE);
        assert_eq!(executor.engine.poisoned().is_some(), fails, "{durability:?}");
        assert_eq!(
            progress.flushed == progress.appended,
            !fails || durability == Durability::EverySecond,
            "{durability:?}"
        );
    }
}

/// One tick of the timer's thread, with the completions that have come until then.
fn tick(executor: &mut OpExecutor, calm: &mut Calm, has_written: bool) {
    executor.start(99, Op::Tick);
    executor.turn();
    let mut done = Vec::new();
    executor.take_done(&mut done);
    let [(99, Response::Ticked(report))] = done[..] else { unreachable!("only ticks are done") };
    calm.note(has_written, report);
}

/// A week of writes at the highest rates uses up an epoch.
#[test]
fn a_store_goes_on_when_the_versions_of_its_epoch_are_used_up() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let disk = SimDisk::new(SimOptions::default());
        let mut executor = open(&disk, durability);
        executor.start(1, put(1, PutOptions::new()));
        run(&mut executor, 1);
        executor.seq = (1 << 36) - 3;
        (2..6).for_each(|key| executor.start(u64::from(key), put(key, PutOptions::new())));
        assert_eq!(written(&run(&mut executor, 4)), [true; 4], "{durability:?}");
        let writes = (6..9_u8).map(|key| KeyWrite { key: vec![key], value: Some(vec![key]), expiry: PutExpiry::Never });
        executor.seq = (1 << 36) - 2;
        executor.start(6, Op::Batch(writes.collect()));
        assert_eq!(written(&run(&mut executor, 1)), [true], "{durability:?}: none of a batch has the former epoch");
        executor.start(7, delete(1));
        assert_eq!(written(&run(&mut executor, 1)), [true], "{durability:?}");
        executor.close(&mut Vec::new()).unwrap();
        let mut executor = open(&disk, durability);
        let mut keys: Vec<Vec<u8>> = (2..6_u32).map(|key| key.to_be_bytes().to_vec()).collect();
        keys.extend((6..9).map(|key| vec![key]));
        let mut found = scanned_from(&mut executor, Some(0), None);
        found.sort_by_key(|key| key.iter().copied().max());
        assert_eq!(found, keys, "{durability:?}");
    }
}

fn open_sorted(disk: &SimDisk, layout: RecordLayout, durability: Durability) -> OpExecutor {
    let options = Options {
        segment_bytes: 1 << 20,
        memory_bytes: 8 << 20,
        durability,
        secret_if_new: Some(HashSecret(*b"a secret of test")),
        layout,
        sort_bytes: 1 << 20,
        ..Options::default()
    };
    let engine = open_engine(Box::new(SimDevice::attach(disk)), options, Now::at(1)).unwrap();
    let mut executor = OpExecutor::new(engine);
    executor.set_time(Now::at(1));
    executor
}

fn part_of_scan(from: u64, since: Option<Version>) -> Op {
    Op::Scan(Stretch { from, to: None, since, value_bytes_max: None })
}

/// The keys that a part of an iteration returns from here on.
fn scanned_from(executor: &mut OpExecutor, from: Option<u64>, since: Option<Version>) -> Vec<Vec<u8>> {
    let (mut next, mut keys) = (from, Vec::new());
    while let Some(from) = next {
        executor.start(1, part_of_scan(from, since));
        let Some((_, Response::Scanned { items, next: later, .. })) = run(executor, 1).pop() else { panic!("a scan") };
        keys.extend(items.into_iter().map(|item| item.key));
        next = later;
    }
    keys
}

/// A key of a run is overwritten while the first step of an iteration waits for a read, behind the key's place. The log's part has
/// passed it, so the runs' part must return it: what the log's part has seen is what was committed when it began.
#[test]
fn an_iteration_meets_a_sorted_key_that_is_overwritten_during_its_first_step() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut executor = open_sorted(&disk, RecordLayout::Sorted, Durability::Memory);
    for id in 0..40_000_u64 {
        executor.start(id, Op::Put { key: id.to_be_bytes().to_vec(), value: vec![7; 400], options: PutOptions::new() });
        executor.turn();
    }
    executor.take_done(&mut Vec::new());
    tick_for(&mut executor, 60_000);
    assert!(executor.engine.runs() > 0);
    executor.close(&mut Vec::new()).unwrap();
    // Nothing is sorted from here on.
    let mut executor = open_sorted(&disk, RecordLayout::Log, Durability::Memory);
    let secret = *executor.engine.secret();
    let in_log: std::collections::BTreeSet<_> = scanned_from(&mut executor, Some(0), None).into_iter().collect();
    executor.close(&mut Vec::new()).unwrap();
    let hash_of = |key: &Vec<u8>| KeyHash::of(&secret, key).0;
    let keys = (0..40_000_u64).map(|id| id.to_be_bytes().to_vec());
    let key = keys.filter(|key| !in_log.contains(key)).min_by_key(hash_of).unwrap();
    assert!(in_log.iter().all(|other| hash_of(other) > hash_of(&key)) && !in_log.is_empty());
    let mut executor = open_sorted(&disk, RecordLayout::Log, Durability::Memory);
    executor.start(1, part_of_scan(0, None));
    let mut done = Vec::new();
    executor.take_done(&mut done);
    assert!(done.is_empty() && executor.engine.in_flight() > 0, "it waits for the log's first key");
    executor.start(2, Op::Put { key: key.clone(), value: b"new".to_vec(), options: PutOptions::new() });
    executor.acknowledge();
    let (_, Response::Scanned { items, next, seen, .. }) = run(&mut executor, 2).remove(0) else { panic!("a scan") };
    let mut met: Vec<Vec<u8>> = items.into_iter().map(|item| item.key).collect();
    met.extend(scanned_from(&mut executor, next, None));
    met.extend(scanned_from(&mut executor, Some(0), Some(seen)));
    assert!(met.contains(&key), "a key that was there throughout");
}

/// Its hosts have nothing else that would take in a completion.
#[test]
fn a_store_whose_read_hangs_is_ticked_seldom_and_goes_on() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut executor = open_sorted(&disk, RecordLayout::Sorted, Durability::Sync);
    disk.hang(OpKind::Read);
    for id in 0..8_000_u64 {
        executor.start(id, Op::Put { key: id.to_be_bytes().to_vec(), value: vec![7; 400], options: PutOptions::new() });
        executor.turn();
    }
    for _ in 0..5_000 {
        executor.set_time(executor.now.plus_ms(1));
        executor.turn();
    }
    executor.take_done(&mut Vec::new());
    assert!(executor.engine.has_upkeep() && disk.hung() > 0, "{:?}", executor.engine);
    let (ticks, has_ended) = tick_for(&mut executor, 60_000);
    assert!(ticks < 400 && !has_ended, "{ticks} ticks in a minute");
    disk.release_hung();
    let (ticks, has_ended) = tick_for(&mut executor, 10_000);
    assert!(has_ended, "{ticks} ticks");
    println!("{ticks} ticks, {:?}", executor.engine.stats());
    assert!(executor.engine.runs() > 0);
}

/// The page has records of other keys, too: an absent key was reported as deleted.
#[test]
fn a_delete_whose_key_may_be_in_a_corrupt_page_of_a_run_fails() {
    const KEYS: u64 = 10_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut executor = open_sorted(&disk, RecordLayout::Sorted, Durability::Memory);
    let key = |id: u64| id.to_be_bytes().to_vec();
    for id in 0..KEYS {
        executor.start(id, Op::Put { key: key(id), value: vec![7; 400], options: PutOptions::new() });
        executor.turn();
    }
    executor.take_done(&mut Vec::new());
    tick_for(&mut executor, 60_000);
    executor.close(&mut Vec::new()).unwrap();
    let names = disk.names().into_iter().filter(|name| crate::format::run::is_file_name(name));
    let name = names.max_by_key(|name| disk.contents(name).map(|bytes| bytes.len())).unwrap();
    let pages = disk.contents(&name).unwrap().len() as u64 / 4096;
    (1..pages / 2).for_each(|page| disk.flip_bits(&name, page * 4096 + 99, 1));
    let mut executor = open_sorted(&disk, RecordLayout::Log, Durability::Memory);
    let mut one = |op| {
        executor.start(1, op);
        run(&mut executor, 1).pop().unwrap().1
    };
    let is_corrupt = |response: &Response| matches!(response, Response::Failed(Error::Corrupt { .. }));
    let deletes = |id| Op::Delete { key: key(id), condition: Condition::Always };
    let lost: Vec<u64> = (0..2 * KEYS).filter(|&id| is_corrupt(&one(Op::Get { key: key(id) }))).collect();
    let absent = lost.iter().filter(|&&id| id >= KEYS).count();
    assert!(absent > 0 && absent < lost.len(), "{absent} of {}", lost.len());
    for &id in &lost {
        let deleted = one(deletes(id));
        assert!(is_corrupt(&deleted), "{id}: {deleted:?}");
    }
    // A put needs no lookup.
    assert!(matches!(
        one(Op::Put { key: key(lost[0]), value: vec![1], options: PutOptions::new() }),
        Response::Written(_)
    ));
    assert!(matches!(one(deletes(lost[0])), Response::Written(Some(_))));
    assert!(matches!(one(deletes(lost[0])), Response::Written(None)));
}
