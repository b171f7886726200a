//! Random operations with faults on a simulated disk, compared with a model of acknowledged and pending writes.
//!
//! A run is [`OPERATIONS`] operations that follow from its seed, any text; the run that fails is printed with the command that
//! repeats it. A block of runs is bounded by time, and must have met every state of the tally.
mod driver;
mod faults;
mod model;
mod ranges;
mod reads;
mod tally;
mod writes;

use driver::FaultDriver;
use fawn_types::checksum::checksum64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tally::FaultTally;

const USAGE: &str = "random_faults [--run SEED] [--commit TEXT] [--seconds S] [--least N]
  --run SEED     run this seed alone: any text
  --commit TEXT  run seeds TEXT.0, TEXT.1, …: a block that no other text has (fixed)
  --seconds S    begin no further run after S seconds, once the least number has begun (10)
  --least N      the runs that are made however long they take (50)";

const OPERATIONS: u64 = 4_000;
/// A run takes less than a second; a machine that stands still for minutes is no failure.
const RUN_TIME_MAX: Duration = Duration::from_secs(600);
/// Runs after which every state must have been met.
const STATES_AFTER_RUNS: u64 = 600;

struct RunArguments {
    run: Option<String>,
    commit: String,
    seconds: u64,
    least: u64,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<RunArguments, String> {
    let mut arguments = RunArguments { run: None, commit: "fixed".to_owned(), seconds: 10, least: 50 };
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{value} is not a number"));
        match word.as_str() {
            "--run" => arguments.run = Some(value),
            "--commit" => arguments.commit = value,
            "--seconds" => arguments.seconds = number()?,
            "--least" => arguments.least = number()?,
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    Ok(arguments)
}

fn print_failure(seed: &str, reason: &str) {
    println!("run {seed} FAILED: {reason}");
    println!("reproduce: cargo run --release -p fawn-ds --example random_faults -- --run {seed}");
}

/// Makes a run. A store that waits for ever cannot be stopped, so such a run ends the process.
fn run(seed: &str) -> Option<FaultTally> {
    let number = checksum64(seed.as_bytes());
    let (ended, end) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = end;
            if end.recv_timeout(RUN_TIME_MAX) == Err(RecvTimeoutError::Timeout) {
                print_failure(seed, "it does not end");
                std::process::abort();
            }
        });
        let result = catch_unwind(AssertUnwindSafe(|| FaultDriver::new(number).run(OPERATIONS)));
        drop(ended);
        if result.is_err() {
            print_failure(seed, "see above");
        }
        result.ok()
    })
}

fn run_block(arguments: &RunArguments) -> bool {
    let began = Instant::now();
    let (mut total, mut runs, mut failed) = (FaultTally::default(), 0, 0_u64);
    while runs < arguments.least.max(1) || began.elapsed().as_secs() < arguments.seconds {
        let seed = arguments.run.clone().unwrap_or_else(|| format!("{}.{runs}", arguments.commit));
        match run(&seed) {
            Some(tally) => total.add(&tally),
            None => failed += 1,
        }
        runs += 1;
        if arguments.run.is_some() {
            break;
        }
    }
    println!("{runs} runs, {failed} failed, {:.1} s", began.elapsed().as_secs_f64());
    let counts = total.counts();
    counts.iter().for_each(|(name, count)| println!("{count:>12}  {name}"));
    let missing: Vec<&str> = counts.iter().filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect();
    let is_incomplete = runs >= STATES_AFTER_RUNS && !missing.is_empty();
    if is_incomplete {
        println!("FAILED: states that {runs} runs never met: {missing:?}");
    }
    failed == 0 && !is_incomplete
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(arguments) if run_block(&arguments) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
