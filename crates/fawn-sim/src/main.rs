//! Command line of the simulator: runs seeds or planted bugs, and prints the command that repeats a failing seed.
#![forbid(unsafe_code)]

use fawn_sim::world::PHASES;
use fawn_sim::{Canary, RunReport, Seed, in_order, run};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "fawn-sim [--seeds N] [--base N | --commit HASH] [--threads T] [--seconds S [--least N]] [--seed TEXT] [--canary NAME] [--canaries] [--aloud]
  --seeds N      run N seeds (500)
  --base N       the first seed: N to N+SEEDS-1 (0)
  --commit HASH  run seeds HASH.0 to HASH.SEEDS-1: a block that no earlier commit has seen
  --threads T    run so many seeds at a time (one per core)
  --seconds S    begin no further seed after S seconds, once the least number has begun
  --least N      the seeds that run however long they take (1)
  --seed TEXT    run this seed alone: any text
  --canary NAME  plant a bug
  --canaries     plant every bug, and fail unless each is seen within its number of seeds
  --aloud        say what happens";

/// Numbers of seeds that must contain at least one copy, and each kind of fault.
const COPIES_AFTER_SEEDS: u64 = 100;
const KINDS_AFTER_SEEDS: u64 = 500;

#[derive(Default)]
struct Arguments {
    seeds: Option<u64>,
    base: u64,
    commit: Option<String>,
    threads: Option<u64>,
    seconds: Option<u64>,
    least: Option<u64>,
    seed: Option<String>,
    canary: Option<Canary>,
    canaries: bool,
    aloud: bool,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--seeds" => arguments.seeds = Some(number(&value()?)?),
            "--base" => arguments.base = number(&value()?)?,
            "--commit" => arguments.commit = Some(value()?),
            "--threads" => arguments.threads = Some(number(&value()?)?),
            "--seconds" => arguments.seconds = Some(number(&value()?)?),
            "--least" => arguments.least = Some(number(&value()?)?),
            "--seed" => arguments.seed = Some(value()?),
            "--canary" => {
                let name = value()?;
                let names = Canary::ALL.map(|(canary, _)| canary.name()).join(", ");
                let canary = Canary::named(&name).ok_or_else(|| format!("no canary {name}; there are {names}"))?;
                arguments.canary = Some(canary);
            }
            "--canaries" => arguments.canaries = true,
            "--aloud" => arguments.aloud = true,
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    Ok(arguments)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let passed = if arguments.canaries { canaries(threads(&arguments)) } else { seeds(&arguments) };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn seeds(arguments: &Arguments) -> bool {
    let began = Instant::now();
    let (first, count) = (arguments.base, arguments.seeds.unwrap_or(500));
    let texts: Vec<String> = match (&arguments.seed, &arguments.commit) {
        (Some(seed), _) => vec![seed.clone()],
        (None, Some(commit)) => (first..first + count).map(|seed| format!("{commit}.{seed}")).collect(),
        (None, None) => (first..first + count).map(|seed| seed.to_string()).collect(),
    };
    let (mut total, mut ran) = (RunReport::default(), 0_u64);
    // A slow machine takes longer for the least number of seeds: a limit of time alone would show nothing there.
    let least = arguments.least.unwrap_or(1) as usize;
    let is_over = |at| at >= least && arguments.seconds.is_some_and(|seconds| began.elapsed().as_secs() >= seconds);
    let run_seed = |text: &String| run(&Seed::new(text), arguments.canary, arguments.aloud);
    let has_passed = in_order(&texts, threads(arguments), is_over, run_seed, |text, result| match result {
        Ok(report) => {
            ran += 1;
            add(&mut total, &report);
            if texts.len() == 1 || arguments.aloud {
                println!("seed {text}: trace {:016x}, {report:?}", report.hash);
            }
            true
        }
        Err(error) => {
            let canary = arguments.canary.map_or_else(String::new, |canary| format!(" --canary {canary}"));
            println!("seed {text} FAILED: {error}");
            println!("reproduce: cargo run --release -p fawn-sim -- --seed {text}{canary}");
            false
        }
    });
    if !has_passed {
        return false;
    }
    print_total(&total, ran, began);
    let mut missing = Vec::new();
    // The search gives up on a rare history; often would mean that nothing is proven.
    if total.undecided * 1_000 > total.keys {
        missing.push("too many histories are undecided".to_owned());
    }
    // A gate in which no copy was ever compared would show nothing about copies.
    if total.copies_compared == 0 && ran >= COPIES_AFTER_SEEDS {
        missing.push(format!("no copy was compared in {ran} seeds"));
    }
    if total.runs_listed == 0 && ran >= COPIES_AFTER_SEEDS && arguments.canary.is_none() {
        missing.push(format!("no segment was sorted in {ran} seeds"));
    }
    if ran >= KINDS_AFTER_SEEDS && arguments.canary.is_none() {
        missing.extend(total.tally.missing().map(|kind| format!("no fault of kind {kind:?} in {ran} seeds")));
    }
    missing.iter().for_each(|what| println!("FAILED: {what}"));
    missing.is_empty()
}

fn print_total(total: &RunReport, ran: u64, began: Instant) {
    println!(
        "{ran} seeds, trace {:016x}: {} faults, {} members dropped, {} runs on failed disks, {} clean shutdowns, {} losses reported, {} copies ({} \
         hit, {} compared), {} jobs with runs, {} operations answered, {} on the whole keyspace, {} left open, {} keys judged ({} undecided), {} events, {} steps ({} of the longest seed), {} s virtual, {:.1} s real, {:.1} s CPU, {:.0} simulated s per CPU s",
        total.hash,
        total.faults,
        total.dropped,
        total.ran_degraded,
        total.closes,
        total.losses,
        total.copies,
        total.copies_hit,
        total.copies_compared,
        total.runs_listed,
        total.answered,
        total.sweeps,
        total.unknown,
        total.keys,
        total.undecided,
        total.events,
        total.steps,
        total.steps_max,
        total.now_us / 1_000_000,
        began.elapsed().as_secs_f64(),
        cpu_s(),
        total.now_us as f64 / 1e6 / cpu_s()
    );
    let shares = PHASES.iter().zip(total.phase_steps);
    let shares = shares.map(|(phase, steps)| format!("{phase} {} %", 100 * steps / total.steps.max(1)));
    println!("steps: {}", shares.collect::<Vec<_>>().join(", "));
    print!("{}", total.tally);
}

/// CPU time of this process, seconds.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    (time.tv_sec as f64 + time.tv_nsec as f64 / 1e9).max(1e-3)
}

fn threads(arguments: &Arguments) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
    // Events are printed while they happen, so several seeds would print into each other's lines.
    if arguments.aloud { 1 } else { arguments.threads.map_or_else(cores, |threads| threads.max(1) as usize) }
}

fn add(total: &mut RunReport, report: &RunReport) {
    total.hash = total.hash.rotate_left(1) ^ report.hash;
    total.events += report.events;
    total.steps += report.steps;
    total.steps_max = total.steps_max.max(report.steps_max);
    total.now_us += report.now_us;
    total.answered += report.answered;
    total.unknown += report.unknown;
    total.faults += report.faults;
    total.undecided += report.undecided;
    total.keys += report.keys;
    total.alarms += report.alarms;
    total.ran_degraded += report.ran_degraded;
    total.dropped += report.dropped;
    total.closes += report.closes;
    total.losses += report.losses;
    total.sweeps += report.sweeps;
    total.copies += report.copies;
    total.copies_compared += report.copies_compared;
    total.copies_hit += report.copies_hit;
    total.runs_listed += report.runs_listed;
    total.tally.add(&report.tally);
    total.phase_steps.iter_mut().zip(report.phase_steps).for_each(|(sum, steps)| *sum += steps);
}

/// Runs every planted bug; returns whether all were detected.
fn canaries(threads: usize) -> bool {
    std::panic::set_hook(Box::new(|_| {})); // The product's asserts are findings here.
    let first_finding = |(canary, seeds_max): &(Canary, u64)| {
        let seen = |seed: u64| {
            let finding = run(&Seed::new(&seed.to_string()), Some(*canary), false).err()?;
            canary.explains(&finding).then_some((seed, finding))
        };
        (0..*seeds_max).find_map(seen)
    };
    let mut are_all_seen = true;
    in_order(
        &Canary::ALL,
        threads,
        |_| false,
        first_finding,
        |(canary, seeds_max), found| {
            match found {
                Some((seed, error)) => {
                    let first = error.lines().next().unwrap_or_default();
                    println!("{canary}: seen at seed {seed}, within {seeds_max}: {first}");
                }
                None => {
                    println!("{canary}: NOT SEEN within {seeds_max} seeds");
                    are_all_seen = false;
                }
            }
            true
        },
    );
    are_all_seen
}
