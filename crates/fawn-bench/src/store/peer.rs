//! Peer stores as processes: `eval/peers` builds one program for each, which reads commands and prints results.
//!
//! The program runs the same mixes on the same data as FAWN-DS, in its own threads, so no call crosses a process in a
//! measurement. CPU time, reads and written bytes are the kernel's accounting of the process between two results.
use super::mix::{ArrivalPattern, Mix};
use super::{Contender, DataShape, FillEnd, Gets, KEY_BYTES, LoadParts, OwnDir, PartUnit, Puts};
use crate::process::{self, ProcessUsage};
use crate::{BenchError, Row};
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A store that `eval/peers/build.sh` builds a program for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerKind {
    /// The store's name in rows.
    pub name: &'static str,
    /// The program's name.
    pub program: &'static str,
    /// Share of the budget for a cache of rows, percent.
    pub row_cache_percent: u32,
    /// Whether a read call of the process is a request to the device: it reads with direct I/O.
    pub reads_directly: bool,
    /// Differences that each row states.
    pub note: &'static str,
}

const SYSTEM_CACHE: &str = "the system's page cache adds to the budget";

/// LMDB, a B+tree in a memory map.
pub const LMDB: PeerKind = PeerKind {
    name: "lmdb",
    program: "peer-lmdb",
    row_cache_percent: 0,
    reads_directly: false,
    note: "its cache is the system's page cache, whatever the budget",
};
/// Berkeley DB 5.3, a B-tree.
pub const BDB: PeerKind = PeerKind { name: "bdb", program: "peer-bdb", note: SYSTEM_CACHE, ..LMDB };
/// redb, a B-tree in Rust.
pub const REDB: PeerKind = PeerKind { name: "redb", program: "peer-redb", note: SYSTEM_CACHE, ..LMDB };
/// fjall, an LSM tree in Rust.
pub const FJALL: PeerKind = PeerKind { name: "fjall", program: "peer-fjall", note: SYSTEM_CACHE, ..LMDB };
/// RocksDB through its C interface.
pub const ROCKSDB: PeerKind = PeerKind {
    name: "rocksdb-c",
    program: "peer-rocksdb",
    row_cache_percent: 0,
    reads_directly: true,
    note: "indexes, filters and memtables add to the budget",
};
/// RocksDB with half of its budget as row cache.
pub const ROCKSDB_ROW_CACHE: PeerKind = PeerKind { name: "rocksdb-row-cache", row_cache_percent: 50, ..ROCKSDB };

/// One line of a program's output. A field that a command does not have is zero.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PeerReply {
    operations: u64,
    seconds: f64,
    seconds_acknowledged: f64,
    gets: u64,
    puts: u64,
    deletes: u64,
    wrong: u64,
    first_wrong: u64,
    unserved: u64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    max_us: Option<f64>,
}

/// A peer store under test.
pub struct Peer {
    kind: PeerKind,
    programs: PathBuf,
    dir: OwnDir,
    running: Option<PeerProcess>,
}

/// The program of a filled store.
struct PeerProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    log: PathBuf,
    shape: DataShape,
    durability: &'static str,
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // An interrupted comparison leaves no process behind. The data is removed anyway.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.log);
    }
}

impl PeerProcess {
    /// Sends a command; returns its result with the resources used by it.
    fn ask(&mut self, command: &str) -> Result<(PeerReply, ProcessUsage), BenchError> {
        let pid = self.child.id();
        let before = ProcessUsage::of(pid);
        let sent = self.input.as_mut().map(|input| writeln!(input, "{command}").and_then(|()| input.flush()));
        let mut line = String::new();
        // A program that has died takes no command and ends its output: its log has the reason.
        let received = self.output.read_line(&mut line).unwrap_or_default();
        if received == 0 || !matches!(sent, Some(Ok(()))) {
            return Err(BenchError::failed(command, format!("the peer stopped: {}", process::tail_of(&self.log))));
        }
        let reply =
            serde_json::from_str(&line).map_err(|error| BenchError::failed(command, format!("{error}: {line}")))?;
        Ok((reply, ProcessUsage::of(pid).since(&before)))
    }
}

impl Peer {
    /// The peer `kind` with its program in `programs`, and its files under `parent`.
    #[must_use]
    pub fn new(parent: &Path, kind: PeerKind, programs: &Path) -> Self {
        Self { kind, programs: programs.to_owned(), dir: OwnDir::new(parent, kind.name), running: None }
    }

    fn start(&mut self, shape: &DataShape, durability: &'static str) -> Result<&mut PeerProcess, BenchError> {
        self.running = None;
        let dir = self.dir.renew()?;
        let log = dir.with_extension("log");
        let stderr = File::create(&log).map_err(|error| BenchError::failed(log.display().to_string(), error))?;
        let program = self.programs.join(self.kind.program);
        let mut command = Command::new(&program);
        command.arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().map_err(|error| {
            let _ = std::fs::remove_file(&log);
            BenchError::failed(program.display().to_string(), format!("{error}; build it with eval/peers/build.sh"))
        })?;
        let (Some(output), input) = (child.stdout.take(), child.stdin.take()) else { unreachable!("asked for above") };
        let output = BufReader::new(output);
        Ok(self.running.insert(PeerProcess { child, input, output, log, shape: *shape, durability }))
    }

    fn filled(&mut self) -> Result<&mut PeerProcess, BenchError> {
        self.running.as_mut().ok_or_else(|| BenchError::failed(self.kind.name, "used before it was filled"))
    }

    fn fill_with(
        &mut self,
        shape: &DataShape,
        more: &str,
        durability: &'static str,
    ) -> Result<(PeerReply, Row), BenchError> {
        let DataShape { keys, value_bytes, memory_bytes } = *shape;
        let row_cache_percent = self.kind.row_cache_percent;
        let running = self.start(shape, durability)?;
        let (reply, usage) = running.ask(&format!(
            "fill keys={keys} value_bytes={value_bytes} memory_bytes={memory_bytes} row_cache_percent={row_cache_percent} {more}"
        ))?;
        let mut row = self.row(&reply, &usage)?;
        row.device_bytes_written_per_user_byte =
            (reply.operations > 0).then(|| usage.written_bytes as f64 / shape.user_bytes() as f64);
        row.device_reads_per_op = None;
        Ok((reply, row))
    }

    fn row(&mut self, reply: &PeerReply, usage: &ProcessUsage) -> Result<Row, BenchError> {
        let kind = self.kind;
        let PeerProcess { shape, durability, .. } = self.filled()?;
        let elapsed = Duration::try_from_secs_f64(reply.seconds)
            .map_err(|_| BenchError::failed(kind.name, format!("a run of {} seconds", reply.seconds)))?;
        let row = Row::new("store", kind.name, "").timed(reply.operations, elapsed, Some(usage.cpu));
        let mut row = row.with("keys", shape.keys).with("value_bytes", shape.value_bytes);
        row = row.with("memory_bytes", shape.memory_bytes).with("durability", *durability).with("note", kind.note);
        let operations = reply.operations.max(1) as f64;
        let pages = usage.read_bytes as f64 / 4096.0;
        let reads = if kind.reads_directly { usage.read_calls as f64 } else { pages };
        row.device_reads_per_op = Some(reads / operations);
        (row.p50_us, row.p99_us, row.p999_us, row.max_us) = (reply.p50_us, reply.p99_us, reply.p999_us, reply.max_us);
        let row = row.measuring("read_bytes_per_op", usage.read_bytes as f64 / operations);
        Ok(row.measuring("rss_bytes", usage.resident_bytes as f64).measuring("seconds", reply.seconds))
    }

    fn mix_with(&mut self, command: &str) -> Result<Row, BenchError> {
        let name = self.kind.name;
        let (reply, usage) = self.filled()?.ask(command)?;
        if reply.wrong > 0 {
            return Err(BenchError::Unverified(format!("{name}: {} lookups had an unexpected result", reply.wrong)));
        }
        if reply.operations == 0 {
            return Err(BenchError::failed(name, format!("no operation ended: {command}")));
        }
        let mut row = self.row(&reply, &usage)?;
        if reply.puts > 0 {
            let user_bytes = reply.puts * (KEY_BYTES + self.filled()?.shape.value_bytes) as u64;
            row.device_bytes_written_per_user_byte = Some(usage.written_bytes as f64 / user_bytes as f64);
        }
        let row = row.measuring("gets", reply.gets as f64).measuring("puts", reply.puts as f64);
        Ok(row.measuring("deletes", reply.deletes as f64).measuring("unserved", reply.unserved as f64))
    }
}

impl Contender for Peer {
    fn name(&self) -> &'static str {
        self.kind.name
    }

    fn fill(&mut self, shape: &DataShape, end: FillEnd) -> Result<Row, BenchError> {
        let (reply, mut row) = self.fill_with(shape, "", "memory")?;
        if end == FillEnd::Acknowledged {
            row.ops_per_s = reply.operations as f64 / reply.seconds_acknowledged.max(1e-9);
        }
        Ok(row.with("end", format!("{end:?}")))
    }

    fn verify(&mut self) -> Result<(), BenchError> {
        let name = self.kind.name;
        let keys = self.filled()?.shape.keys;
        let (reply, _) = self.filled()?.ask("verify")?;
        if reply.wrong > 0 {
            let (wrong, first) = (reply.wrong, reply.first_wrong);
            return Err(BenchError::Unverified(format!("{name}, key number {first} and {wrong} in all are wrong")));
        }
        if reply.operations != keys {
            return Err(BenchError::Unverified(format!("{name} checked {} keys, expected {keys}", reply.operations)));
        }
        Ok(())
    }

    fn gets(&mut self, gets: &Gets) -> Result<Row, BenchError> {
        let (seconds, threads) = (gets.run.as_secs_f64(), gets.depth);
        let absent = u8::from(!gets.present);
        let command = format!("mix seconds={seconds} threads={threads} absent={absent} seed={}", gets.seed);
        Ok(self.mix_with(&command)?.with("threads", threads))
    }

    fn overwrites(&mut self, puts: &Puts) -> Result<Row, BenchError> {
        let command = format!("mix seconds={} put_percent=100 seed={}", puts.run.as_secs_f64(), puts.seed);
        Ok(self.mix_with(&command)?.with("threads", 1))
    }

    fn durable_puts(&mut self, shape: &DataShape, puts: &Puts) -> Result<Row, BenchError> {
        self.fill_with(shape, "load=0 sync=1", "sync")?;
        let (seconds, writers) = (puts.run.as_secs_f64(), puts.writers);
        let command = format!("mix seconds={seconds} threads={writers} put_percent=100 seed={}", puts.seed);
        Ok(self.mix_with(&command)?.with("threads", writers))
    }

    fn fill_parts(&mut self, shape: &DataShape, parts: LoadParts) -> Result<Option<Row>, BenchError> {
        if parts.unit == PartUnit::Range {
            return Ok(None);
        }
        let more = format!("parts={} in_sequence={}", parts.count, u8::from(parts.in_sequence));
        self.fill_with(shape, &more, "memory").map(|(_, row)| Some(row))
    }

    fn mixed(&mut self, mix: &Mix) -> Result<Option<Row>, BenchError> {
        let (threads, rate) = match mix.arrival {
            ArrivalPattern::InFlight(depth) => (depth, 0.0),
            ArrivalPattern::PerSecond(rate) => (1, rate),
        };
        let command = format!(
            "mix seconds={} operations_max={} put_percent={} delete_percent={} mix_keys={} zipf={} threads={threads} \
             rate={rate} seed={}",
            mix.run.as_secs_f64(),
            mix.operations_max,
            mix.put_percent,
            mix.delete_percent,
            mix.keys.keys(),
            mix.keys.exponent(),
            mix.seed
        );
        Ok(Some(self.mix_with(&command)?.with("threads", threads)))
    }

    fn discard(&mut self) -> Result<(), BenchError> {
        self.running = None;
        self.dir.remove()
    }
}
