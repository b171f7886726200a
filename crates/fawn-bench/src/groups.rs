//! Selection of comparable rows: rows of one run, then runs with the same workload and settings.
//!
//! A folder of results can have rows of different sizes, of different days, or of one side alone. A ratio across such
//! rows would be meaningless.
use crate::Row;
use std::collections::{BTreeMap, BTreeSet};

/// Names in a row's `config` that are not settings: the row's identity, and measured values.
const NO_SETTINGS: [&str; 9] = [
    "pair",
    "run",
    "rss_bytes",
    "rss_bytes_max",
    "rss_bytes_limit",
    "rss_max_over_budget",
    "index_bytes",
    "false_reads_per_op",
    "second_reads",
];
/// Settings of one engine that its peers do not have or name differently. All other settings belong to the workload:
/// an unlisted new setting keeps rows apart.
const ENGINE_SETTINGS: [&str; 8] =
    ["durability", "device", "note", "segment_bytes", "settings", "threads", "writers", "write_bytes"];

type RowSettings<'r> = BTreeMap<&'r str, &'r str>;

/// Runs of one workload with the same settings.
pub(crate) struct RowGroup<'r> {
    pub(crate) level: &'r str,
    pub(crate) workload: &'r str,
    /// Settings common to all sides.
    pub(crate) settings: RowSettings<'r>,
    /// One line of the table each, in the order of their first run.
    pub(crate) lines: Vec<ReportLine<'r>>,
}

/// The rows of one engine with the same engine settings.
pub(crate) struct ReportLine<'r> {
    pub(crate) engine: &'r str,
    pub(crate) settings: RowSettings<'r>,
    pub(crate) rows: Vec<PairedRow<'r>>,
}

/// A row with its pair.
#[derive(Clone, Copy)]
pub(crate) struct PairedRow<'r> {
    pub(crate) row: &'r Row,
    /// Equal for rows that ran alternately, within minutes; `None` for a row without a counterpart.
    pub(crate) pair: Option<(usize, u64)>,
}

/// Rows that ran alternately: one workload, one command.
struct BenchRun<'r> {
    of: (&'r str, &'r str, &'r str),
    settings: RowSettings<'r>,
    pair: Option<u64>,
    engines_of_pair: BTreeSet<&'r str>,
    rows: Vec<&'r Row>,
}

/// The groups, in the order of their first run.
pub(crate) fn of(rows: &[Row]) -> Vec<RowGroup<'_>> {
    let mut groups: Vec<RowGroup<'_>> = Vec::new();
    for (number, run) in runs(rows).into_iter().enumerate() {
        let (_, level, workload) = run.of;
        let same =
            |group: &RowGroup<'_>| (group.level, group.workload, &group.settings) == (level, workload, &run.settings);
        let at = groups.iter().position(same).unwrap_or_else(|| {
            groups.push(RowGroup { level, workload, settings: run.settings.clone(), lines: Vec::new() });
            groups.len() - 1
        });
        for row in run.rows {
            groups[at].take(PairedRow { row, pair: pair_of(row).map(|pair| (number, pair)) });
        }
    }
    groups
}

impl<'r> RowGroup<'r> {
    fn take(&mut self, placed: PairedRow<'r>) {
        let settings = settings_of(placed.row, |name| ENGINE_SETTINGS.contains(&name));
        let same = |line: &&mut ReportLine<'r>| line.engine == placed.row.engine && line.settings == settings;
        match self.lines.iter_mut().find(same) {
            Some(line) => line.rows.push(placed),
            None => self.lines.push(ReportLine { engine: &placed.row.engine, settings, rows: vec![placed] }),
        }
    }
}

/// Splits the rows into runs. In old folders, rows do not name their run. There the order decides: pair numbers
/// increase, and each side runs once per pair.
fn runs(rows: &[Row]) -> Vec<BenchRun<'_>> {
    let mut runs: Vec<BenchRun<'_>> = Vec::new();
    for row in rows {
        let of = (row.config.get("run").map_or("", String::as_str), &*row.level, &*row.workload);
        let latest = runs.iter_mut().rev().find(|run| run.of == of);
        match latest.filter(|run| run.goes_on_with(row)) {
            Some(run) => run.take(row),
            None => {
                let (settings, engines_of_pair) = (RowSettings::new(), BTreeSet::new());
                let mut run = BenchRun { of, settings, pair: None, engines_of_pair, rows: Vec::new() };
                run.take(row);
                runs.push(run);
            }
        }
    }
    runs
}

impl<'r> BenchRun<'r> {
    fn goes_on_with(&self, row: &Row) -> bool {
        let in_order = match (self.pair, pair_of(row)) {
            (Some(last), Some(pair)) => pair > last || (pair == last && !self.engines_of_pair.contains(&*row.engine)),
            _ => false,
        };
        // A side may lack a setting; for example, raw reads have no keys. A missing setting fits every run.
        let contradicts = |(name, value): (&&str, &&str)| row.config.get(*name).is_some_and(|other| other != value);
        in_order && !self.settings.iter().any(contradicts)
    }

    fn take(&mut self, row: &'r Row) {
        let pair = pair_of(row);
        if pair != self.pair {
            self.engines_of_pair.clear();
        }
        self.pair = pair;
        self.engines_of_pair.insert(&row.engine);
        self.settings.extend(settings_of(row, |name| !ENGINE_SETTINGS.contains(&name)));
        self.rows.push(row);
    }
}

fn settings_of(row: &Row, wanted: impl Fn(&str) -> bool) -> RowSettings<'_> {
    let config = row.config.iter().map(|(name, value)| (&**name, &**value));
    config.filter(|(name, _)| !NO_SETTINGS.contains(name) && wanted(name)).collect()
}

fn pair_of(row: &Row) -> Option<u64> {
    row.config.get("pair")?.parse().ok()
}

/// Describes the `settings` that differ from any of `others`; empty if none does.
pub(crate) fn telling<'s>(settings: &RowSettings<'_>, others: impl Iterator<Item = &'s RowSettings<'s>>) -> String {
    let mut differing: BTreeSet<&str> = BTreeSet::new();
    for other in others {
        let names = settings.keys().chain(other.keys());
        differing.extend(names.filter(|name| settings.get(*name) != other.get(*name)));
    }
    let words = differing.into_iter().map(|name| format!("{name} {}", settings.get(name).unwrap_or(&"not stated")));
    words.collect::<Vec<_>>().join(", ")
}
