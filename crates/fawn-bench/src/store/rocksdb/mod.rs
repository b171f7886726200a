//! RocksDB as a contender: Debian's `db_bench` as a process, configured as RocksDB's documentation recommends.
//!
//! Key and value sizes are the same, neither side compresses. RocksDB uses direct reads, direct flushes, a ten-bit
//! Bloom filter, and a block cache of the whole memory budget. Its indexes, filters and memtables add to the budget,
//! which favours RocksDB. CPU time, reads and written bytes are from the kernel's accounting between two output lines.
mod output;

use super::{Contender, DataShape, FillEnd, Gets, KEY_BYTES, OwnDir, Puts};
use crate::process::{self, ProcessLine};
use crate::{BenchError, Row};
use output::RocksDbReport;
use std::path::Path;
use std::process::Command;

/// Settings of all runs; further ones depend on the workload.
const SETTINGS: [&str; 12] = [
    "--compression_type=none",
    "--bloom_bits=10",
    "--use_direct_reads=true",
    "--use_direct_io_for_flush_and_compaction=true",
    "--cache_index_and_filter_blocks=false",
    "--cache_numshardbits=6",
    "--level_compaction_dynamic_level_bytes=true",
    "--max_background_jobs=2",
    "--bytes_per_sync=1048576",
    "--open_files=-1",
    // The interval is never reached: progress lines would cost time.
    "--stats_interval=2000000000",
    "--histogram=true",
];

/// RocksDB under test.
pub struct RocksDb {
    dir: OwnDir,
    shape: Option<DataShape>,
}

impl RocksDb {
    /// RocksDB with its files under `parent`.
    #[must_use]
    pub fn new(parent: &Path) -> Self {
        Self { dir: OwnDir::new(parent, "rocksdb"), shape: None }
    }

    /// Makes the next verification expect `keys`, so that a test can check it.
    pub fn expect_keys(&mut self, keys: u64) {
        if let Some(shape) = &mut self.shape {
            shape.keys = keys;
        }
    }

    fn filled(&self) -> Result<DataShape, BenchError> {
        self.shape.ok_or_else(|| BenchError::failed("rocksdb", "reads of a store that was not filled"))
    }

    /// Runs the named benchmarks in sequence in one process.
    fn run(&self, shape: &DataShape, benchmarks: &str, more: &[String]) -> Result<Vec<ProcessLine>, BenchError> {
        // Line-buffered, so that each line arrives when the benchmark prints it.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "db_bench", &format!("--benchmarks={benchmarks}")]).args(SETTINGS);
        command.arg(format!("--db={}", self.dir.path().display()));
        command.args([format!("--num={}", shape.keys), format!("--value_size={}", shape.value_bytes)]);
        command.args([format!("--key_size={KEY_BYTES}"), format!("--cache_size={}", shape.memory_bytes)]);
        command.args(more);
        let log = self.dir.path().with_extension("log");
        let lines = process::run_lines(command, "db_bench", "rocksdb-tools", &log);
        // A failure already includes the log's content.
        let _ = std::fs::remove_file(log);
        lines
    }

    fn row(&self, shape: &DataShape, lines: &[ProcessLine]) -> Row {
        let mut row = Row::new("store", self.name(), "").with("keys", shape.keys);
        row = row.with("value_bytes", shape.value_bytes).with("memory_bytes", shape.memory_bytes);
        let resident = lines.iter().map(|line| line.usage.resident_bytes).max().unwrap_or_default();
        row = row.with("rss_bytes_max", resident).with("settings", SETTINGS.join(" "));
        match lines.iter().any(|line| line.text.contains("Assertions are enabled")) {
            true => row.with("note", "this db_bench was built with assertions, which slow it down"),
            false => row,
        }
    }

    /// A row of one benchmark from `lines`, with its reads and CPU time.
    fn measured(
        &self,
        shape: &DataShape,
        lines: &[ProcessLine],
        benchmark: &str,
    ) -> Result<(Row, RocksDbReport), BenchError> {
        let report = output::find(lines, benchmark)?;
        let mut row = self.row(shape, lines).timed(report.operations, report.elapsed, Some(report.cpu));
        row.ops_per_s = report.ops_per_s;
        row.device_reads_per_op = Some(report.read_calls as f64 / report.operations.max(1) as f64);
        (row.p50_us, row.p99_us, row.p999_us) = (report.p50_us, report.p99_us, report.p999_us);
        Ok((row, report))
    }

    fn written_per_user_byte(report: &RocksDbReport, shape: &DataShape) -> f64 {
        let user_bytes = report.operations.max(1) * (KEY_BYTES + shape.value_bytes) as u64;
        report.written_bytes as f64 / user_bytes as f64
    }
}

impl Contender for RocksDb {
    fn name(&self) -> &'static str {
        "rocksdb"
    }

    fn fill(&mut self, shape: &DataShape, end: FillEnd) -> Result<Row, BenchError> {
        self.dir.renew()?;
        self.shape = Some(*shape);
        let lines = self.run(shape, "filluniquerandom,flush,waitforcompaction", &["--disable_wal=true".to_owned()])?;
        let (mut row, report) = self.measured(shape, &lines, "filluniquerandom")?;
        let done = output::after(&lines, "flush memtable")?;
        let settled = lines.last().unwrap_or(done);
        if end == FillEnd::Written {
            let elapsed = report.elapsed + done.at.saturating_duration_since(report.ended_at);
            row.ops_per_s = report.operations as f64 / elapsed.as_secs_f64().max(1e-9);
        }
        row.device_reads_per_op = None;
        // All written bytes count, including compactions caused by the fill.
        row.device_bytes_written_per_user_byte =
            Some(settled.usage.written_bytes as f64 / shape.user_bytes().max(1) as f64);
        Ok(row.with("durability", "memory (no write-ahead log)").with("end", format!("{end:?}")))
    }

    fn verify(&mut self) -> Result<(), BenchError> {
        let shape = self.filled()?;
        let lines = self.run(&shape, "verifychecksum,readseq", &["--use_existing_db=true".to_owned()])?;
        output::find(&lines, "verifychecksum")?;
        let keys = output::find(&lines, "readseq")?.operations;
        if keys == shape.keys {
            Ok(())
        } else {
            Err(BenchError::Unverified(format!("rocksdb holds {keys} keys, expected {}", shape.keys)))
        }
    }

    fn gets(&mut self, gets: &Gets) -> Result<Row, BenchError> {
        let shape = self.filled()?;
        let benchmark = if gets.present { "readrandom" } else { "readmissing" };
        // `stats` opens the database, so that the reads do not include the open.
        let before = if gets.warm { "readtocache" } else { "stats" };
        let mut flags = vec!["--use_existing_db=true".to_owned(), format!("--threads={}", gets.depth)];
        flags.push(format!("--duration={}", gets.run.as_secs().max(1)));
        flags.push(format!("--seed={}", gets.seed.max(1)));
        let lines = self.run(&shape, &format!("{before},{benchmark}"), &flags)?;
        let (row, report) = self.measured(&shape, &lines, benchmark)?;
        match report.found {
            Some((found, of)) if found == if gets.present { of } else { 0 } => {}
            found => {
                return Err(BenchError::Unverified(format!(
                    "rocksdb, {benchmark}: found {found:?} of the requested keys"
                )));
            }
        }
        Ok(row.with("threads", gets.depth))
    }

    fn overwrites(&mut self, puts: &Puts) -> Result<Row, BenchError> {
        let shape = self.filled()?;
        let mut flags = vec!["--use_existing_db=true".to_owned(), "--disable_wal=true".to_owned()];
        flags.push(format!("--duration={}", puts.run.as_secs().max(1)));
        flags.push(format!("--seed={}", puts.seed.max(1)));
        let lines = self.run(&shape, "stats,overwrite,flush,waitforcompaction", &flags)?;
        let (mut row, report) = self.measured(&shape, &lines, "overwrite")?;
        row.device_reads_per_op = None;
        // The rate ends with the last acknowledgement, but the bytes include flush and compaction. A short run would
        // otherwise count memtables as never written.
        let settled = lines.last().map_or(0, |line| line.usage.written_bytes);
        let written_bytes = settled.saturating_sub(report.written_before_bytes);
        row.device_bytes_written_per_user_byte =
            Some(Self::written_per_user_byte(&RocksDbReport { written_bytes, ..report }, &shape));
        Ok(row.with("durability", "memory (no write-ahead log)").with("threads", 1))
    }

    fn durable_puts(&mut self, shape: &DataShape, puts: &Puts) -> Result<Row, BenchError> {
        self.dir.renew()?;
        self.shape = None;
        let mut flags = vec!["--sync=true".to_owned(), format!("--threads={}", puts.writers)];
        flags.push(format!("--duration={}", puts.run.as_secs().max(1)));
        flags.push(format!("--seed={}", puts.seed.max(1)));
        let lines = self.run(shape, "fillrandom", &flags)?;
        let (mut row, report) = self.measured(shape, &lines, "fillrandom")?;
        row.device_reads_per_op = None;
        row.device_bytes_written_per_user_byte = Some(Self::written_per_user_byte(&report, shape));
        Ok(row.with("durability", "sync").with("threads", puts.writers))
    }

    fn discard(&mut self) -> Result<(), BenchError> {
        self.shape = None;
        self.dir.remove()
    }
}
