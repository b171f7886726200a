//! Tests of the store level.
use fawn_bench::device::{self, DeviceBenchOptions};
use fawn_bench::row::Row;
use fawn_bench::sink::Sink;
use fawn_bench::store::fawn_ds::FawnDs;
use fawn_bench::store::ladder::{self, EngineChoice, StoreOptions, Workload};
use fawn_bench::store::raw::{self, RawDevice};
use fawn_bench::store::rocksdb::RocksDb;
use fawn_bench::store::{Contender, DataShape, FillEnd, Gets, Puts};
use fawn_bench::{BenchError, disk};
use fawn_flash::{SimDevice, SimOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SHAPE: DataShape = DataShape { keys: 3000, value_bytes: 256, memory_bytes: 4 << 20 };
const RUN: Duration = Duration::from_millis(50);

fn simulated(parent: &Path) -> FawnDs<SimDevice> {
    FawnDs::over(parent, 1 << 20, |_| Ok(SimDevice::new(7, SimOptions::default())))
}

fn gets(depth: usize, present: bool) -> Gets {
    Gets { depth, run: RUN, present, warm: false, seed: 3 }
}

fn unverified(outcome: Result<(), BenchError>) -> String {
    match outcome {
        Err(error @ BenchError::Unverified(_)) => error.to_string(),
        other => panic!("expected a failed verification, found {other:?}"),
    }
}

fn has_db_bench() -> bool {
    Command::new("db_bench").arg("--version").output().is_ok()
}

#[test]
fn every_workload_runs_on_a_verified_load() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = simulated(dir.path());
    let filled = store.fill(&SHAPE, FillEnd::Written).unwrap();
    assert!(filled.ops_per_s > 0.0 && filled.device_bytes_written_per_user_byte.unwrap() >= 1.0, "{filled:?}");
    assert!(filled.dram_bytes_per_key.unwrap() > 4.0, "an index entry is six bytes: {filled:?}");
    store.verify().unwrap();
    for depth in [1, 8] {
        let found = store.gets(&gets(depth, true)).unwrap();
        assert!(found.ops_per_s > 0.0 && found.p99_us.is_some(), "{found:?}");
        store.gets(&gets(depth, false)).unwrap();
    }
    let puts = Puts { writers: 1, run: RUN, seed: 5 };
    store.overwrites(&puts).unwrap();
    store.verify().unwrap();
    let durable = store.durable_puts(&SHAPE, &Puts { writers: 16, ..puts }).unwrap();
    assert_eq!(durable.config["durability"], "sync");
    assert!(durable.p50_us.is_some(), "{durable:?}");
}

#[test]
fn a_planted_wrong_value_fails_the_verification() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = simulated(dir.path());
    store.fill(&SHAPE, FillEnd::Acknowledged).unwrap();
    store.plant_wrong_value(1234).unwrap();
    let message = unverified(store.verify());
    assert!(message.contains("key number 1234") && message.contains("another value"), "{message}");
}

#[test]
fn a_key_too_few_or_too_many_fails_the_verification() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = simulated(dir.path());
    store.fill(&SHAPE, FillEnd::Acknowledged).unwrap();
    store.plant_wrong_value(SHAPE.keys).unwrap();
    let message = unverified(store.verify());
    assert!(message.contains("3001 keys, expected 3000"), "{message}");
}

#[test]
fn the_real_device_reads_its_own_file_and_writes_in_sequence() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let mut raw = RawDevice::new(dir.path());
    let written = raw.sequential_write(&SHAPE).unwrap();
    assert_eq!(written.engine, raw::NAME);
    let options = DeviceBenchOptions { file_bytes: 4 << 20, depth: 8, run: RUN, seed: 1 };
    raw.prepare(&options).unwrap();
    let row = raw.random_reads(&options).unwrap();
    assert!(row.ops_per_s > 0.0 && row.device_reads_per_op == Some(1.0), "{row:?}");
    let mut device = disk::open(&dir.path().join("raw"), 8).unwrap();
    let file = device::prepare(&mut device, &options).unwrap();
    assert!(device::random_reads(&mut device, file, &options).unwrap().p999_us.is_some());
}

#[test]
fn the_ladder_takes_turns_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let options = StoreOptions {
        dir: dir.path().to_owned(),
        engines: vec![EngineChoice::FawnDs],
        workloads: vec![Workload::Load, Workload::Durable, Workload::GetCached],
        figures: Vec::new(),
        parts_max: 256,
        peer_programs: PathBuf::new(),
        keys: 2000,
        value_bytes: 256,
        load_value_bytes: 1024,
        memory_bytes: None,
        run: RUN,
        pairs: 2,
        depth: 8,
        writers: 8,
        seed: 1,
    };
    let mut sink = Sink::quiet();
    ladder::run(&options, &mut sink).unwrap();
    let seen: Vec<_> = sink.rows().iter().map(|row| (&*row.workload, &*row.engine, &*row.config["pair"])).collect();
    let load = "bulk load 1024 B, memory";
    assert_eq!(
        seen[..4],
        [(load, "fawn-ds", "0"), (load, raw::NAME, "0"), (load, "fawn-ds", "1"), (load, raw::NAME, "1")]
    );
    assert_eq!(seen.len(), 8, "{seen:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "each store's directory is removed");
    let too_little = StoreOptions { workloads: vec![Workload::GetCold], ..options };
    let error = ladder::run(&too_little, &mut sink).unwrap_err().to_string();
    assert!(error.contains("more --keys"), "{error}");
}

#[test]
fn rocksdb_runs_on_a_verified_load_where_it_is_installed() {
    if !has_db_bench() {
        eprintln!("skipped: Debian's package rocksdb-tools is not installed");
        return;
    }
    // Without overwrites: db_bench would wait seconds for their compactions.
    let dir = tempfile::tempdir_in(".").unwrap();
    let mut store = RocksDb::new(dir.path());
    let filled = store.fill(&SHAPE, FillEnd::Written).unwrap();
    assert!(filled.device_bytes_written_per_user_byte.unwrap() > 0.5, "{filled:?}");
    store.verify().unwrap();
    store.expect_keys(SHAPE.keys + 1);
    assert!(unverified(store.verify()).contains("holds 3000 keys"));
    store.expect_keys(SHAPE.keys);
    let named = |row: Row| (row.ops_per_s > 0.0).then_some(row.cpu_us_per_op).flatten().is_some();
    assert!(named(store.gets(&Gets { warm: true, ..gets(1, true) }).unwrap()));
    let puts = Puts { writers: 4, run: RUN, seed: 1 };
    assert!(named(store.durable_puts(&SHAPE, &puts).unwrap()));
}
