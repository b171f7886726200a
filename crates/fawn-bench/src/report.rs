//! Owns the table that people quote: medians and ratios, made from raw rows alone so that each figure traces to a file.
use crate::groups::{self, Line, Placed};
use crate::pairs::Ratios;
use crate::{BenchError, Row};
use std::collections::BTreeMap;
use std::path::Path;

/// Engines that are ours; the others are peers.
const OURS: [&str; 2] = ["fawn", "fawn-ds"];
const HEAD: &str = "| rung | workload | engine | ops/s, median (min–max) | CPU µs/op | device reads/op | written/user byte \
                    | DRAM B/key | p50 / p99 / p99.9 µs | ours ÷ it, rate | ours ÷ it, CPU |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|\n";

/// Reads every `*.jsonl` of `dir`. A row that does not say which run it is of (older ones do not) gets its file's name, so
/// that rows of two files are never taken for one run.
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
            let mut row: Row = serde_json::from_str(line)
                .map_err(|error| failed(&path, &format_args!("line {}: {error}", number + 1)))?;
            row.config.entry("run".to_owned()).or_insert_with(|| path.display().to_string());
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return Err(failed(dir, &"no rows; expected *.jsonl files as `fawn bench … --out FILE` writes them"));
    }
    Ok(rows)
}

/// The table in Markdown: a line per workload, settings and engine. Settings are named where there is something to tell
/// apart.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let groups = groups::of(rows);
    let mut text = HEAD.to_owned();
    for group in &groups {
        let namesakes = groups.iter().filter(|other| (other.rung, other.workload) == (group.rung, group.workload));
        let told = groups::telling(&group.settings, namesakes.map(|other| &other.settings));
        let workload = if told.is_empty() { group.workload.to_owned() } else { format!("{}; {told}", group.workload) };
        let is_ours = |line: &&Line<'_>| OURS.contains(&line.engine);
        let ours: Vec<Placed<'_>> =
            group.lines.iter().filter(is_ours).flat_map(|line| line.rows.iter().copied()).collect();
        for line in &group.lines {
            let namesakes = group.lines.iter().filter(|other| other.engine == line.engine);
            let told = groups::telling(&line.settings, namesakes.map(|other| &other.settings));
            let engine = if told.is_empty() { line.engine.to_owned() } else { format!("{} ({told})", line.engine) };
            let peer_of = if is_ours(&line) { &[][..] } else { &ours };
            text += &format!("| {} | {workload} | {engine} | {}\n", group.rung, figures(&line.rows, peer_of));
        }
    }
    text
}

/// The columns of one line; ratios only where there are rows of `ours` to take them of.
fn figures(rows: &[Placed<'_>], ours: &[Placed<'_>]) -> String {
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

/// Ours over the peer's within each pair: only what ran in turn is compared.
fn paired(ours: &[Placed<'_>], peer: &[Placed<'_>], figure: &dyn Fn(&Row) -> Option<f64>) -> Vec<f64> {
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

    /// The line of the table that begins so, without its engine's other figures: the two ratios.
    fn ratios(rows: &[Row], begins: &str) -> String {
        let text = table(rows);
        let found: Vec<&str> = text.lines().filter(|line| line.starts_with(begins)).collect();
        let [line] = found[..] else { panic!("{} lines begin with `{begins}`:\n{text}", found.len()) };
        line.rsplitn(4, " | ").take(2).map(|cell| cell.trim_end_matches(" |")).collect::<Vec<_>>()[1].to_owned()
    }

    #[test]
    fn rows_of_other_sizes_are_never_paired() {
        let sized = |engine: &str, keys: u64, rate: f64| row(engine, 0, rate).with("keys", keys);
        // Both sizes in one folder, in either order, of one run or of two.
        let small = [sized("fawn-ds", 300, 10.0), sized("x", 300, 10.0)];
        let large = [sized("fawn-ds", 4000, 90.0), sized("x", 4000, 30.0)];
        for rows in [[small.clone(), large.clone()], [large, small]] {
            let rows = rows.concat();
            assert_eq!(ratios(&rows, "| store | get; keys 300 | x |"), "**1.00** (1.00–1.00)");
            assert_eq!(ratios(&rows, "| store | get; keys 4000 | x |"), "**3.00** (3.00–3.00)");
        }
        // One side of one size, the other of the other: nothing to compare.
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
        // Ours alone; later both; later the peer alone: only the middle run has pairs, and all of ours make its median.
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
        // A run that says which one it is needs no order.
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
    fn a_broken_line_is_named_and_an_empty_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_dir(dir.path()).unwrap_err().to_string().contains("no rows"));
        std::fs::write(dir.path().join("a.jsonl"), row("x", 0, 1.0).to_json() + "\n{\n").unwrap();
        assert!(read_dir(dir.path()).unwrap_err().to_string().contains("line 2"));
    }
}
