//! The figures: which rows are points of which line.
use crate::chart::{Chart, ChartAxis, ChartLine};
use crate::rows::{ResultRow, medians};
use std::collections::BTreeMap;

/// A paper's memory, KiB: nodes with 256 MB.
const PAPER_MEMORY_KIB: f64 = 262_144.0;

/// The charts that have points of ours or of a peer.
pub(crate) fn all(rows: &[ResultRow]) -> Vec<Chart> {
    let charts = [
        table2(rows),
        ratios_to_the_device(rows),
        semi_random_writes(rows),
        put_ratios(rows),
        few_keys(rows),
        insertion_times(rows),
        skewed_gets(rows),
        rates_over_time(rows),
        latency_distribution(rows),
        steady_latency(rows),
        steady_debt(rows),
    ];
    let has_results = |chart: &Chart| chart.lines.iter().any(|line| !line.is_of_paper && !line.points.is_empty());
    charts.into_iter().filter(has_results).collect()
}

/// Lines of the figure's rows: `place` gives a row's line and point, or leaves it out. Papers come last.
fn lines(
    rows: &[ResultRow],
    figure: &str,
    place: impl Fn(&ResultRow) -> Option<(String, (f64, f64))>,
) -> Vec<ChartLine> {
    let mut points: BTreeMap<(bool, String), Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.setting("figure") == figure) {
        if let Some((name, point)) = place(row) {
            points.entry((row.is_of_paper(), name)).or_default().push(point);
        }
    }
    let line = |((is_of_paper, name), points)| ChartLine { name, points: medians(points), is_of_paper };
    points.into_iter().map(line).collect()
}

/// Each interval of a row's series as a point, the median over pairs.
fn over_time(
    rows: &[ResultRow],
    figure: &str,
    series: &str,
    name: impl Fn(&ResultRow) -> Option<String>,
) -> Vec<ChartLine> {
    let mut points: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.setting("figure") == figure) {
        let (Some(name), Some(values), Some(every)) =
            (name(row), row.series.get(series), row.measured.get("interval_s"))
        else {
            continue;
        };
        let times = (1_u32..).map(|at| (f64::from(at) * every * 1000.0).round() / 1000.0);
        points.entry(name).or_default().extend(times.zip(values.iter().copied()));
    }
    let line = |(name, points)| ChartLine { name, points: medians(points), is_of_paper: false };
    points.into_iter().map(line).collect()
}

fn table2(rows: &[ResultRow]) -> Chart {
    let lines = lines(rows, "fawn09-table2", |row| {
        let kib = row.number("paper_kib")?;
        let x = match (row.is_of_paper(), row.number("keys"), row.number("memory_bytes")) {
            (false, Some(keys), Some(memory)) => keys * (16.0 + row.number("value_bytes")?) / memory,
            _ => kib / PAPER_MEMORY_KIB,
        };
        let depth = row.config.get("depth").map_or(String::new(), |depth| format!(", depth {depth}"));
        Some((format!("{}, {} B{depth}", row.engine, row.setting("value_bytes")), (x, row.ops_per_s)))
    });
    Chart {
        file: "fawn09-table2".to_owned(),
        title: "Random gets by size of the store [FAWN09 Table 2]".to_owned(),
        x: ChartAxis::logarithmic("data ÷ memory budget (paper: ÷ 256 MB)"),
        y: ChartAxis::logarithmic("gets per second"),
        lines,
    }
}

/// Rates of bulk load and random puts as a share of the raw device's in the same pair.
fn ratios_to_the_device(rows: &[ResultRow]) -> Chart {
    let points = ["bulk load", "random puts"];
    let of = |row: &ResultRow| points.iter().position(|point| row.workload.ends_with(point));
    let raw = |of: &ResultRow| {
        let same = |row: &&ResultRow| {
            row.engine == "raw-device"
                && row.workload == of.workload
                && row.config.get("pair") == of.config.get("pair")
                && row.config.get("run") == of.config.get("run")
        };
        rows.iter().find(same).map(|row| row.ops_per_s)
    };
    let lines = lines(rows, "fawn09-bulk", |row| {
        let x = of(row)? as f64 + 1.0;
        let ratio = if row.is_of_paper() { row.measured.get("ratio").copied()? } else { row.ops_per_s / raw(row)? };
        (row.engine != "raw-device").then(|| (row.engine.clone(), (x, ratio)))
    });
    Chart {
        file: "fawn09-bulk".to_owned(),
        title: "Writes as a share of the raw device [FAWN09 §4.1]".to_owned(),
        x: ChartAxis::linear("1: bulk load ÷ sequential writes, 2: random puts ÷ random writes"),
        y: ChartAxis::logarithmic("rate ÷ raw device's rate"),
        lines,
    }
}

fn semi_random_writes(rows: &[ResultRow]) -> Chart {
    let lines = lines(rows, "fawn09-fig9", |row| {
        let mb = row.ops_per_s * (16.0 + row.number("value_bytes")?) / 1e6;
        Some((format!("{}, {}s", row.engine, row.setting("part_unit")), (row.number("parts")?, mb)))
    });
    Chart {
        file: "fawn09-fig9".to_owned(),
        title: "Semi-random writes into ranges and stores [FAWN09 Figure 9]".to_owned(),
        x: ChartAxis::logarithmic("ranges or stores"),
        y: ChartAxis::linear("MB/s of keys and values"),
        lines,
    }
}

/// Whether a mix writes the small subset of the keys.
fn is_of_few_keys(row: &ResultRow) -> bool {
    row.workload.ends_with("few keys")
}

fn put_ratios(rows: &[ResultRow]) -> Chart {
    let lines = lines(rows, "fawn09-fig10", |row| {
        let puts = row.number("put_percent")?;
        (!is_of_few_keys(row)).then(|| (row.engine.clone(), (puts / 100.0, row.ops_per_s)))
    });
    Chart {
        file: "fawn09-fig10".to_owned(),
        title: "Rate by put ratio [FAWN09 Figure 10]".to_owned(),
        x: ChartAxis::linear("puts ÷ all operations"),
        y: ChartAxis::logarithmic("operations per second"),
        lines,
    }
}

fn few_keys(rows: &[ResultRow]) -> Chart {
    let lines = lines(rows, "fawn09-fig10", |row| {
        let deletes = row.number("delete_percent")?;
        (row.is_of_paper() || is_of_few_keys(row)).then(|| (row.engine.clone(), (deletes / 100.0, row.ops_per_s)))
    });
    Chart {
        file: "fawn09-fig10-few-keys".to_owned(),
        title: "Puts and deletes of one key in a hundred [FAWN09 §4.1.3]".to_owned(),
        x: ChartAxis::linear("deletes ÷ all operations"),
        y: ChartAxis::logarithmic("operations per second"),
        lines,
    }
}

fn insertion_times(rows: &[ResultRow]) -> Chart {
    let lines =
        lines(rows, "fawn08-fig7", |row| Some((row.engine.clone(), (row.number("parts")?, 1e6 / row.ops_per_s))));
    Chart {
        file: "fawn08-fig7".to_owned(),
        title: "Insertion into stores one after the other [FAWN08 Figures 7 and 8]".to_owned(),
        x: ChartAxis::logarithmic("stores (files)"),
        y: ChartAxis::logarithmic("seconds for a million records of 257 B"),
        lines,
    }
}

fn skewed_gets(rows: &[ResultRow]) -> Chart {
    let lines = lines(rows, "record-cache", |row| {
        let name = format!("{}, budget {} %", row.engine, row.setting("budget_percent"));
        Some((name, (row.number("zipf")?, row.device_reads_per_op?)))
    });
    Chart {
        file: "record-cache".to_owned(),
        title: "Device reads per get by skew and budget".to_owned(),
        x: ChartAxis::linear("Zipf exponent"),
        y: ChartAxis::linear("device reads per get"),
        lines,
    }
}

/// Engine, load and background operation.
fn maintenance_of(row: &ResultRow) -> Option<String> {
    (!row.is_of_paper())
        .then(|| format!("{}, {} load, maintenance {}", row.engine, row.setting("load"), row.setting("maintenance")))
}

fn rates_over_time(rows: &[ResultRow]) -> Chart {
    Chart {
        file: "fawn09-fig14".to_owned(),
        title: "Rate while a store cleans [FAWN09 Figure 14]".to_owned(),
        x: ChartAxis::linear("seconds"),
        y: ChartAxis::linear("operations per second"),
        lines: over_time(rows, "fawn09-fig15", "ops_per_s", maintenance_of),
    }
}

fn latency_distribution(rows: &[ResultRow]) -> Chart {
    let mut lines: Vec<ChartLine> = Vec::new();
    for row in rows.iter().filter(|row| row.setting("figure") == "fawn09-fig15") {
        let (Some(quantiles), Some(micros)) = (row.series.get("quantile"), row.series.get("latency_us_at_quantile"))
        else {
            continue;
        };
        let name = maintenance_of(row).unwrap_or_else(|| row.engine.clone());
        // Up to the last quantile before 1: its logarithm of what is left has no end.
        let points = quantiles.iter().zip(micros).filter(|(quantile, _)| **quantile < 1.0);
        let points = points.map(|(quantile, micros)| (micros / 1e3, 1.0 - quantile));
        match lines.iter_mut().find(|line| line.name == name) {
            // Pairs follow each other; the picture shows the last one.
            Some(line) => line.points = points.collect(),
            None => lines.push(ChartLine { name, points: points.collect(), is_of_paper: row.is_of_paper() }),
        }
    }
    Chart {
        file: "fawn09-fig15".to_owned(),
        title: "Latency while a store cleans; the paper's: while it splits [FAWN09 Figure 15]".to_owned(),
        x: ChartAxis::logarithmic("latency, ms"),
        y: ChartAxis::logarithmic("share of operations that take longer"),
        lines,
    }
}

fn steady_name(row: &ResultRow) -> Option<String> {
    let cleaning = if row.setting("cleaning") == "true" { "with" } else { "without" };
    (row.setting("load") != "peak")
        .then(|| format!("Zipf {}, {} of the peak, {cleaning} cleaning", row.setting("zipf"), row.setting("load")))
}

fn steady_latency(rows: &[ResultRow]) -> Chart {
    Chart {
        file: "overwrite-steady-latency".to_owned(),
        title: "Longest latency in each interval, overwrites at 80 % of the capacity".to_owned(),
        x: ChartAxis::linear("seconds"),
        y: ChartAxis::logarithmic("longest latency of the interval, µs"),
        lines: over_time(rows, "overwrite-steady", "max_us", steady_name),
    }
}

fn steady_debt(rows: &[ResultRow]) -> Chart {
    Chart {
        file: "overwrite-steady-debt".to_owned(),
        title: "Cleaning debt, overwrites at 80 % of the capacity".to_owned(),
        x: ChartAxis::linear("seconds"),
        y: ChartAxis::linear("segments above the target"),
        lines: over_time(rows, "overwrite-steady", "debt_segments", steady_name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::parse;

    fn row(engine: &str, workload: &str, rate: f64, config: &str) -> String {
        format!(r#"{{"engine":"{engine}","workload":"{workload}","ops_per_s":{rate},"config":{{{config}}}}}"#)
    }

    #[test]
    fn the_paper_s_table_is_scaled_by_its_memory_and_ours_by_the_budget() {
        let paper = row(
            "FAWN-DS 2009",
            "",
            1150.0,
            r#""figure":"fawn09-table2","source":"s","paper_kib":"262144","value_bytes":"1024""#,
        );
        let config = r#""figure":"fawn09-table2","paper_kib":"262144","value_bytes":"1024","keys":"1000","memory_bytes":"520000","depth":"1""#;
        let rows = parse(&[paper.clone(), row("fawn-ds", "", 7.0, config), row("fawn-ds", "", 9.0, config)].join("\n"))
            .unwrap();
        let charts = all(&rows);
        assert_eq!(charts.len(), 1);
        assert_eq!(charts[0].lines[0].points, [(2.0, 8.0)]);
        assert_eq!(charts[0].lines[1].points, [(1.0, 1150.0)]);
        assert!(charts[0].lines[1].is_of_paper);
        assert!(all(&parse(&paper).unwrap()).is_empty(), "a paper's points alone are no picture");
    }

    #[test]
    fn writes_are_divided_by_the_device_of_the_same_pair() {
        let config = |pair: u32| format!(r#""figure":"fawn09-bulk","pair":"{pair}","run":"1""#);
        let load = "fawn09-bulk: bulk load";
        let rows = [(0, 50.0, 100.0), (1, 30.0, 40.0)].map(|(pair, ours, raw)| {
            [row("fawn-ds", load, ours, &config(pair)), row("raw-device", load, raw, &config(pair))].join("\n")
        });
        let chart = ratios_to_the_device(&parse(&rows.join("\n")).unwrap());
        assert_eq!(chart.lines.len(), 1);
        assert_eq!(chart.lines[0].points, [(1.0, 0.625)]);
    }

    #[test]
    fn intervals_become_times_and_quantiles_become_shares() {
        let text = r#"{"engine":"fawn-ds","workload":"","ops_per_s":1,"config":{"figure":"fawn09-fig15","load":"peak","maintenance":"cleaning"},"measured":{"interval_s":0.5},"series":{"ops_per_s":[7,8],"quantile":[0.9,1.0],"latency_us_at_quantile":[2000,9000]}}"#;
        let charts = all(&parse(text).unwrap());
        assert_eq!(charts[0].lines[0].points, [(0.5, 7.0), (1.0, 8.0)]);
        let (latency, share) = charts[1].lines[0].points[0];
        assert!(latency == 2.0 && (share - 0.1).abs() < 1e-9 && charts[1].lines[0].points.len() == 1);
    }
}
