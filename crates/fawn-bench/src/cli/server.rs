//! Owns `fawn bench server`.
use super::output::{Output, Pairs, binary};
use crate::server_ladder::{self, Peer, ServerOptions};
use crate::store::ladder;
use crate::{BenchError, units};
use clap::Args;
use std::path::PathBuf;

/// FAWN's server against its peers: the same public client, the server on core 0, the client on core 1.
///
/// What counts is the processor time per operation of the server, by the kernel's own accounting. Every key is set and
/// read back before anything is measured. Workloads: GET and SET, without pipelining and 32 deep, with the same promise
/// about writes on both sides.
#[derive(Args)]
pub(super) struct Server {
    /// A peer; give it again for another.
    #[arg(long = "against", value_name = "PEER", value_enum, default_values = ["redis", "memcached"])]
    peers: Vec<Peer>,
    /// Only workloads whose name contains this, such as "GET P=1" or "sync".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The `fawn` to be measured [default: this program].
    #[arg(long, value_name = "FILE")]
    fawn: Option<PathBuf>,
    /// Where servers keep their files; each in a directory of its own that is removed afterwards.
    #[arg(long, value_name = "DIR", default_value_os_t = ladder::default_dir().to_owned())]
    dir: PathBuf,
    /// Requests of a run without pipelining; eight times as many with it.
    #[arg(long, value_name = "N", default_value = "200000", value_parser = units::parse_count)]
    requests: u64,
    /// Distinct keys.
    #[arg(long, value_name = "N", default_value = "100000", value_parser = units::parse_count)]
    keys: u64,
    /// Value size.
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = units::parse_size)]
    value_bytes: u64,
    /// FAWN's and memcached's memory.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = units::parse_size)]
    memory: u64,
    /// FAWN's shards; with several, each has a core as far as there are cores, and the client shares one.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    #[command(flatten)]
    pairs: Pairs,
    #[command(flatten)]
    output: Output,
}

impl Server {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let options = ServerOptions {
            binary: binary(self.fawn)?,
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
        sink.finish();
        // Only if nothing of others' lies there.
        let _ = std::fs::remove_dir(&options.dir);
        Ok(())
    }
}
