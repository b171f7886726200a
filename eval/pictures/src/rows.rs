//! Result rows, as `fawn bench … --out` writes them, and medians over the pairs of a point.
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The fields of a row that pictures use.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ResultRow {
    pub(crate) engine: String,
    pub(crate) workload: String,
    pub(crate) ops_per_s: f64,
    #[serde(default)]
    pub(crate) device_reads_per_op: Option<f64>,
    #[serde(default)]
    pub(crate) config: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) measured: BTreeMap<String, f64>,
    #[serde(default)]
    pub(crate) series: BTreeMap<String, Vec<f64>>,
}

impl ResultRow {
    /// A setting, or an empty text.
    pub(crate) fn setting(&self, name: &str) -> &str {
        self.config.get(name).map_or("", String::as_str)
    }

    /// A setting that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.config.get(name)?.parse().ok()
    }

    /// Whether it is a paper's point, with the paper as its source.
    pub(crate) fn is_of_paper(&self) -> bool {
        self.config.contains_key("source")
    }
}

/// The rows of all `*.jsonl` files of a directory; rows of no figure are left out.
pub(crate) fn read_dir(dir: &Path) -> Result<Vec<ResultRow>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        paths.push(entry.map_err(failed)?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    let mut rows = Vec::new();
    for path in paths {
        rows.extend(read_file(&path)?);
    }
    Ok(rows)
}

/// The rows of a file that belong to a figure.
pub(crate) fn read_file(path: &Path) -> Result<Vec<ResultRow>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

pub(crate) fn parse(text: &str) -> Result<Vec<ResultRow>, String> {
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let row: ResultRow = serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1))?;
        if row.config.contains_key("figure") {
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The points of a line: for each x in order, the median of its values.
pub(crate) fn medians(values: impl IntoIterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut by_x: Vec<(f64, Vec<f64>)> = Vec::new();
    for (x, y) in values {
        match by_x.iter_mut().find(|(other, _)| *other == x) {
            Some((_, ys)) => ys.push(y),
            None => by_x.push((x, vec![y])),
        }
    }
    by_x.sort_by(|a, b| a.0.total_cmp(&b.0));
    let median = |mut ys: Vec<f64>| {
        ys.sort_by(f64::total_cmp);
        f64::midpoint(ys[(ys.len() - 1) / 2], ys[ys.len() / 2])
    };
    by_x.into_iter().map(|(x, ys)| (x, median(ys))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_medians_in_the_order_of_x() {
        let values = [(2.0, 1.0), (1.0, 9.0), (1.0, 1.0), (1.0, 4.0), (2.0, 3.0)];
        assert_eq!(medians(values), [(1.0, 4.0), (2.0, 2.0)]);
    }

    #[test]
    fn rows_of_no_figure_are_left_out_and_a_broken_line_is_named() {
        let text = "{\"engine\":\"x\",\"workload\":\"get\",\"ops_per_s\":1,\"config\":{}}\n\
                    {\"engine\":\"x\",\"workload\":\"f\",\"ops_per_s\":1,\"config\":{\"figure\":\"f\"}}";
        assert_eq!(parse(text).unwrap().len(), 1);
        assert!(parse("{}\n{").unwrap_err().contains("line 1"));
    }
}
