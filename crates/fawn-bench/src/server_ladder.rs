//! Runs of the server level: workloads for each peer; both sides are started, loaded and verified in the same way.
use crate::client::{self, BenchConnection, ClientProtocol, RequestLoop};
use crate::server::{ServerWorkload, redis_benchmark};
use crate::sink::Sink;
use crate::store::OwnDir;
use crate::sut::{FawnOptions, PeerDurability, ServerUnderTest};
use crate::{BenchError, Row};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Servers run on this core, clients on the next one.
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;
const CLIENTS: usize = 50;
/// Name of an earlier binary in rows.
const EARLIER: &str = "fawn-earlier";
/// Factor for the number of pipelined requests, which take less time each.
const PIPELINED_FACTOR: u64 = 8;

/// A peer of the level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum BenchPeer {
    /// redis-server: RESP, measured with redis-benchmark.
    Redis,
    /// memcached: text protocol, measured with our client; one worker thread.
    Memcached,
    /// An earlier `fawn` binary: RESP, measured with redis-benchmark.
    Earlier,
}

/// Parameters of the level.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The `fawn` binary to measure.
    pub binary: PathBuf,
    /// The earlier `fawn` binary to compare with.
    pub earlier: Option<PathBuf>,
    /// Directory for the servers' data.
    pub dir: PathBuf,
    /// The peers to compare with.
    pub peers: Vec<BenchPeer>,
    /// Number of requests of a run without pipelining.
    pub requests: u64,
    /// Number of distinct keys.
    pub keys: u64,
    /// Size of the values.
    pub value_bytes: usize,
    /// FAWN's memory budget, bytes.
    pub memory_bytes: u64,
    /// FAWN's number of shards. Several shards share the cores with the client, so the rate is less meaningful.
    pub shards: u16,
    /// Number of runs of each side.
    pub pairs: usize,
    /// Runs only workloads whose name contains this text.
    pub only: Option<String>,
}

/// One workload.
#[derive(Clone, Copy, Debug)]
struct ServerCase {
    test: &'static str,
    keeps: PeerDurability,
    pipeline: usize,
}

impl ServerCase {
    const fn new(test: &'static str, keeps: PeerDurability, pipeline: usize) -> Self {
        Self { test, keeps, pipeline }
    }

    fn name(&self) -> String {
        match self.test {
            "get" => format!("GET P={}", self.pipeline),
            _ => format!("SET {} P={}", self.keeps.name(), self.pipeline),
        }
    }

    fn requests(&self, options: &ServerOptions) -> u64 {
        options.requests * if self.pipeline > 1 { PIPELINED_FACTOR } else { 1 }
    }
}

const REDIS_CASES: [ServerCase; 4] = [
    ServerCase::new("get", PeerDurability::Memory, 1),
    ServerCase::new("get", PeerDurability::Memory, 32),
    ServerCase::new("set", PeerDurability::EverySecond, 32),
    ServerCase::new("set", PeerDurability::Sync, 1),
];
const MEMCACHED_CASES: [ServerCase; 3] = [
    ServerCase::new("get", PeerDurability::Memory, 1),
    ServerCase::new("get", PeerDurability::Memory, 32),
    ServerCase::new("set", PeerDurability::Memory, 32),
];

/// Runs all selected workloads.
///
/// # Errors
/// The first error of any side; rows emitted before are kept.
pub fn run(options: &ServerOptions, sink: &mut Sink) -> Result<(), BenchError> {
    for peer in &options.peers {
        let cases: &[ServerCase] = match peer {
            BenchPeer::Redis | BenchPeer::Earlier => &REDIS_CASES,
            BenchPeer::Memcached => &MEMCACHED_CASES,
        };
        let wanted = |case: &&ServerCase| options.only.as_ref().is_none_or(|only| case.name().contains(only));
        for case in cases.iter().filter(wanted) {
            run_case(options, *peer, case, sink)?;
        }
    }
    Ok(())
}

/// Runs one workload. Both servers stay up, but the one that is not measured is idle.
fn run_case(options: &ServerOptions, peer: BenchPeer, case: &ServerCase, sink: &mut Sink) -> Result<(), BenchError> {
    let (mut our_dir, mut peer_dir) = (OwnDir::new(&options.dir, "fawn"), OwnDir::new(&options.dir, "peer"));
    let (dir, memory_bytes) = (our_dir.renew()?, options.memory_bytes);
    let fawn = FawnOptions { dir, keeps: case.keeps, memory_bytes, connections_max: 1024, shards: options.shards };
    let protocol = if peer == BenchPeer::Memcached { ClientProtocol::Memcached } else { ClientProtocol::Resp };
    let ours = ServerUnderTest::fawn(&options.binary, protocol, &fawn, SERVER_CORE)?;
    let theirs = match peer {
        BenchPeer::Redis => ServerUnderTest::redis(peer_dir.renew()?, case.keeps, SERVER_CORE)?,
        BenchPeer::Earlier => {
            let binary = options.earlier.as_deref();
            let binary = binary.ok_or_else(|| BenchError::failed("earlier", "name the binary with --earlier FILE"))?;
            let fawn = FawnOptions { dir: peer_dir.renew()?, ..fawn };
            let mut server = ServerUnderTest::fawn(binary, protocol, &fawn, SERVER_CORE)?;
            server.engine = EARLIER;
            server
        }
        BenchPeer::Memcached => ServerUnderTest::memcached((memory_bytes >> 20).max(64) as u32, SERVER_CORE)?,
    };
    for server in [&ours, &theirs] {
        let mut connection = BenchConnection::open(server.port, protocol)?;
        client::load(&mut connection, options.keys, options.value_bytes)?;
        client::verify(&mut connection, options.keys, options.value_bytes)?;
    }
    let pin = if peer == BenchPeer::Memcached { Some(CorePin::to(CLIENT_CORE)?) } else { None };
    for pair in 0..options.pairs {
        for server in [&ours, &theirs] {
            let row = match peer {
                BenchPeer::Redis | BenchPeer::Earlier => by_redis_benchmark(server, options, case)?,
                BenchPeer::Memcached => by_own_client(server, options, case, pair)?,
            };
            let prefix = if peer == BenchPeer::Memcached { "memcached " } else { "" };
            let suffix = if options.shards > 1 { format!(", {} shards", options.shards) } else { String::new() };
            let row = Row { workload: format!("{prefix}{}{suffix}", case.name()), ..row }.with("pair", pair);
            let row = row.with("durability", durability(server, case)).with("rss_bytes", server.resident_bytes());
            sink.emit(row)?;
        }
    }
    drop(pin);
    Ok(())
}

/// The durability of the server's data, for the row: the two sides may differ.
fn durability(server: &ServerUnderTest, case: &ServerCase) -> &'static str {
    match (server.engine, case.keeps) {
        ("fawn" | EARLIER, keeps) => keeps.name(),
        (_, PeerDurability::Memory) => "none: no file is written",
        (_, keeps) => keeps.name(),
    }
}

fn by_redis_benchmark(server: &ServerUnderTest, options: &ServerOptions, case: &ServerCase) -> Result<Row, BenchError> {
    let (pipeline, requests) = (case.pipeline, case.requests(options));
    let (keys, value_bytes) = (options.keys, options.value_bytes);
    redis_benchmark(
        server,
        &ServerWorkload { test: case.test, pipeline, clients: CLIENTS, requests, keys, value_bytes },
    )
}

fn by_own_client(
    server: &ServerUnderTest,
    options: &ServerOptions,
    case: &ServerCase,
    pair: usize,
) -> Result<Row, BenchError> {
    let ask = RequestLoop {
        clients: CLIENTS,
        pipeline: case.pipeline as u64,
        requests: case.requests(options),
        keys: options.keys,
        value_bytes: options.value_bytes,
        writes: case.test == "set",
        seed: pair as u64 + 1,
    };
    let before = server.cpu();
    let mut row = client::measure(server.port, ClientProtocol::Memcached, &ask)?;
    let used: Duration = server.cpu().saturating_sub(before);
    row.cpu_us_per_op = Some(used.as_secs_f64() * 1e6 / ask.requests.max(1) as f64);
    row.engine = server.engine.to_owned();
    row = row.with("clients", ask.clients).with("value_bytes", ask.value_bytes).with("keys", ask.keys);
    Ok(row.with("client", "closed loop, all connections in rounds"))
}

/// Pins this process to one core; unpins it on drop.
struct CorePin;

impl CorePin {
    fn to(core: usize) -> Result<Self, BenchError> {
        Self::set(&core.to_string()).map(|()| Self)
    }

    fn set(cores: &str) -> Result<(), BenchError> {
        let pid = std::process::id().to_string();
        let output = Command::new("taskset").args(["-cp", cores, &pid]).output();
        let output = output.map_err(|error| BenchError::of_start(&error, "taskset", "util-linux"))?;
        let detail = || String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(BenchError::failed("taskset", detail())) }
    }
}

impl Drop for CorePin {
    fn drop(&mut self) {
        // The next run pins this process again, so a failure here only leaves it on one core.
        let _ = Self::set("0-1023");
    }
}
