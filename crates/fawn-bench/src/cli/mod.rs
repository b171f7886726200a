//! Owns `fawn bench` on the command line: the manual that `--help` prints, and the way from flags to runs.
mod device;
mod memory;
mod output;
mod report;
mod server;
mod store;

use crate::BenchError;
use clap::{Args, Subcommand};

/// Measures this machine's device, FAWN's store and its server, each against its peers.
///
/// A comparison is a ratio within one run on one machine: our side and the peer's in turn, at least five pairs, median
/// with minimum and maximum. Loads are verified, every key, before their reads are believed. Rows are printed as they
/// come; with --json one object a line, with --out also appended to a file beside the machine's description.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  fawn bench device                                   our device against fio
  fawn bench store --engine fawn-ds --engine rocksdb  the stores, every workload, about two minutes
  fawn bench store --workload get-cold --keys 8000000 --seconds 10 --pairs 15
  fawn bench server --against redis                   the servers, one core each
  fawn bench memory                                   20 M keys and 10,000 idle connections within 512 MiB
  fawn bench store --out eval/results/today/store.jsonl && fawn bench report eval/results/today

Peers come from Debian's packages fio, rocksdb-tools, redis-server, redis-tools and memcached; what is missing is
named. Peers run as their own documentation advises; differences in what they promise stand in each row's config.")]
pub struct Bench {
    #[command(subcommand)]
    rung: Rung,
}

#[derive(Subcommand)]
enum Rung {
    Device(device::Device),
    Store(store::Store),
    Server(server::Server),
    Memory(memory::Memory),
    Report(report::Report),
}

/// Runs what was asked.
///
/// # Errors
/// The first failure; rows printed and written before it stay.
pub fn run(bench: Bench) -> Result<(), BenchError> {
    match bench.rung {
        Rung::Device(rung) => rung.run(),
        Rung::Store(rung) => rung.run(),
        Rung::Server(rung) => rung.run(),
        Rung::Memory(rung) => rung.run(),
        Rung::Report(report) => report.run(),
    }
}
