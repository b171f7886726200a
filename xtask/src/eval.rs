//! The evaluation: runs experiments into a new folder of results, and draws the pictures from it.
//!
//! Plotting is in `eval/pictures`, a package of its own: this one is compiled first in every gate.
use crate::{steps, tree};
use std::path::Path;
use std::process::Command;

/// One run of `fawn bench store`.
struct StoreRun {
    figure: &'static str,
    keys: &'static str,
    seconds: &'static str,
    pairs: &'static str,
    engines: &'static [&'static str],
    /// Keys in a trial run.
    tiny_keys: &'static str,
}

/// The settings of a run unless stated.
const RUN: StoreRun =
    StoreRun { figure: "", keys: "4000000", seconds: "5", pairs: "5", engines: &["fawn-ds"], tiny_keys: "20000" };

/// The papers' experiments on one node; together about four hours. Peers that read through the system's page cache run only
/// where the data fits memory: no budget bounds them.
const STORE: [StoreRun; 9] = [
    StoreRun { figure: "fawn09-table2", keys: "3600000", seconds: "2", engines: &["fawn-ds", "rocksdb"], ..RUN },
    StoreRun {
        figure: "fawn09-bulk",
        keys: "2000000",
        engines: &["fawn-ds", "rocksdb-c", "lmdb", "bdb", "redb", "fjall"],
        ..RUN
    },
    StoreRun { figure: "fawn09-fig9", keys: "2000000", ..RUN },
    StoreRun { figure: "fawn09-fig10", engines: &["fawn-ds", "rocksdb-c"], ..RUN },
    StoreRun { figure: "fawn09-fig15", keys: "2000000", seconds: "20", ..RUN },
    StoreRun { figure: "fawn08-fig7", keys: "7000000", engines: &["fawn-ds", "bdb", "lmdb"], ..RUN },
    StoreRun {
        figure: "record-cache",
        seconds: "10",
        engines: &["fawn-ds", "rocksdb-c", "rocksdb-row-cache"],
        tiny_keys: "200000",
        ..RUN
    },
    // Four shares of a quarter of an hour. The lower one writes this capacity fourteen times if the peak is 100,000/s.
    StoreRun { figure: "overwrite-steady", keys: "2400000", seconds: "900", pairs: "1", tiny_keys: "25000", ..RUN },
    StoreRun { figure: "tiers", seconds: "10", pairs: "1", tiny_keys: "25000", ..RUN },
];

/// Engines that need no program of `eval/peers`.
const BUILT_IN: [&str; 2] = ["fawn-ds", "rocksdb"];
const PAPERS: &str = "eval/papers.jsonl";

/// Runs the experiments of `only`, or of one figure. A trial run is small, uses the development build, and leaves its rows
/// in `target/eval`: its timings mean nothing.
pub(crate) fn run(only: &str, figure: Option<&str>, is_trial: bool) -> Result<(), String> {
    if only != "store" {
        return Err(format!("no experiments named `{only}`; expected store"));
    }
    let runs: Vec<&StoreRun> = STORE.iter().filter(|run| figure.is_none_or(|name| run.figure == name)).collect();
    if runs.is_empty() {
        let names: Vec<&str> = STORE.iter().map(|run| run.figure).collect();
        return Err(format!("no figure named `{}`; expected one of {}", figure.unwrap_or_default(), names.join(", ")));
    }
    let profile: &[&str] = if is_trial { &[] } else { &["--release"] };
    steps::run("cargo", &[&["build", "-p", "fawn"], profile].concat())?;
    if let Err(error) = steps::run("eval/peers/build.sh", &[]) {
        println!("{error}; peers that are not built are left out");
    }
    let (results, figures) = if is_trial {
        ("target/eval/results".to_owned(), "target/eval/figures")
    } else {
        (results_folder()?, "eval/figures")
    };
    if is_trial && tree::root().join(&results).exists() {
        // A picture would take the rows of two trials for two pairs of one run.
        std::fs::remove_dir_all(tree::root().join(&results)).map_err(|error| format!("{results}: {error}"))?;
    }
    let binary = if is_trial { "target/debug/fawn" } else { "target/release/fawn" };
    for run in runs {
        let words = words_of(run, is_trial, &results, has_program);
        steps::run(binary, &words.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    draw(&results, figures)
}

/// The words of a run; engines without a program are left out.
fn words_of(run: &StoreRun, is_trial: bool, results: &str, has_program: impl Fn(&str) -> bool) -> Vec<String> {
    let (keys, seconds, pairs) =
        if is_trial { (run.tiny_keys, "0.1", "1") } else { (run.keys, run.seconds, run.pairs) };
    let mut words = vec!["bench", "store", "--figure", run.figure, "--keys", keys, "--seconds", seconds];
    words.extend(["--pairs", pairs]);
    if is_trial {
        words.extend(["--parts-max", "8"]);
    }
    for engine in run.engines {
        if has_program(engine) {
            words.extend(["--engine", engine]);
        } else {
            println!("{}: without {engine}, whose program is not built", run.figure);
        }
    }
    let out = format!("{results}/{}.jsonl", run.figure);
    words.extend(["--out", &out]);
    words.into_iter().map(str::to_owned).collect()
}

fn has_program(engine: &str) -> bool {
    let name = if engine.starts_with("rocksdb-") { "rocksdb" } else { engine };
    BUILT_IN.contains(&engine) || tree::root().join("target/peers").join(format!("peer-{name}")).is_file()
}

/// Draws the figures of a folder of results.
fn draw(results: &str, figures: &str) -> Result<(), String> {
    let manifest = "eval/pictures/Cargo.toml";
    let target = ["--manifest-path", manifest, "--target-dir", "target/pictures"];
    steps::run("cargo", &[&["test", "--quiet"], &target[..]].concat())?;
    let words = [&["run", "--quiet"], &target[..], &["--", results, PAPERS, figures]];
    steps::run("cargo", &words.concat())
}

/// The folder of a run today on this machine.
fn results_folder() -> Result<String, String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "unknown".to_owned());
    let date = output_of("date", &["+%F"])?;
    let commit = output_of("git", &["rev-parse", "--short=7", "HEAD"])?;
    Ok(Path::new("eval/results").join(format!("{date}-{}-{commit}", host.trim())).display().to_string())
}

fn output_of(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(tree::root())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} ended with {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_names_its_figure_sizes_and_the_engines_that_are_built() {
        let bulk = &STORE[1];
        let words = words_of(bulk, false, "r", |engine| engine != "bdb").join(" ");
        assert!(words.starts_with("bench store --figure fawn09-bulk --keys 2000000 --seconds 5 --pairs 5 "), "{words}");
        assert!(words.contains("--engine lmdb") && !words.contains("bdb"), "{words}");
        assert!(words.ends_with("--out r/fawn09-bulk.jsonl"), "{words}");
        let trial = words_of(bulk, true, "r", |_| true).join(" ");
        assert!(trial.contains("--keys 20000 --seconds 0.1 --pairs 1 --parts-max 8"), "{trial}");
    }

    #[test]
    fn unknown_experiments_and_figures_are_refused_by_name() {
        assert!(run("servers", None, true).unwrap_err().contains("expected store"));
        let error = run("store", Some("fig99"), true).unwrap_err();
        assert!(error.contains("fig99") && error.contains("fawn09-table2"), "{error}");
    }

    #[test]
    fn every_figure_of_the_benchmark_is_run_and_has_a_page() {
        let source = std::fs::read_to_string(tree::root().join("crates/fawn-bench/src/store/figures/mod.rs")).unwrap();
        let names: Vec<&str> =
            source.split("#[value(name = \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(names.len(), STORE.len(), "{names:?}");
        let page = std::fs::read_to_string(tree::root().join("eval/experiments/papers.md")).unwrap();
        for name in names {
            assert!(STORE.iter().any(|run| run.figure == name), "{name} is not run");
            assert!(page.contains(&format!("`{name}`")), "{name} is not in eval/experiments/papers.md");
        }
    }
}
