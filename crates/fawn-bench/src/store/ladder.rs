//! Runs of the store level: the workloads, the setup of each, and the alternation of the sides.
use super::fawn_ds::FawnDs;
use super::figures::{self, Figure};
use super::peer::{self, Peer};
use super::raw::RawDevice;
use super::rocksdb::RocksDb;
use super::{Contender, DataShape, FillEnd, Gets, Puts};
use crate::device::DeviceBenchOptions;
use crate::sink::Sink;
use crate::{BenchError, Row};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Minimum memory budget of a store, bytes; a smaller one would leave too little for the write buffers of either store.
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Minimum ratio of data to budget in the cold workloads.
const COLD_FACTOR: u64 = 4;
/// Maximum size of the raw device's file for random reads, bytes.
const RAW_FILE_BYTES_MAX: u64 = 8 << 30;

/// A store of this level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum EngineChoice {
    /// FAWN-DS, in this process.
    FawnDs,
    /// The same with all cache memory for pages: no record cache.
    FawnDsPages,
    /// RocksDB through `db_bench` (Debian's package rocksdb-tools).
    Rocksdb,
    /// RocksDB through its C interface, for mixes that `db_bench` lacks (`eval/peers/build.sh`).
    RocksdbC,
    /// The same, with half of the budget as row cache.
    RocksdbRowCache,
    /// LMDB (`eval/peers/build.sh`).
    Lmdb,
    /// Berkeley DB 5.3 (`eval/peers/build.sh`).
    Bdb,
    /// redb (`eval/peers/build.sh`).
    Redb,
    /// fjall (`eval/peers/build.sh`).
    Fjall,
}

impl EngineChoice {
    fn contender(self, options: &StoreOptions) -> Box<dyn Contender> {
        let kind = match self {
            Self::FawnDs => return Box::new(FawnDs::new(&options.dir)),
            Self::FawnDsPages => return Box::new(FawnDs::with_pages_alone(&options.dir)),
            Self::Rocksdb => return Box::new(RocksDb::new(&options.dir)),
            Self::RocksdbC => peer::ROCKSDB,
            Self::RocksdbRowCache => peer::ROCKSDB_ROW_CACHE,
            Self::Lmdb => peer::LMDB,
            Self::Bdb => peer::BDB,
            Self::Redb => peer::REDB,
            Self::Fjall => peer::FJALL,
        };
        Box::new(Peer::new(&options.dir, kind, &options.peer_programs))
    }
}

/// A workload of this level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Workload {
    /// Bulk load of 1 KiB values, compared with raw sequential writes.
    Load,
    /// Puts of small values, acknowledged from memory.
    Put,
    /// Puts of small values, each acknowledged after a sync.
    Durable,
    /// Random lookups on data that fits the budget, by one thread.
    GetCached,
    /// Random lookups on data of four times the budget, compared with raw reads.
    GetCold,
    /// Random lookups of absent keys.
    GetMissing,
    /// Random overwrites on data of four times the budget, compared with raw reads.
    OverwriteCold,
}

/// Parameters of the level.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Directory for the stores.
    pub dir: PathBuf,
    /// The stores; ratios are those of the first one over the others.
    pub engines: Vec<EngineChoice>,
    /// The workloads to run.
    pub workloads: Vec<Workload>,
    /// The papers' experiments to run after the workloads.
    pub figures: Vec<Figure>,
    /// Number of distinct keys.
    pub keys: u64,
    /// Length of the values of all workloads except the bulk load, bytes.
    pub value_bytes: usize,
    /// Length of the values of the bulk load, bytes.
    pub load_value_bytes: usize,
    /// Memory budget, bytes; by default, chosen for each workload.
    pub memory_bytes: Option<u64>,
    /// Duration of a run.
    pub run: Duration,
    /// Number of runs of each side.
    pub pairs: usize,
    /// Number of lookups in flight in the cold workloads.
    pub depth: usize,
    /// Number of writers in the durable workload.
    pub writers: usize,
    /// Directory with the programs of the peers.
    pub peer_programs: PathBuf,
    /// Maximum number of ranges or stores that a load is divided into.
    pub parts_max: u32,
    /// Seed for the choice of keys.
    pub seed: u64,
}

type PairSide<'s> = Box<dyn FnMut(u64) -> Result<Row, BenchError> + 's>;

/// Runs all selected workloads.
///
/// # Errors
/// The first error of any side; rows emitted before are kept.
pub fn run(options: &StoreOptions, sink: &mut Sink) -> Result<(), BenchError> {
    let contenders = options.engines.iter().map(|engine| engine.contender(options)).collect();
    run_with(options, contenders, RawDevice::new(&options.dir), sink)
}

/// Like [`run`], with the given contenders.
///
/// # Errors
/// See [`run`].
pub fn run_with(
    options: &StoreOptions,
    contenders: Vec<Box<dyn Contender>>,
    raw: RawDevice,
    sink: &mut Sink,
) -> Result<(), BenchError> {
    let mut ladder = Ladder { options, contenders, raw, sink };
    ladder.fills()?;
    ladder.durable()?;
    ladder.cached()?;
    ladder.cold()?;
    figures::run(options, &mut ladder.contenders, &mut ladder.raw, ladder.sink)
}

/// The default directory for stores: relative, so that it is on a disk rather than in a memory file system.
#[must_use]
pub fn default_dir() -> &'static Path {
    Path::new("fawn-bench-data")
}

/// The directory that `eval/peers/build.sh` builds into.
#[must_use]
pub fn default_peer_programs() -> &'static Path {
    Path::new("target/peers")
}

struct Ladder<'l> {
    options: &'l StoreOptions,
    contenders: Vec<Box<dyn Contender>>,
    raw: RawDevice,
    sink: &'l mut Sink,
}

impl Ladder<'_> {
    fn wants(&self, workload: Workload) -> bool {
        self.options.workloads.contains(&workload)
    }

    /// The data and budget for a store with all data in memory.
    fn fitting(&self, value_bytes: usize) -> Result<DataShape, BenchError> {
        let shape = DataShape { keys: self.options.keys, value_bytes, memory_bytes: 0 };
        // Twice the data is enough for headers, padding, the index and the block overhead of every store. FAWN-DS caches small
        // records besides their pages.
        let needed = 3 * shape.user_bytes() + MEMORY_BYTES_MIN;
        let memory_bytes = self.options.memory_bytes.unwrap_or(needed);
        if memory_bytes < shape.user_bytes() * 3 / 2 {
            let detail = format!(
                "--memory is {memory_bytes} bytes, expected at least 1.5 times the data ({} bytes) for the cached \
                 workload; give more --memory or fewer --keys",
                shape.user_bytes()
            );
            return Err(BenchError::failed("get-cached", detail));
        }
        Ok(DataShape { memory_bytes, ..shape })
    }

    /// The data and budget for a store with much more data than memory.
    fn cold_shape(&self) -> Result<DataShape, BenchError> {
        let shape = DataShape { keys: self.options.keys, value_bytes: self.options.value_bytes, memory_bytes: 0 };
        let most = shape.user_bytes() / COLD_FACTOR;
        let memory_bytes = self.options.memory_bytes.unwrap_or(most);
        if memory_bytes > most || memory_bytes < MEMORY_BYTES_MIN {
            let detail = format!(
                "a budget of {memory_bytes} bytes, expected {MEMORY_BYTES_MIN} to a quarter of the data ({most} bytes); \
                 give more --keys or another --memory"
            );
            return Err(BenchError::failed("cold workloads", detail));
        }
        Ok(DataShape { memory_bytes, ..shape })
    }

    /// Runs the bulk load, compared with the device, and then the small puts; each on a new store.
    fn fills(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let budget = options.memory_bytes.unwrap_or(256 << 20);
        let sizes = [
            (Workload::Load, options.load_value_bytes, FillEnd::Written, "bulk load"),
            (Workload::Put, options.value_bytes, FillEnd::Acknowledged, "put"),
        ];
        for (workload, value_bytes, end, name) in sizes {
            if !self.wants(workload) {
                continue;
            }
            let shape = DataShape { keys: options.keys, value_bytes, memory_bytes: budget };
            let mut sides: Vec<PairSide<'_>> = Vec::new();
            for contender in &mut self.contenders {
                sides.push(Box::new(move |_| {
                    let row = contender.fill(&shape, end)?;
                    contender.discard()?;
                    Ok(row)
                }));
            }
            if workload == Workload::Load {
                let raw = &mut self.raw;
                sides.push(Box::new(move |_| raw.sequential_write(&shape)));
            }
            in_turn(options, &format!("{name} {value_bytes} B, memory"), sides, self.sink)?;
        }
        Ok(())
    }

    fn durable(&mut self) -> Result<(), BenchError> {
        if !self.wants(Workload::Durable) {
            return Ok(());
        }
        let (options, value_bytes) = (self.options, self.options.value_bytes);
        let memory_bytes = options.memory_bytes.unwrap_or(256 << 20);
        let shape = DataShape { keys: options.keys, value_bytes, memory_bytes };
        let mut sides: Vec<PairSide<'_>> = Vec::new();
        for contender in &mut self.contenders {
            sides.push(Box::new(move |seed| {
                let puts = Puts { writers: options.writers, run: options.run, seed };
                let row = contender.durable_puts(&shape, &puts)?;
                contender.discard()?;
                Ok(row)
            }));
        }
        in_turn(options, &format!("durable put {value_bytes} B, {} writers", options.writers), sides, self.sink)
    }

    fn fill_and_verify(&mut self, shape: &DataShape) -> Result<(), BenchError> {
        self.contenders.iter_mut().try_for_each(|contender| {
            contender.fill(shape, FillEnd::Written)?;
            contender.verify()
        })
    }

    fn discard(&mut self) -> Result<(), BenchError> {
        self.contenders.iter_mut().try_for_each(|contender| contender.discard())
    }

    fn cached(&mut self) -> Result<(), BenchError> {
        if !self.wants(Workload::GetCached) {
            return Ok(());
        }
        let options = self.options;
        let shape = self.fitting(options.value_bytes)?;
        self.fill_and_verify(&shape)?;
        let gets = Gets { depth: 1, run: options.run, present: true, warm: true, seed: 0 };
        let sides = self.contenders.iter_mut().map(|contender| reads(contender, gets)).collect();
        in_turn(options, &format!("get cached {} B, one thread", shape.value_bytes), sides, self.sink)?;
        self.discard()
    }

    fn cold(&mut self) -> Result<(), BenchError> {
        let cold = [Workload::GetCold, Workload::GetMissing, Workload::OverwriteCold];
        if !cold.into_iter().any(|workload| self.wants(workload)) {
            return Ok(());
        }
        let options = self.options;
        let shape = self.cold_shape()?;
        self.fill_and_verify(&shape)?;
        let raw = DeviceBenchOptions {
            file_bytes: shape.user_bytes().clamp(1 << 20, RAW_FILE_BYTES_MAX).next_multiple_of(1 << 20),
            depth: options.depth,
            run: options.run,
            seed: options.seed,
        };
        self.raw.prepare(&raw)?;
        let sizes = format!("{} B, depth {}", shape.value_bytes, options.depth);
        for (workload, present, name) in
            [(Workload::GetCold, true, "get cold"), (Workload::GetMissing, false, "get missing")]
        {
            if self.wants(workload) {
                let gets = Gets { depth: options.depth, run: options.run, present, warm: false, seed: 0 };
                let mut sides: Vec<_> = self.contenders.iter_mut().map(|contender| reads(contender, gets)).collect();
                if present {
                    sides.push(raw_reads(&mut self.raw, raw));
                }
                in_turn(options, &format!("{name} {sizes}"), sides, self.sink)?;
            }
        }
        if self.wants(Workload::OverwriteCold) {
            self.overwrites(&shape, raw)?;
        }
        self.discard()
    }

    fn overwrites(&mut self, shape: &DataShape, raw: DeviceBenchOptions) -> Result<(), BenchError> {
        let options = self.options;
        let mut sides: Vec<PairSide<'_>> = Vec::new();
        for contender in &mut self.contenders {
            sides.push(Box::new(move |seed| contender.overwrites(&Puts { writers: 1, run: options.run, seed })));
        }
        sides.push(raw_reads(&mut self.raw, raw));
        in_turn(options, &format!("overwrite cold {} B, memory", shape.value_bytes), sides, self.sink)
    }
}

fn reads<'s>(contender: &'s mut Box<dyn Contender>, gets: Gets) -> PairSide<'s> {
    Box::new(move |seed| contender.gets(&Gets { seed, ..gets }))
}

fn raw_reads(raw: &mut RawDevice, options: DeviceBenchOptions) -> PairSide<'_> {
    Box::new(move |seed| raw.random_reads(&DeviceBenchOptions { seed, ..options }))
}

/// Runs the sides alternately: A B C A B C …. Each pair has its own seed, common to all sides.
fn in_turn(
    options: &StoreOptions,
    workload: &str,
    mut sides: Vec<PairSide<'_>>,
    sink: &mut Sink,
) -> Result<(), BenchError> {
    for pair in 0..options.pairs {
        for side in &mut sides {
            let row = side(options.seed.wrapping_add(pair as u64 + 1))?;
            sink.emit(Row { workload: workload.to_owned(), ..row }.with("pair", pair))?;
        }
    }
    Ok(())
}
