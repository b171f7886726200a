//! The command `fawn bench`: its help text, and the conversion of flags into runs.
mod device;
mod memory;
mod output;
mod report;
mod server;
mod store;

use crate::BenchError;
use clap::{Args, Subcommand};

/// Measures this machine's device, FAWN's store and its server, each compared with its peers.
///
/// A comparison is a ratio within one run on one machine: our side and the peer alternate, with at least five pairs,
/// and the result is the median with minimum and maximum. All loaded keys are verified before reads are measured.
/// Rows are printed as they arrive; --json prints one JSON object per line, and --out also appends the rows to a file
/// with a description of the machine next to it.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  fawn bench device                                   FAWN's device against fio
  fawn bench store --engine fawn-ds --engine rocksdb  the stores, all workloads, about two minutes
  fawn bench store --figure fawn09-fig10              the rate by put ratio, as in a paper
  fawn bench store --workload get-cold --keys 8000000 --seconds 10 --pairs 15
  fawn bench server --against redis                   the servers, one core each
  fawn bench memory                                   20 M keys and 10,000 idle connections within 512 MiB
  fawn bench store --out eval/results/today/store.jsonl && fawn bench report eval/results/today

The peers are in Debian's packages fio, rocksdb-tools, redis-server, redis-tools and memcached; an error names the
missing one. eval/peers/build.sh builds the programs of the other stores. Peers are configured as their documentation recommends; each row's config states its durability.")]
pub struct Bench {
    #[command(subcommand)]
    level: BenchLevel,
}

#[derive(Subcommand)]
enum BenchLevel {
    Device(device::DeviceArgs),
    Store(store::StoreArgs),
    Server(server::ServerArgs),
    Memory(memory::MemoryArgs),
    Report(report::ReportArgs),
}

/// Runs the selected benchmark.
///
/// # Errors
/// The first failure; rows printed and written before are kept.
pub fn run(bench: Bench) -> Result<(), BenchError> {
    match bench.level {
        BenchLevel::Device(level) => level.run(),
        BenchLevel::Store(level) => level.run(),
        BenchLevel::Server(level) => level.run(),
        BenchLevel::Memory(level) => level.run(),
        BenchLevel::Report(report) => report.run(),
    }
}
