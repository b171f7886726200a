//! Owns the table that people quote: medians and ratios, made from raw rows alone so that each figure traces to a file.
use crate::pairs::Ratios;
use crate::{BenchError, Row};
use std::collections::BTreeMap;
use std::path::Path;

/// Engines that are ours; the others are peers.
const OURS: [&str; 2] = ["fawn", "fawn-ds"];
const HEAD: &str = "| rung | workload | engine | ops/s, median (min–max) | CPU µs/op | device reads/op | written/user byte \
                    | DRAM B/key | p50 / p99 / p99.9 µs | ours ÷ it, rate | ours ÷ it, CPU |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|\n";

/// Reads every `*.jsonl` of `dir`.
///
/// # Errors
/// When a file cannot be read or a line is no row: which line, and why.
pub fn read_dir(dir: &Path) -> Result<Vec<Row>, BenchError> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| BenchError::failed(path.display().to_string(), error);
    let entries = std::fs::read_dir(dir).map_err(|error| failed(dir, &error))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    let mut rows = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        for (number, line) in text.lines().enumerate() {
            let row = serde_json::from_str(line)
                .map_err(|error| failed(&path, &format_args!("line {}: {error}", number + 1)))?;
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return Err(failed(dir, &"no rows; expected *.jsonl files as `fawn bench … --out FILE` writes them"));
    }
    Ok(rows)
}

/// The rows of one workload, by engine, in the order in which they were first run.
struct Group<'r> {
    rung: &'r str,
    workload: &'r str,
    engines: Vec<(&'r str, Vec<&'r Row>)>,
}

/// The table in Markdown: a line per workload and engine.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in rows {
        let at = groups.iter().position(|group| (group.rung, group.workload) == (&*row.rung, &*row.workload));
        let at = at.unwrap_or_else(|| {
            groups.push(Group { rung: &row.rung, workload: &row.workload, engines: Vec::new() });
            groups.len() - 1
        });
        let engines = &mut groups[at].engines;
        match engines.iter_mut().find(|(engine, _)| *engine == row.engine) {
            Some((_, rows)) => rows.push(row),
            None => engines.push((&row.engine, vec![row])),
        }
    }
    let lines = groups.iter().flat_map(|group| {
        let ours = group.engines.iter().find(|(engine, _)| OURS.contains(engine)).map(|(_, rows)| &**rows);
        group.engines.iter().map(move |(engine, rows)| line(group, engine, rows, ours))
    });
    HEAD.to_owned() + &lines.collect::<String>()
}

fn line(group: &Group<'_>, engine: &str, rows: &[&Row], ours: Option<&[&Row]>) -> String {
    let Group { rung, workload, .. } = group;
    let of = |figure: &dyn Fn(&Row) -> Option<f64>| Ratios::of(rows.iter().filter_map(|row| figure(row)).collect());
    let median = |figure: &dyn Fn(&Row) -> Option<f64>, digits: usize| {
        of(figure).map_or_else(|| "–".to_owned(), |ratios| format!("{:.digits$}", ratios.median))
    };
    let rate = of(&|row| Some(row.ops_per_s))
        .map_or_else(String::new, |rate| format!("{:.0} ({:.0}–{:.0})", rate.median, rate.min, rate.max));
    let peer_of = ours.filter(|_| !OURS.contains(&engine));
    let ratio = |figure: &dyn Fn(&Row) -> Option<f64>| {
        let ratios = peer_of.and_then(|ours| Ratios::of(paired(ours, rows, figure)));
        ratios.map_or_else(
            || "–".to_owned(),
            |ratios| format!("**{:.2}** ({:.2}–{:.2})", ratios.median, ratios.min, ratios.max),
        )
    };
    format!(
        "| {rung} | {workload} | {engine} | {rate} | {} | {} | {} | {} | {} / {} / {} | {} | {} |\n",
        median(&|row| row.cpu_us_per_op, 2),
        median(&|row| row.device_reads_per_op, 3),
        median(&|row| row.device_bytes_written_per_user_byte, 2),
        median(&|row| row.dram_bytes_per_key, 2),
        median(&|row| row.p50_us, 1),
        median(&|row| row.p99_us, 1),
        median(&|row| row.p999_us, 1),
        ratio(&|row| Some(row.ops_per_s)),
        ratio(&|row| row.cpu_us_per_op),
    )
}

/// Ours over the peer's within each pair: only runs of the same minute are compared.
fn paired(ours: &[&Row], peer: &[&Row], figure: &dyn Fn(&Row) -> Option<f64>) -> Vec<f64> {
    let by_pair: BTreeMap<&str, f64> =
        peer.iter().filter_map(|row| Some((&**row.config.get("pair")?, figure(row)?))).collect();
    let ratios = ours.iter().filter_map(|row| {
        let peer = by_pair.get(&**row.config.get("pair")?)?;
        Some(figure(row)? / peer).filter(|ratio| ratio.is_finite())
    });
    ratios.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(engine: &str, pair: usize, rate: f64) -> Row {
        Row { ops_per_s: rate, cpu_us_per_op: Some(1.0), ..Row::new("store", engine, "get") }.with("pair", pair)
    }

    #[test]
    fn ratios_are_taken_within_pairs_not_of_medians() {
        // The medians' ratio would be 2; within pairs it is 10, 1 and 2.
        let rates = [(1000.0, 100.0), (50.0, 50.0), (200.0, 100.0)];
        let rows: Vec<Row> = rates
            .iter()
            .enumerate()
            .flat_map(|(pair, (a, b))| [row("fawn-ds", pair, *a), row("x", pair, *b)])
            .collect();
        let text = table(&rows);
        assert!(text.contains("| store | get | x | 100 (50–100) | 1.00 |"), "{text}");
        assert!(text.contains("**2.00** (1.00–10.00) | **1.00** (1.00–1.00) |"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    #[test]
    fn a_broken_line_is_named_and_an_empty_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_dir(dir.path()).unwrap_err().to_string().contains("no rows"));
        std::fs::write(dir.path().join("a.jsonl"), row("x", 0, 1.0).to_json() + "\n{\n").unwrap();
        assert!(read_dir(dir.path()).unwrap_err().to_string().contains("line 2"));
    }
}
