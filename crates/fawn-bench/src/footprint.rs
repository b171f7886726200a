//! The memory experiment: many small records and many idle connections within a memory budget, checked by a limit.
use crate::client::{self, BenchConnection, ClientProtocol, RequestLoop};
use crate::sink::Sink;
use crate::store::OwnDir;
use crate::sut::{FawnOptions, PeerDurability, ServerUnderTest};
use crate::{BenchError, Row};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::PathBuf;

/// Resident memory allowed in addition to 110 % of the budget, bytes.
const SLACK_BYTES: u64 = 32 << 20;
/// File descriptors that this process needs in addition to its idle connections.
const SPARE_DESCRIPTORS: u64 = 64;

/// Parameters of the experiment.
#[derive(Clone, Debug)]
pub struct FootprintOptions {
    /// The `fawn` binary to measure.
    pub binary: PathBuf,
    /// Data directory of the server.
    pub dir: PathBuf,
    /// Number of distinct keys, 16 bytes each.
    pub keys: u64,
    /// Size of the values.
    pub value_bytes: usize,
    /// Memory budget, bytes.
    pub memory_bytes: u64,
    /// Number of idle connections.
    pub connections: usize,
    /// Number of random reads after the load, which fill the cache up to its share of the budget.
    pub reads: u64,
}

/// Maximum resident memory for a budget, bytes.
#[must_use]
pub const fn resident_bytes_limit(memory_bytes: u64) -> u64 {
    memory_bytes + memory_bytes / 10 + SLACK_BYTES
}

/// Runs the experiment; emits the row even if the limit is exceeded.
///
/// # Errors
/// If the load cannot be verified, or the peak of resident memory exceeds the limit.
pub fn run(options: &FootprintOptions, sink: &mut Sink) -> Result<(), BenchError> {
    raise_descriptors(options.connections as u64 + SPARE_DESCRIPTORS)?;
    let mut dir = OwnDir::new(&options.dir, "memory");
    let fawn = FawnOptions {
        shards: 1,
        dir: dir.renew()?,
        keeps: PeerDurability::EverySecond,
        memory_bytes: options.memory_bytes,
        connections_max: options.connections + 64,
    };
    let server = ServerUnderTest::fawn(&options.binary, ClientProtocol::Resp, &fawn, 0)?;
    let idle = idle_connections(server.port, options.connections)?;
    let mut connection = BenchConnection::open(server.port, ClientProtocol::Resp)?;
    client::load(&mut connection, options.keys, options.value_bytes)?;
    client::verify(&mut connection, options.keys, options.value_bytes)?;
    let reads = RequestLoop {
        clients: 16,
        pipeline: 32,
        requests: options.reads,
        keys: options.keys,
        value_bytes: options.value_bytes,
        writes: false,
        seed: 1,
    };
    let measured = client::measure(server.port, ClientProtocol::Resp, &reads)?;
    let index_bytes = index_bytes_of(&connection.text(&[b"INFO"])?);
    drop(idle);
    let peak = server.resident_bytes_max();
    sink.emit(row(options, measured, peak, &server, index_bytes))?;
    let limit = resident_bytes_limit(options.memory_bytes);
    if peak > limit {
        let detail = format!("{peak} bytes were resident, expected at most {limit} ({} over)", peak - limit);
        return Err(BenchError::failed("memory bound", detail));
    }
    Ok(())
}

fn row(
    options: &FootprintOptions,
    measured: Row,
    peak: u64,
    server: &ServerUnderTest,
    index_bytes: Option<u64>,
) -> Row {
    let (keys, connections) = (options.keys, options.connections);
    let workload = format!("{keys} keys, {} B values, {connections} idle connections", options.value_bytes);
    let mut row = Row { level: "memory".into(), engine: "fawn".into(), workload, ..measured };
    row.dram_bytes_per_key = index_bytes.map(|bytes| bytes as f64 / keys.max(1) as f64);
    row = row.with("memory_bytes", options.memory_bytes).with("rss_bytes_max", peak);
    row = row.with("rss_bytes", server.resident_bytes());
    row = row.with("rss_bytes_limit", resident_bytes_limit(options.memory_bytes));
    row.with("rss_max_over_budget", format!("{:.3}", peak as f64 / options.memory_bytes as f64))
}

/// Opens connections and sends one request on each, so that all memory of a connection is allocated.
fn idle_connections(port: u16, count: usize) -> Result<Vec<BenchConnection>, BenchError> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        let mut connection = BenchConnection::open(port, ClientProtocol::Resp)?;
        connection.queue_get(b"nothing");
        connection.send()?;
        connection.answers(1, |_, _| Ok(()))?;
        connections.push(connection);
    }
    Ok(connections)
}

/// The index's size, from the server's INFO.
fn index_bytes_of(info: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix("used_memory_index:")?.trim().parse().ok())
}

fn raise_descriptors(needed: u64) -> Result<(), BenchError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let refuse = |detail: String| BenchError::failed("descriptors", detail);
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        return Err(refuse(format!("{needed} are needed, {:?} allowed; raise `ulimit -Hn`", limit.maximum)));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), ..limit }).map_err(|error| refuse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_a_tenth_and_32_mib_and_info_is_read() {
        assert_eq!(resident_bytes_limit(512 << 20), (512 << 20) * 11 / 10 + (32 << 20));
        assert_eq!(index_bytes_of("# Memory\r\nused_memory:9\r\nused_memory_index:1234\r\n"), Some(1234));
        assert_eq!(index_bytes_of("used_memory:9\r\n"), None);
    }
}
