//! Tests of the papers' experiments at tiny size, on a simulated device, and of their refusals.
#![expect(clippy::unwrap_used, reason = "a failure in a helper of the tests fails the test")]
use fawn_bench::row::Row;
use fawn_bench::sink::Sink;
use fawn_bench::store::fawn_ds::FawnDs;
use fawn_bench::store::figures::Figure;
use fawn_bench::store::ladder::{self, StoreOptions};
use fawn_bench::store::mix::{ArrivalPattern, Mix};
use fawn_bench::store::raw::RawDevice;
use fawn_bench::store::{Contender, DataShape, LoadParts, PartUnit, Puts, SpaceLimit};
use fawn_bench::workload::KeyDistribution;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const RUN: Duration = Duration::from_millis(30);

fn simulated(parent: &Path) -> FawnDs<SimDevice> {
    FawnDs::over(parent, 1 << 20, |_| Ok(SimDevice::new(7, SimOptions::default())))
}

fn options(dir: &Path, figure: Figure, keys: u64) -> StoreOptions {
    StoreOptions {
        dir: dir.to_owned(),
        engines: Vec::new(),
        workloads: Vec::new(),
        figures: vec![figure],
        keys,
        value_bytes: 256,
        load_value_bytes: 1024,
        memory_bytes: None,
        run: RUN,
        pairs: 1,
        depth: 8,
        writers: 8,
        parts_max: 4,
        peer_programs: PathBuf::new(),
        seed: 1,
    }
}

fn rows_of(options: impl FnOnce(&Path) -> StoreOptions) -> Vec<Row> {
    let dir = tempfile::tempdir_in(".").unwrap();
    let options = options(dir.path());
    let mut sink = Sink::quiet();
    let ours: Box<dyn Contender> = Box::new(simulated(dir.path()));
    ladder::run_with(&options, vec![ours], RawDevice::new(dir.path()), &mut sink).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "each store's directory is removed");
    let name = options.figures[0].name();
    assert!(sink.rows().iter().all(|row| row.config["figure"] == name && row.ops_per_s > 0.0), "{:?}", sink.rows());
    sink.rows().to_vec()
}

fn refusal(options: impl FnOnce(&Path) -> StoreOptions) -> String {
    let dir = tempfile::tempdir_in(".").unwrap();
    let ours: Box<dyn Contender> = Box::new(simulated(dir.path()));
    let raw = RawDevice::new(dir.path());
    ladder::run_with(&options(dir.path()), vec![ours], raw, &mut Sink::quiet()).unwrap_err().to_string()
}

/// The values of a setting, in the order of the rows of `engine`.
fn axis<'r>(rows: &'r [Row], engine: &str, name: &str) -> Vec<&'r str> {
    rows.iter().filter(|row| row.engine == engine).map(|row| &*row.config[name]).collect()
}

#[test]
fn the_paper_s_seven_sizes_are_read_at_both_value_sizes_and_depths() {
    let rows = rows_of(|dir| options(dir, Figure::Fawn09Table2, 2000));
    let ours: BTreeSet<_> = rows.iter().filter(|row| row.engine == "fawn-ds").map(|row| &*row.workload).collect();
    assert_eq!(ours.len(), 7 * 2 * 2, "{ours:?}");
    let largest: Vec<_> = rows.iter().filter(|row| row.config["paper_kib"] == "3670016").collect();
    assert_eq!(largest.iter().filter(|row| row.engine == "raw-device").count(), 4, "{largest:?}");
    let keys: Vec<u64> = axis(&rows, "fawn-ds", "keys").iter().map(|keys| keys.parse().unwrap()).collect();
    assert_eq!((keys[0], keys[12]), (10, 2000), "ten keys at least, and all at most: {keys:?}");
    assert_eq!(keys[27], 2000 * 1040 / 272, "the same bytes in smaller values");
}

#[test]
fn a_bulk_load_and_random_puts_are_written_by_store_and_device() {
    let rows = rows_of(|dir| options(dir, Figure::Fawn09Bulk, 2000));
    let seen: Vec<_> = rows.iter().map(|row| (&*row.workload, &*row.engine)).collect();
    let (load, puts) = ("fawn09-bulk: bulk load", "fawn09-bulk: random puts");
    assert_eq!(seen, [(load, "fawn-ds"), (load, "raw-device"), (puts, "fawn-ds"), (puts, "raw-device")]);
    assert!(rows.iter().all(|row| row.device_bytes_written_per_user_byte.unwrap() >= 1.0), "{rows:?}");
}

#[test]
fn semi_random_writes_reach_every_range_and_store() {
    let rows = rows_of(|dir| options(dir, Figure::Fawn09Fig9, 2000));
    assert_eq!(axis(&rows, "fawn-ds", "parts"), ["1", "2", "4", "1", "2", "4"]);
    assert_eq!(axis(&rows, "fawn-ds", "part_unit")[2..4], ["range", "store"]);
    assert!(rows.iter().all(|row| row.device_bytes_written_per_user_byte.unwrap() >= 1.0), "{rows:?}");
    let stores = rows_of(|dir| options(dir, Figure::Fawn08Fig7, 2000));
    assert_eq!(axis(&stores, "fawn-ds", "parts"), ["1", "8", "32"]);
    assert!(stores.iter().all(|row| row.measured["seconds"] > 0.0), "{stores:?}");
}

#[test]
fn every_key_of_divided_loads_is_verified_in_its_part() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let shape = DataShape { keys: 1000, value_bytes: 100, memory_bytes: 8 << 20 };
    for (unit, count) in [(PartUnit::Range, 7), (PartUnit::Store, 3)] {
        let mut store = simulated(dir.path());
        store.fill_parts(&shape, LoadParts { count, unit, in_sequence: false }).unwrap();
        store.verify().unwrap();
        store.plant_wrong_value(123).unwrap();
        let error = store.verify().unwrap_err().to_string();
        assert!(error.contains("key number 123"), "{unit:?}: {error}");
    }
}

#[test]
fn put_ratios_go_from_gets_alone_to_puts_and_deletes_of_few_keys() {
    let rows = rows_of(|dir| options(dir, Figure::Fawn09Fig10, 2000));
    let puts = axis(&rows, "fawn-ds", "put_percent");
    assert_eq!((puts.len(), puts[0], puts[10], puts[12]), (13, "0", "100", "50"));
    for row in &rows {
        let [gets, puts, deletes] = ["gets", "puts", "deletes"].map(|name| row.measured[name]);
        let share = row.config["put_percent"].parse::<f64>().unwrap() / 100.0;
        assert!((puts / (gets + puts + deletes) - share).abs() < 0.1, "{row:?}");
        assert_eq!(deletes > 0.0, row.config["delete_percent"] == "50", "{row:?}");
    }
    assert_eq!(rows[12].config["mix_keys"], "20", "one key in a hundred");
}

#[test]
fn the_load_is_the_same_with_and_without_cleaning_and_only_one_of_them_cleans() {
    let rows =
        rows_of(|dir| StoreOptions { run: Duration::from_millis(300), ..options(dir, Figure::Fawn09Fig15, 20_000) });
    assert_eq!(axis(&rows, "fawn-ds", "load"), ["peak", "30 %", "90 %", "peak", "30 %", "90 %"]);
    let cleaned = |name: &str| -> f64 {
        let of = rows.iter().filter(|row| row.config["maintenance"] == name);
        of.map(|row| row.measured["segments_cleaned"]).sum()
    };
    assert_eq!(cleaned("none"), 0.0);
    assert!(cleaned("cleaning") > 0.0, "{rows:?}");
    for row in &rows {
        let (quantiles, latencies) = (&row.series["quantile"], &row.series["latency_us_at_quantile"]);
        assert_eq!(quantiles.len(), latencies.len());
        assert!(latencies.is_sorted() && row.max_us.unwrap() >= row.p999_us.unwrap(), "{row:?}");
    }
}

#[test]
fn an_hour_of_overwrites_in_small_stays_within_its_capacity_and_counts_all_that_is_written() {
    let rows = rows_of(|dir| StoreOptions {
        run: Duration::from_millis(100),
        ..options(dir, Figure::OverwriteSteady, 24_000)
    });
    assert_eq!(axis(&rows, "fawn-ds", "load"), ["20 %", "20 %", "90 %", "90 %"].repeat(2));
    assert_eq!(
        axis(&rows, "fawn-ds", "cleaning"),
        ["true", "false"].repeat(4),
        "both runs of a share follow each other"
    );
    for row in &rows {
        let samples = ["ops_per_s", "max_us", "debt_segments", "peak_ops_per_s", "machine_stop_ms"]
            .map(|name| row.series[name].len());
        assert_eq!(samples, [4; 5], "one value a period: {row:?}");
        assert!(row.measured["machine_stop_ms_max"] > 0.0 && row.measured["memory_bytes_max"] > 0.0, "{row:?}");
        let counted = (row.ops_per_s * row.measured["counted_s"]).round();
        assert!(counted < row.measured["puts"], "operations at the peak do not count: {row:?}");
    }
    for row in rows.iter().filter(|row| row.config["cleaning"] == "true") {
        let written = row.measured["written_per_record_byte"];
        assert!(written >= 1.0, "{row:?}");
        let by_cause: f64 =
            row.measured.iter().filter(|(name, _)| name.starts_with("written_bytes_")).map(|it| it.1).sum();
        assert!((by_cause / row.measured["record_bytes"] - written).abs() < 0.001, "every byte has a cause: {row:?}");
    }
    assert!(rows[2].measured["moved_bytes"] > 0.0, "{:?}", rows[2]);
    assert!(rows[3].measured["moved_bytes"] == 0.0, "{:?}", rows[3]);
}

#[test]
fn the_sorted_tier_takes_less_memory_and_more_writes_than_the_log() {
    let rows = rows_of(|dir| StoreOptions {
        memory_bytes: Some(8 << 20),
        run: Duration::from_millis(20),
        ..options(dir, Figure::Tiers, 24_000)
    });
    assert_eq!(rows.len(), 4 * 7, "gets of two kinds, overwrites, and the gets again, at once and after a rest");
    for layout in ["log", "sorted"] {
        let of_layout = rows.iter().filter(|row| row.config["layout"] == layout);
        assert_eq!(of_layout.clone().filter(|row| row.device_bytes_written_per_user_byte.is_some()).count(), 2);
        let has_runs = of_layout.clone().any(|row| row.measured.contains_key("runs"));
        assert_eq!(has_runs, layout == "sorted", "{layout}");
    }
    let runs = |end: &str| {
        let rows = rows.iter().filter(|row| row.workload.ends_with(end)).filter_map(|row| row.measured.get("runs"));
        rows.sum::<f64>()
    };
    let (before, after) = (runs("gets after overwrites"), runs("gets after overwrites and a rest"));
    assert!(0.0 < after && after <= before, "{after} runs after a rest, {before} before");
}

#[test]
fn an_overloaded_open_loop_counts_the_wait_of_every_operation_and_says_what_it_left() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let shape = DataShape { keys: 1000, value_bytes: 100, memory_bytes: 8 << 20 };
    let mut store = simulated(dir.path());
    store.fill_within(&shape, SpaceLimit { capacity_bytes: None, cleans: true, sorts: false }).unwrap();
    let mix = Mix {
        put_percent: 50,
        delete_percent: 0,
        keys: KeyDistribution::zipf(1000, 0.99),
        arrival: ArrivalPattern::PerSecond(1e9),
        run: RUN,
        operations_max: u64::MAX,
        seed: 1,
    };
    let row = store.mixed(&mix).unwrap().unwrap();
    // A thousand million a second is more than any store serves: operations wait for longer than the run.
    assert!(row.measured["unserved"] > 0.0 && row.p99_us.unwrap() > RUN.as_secs_f64() * 0.5e6, "{row:?}");
    store.verify().unwrap();
    let few = Mix { operations_max: 500, arrival: ArrivalPattern::InFlight(4), ..mix.clone() };
    let row = store.mixed(&few).unwrap().unwrap();
    assert_eq!(row.measured["gets"] + row.measured["puts"], 500.0, "{row:?}");
    let more = Mix { keys: KeyDistribution::uniform(1001), ..mix };
    assert!(store.mixed(&more).unwrap_err().to_string().contains("more keys"));
}

#[test]
fn a_run_on_a_disk_that_stays_full_ends_with_the_reason() {
    let (dir, disk) = (tempfile::tempdir_in(".").unwrap(), SimDisk::new(SimOptions::default()));
    let shape = DataShape { keys: 3000, value_bytes: 256, memory_bytes: 8 << 20 };
    let attached = disk.clone();
    let store = FawnDs::over(dir.path(), 1 << 20, move |_| Ok(SimDevice::attach(&attached)));
    let mut store = store.with_patience(Duration::from_millis(200));
    store.fill_within(&shape, SpaceLimit { capacity_bytes: None, cleans: false, sorts: false }).unwrap();
    disk.set_full(true);
    let mix = Mix {
        put_percent: 100,
        delete_percent: 0,
        keys: KeyDistribution::uniform(shape.keys),
        arrival: ArrivalPattern::PerSecond(1e6),
        run: Duration::from_secs(3600),
        operations_max: 100_000,
        seed: 1,
    };
    for arrival in [ArrivalPattern::PerSecond(1e6), ArrivalPattern::InFlight(8)] {
        let error = store.mixed(&Mix { arrival, ..mix.clone() }).unwrap_err().to_string();
        assert!(error.contains("0.2 s") && error.contains("full"), "{error}");
    }
    let error = store.overwrites(&Puts { writers: 1, run: RUN, seed: 1 }).unwrap_err().to_string();
    assert!(error.contains("full"), "{error}");
}

#[test]
fn skewed_gets_read_less_with_a_larger_budget_and_more_skew() {
    let rows = rows_of(|dir| StoreOptions {
        run: Duration::from_millis(100),
        value_bytes: 1024,
        ..options(dir, Figure::RecordCache, 52_000)
    });
    let (scans, gets): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.workload.contains("scan after"));
    assert_eq!((scans.len(), gets.len()), (12, 12));
    let reads_of = |row: &&Row| row.device_reads_per_op.unwrap();
    assert!(scans.iter().map(reads_of).all(|reads| reads > 0.0 && reads < 1.1), "{scans:?}");
    let reads = |zipf: &str, percent: &str| {
        let is_it = |row: &&&Row| row.config["zipf"] == zipf && row.config["budget_percent"] == percent;
        gets.iter().find(is_it).map(reads_of).unwrap()
    };
    assert!(reads("1.1", "25") < reads("0.8", "25") && reads("0.8", "25") < reads("0.8", "2"), "{gets:?}");
    assert!(reads("0.8", "25") < reads("0", "25"), "{gets:?}");
}

#[test]
fn sizes_that_would_mean_nothing_are_refused_with_the_remedy() {
    let steady = refusal(|dir| options(dir, Figure::OverwriteSteady, 1000));
    assert!(steady.contains("overwrite-steady") && steady.contains("--keys"), "{steady}");
    let skewed = refusal(|dir| options(dir, Figure::RecordCache, 1000));
    assert!(skewed.contains("2 %") && skewed.contains("--keys"), "{skewed}");
    let parts = refusal(|dir| options(dir, Figure::Fawn08Fig7, 31));
    assert!(parts.contains("31 keys for 32 parts"), "{parts}");
}
