//! Fuzz targets under libFuzzer: built with coverage and AddressSanitizer by the nightly toolchain.
//!
//! Each target starts from its samples and from the corpus of earlier runs.
use crate::steps::{run, run_with};
use crate::tree;

/// Instrumentation for libFuzzer, as `cargo fuzz` passes it: edge counters and traced comparisons.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Zsanitizer=address --cfg fuzzing";
/// Maximum resident memory, including AddressSanitizer's share. More is a finding: decoders must not trust lengths.
const RSS_MIB_MAX: &str = "-rss_limit_mb=2048";
/// Time limit for one input.
const INPUT_SECONDS_MAX: &str = "-timeout=20";

/// Runs the named targets, or all, for `seconds` each.
pub(crate) fn fuzz(seconds: u64, targets: &[String]) -> Result<(), String> {
    let host = host()?;
    build(&host)?;
    let home = tree::root().join("target/libfuzzer");
    let binary = home.join(&host).join("release/libfuzzer");
    let corpora = home.join("corpus");
    let corpora_text = corpora.to_string_lossy().into_owned();
    let mut words = vec!["run", "--quiet", "--release", "-p", "fawn-fuzz", "--", "--samples", &corpora_text];
    words.extend(targets.iter().map(String::as_str));
    run("cargo", &words)?;
    let mut failures = Vec::new();
    for target in if targets.is_empty() { sorted_dirs(&corpora)? } else { targets.to_vec() } {
        failures.extend(fuzz_one(&binary, &home, &target, seconds).err());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn fuzz_one(binary: &std::path::Path, home: &std::path::Path, target: &str, seconds: u64) -> Result<(), String> {
    let artifacts = home.join("artifacts").join(target);
    std::fs::create_dir_all(&artifacts).map_err(|error| format!("{}: {error}", artifacts.display()))?;
    let corpus = home.join("corpus").join(target).to_string_lossy().into_owned();
    let time = format!("-max_total_time={seconds}");
    let prefix = format!("-artifact_prefix={}/", artifacts.display());
    let words = [&*corpus, &*time, &*prefix, RSS_MIB_MAX, INPUT_SECONDS_MAX, "-print_final_stats=1", "-verbosity=0"];
    run_with(&binary.to_string_lossy(), &words, &[("FAWN_FUZZ_TARGET", target)]).map_err(|error| {
        format!(
            "{error}\nthe input lies in {0}; repeat without libFuzzer:\n  \
             cargo run -p fawn-fuzz -- {target} --input $(xxd -p FILE | tr -d '\\n')",
            artifacts.display()
        )
    })
}

/// Builds the targets. Naming the target triple keeps build scripts and macros uninstrumented.
fn build(host: &str) -> Result<(), String> {
    let words = ["run", "nightly", "cargo", "build", "--release", "--locked", "-p", "fawn-fuzz", "--bin", "libfuzzer"];
    let more = ["--features", "libfuzzer", "--target", host, "--target-dir", "target/libfuzzer"];
    // Link-time optimisation takes minutes under instrumentation and finds nothing.
    let env = [("RUSTFLAGS", FLAGS), ("CARGO_PROFILE_RELEASE_LTO", "off")];
    run_with("rustup", &[&words[..], &more[..]].concat(), &env).map_err(|error| {
        format!("{error}; it needs the nightly toolchain (rustup toolchain install nightly) and a C++ compiler")
    })
}

fn host() -> Result<String, String> {
    let output = std::process::Command::new("rustc").arg("-vV").output().map_err(|error| format!("rustc: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("rustc -vV named no host: {text}"))
}

fn sorted_dirs(of: &std::path::Path) -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(of).map_err(|error| format!("{}: {error}", of.display()))?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}
