//! Gate runner: runs steps until the first failure, and prints a table of their times.
use crate::tree;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Expected duration on two cores from an empty target directory; a longer run prints a warning.
const EXPECTED: Duration = Duration::from_secs(25 * 60);
/// A longer run fails even if every step passed.
const LIMIT: Duration = Duration::from_secs(90 * 60);

/// A step's name and body.
pub(crate) type Step<'a> = (String, Box<dyn FnOnce() -> Result<(), String> + Send + 'a>);
type StepTimes = Vec<(String, Duration)>;

/// Runs named steps and records their times.
pub(crate) struct Steps<'a> {
    only: Option<&'a str>,
    started: Instant,
    times: StepTimes,
}

impl<'a> Steps<'a> {
    /// With `only`, steps whose names do not contain it are skipped and listed as such.
    pub(crate) fn new(only: Option<&'a str>) -> Self {
        Self { only, started: Instant::now(), times: Vec::new() }
    }

    /// Runs one step.
    pub(crate) fn step(&mut self, name: &str, run: impl FnOnce() -> Result<(), String> + Send) -> Result<(), String> {
        self.run_threads(1, vec![(name.to_owned(), Box::new(run))])
    }

    /// Runs two steps at a time, begun in this order. Their lines of output alternate. After a failure no step begins.
    pub(crate) fn side_by_side(&mut self, steps: Vec<Step<'_>>) -> Result<(), String> {
        self.run_threads(2, steps)
    }

    fn run_threads(&mut self, threads: usize, mut steps: Vec<Step<'_>>) -> Result<(), String> {
        steps.retain(|(name, _)| {
            let is_wanted = self.only.is_none_or(|only| name.contains(only));
            if !is_wanted {
                println!("── {name}: left out (--only)");
            }
            is_wanted
        });
        let (queue, has_failed) = (Mutex::new(steps.into_iter()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| run_queued(&queue, &has_failed))).collect();
            for worker in workers {
                let times = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                self.times.extend(times);
            }
            Ok(())
        })
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

/// One thread's share: runs steps of the queue until it is empty, or a step of any thread has failed.
fn run_queued<'a>(queue: &Mutex<impl Iterator<Item = Step<'a>>>, has_failed: &AtomicBool) -> Result<StepTimes, String> {
    let mut times = Vec::new();
    while !has_failed.load(Ordering::Relaxed) {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((name, run)) = next else { break };
        println!("── {name}");
        let started = Instant::now();
        if let Err(error) = run() {
            has_failed.store(true, Ordering::Relaxed);
            println!("   FAILED: {name}");
            return Err(format!("{name}: {error}"));
        }
        let time = started.elapsed();
        println!("   {:.1} s: {name}", time.as_secs_f64());
        times.push((name, time));
    }
    Ok(times)
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
