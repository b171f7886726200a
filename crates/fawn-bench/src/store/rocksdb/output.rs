//! Parser for the output of `db_bench`.
use crate::BenchError;
use crate::process::ProcessLine;
use std::time::{Duration, Instant};

/// Result of one benchmark of a run.
#[derive(Clone, Debug)]
pub(super) struct RocksDbReport {
    pub(super) ops_per_s: f64,
    pub(super) operations: u64,
    pub(super) elapsed: Duration,
    pub(super) ended_at: Instant,
    /// `(found, requested)`, as reported by one thread of a read benchmark.
    pub(super) found: Option<(u64, u64)>,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) p999_us: Option<f64>,
    pub(super) cpu: Duration,
    pub(super) read_calls: u64,
    pub(super) written_bytes: u64,
    /// Bytes written by the process before this benchmark.
    pub(super) written_before_bytes: u64,
}

/// The result of `benchmark`. Its resource usage is the difference from the line before.
pub(super) fn find(lines: &[ProcessLine], benchmark: &str) -> Result<RocksDbReport, BenchError> {
    let missing = || {
        let last = lines.iter().rev().take(3).map(|line| &*line.text).collect::<Vec<_>>().join(" / ");
        BenchError::failed("db_bench", format!("printed no result of {benchmark}; its last lines: {last}"))
    };
    let at = lines.iter().position(|line| is_of(&line.text, benchmark)).ok_or_else(missing)?;
    let (line, before) = (&lines[at], &lines[at.saturating_sub(1)]);
    let text = &line.text;
    // The percentiles are between this result and the next one.
    let later = lines[at + 1..].iter().take_while(|line| !line.text.contains("micros/op"));
    let percentiles = later.map(|line| &*line.text).find(|text| text.starts_with("Percentiles:")).unwrap_or("");
    let after = |name: &str| number_after(percentiles, name);
    Ok(RocksDbReport {
        ops_per_s: number_before(text, " ops/sec").ok_or_else(missing)?,
        operations: number_before(text, " operations").ok_or_else(missing)? as u64,
        elapsed: Duration::try_from_secs_f64(number_before(text, " seconds").ok_or_else(missing)?)
            .map_err(|_| missing())?,
        ended_at: line.at,
        found: found_in(text),
        p50_us: after("P50:"),
        p99_us: after("P99:"),
        p999_us: after("P99.9:"),
        cpu: line.usage.cpu.saturating_sub(before.usage.cpu),
        read_calls: line.usage.read_calls.saturating_sub(before.usage.read_calls),
        written_before_bytes: before.usage.written_bytes,
        written_bytes: line.usage.written_bytes.saturating_sub(before.usage.written_bytes),
    })
}

/// The first line that contains `text`.
pub(super) fn after<'l>(lines: &'l [ProcessLine], text: &str) -> Result<&'l ProcessLine, BenchError> {
    let line = lines.iter().find(|line| line.text.contains(text));
    line.ok_or_else(|| BenchError::failed("db_bench", format!("did not print `{text}`")))
}

/// Whether `text` is the result line of `benchmark`, such as `readrandom   :       2.079 micros/op 480865 ops/sec 0.416
/// seconds 200000 operations;   79.0 MB/s (126 of 200 found)`
fn is_of(text: &str, benchmark: &str) -> bool {
    text.strip_prefix(benchmark).is_some_and(|rest| rest.trim_start().starts_with(':')) && text.contains("micros/op")
}

fn number_before(text: &str, unit: &str) -> Option<f64> {
    text[..text.find(unit)?].rsplit(' ').next()?.parse().ok()
}

fn number_after(text: &str, name: &str) -> Option<f64> {
    text[text.find(name)? + name.len()..].split_whitespace().next()?.parse().ok()
}

fn found_in(text: &str) -> Option<(u64, u64)> {
    let inner = text[text.rfind('(')? + 1..].strip_suffix(" found)")?;
    let (found, of) = inner.split_once(" of ")?;
    Some((found.parse().ok()?, of.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ProcessUsage;

    const TEXT: [&str; 6] = [
        "DB path: [/x]",
        "readrandom   :       2.079 micros/op 480865 ops/sec 0.416 seconds 200000 operations;   79.0 MB/s (12659 of 20000 found)",
        "",
        "Percentiles: P50: 1.50 P75: 1.98 P99: 3.98 P99.9: 9.09 P99.99: 43.61",
        "overwrite    :      24.463 micros/op 161516 ops/sec 1.040 seconds 167996 operations;   41.9 MB/s",
        "flush memtable",
    ];

    fn lines(text: &[&str]) -> Vec<ProcessLine> {
        let usage =
            |i: u64| ProcessUsage { cpu: Duration::from_millis(i * 10), read_calls: i * 7, ..ProcessUsage::default() };
        let at = Instant::now();
        text.iter().zip(0..).map(|(text, i)| ProcessLine { text: (*text).to_owned(), at, usage: usage(i) }).collect()
    }

    #[test]
    fn a_result_is_read_with_its_percentiles_and_its_own_share_of_what_was_used() {
        let lines = lines(&TEXT);
        let report = find(&lines, "readrandom").unwrap();
        assert_eq!((report.ops_per_s, report.operations), (480_865.0, 200_000));
        assert_eq!((report.elapsed, report.found), (Duration::from_millis(416), Some((12_659, 20_000))));
        assert_eq!((report.p50_us, report.p99_us, report.p999_us), (Some(1.5), Some(3.98), Some(9.09)));
        assert_eq!((report.cpu, report.read_calls), (Duration::from_millis(10), 7));
        let next = find(&lines, "overwrite").unwrap();
        assert_eq!((next.found, next.p50_us), (None, None), "the percentiles above belong to another benchmark");
        assert_eq!(after(&lines, "flush").unwrap().text, "flush memtable");
    }

    #[test]
    fn what_was_not_printed_is_an_error_with_the_last_lines() {
        let error = find(&lines(&TEXT), "readseq").unwrap_err().to_string();
        assert!(error.contains("readseq") && error.contains("flush memtable"), "{error}");
        assert!(find(&lines(&["readseq : what"]), "readseq").is_err());
        assert!(after(&lines(&TEXT), "nothing").is_err());
    }
}
