//! Command `fawn demo`.
use super::logs;
use crate::config::{DurabilityMode, Endpoint, SettingFlags, Settings, ShardCount, Size, default_budget, refuse};
use crate::demo;
use crate::failure::Failure;
use std::path::PathBuf;

/// Enough for the catalogue's indexes and a cache; a demo does not need a quarter of the machine.
const MEMORY_DEFAULT: Size = Size(512 << 20);
/// Three stores with the minimum budget each, for each shard of a node.
const MEMORY_MIN: Size = Size(64 << 20);

/// Maximum number of shards per node.
const SHARDS_MAX: i64 = 8;

/// Shows a replicated store on this machine: three nodes with a store each, in one process.
///
/// It loads the machine's package catalogue (`apt-cache dumpavail`: the key is the package, the value its stanza; on
/// other machines a small built-in catalogue), serves Redis and memcached clients, and prints three
/// commands to type next. Every write is stored by all three nodes before it is acknowledged.
///
/// A restart on the same directory finds its data; an interrupted load is completed. Environment variables
/// do not apply: the demo never touches the directory of a `fawn serve`.
#[derive(clap::Args)]
#[command(
    after_long_help = "Example:\n  fawn demo\n  fawn demo --dir /mnt/flash/demo --memory 1G --durability everysec"
)]
pub(super) struct Demo {
    /// Data directory, one part per node [default: fawn/demo in $XDG_DATA_HOME or ~/.local/share].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Catalogue file in Debian's control format, instead of the machine's catalogue.
    #[arg(long, value_name = "FILE")]
    catalogue: Option<PathBuf>,
    /// Address for Redis clients [default: 127.0.0.1:6380].
    #[arg(long, value_name = "ADDR:PORT")]
    resp: Option<Endpoint>,
    /// Address for memcached clients, or `off` [default: 127.0.0.1:11212].
    #[arg(long, value_name = "ADDR:PORT")]
    memcached: Option<Endpoint>,
    /// HTTP address of /healthz, /readyz, /metrics and /status, or `off` [default: 127.0.0.1:8380].
    #[arg(long, value_name = "ADDR:PORT")]
    admin: Option<Endpoint>,
    /// Memory of all three nodes and of client buffers together, at least 64M [default: 512M, or a quarter of the
    /// machine if that is less].
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// When a node counts a write as stored [default: sync].
    #[arg(long, value_enum, value_name = "MODE")]
    durability: Option<DurabilityMode>,
    /// File (JSON: process, addresses) that exists while the catalogue is loaded and clients are served.
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Shards of each node, the same at every start on a directory. With several, keys are divided among ranges whose
    /// chains join shards of different nodes; all run in one thread [default: 1].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=SHARDS_MAX))]
    shards: Option<u16>,
}

impl Demo {
    pub(super) fn run(self) -> Result<(), Failure> {
        let catalogue = self.catalogue.clone();
        // Before any store is created: a catalogue that cannot be loaded is an error now.
        if let Some(path) = &catalogue
            && let Err(error) = std::fs::metadata(path)
        {
            let path = path.display();
            let words = "give a file in Debian's control format, or none";
            return refuse(format!("--catalogue {path}: {error}; {words}"));
        }
        let settings = self.settings()?;
        demo::refuse_foreign(&settings.dir)?;
        // Users of the demo read standard output; the log reports problems only.
        logs::start(settings.log_format, "warn");
        demo::run(&settings, catalogue)
    }

    fn settings(self) -> Result<Settings, Failure> {
        if self.resp == Some(Endpoint::Off) {
            return refuse("--resp off: the demo loads its data through RESP; give it an address");
        }
        for (name, endpoint) in [("resp", self.resp), ("memcached", self.memcached), ("admin", self.admin)] {
            let address = endpoint.and_then(Endpoint::address);
            if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
                return refuse(format!(
                    "{name} = {address}: other machines reach this address; the demo is for this one, listen on 127.0.0.1"
                ));
            }
        }
        let memory_min = Size(MEMORY_MIN.0 * u64::from(self.shards.unwrap_or(1)));
        let memory = self.memory.unwrap_or_else(|| default_budget().min(MEMORY_DEFAULT.max(memory_min)));
        // Before the settings are checked, whose least memory is that of one store.
        if memory < memory_min {
            return refuse(format!("memory = {memory}: expected at least {memory_min} for the stores of three nodes"));
        }
        let flags = SettingFlags {
            dir: Some(self.dir.unwrap_or_else(demo::default_dir)),
            resp: self.resp,
            memcached: self.memcached,
            admin: self.admin,
            memory: Some(memory),
            shards: self.shards.map(ShardCount::Number),
            durability: self.durability,
            ready_file: self.ready_file,
            ..SettingFlags::default()
        };
        Settings::resolve(flags, SettingFlags::default())
    }
}
