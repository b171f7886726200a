//! The server level: redis-benchmark against FAWN and its peers, with server and client on one core each.
//!
//! The rate is the client's; the CPU time per operation is from the kernel's accounting of the server.
use crate::sut::ServerUnderTest;
use crate::{BenchError, Row};
use std::process::Command;
use std::time::Instant;

/// A workload of the level.
#[derive(Clone, Copy, Debug)]
pub struct ServerWorkload {
    /// redis-benchmark's name of the test: `get`, `set`, …
    pub test: &'static str,
    /// Requests in flight per connection.
    pub pipeline: usize,
    /// Number of connections.
    pub clients: usize,
    /// Total number of requests.
    pub requests: u64,
    /// Number of distinct keys.
    pub keys: u64,
    /// Value size, bytes.
    pub value_bytes: usize,
}

/// Runs `workload` once against `server`.
///
/// # Errors
/// If the client is missing, fails, or reports an error.
pub fn redis_benchmark(server: &ServerUnderTest, workload: &ServerWorkload) -> Result<Row, BenchError> {
    let (started, cpu) = (Instant::now(), server.cpu());
    let output = Command::new("taskset")
        .args(["-c", "1", "redis-benchmark", "--csv", "-h", "127.0.0.1", "-p", &server.port.to_string()])
        .args(["-t", workload.test, "-P", &workload.pipeline.to_string(), "-c", &workload.clients.to_string()])
        .args(["-n", &workload.requests.to_string(), "-r", &workload.keys.to_string()])
        .args(["-d", &workload.value_bytes.to_string()])
        .output()
        .map_err(|error| BenchError::of_start(&error, "redis-benchmark", "redis-tools"))?;
    let (elapsed, cpu) = (started.elapsed(), server.cpu().saturating_sub(cpu));
    let text = String::from_utf8_lossy(&output.stdout);
    let measured = csv_row(&text).ok_or_else(|| {
        BenchError::failed("redis-benchmark", format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    })?;
    let name = format!("{} P={}", workload.test, workload.pipeline);
    let row = Row::new("server", server.engine, &name).timed(workload.requests, elapsed, Some(cpu));
    let mut row = row.with("clients", workload.clients).with("value_bytes", workload.value_bytes);
    row.config.insert("keys".to_owned(), workload.keys.to_string());
    row.ops_per_s = measured.ops_per_s;
    (row.p50_us, row.p99_us) = (Some(measured.p50_ms * 1e3), Some(measured.p99_ms * 1e3));
    Ok(row)
}

struct Measured {
    ops_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Parses the last line of `--csv`, such as `"GET","94339.62","0.268","0.080","0.263","0.327","0.391","0.927"`: test,
/// rate, then average, minimum, p50, p95, p99 and maximum in ms.
fn csv_row(text: &str) -> Option<Measured> {
    let line = text.lines().rev().find(|line| line.starts_with('"') && !line.contains("test"))?;
    let fields: Vec<f64> = line.split(',').skip(1).filter_map(|field| field.trim_matches('"').parse().ok()).collect();
    Some(Measured { ops_per_s: *fields.first()?, p50_ms: *fields.get(3)?, p99_ms: *fields.get(5)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_report_is_read_and_noise_is_refused() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"94339.62\",\"0.268\",\"0.080\",\"0.263\",\"0.327\",\"0.391\",\"0.927\"\n";
        let row = csv_row(text).unwrap();
        assert_eq!((row.ops_per_s, row.p50_ms, row.p99_ms), (94339.62, 0.263, 0.391));
        assert!(csv_row("Could not connect\n").is_none());
    }
}
