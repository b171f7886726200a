//! The report table: medians and ratios, computed from raw rows only, so that each number is traceable to a file.
use crate::groups::{self, PairedRow, ReportLine};
use crate::pairs::Ratios;
use crate::{BenchError, Row};
use std::collections::BTreeMap;
use std::path::Path;

/// FAWN's own engines; all others are peers.
const OURS: [&str; 2] = ["fawn", "fawn-ds"];
const HEAD: &str = "| level | workload | engine | ops/s, median (min–max) | CPU µs/op | device reads/op | written/user byte \
                    | DRAM B/key | p50 / p99 / p99.9 µs | ours ÷ it, rate | ours ÷ it, CPU |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|\n";

/// Reads all `*.jsonl` files of `dir`. Rows of openings, which `eval/peers/opening.py` prints, have other fields and are left
/// out. An old row without a run gets the name of its file as its run, so that rows of
/// two files are never in one run.
///
/// # Errors
/// If a file cannot be read or a line is not a row; the error has the line and the reason.
pub fn read_dir(dir: &Path) -> Result<Vec<Row>, BenchError> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| BenchError::failed(path.display().to_string(), error);
    let entries = std::fs::read_dir(dir).map_err(|error| failed(dir, &error))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    let mut rows = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !is_of_opening(line)) {
            let mut row: Row = serde_json::from_str(line)
                .map_err(|error| failed(&path, &format_args!("line {}: {error}", number + 1)))?;
            row.config.entry("run".to_owned()).or_insert_with(|| path.display().to_string());
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return Err(failed(dir, &"no rows; expected *.jsonl files written by `fawn bench … --out FILE`"));
    }
    Ok(rows)
}

fn is_of_opening(line: &str) -> bool {
    let row: Option<serde_json::Value> = serde_json::from_str(line).ok();
    row.is_some_and(|row| row["level"].as_str().is_some_and(|level| level.starts_with("opening")))
}

/// The table in Markdown: one line per workload, settings and engine. Settings are listed only where lines would
/// otherwise look the same.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let groups = groups::of(rows);
    let mut text = HEAD.to_owned();
    for group in &groups {
        let namesakes = groups.iter().filter(|other| (other.level, other.workload) == (group.level, group.workload));
        let told = groups::telling(&group.settings, namesakes.map(|other| &other.settings));
        let workload = if told.is_empty() { group.workload.to_owned() } else { format!("{}; {told}", group.workload) };
        let is_ours = |line: &&ReportLine<'_>| OURS.contains(&line.engine);
        let ours: Vec<PairedRow<'_>> =
            group.lines.iter().filter(is_ours).flat_map(|line| line.rows.iter().copied()).collect();
        for line in &group.lines {
            let namesakes = group.lines.iter().filter(|other| other.engine == line.engine);
            let told = groups::telling(&line.settings, namesakes.map(|other| &other.settings));
            let engine = if told.is_empty() { line.engine.to_owned() } else { format!("{} ({told})", line.engine) };
            let peer_of = if is_ours(&line) { &[][..] } else { &ours };
            text += &format!("| {} | {workload} | {engine} | {}\n", group.level, figures(&line.rows, peer_of));
        }
    }
    text
}

/// The columns of one line. Ratios need rows of `ours` in the same pairs.
fn figures(rows: &[PairedRow<'_>], ours: &[PairedRow<'_>]) -> String {
    let of = |figure: &dyn Fn(&Row) -> Option<f64>| Ratios::of(rows.iter().filter_map(|it| figure(it.row)).collect());
    let median = |figure: &dyn Fn(&Row) -> Option<f64>, digits: usize| {
        of(figure).map_or_else(|| "–".to_owned(), |ratios| format!("{:.digits$}", ratios.median))
    };
    let rate = of(&|row| Some(row.ops_per_s))
        .map_or_else(String::new, |rate| format!("{:.0} ({:.0}–{:.0})", rate.median, rate.min, rate.max));
    let ratio = |figure: &dyn Fn(&Row) -> Option<f64>| {
        Ratios::of(paired(ours, rows, figure)).map_or_else(
            || "–".to_owned(),
            |ratios| format!("**{:.2}** ({:.2}–{:.2})", ratios.median, ratios.min, ratios.max),
        )
    };
    format!(
        "{rate} | {} | {} | {} | {} | {} / {} / {} | {} | {} |",
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

/// The ratios of our rows to the peer's rows within each pair; other rows did not run alternately.
fn paired(ours: &[PairedRow<'_>], peer: &[PairedRow<'_>], figure: &dyn Fn(&Row) -> Option<f64>) -> Vec<f64> {
    let by_pair: BTreeMap<(usize, u64), f64> =
        peer.iter().filter_map(|placed| Some((placed.pair?, figure(placed.row)?))).collect();
    let ratios = ours.iter().filter_map(|placed| {
        let peer = by_pair.get(&placed.pair?)?;
        Some(figure(placed.row)? / peer).filter(|ratio| ratio.is_finite())
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
        // The ratio of the medians would be 2; the ratios within pairs are 10, 1 and 2.
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

    /// The line of the table with this start, reduced to the two ratios.
    fn ratios(rows: &[Row], begins: &str) -> String {
        let text = table(rows);
        let found: Vec<&str> = text.lines().filter(|line| line.starts_with(begins)).collect();
        let [line] = found[..] else { panic!("{} lines begin with `{begins}`:\n{text}", found.len()) };
        line.rsplitn(4, " | ").take(2).map(|cell| cell.trim_end_matches(" |")).collect::<Vec<_>>()[1].to_owned()
    }

    #[test]
    fn rows_of_other_sizes_are_never_paired() {
        let sized = |engine: &str, keys: u64, rate: f64| row(engine, 0, rate).with("keys", keys);
        // Both sizes in one folder, in either order, from one run or two.
        let small = [sized("fawn-ds", 300, 10.0), sized("x", 300, 10.0)];
        let large = [sized("fawn-ds", 4000, 90.0), sized("x", 4000, 30.0)];
        for rows in [[small.clone(), large.clone()], [large, small]] {
            let rows = rows.concat();
            assert_eq!(ratios(&rows, "| store | get; keys 300 | x |"), "**1.00** (1.00–1.00)");
            assert_eq!(ratios(&rows, "| store | get; keys 4000 | x |"), "**3.00** (3.00–3.00)");
        }
        // Different sizes per side: nothing to compare.
        let apart = [sized("fawn-ds", 300, 10.0), sized("x", 4000, 30.0)];
        assert_eq!(ratios(&apart, "| store | get; keys 4000 | x |"), "–");
    }

    #[test]
    fn what_only_one_side_states_does_not_part_a_pair() {
        let ours = |pair, rate| row("fawn-ds", pair, rate).with("keys", 300).with("rss_bytes", rate as u64);
        let raw = |pair, rate| row("raw-device", pair, rate).with("device", "pread");
        let rows = [ours(0, 50.0), raw(0, 100.0), ours(1, 60.0), raw(1, 100.0)];
        assert_eq!(ratios(&rows, "| store | get | raw-device |"), "**0.55** (0.50–0.60)");
        assert_eq!(table(&rows).lines().count(), 4);
    }

    #[test]
    fn runs_of_one_side_alone_are_compared_with_nobody() {
        // Our side alone, then both sides, then the peer alone. Only the second run has pairs; all of our rows count
        // for the median.
        let rows = [
            row("fawn-ds", 0, 1.0),
            row("fawn-ds", 1, 1.0),
            row("fawn-ds", 0, 8.0),
            row("x", 0, 4.0),
            row("fawn-ds", 1, 8.0),
            row("x", 1, 4.0),
            row("x", 0, 1000.0),
        ];
        assert_eq!(ratios(&rows, "| store | get | x |"), "**2.00** (2.00–2.00)");
        // Rows that name their run need no order.
        let named = |engine, run: &str, rate| row(engine, 0, rate).with("run", run);
        let rows = [named("fawn-ds", "a", 6.0), named("fawn-ds", "b", 5.0), named("x", "b", 5.0), named("x", "a", 2.0)];
        assert_eq!(ratios(&rows, "| store | get | x |"), "**2.00** (1.00–3.00)");
    }

    #[test]
    fn an_engine_with_other_settings_of_its_own_has_a_line_of_its_own() {
        let on = |device: &str, pair, rate| row("fawn-ds", pair, rate).with("device", device);
        let rows = [on("io_uring", 0, 30.0), row("x", 0, 10.0), on("pread", 0, 10.0), row("x", 0, 10.0)];
        assert_eq!(ratios(&rows, "| store | get | x |"), "**2.00** (1.00–3.00)");
        assert!(table(&rows).contains("| fawn-ds (device io_uring) | 30 (30–30) |"), "{}", table(&rows));
    }

    #[test]
    fn rows_of_two_files_are_no_pair() {
        let dir = tempfile::tempdir().unwrap();
        for (name, engine) in [("a", "fawn-ds"), ("b", "x")] {
            std::fs::write(dir.path().join(name).with_extension("jsonl"), row(engine, 0, 1.0).to_json() + "\n")
                .unwrap();
        }
        assert_eq!(ratios(&read_dir(dir.path()).unwrap(), "| store | get | x |"), "–");
    }

    #[test]
    fn rows_of_openings_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let opening = "{\"level\": \"opening-scan\", \"system\": \"fawn\", \"open_ms\": 1.5}\n";
        std::fs::write(dir.path().join("a.jsonl"), opening).unwrap();
        assert!(read_dir(dir.path()).unwrap_err().to_string().contains("no rows"));
        std::fs::write(dir.path().join("b.jsonl"), row("x", 0, 1.0).to_json() + "\n" + opening).unwrap();
        assert_eq!(read_dir(dir.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_broken_line_is_named_and_an_empty_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_dir(dir.path()).unwrap_err().to_string().contains("no rows"));
        std::fs::write(dir.path().join("a.jsonl"), row("x", 0, 1.0).to_json() + "\n{\n").unwrap();
        assert!(read_dir(dir.path()).unwrap_err().to_string().contains("line 2"));
    }
}
