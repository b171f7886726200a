//! Owns the gate: which steps there are, in which order, and what each of them runs.
use crate::steps::{self, Steps};
use crate::{peers, tidy};

/// Runs every step, or with `only` those whose names contain it.
pub(crate) fn run(only: Option<&str>) -> Result<(), String> {
    let mut gate = Steps::new(only);
    gate.step("peers", peers::install)?;
    gate.step("tidy", tidy::run)?;
    gate.step("format", || steps::run("cargo", &["fmt", "--all", "--check"]))?;
    gate.step("clippy", || {
        steps::run("cargo", &["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"])
    })?;
    gate.step("documentation", || {
        // A broken link is an error.
        let env = [("RUSTDOCFLAGS", "--deny warnings")];
        steps::run_with("cargo", &["doc", "--workspace", "--no-deps", "--locked", "--quiet"], &env)
    })?;
    gate.step("unit and integration tests", || steps::run("cargo", &["test", "--workspace", "--locked", "--quiet"]))?;
    gate.finish()
}
