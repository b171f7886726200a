//! Gate runner: runs steps in order until the first failure, and prints a table of their times.
use crate::tree;
use std::process::Command;
use std::time::{Duration, Instant};

/// Expected duration on two cores from an empty target directory; a longer run prints a warning.
const EXPECTED: Duration = Duration::from_secs(25 * 60);
/// A longer run fails even if every step passed.
const LIMIT: Duration = Duration::from_secs(90 * 60);

/// Runs named steps and records their times.
pub(crate) struct Steps<'a> {
    only: Option<&'a str>,
    started: Instant,
    times: Vec<(String, Duration)>,
}

impl<'a> Steps<'a> {
    /// With `only`, steps whose names do not contain it are skipped and listed as such.
    pub(crate) fn new(only: Option<&'a str>) -> Self {
        Self { only, started: Instant::now(), times: Vec::new() }
    }

    /// Runs one step.
    pub(crate) fn step(&mut self, name: &str, run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        if self.only.is_some_and(|only| !name.contains(only)) {
            println!("── {name}: left out (--only)");
            return Ok(());
        }
        println!("── {name}");
        let started = Instant::now();
        run().map_err(|error| format!("{name}: {error}"))?;
        let time = started.elapsed();
        println!("   {:.1} s", time.as_secs_f64());
        self.times.push((name.to_owned(), time));
        Ok(())
    }

    /// Prints the times; fails past the limit.
    pub(crate) fn finish(self) -> Result<(), String> {
        let total = self.started.elapsed();
        println!("\n   time  step");
        for (name, time) in &self.times {
            println!("{:>6.1} s  {name}", time.as_secs_f64());
        }
        println!(
            "{:>6.1} s  in total (expected {} s, limit {} s)",
            total.as_secs_f64(),
            EXPECTED.as_secs(),
            LIMIT.as_secs()
        );
        if total > EXPECTED {
            println!("WARNING: slower than expected: find the step that grew");
        }
        let passed = self.times.len();
        if passed == 0 {
            return Err("no step ran; `--only` matched nothing".to_owned());
        }
        println!("\nsteps: {passed} passed, 0 failed");
        if total > LIMIT { Err("over the time limit".to_owned()) } else { Ok(()) }
    }
}

/// Runs a program from the checkout's root; its output is passed through.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<(), String> {
    run_with(program, args, &[])
}

/// Like [`run`], with environment variables.
pub(crate) fn run_with(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    println!("$ {program} {}", args.join(" "));
    let status = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(tree::root())
        .status()
        .map_err(|error| format!("{program}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{program} {}` ended with {status}", args.join(" "))) }
}
