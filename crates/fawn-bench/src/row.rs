//! The result row: one JSON object per line, with the same fields at every level.
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// One measured workload. A field that a level cannot measure is `None`, never zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `device`, `store`, `server` or `memory`.
    #[serde(alias = "rung")] // the field's name in results before 2026-11-22
    pub level: String,
    /// The engine: `fawn-ds`, `fio`, `rocksdb`, `redis`, …
    pub engine: String,
    /// The workload's name.
    pub workload: String,
    /// Operations per second.
    pub ops_per_s: f64,
    /// CPU time of the measured process, user and system, µs per operation.
    pub cpu_us_per_op: Option<f64>,
    /// Read requests to the device per operation.
    pub device_reads_per_op: Option<f64>,
    /// Bytes written to the device per byte of user data, for all reasons.
    pub device_bytes_written_per_user_byte: Option<f64>,
    /// Resident memory per key, bytes.
    pub dram_bytes_per_key: Option<f64>,
    /// Median latency, µs.
    pub p50_us: Option<f64>,
    /// 99th percentile of latency, µs.
    pub p99_us: Option<f64>,
    /// 99.9th percentile of latency, µs.
    pub p999_us: Option<f64>,
    /// Maximum of latency, µs.
    #[serde(default, skip_serializing_if = "Option::is_none")] // absent in results before 2026-11-25
    pub max_us: Option<f64>,
    /// Further parameters of the result: depth, sizes, durability, pair number.
    pub config: BTreeMap<String, String>,
    /// Further counts and gauges of the run, by name with unit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measured: BTreeMap<String, f64>,
    /// Values over time or over another axis, by name with unit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<f64>>,
}

impl Row {
    /// A row without measurements.
    #[must_use]
    pub fn new(level: &str, engine: &str, workload: &str) -> Self {
        Self { level: level.into(), engine: engine.into(), workload: workload.into(), ..Self::default() }
    }

    /// Adds a setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.config.insert(name.into(), value.to_string());
        self
    }

    /// Adds a further count or gauge.
    #[must_use]
    pub fn measuring(mut self, name: &str, value: f64) -> Self {
        self.measured.insert(name.into(), value);
        self
    }

    /// Sets rate and CPU time from a finished run.
    #[must_use]
    pub fn timed(mut self, operations: u64, elapsed: Duration, cpu: Option<Duration>) -> Self {
        let count = operations.max(1) as f64;
        self.ops_per_s = operations as f64 / elapsed.as_secs_f64().max(1e-9);
        self.cpu_us_per_op = cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / count);
        self
    }

    /// Sets the percentiles from a histogram in nanoseconds.
    #[must_use]
    pub fn latencies(mut self, nanos: &Histogram<u64>) -> Self {
        if !nanos.is_empty() {
            let at = |quantile: f64| Some(nanos.value_at_quantile(quantile) as f64 / 1e3);
            (self.p50_us, self.p99_us, self.p999_us) = (at(0.5), at(0.99), at(0.999));
            self.max_us = Some(nanos.max() as f64 / 1e3);
        }
        self
    }

    /// The row as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| unreachable!("a row of strings and numbers: {error}"))
    }

    /// The row as one line of text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text =
            format!("{:<7} {:<12} {:<28} {:>12.0} ops/s", self.level, self.engine, self.workload, self.ops_per_s);
        let figures = [
            ("µs CPU/op", self.cpu_us_per_op),
            ("reads/op", self.device_reads_per_op),
            ("written/user byte", self.device_bytes_written_per_user_byte),
            ("B DRAM/key", self.dram_bytes_per_key),
            ("µs p50", self.p50_us),
            ("µs p99", self.p99_us),
            ("µs p99.9", self.p999_us),
            ("µs max", self.max_us),
        ];
        for (unit, figure) in figures.into_iter().filter_map(|(unit, figure)| Some((unit, figure?))) {
            text.push_str(&format!("  {figure:.3} {unit}"));
        }
        text
    }
}

/// A histogram of nanoseconds up to one minute, with three significant digits.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap_or_else(|error| unreachable!("constant bounds: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_survives_json_with_every_field_named() {
        let mut latencies = histogram();
        (1..=1000).for_each(|nanos| latencies.saturating_record(nanos * 1000));
        let row = Row::new("device", "fawn", "read").with("depth", 32).latencies(&latencies);
        let row = row.timed(100, Duration::from_secs(2), Some(Duration::from_millis(1)));
        assert_eq!((row.ops_per_s, row.cpu_us_per_op), (50.0, Some(10.0)));
        let p50 = row.p50_us.unwrap();
        assert!((495.0..=505.0).contains(&p50), "{p50}");
        let json = row.to_json();
        assert_eq!(serde_json::from_str::<Row>(&json).unwrap(), row);
        assert!(!json.contains("measured") && !json.contains("series"), "empty maps are left out: {json}");
        let row = row.measuring("debt", 2.0);
        assert_eq!(serde_json::from_str::<Row>(&row.to_json()).unwrap(), row);
        for field in
            "level engine workload ops_per_s cpu_us_per_op device_reads_per_op device_bytes_written_per_user_byte \
                      dram_bytes_per_key p50_us p99_us p999_us config"
                .split_whitespace()
        {
            assert!(json.contains(&format!("\"{field}\":")), "{field} missing in {json}");
        }
    }
}
