//! The command `fawn bench server`.
use super::output::{OutputArgs, PairArgs, binary};
use crate::server_ladder::{self, BenchPeer, ServerOptions};
use crate::store::ladder;
use crate::{BenchError, units};
use clap::Args;
use std::path::PathBuf;

/// Compares FAWN's server with its peers: same client program, the server on core 0, the client on core 1.
///
/// The main result is the server's CPU time per operation, from the kernel's accounting. All keys are set and read back
/// before the measurement. Workloads: GET and SET, at pipeline depth 1 and 32, with the same durability on both sides.
#[derive(Args)]
pub(super) struct ServerArgs {
    /// Peer to compare with; may be repeated.
    #[arg(long = "against", value_name = "PEER", value_enum, default_values = ["redis", "memcached"])]
    peers: Vec<BenchPeer>,
    /// Runs only workloads whose name contains this text, such as "GET P=1" or "sync".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The `fawn` binary to measure [default: this program].
    #[arg(long, value_name = "FILE")]
    fawn: Option<PathBuf>,
    /// An earlier `fawn` binary, for `--against earlier`.
    #[arg(long, value_name = "FILE", required_if_eq("peers", "earlier"))]
    earlier: Option<PathBuf>,
    /// Directory for the servers' data; each gets a new subdirectory, removed afterwards.
    #[arg(long, value_name = "DIR", default_value_os_t = ladder::default_dir().to_owned())]
    dir: PathBuf,
    /// Number of requests of a run at pipeline depth 1; eight times as many at depth 32.
    #[arg(long, value_name = "N", default_value = "200000", value_parser = units::parse_count)]
    requests: u64,
    /// Number of distinct keys.
    #[arg(long, value_name = "N", default_value = "100000", value_parser = units::parse_count)]
    keys: u64,
    /// Value size.
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = units::parse_size)]
    value_bytes: u64,
    /// Memory budget of FAWN and memory of memcached.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = units::parse_memory)]
    memory: u64,
    /// FAWN's number of shards; each runs on its own core if there are enough, and the client shares one of the cores.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    #[command(flatten)]
    pairs: PairArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl ServerArgs {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let options = ServerOptions {
            binary: binary(self.fawn)?,
            earlier: self.earlier,
            peers: self.peers,
            requests: self.requests,
            keys: self.keys,
            value_bytes: self.value_bytes as usize,
            memory_bytes: self.memory,
            shards: self.shards,
            pairs: self.pairs.count(),
            only: self.only,
            dir: self.dir,
        };
        let mut sink = self.output.sink(options.dir.parent().unwrap_or(&options.dir))?;
        server_ladder::run(&options, &mut sink)?;
        // Removes the directory only if it is empty.
        let _ = std::fs::remove_dir(&options.dir);
        sink.finish()
    }
}
