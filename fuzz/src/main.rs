//! The seeded driver: mutates valid samples and feeds every target for a limited time, on stable Rust.
#![forbid(unsafe_code)]

use fawn_fuzz::{FuzzTarget, TARGETS, find, names};
use fawn_types::random::SplitMix64;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: fawn-fuzz [--seconds N] [--seed N] [--input HEX] [--samples DIR] [TARGET …]";

struct FuzzArgs {
    limit: Duration,
    seed: u64,
    input: Option<Vec<u8>>,
    samples: Option<PathBuf>,
    targets: Vec<&'static FuzzTarget>,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("{message}\n{USAGE}\ntargets: {}", names());
            return ExitCode::from(2);
        }
    };
    if let Some(dir) = &args.samples {
        return match args.targets.iter().try_for_each(|target| write_samples(target, dir)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error}", dir.display());
                ExitCode::FAILURE
            }
        };
    }
    // Two targets run at a time: the time limit is per target, and every machine has at least two CPU cores.
    let results = args.targets.chunks(2).flat_map(|pair| {
        std::thread::scope(|scope| {
            let started: Vec<_> = pair.iter().map(|target| scope.spawn(|| run(target, &args))).collect();
            started.into_iter().map(|thread| thread.join().unwrap_or(false)).collect::<Vec<_>>()
        })
    });
    let failed = results.filter(|survived| !survived).count();
    println!("fuzz: {} passed, {failed} failed", args.targets.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<FuzzArgs, String> {
    let mut args =
        FuzzArgs { limit: Duration::from_secs(20), seed: 1, input: None, samples: None, targets: Vec::new() };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
        match word.as_str() {
            "--seconds" => args.limit = Duration::from_secs(number(value()?)?),
            // Any text can be a seed, such as a commit hash.
            "--seed" => args.seed = fawn_types::checksum::checksum64(value()?.as_bytes()),
            "--samples" => args.samples = Some(value()?.into()),
            "--input" => args.input = Some(from_hex(&value()?)?),
            name => match find(name) {
                Some(target) => args.targets.push(target),
                None => return Err(format!("no target `{name}`")),
            },
        }
    }
    if args.targets.is_empty() {
        args.targets = TARGETS.iter().collect();
    }
    Ok(args)
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or("?"));
    digits.map(|pair| u8::from_str_radix(pair, 16).map_err(|error| format!("{pair}: {error}"))).collect()
}

/// Writes the target's samples to `DIR/TARGET` as the initial corpus of libFuzzer.
fn write_samples(target: &FuzzTarget, dir: &Path) -> std::io::Result<()> {
    let dir = dir.join(target.name);
    std::fs::create_dir_all(&dir)?;
    let mut numbered = (target.samples)().into_iter().enumerate();
    numbered.try_for_each(|(number, sample)| std::fs::write(dir.join(format!("sample-{number}")), sample))
}

/// Feeds one target until its time is up; returns whether it passed. Prints an input that causes a panic.
fn run(target: &'static FuzzTarget, args: &FuzzArgs) -> bool {
    if let Some(input) = &args.input {
        return survives(target, input);
    }
    let mut random = SplitMix64::new(args.seed);
    let samples = (target.samples)();
    assert!(!samples.is_empty(), "{}: no samples", target.name);
    let started = Instant::now();
    let mut inputs = 0_u64;
    while started.elapsed() < args.limit {
        for _ in 0..64 {
            let input = mutate(&samples, &mut random);
            inputs += 1;
            if !survives(target, &input) {
                let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
                eprintln!(
                    "{}: failed; reproduce with\n  cargo run -p fawn-fuzz -- {} --input {hex}",
                    target.name, target.name
                );
                return false;
            }
        }
    }
    println!("{}: {inputs} inputs passed in {:.1} s", target.name, started.elapsed().as_secs_f64());
    true
}

fn survives(target: &FuzzTarget, input: &[u8]) -> bool {
    catch_unwind(|| (target.run)(input)).is_ok()
}

/// A number uniform below `bound`; 0 if `bound` is 0.
fn below(random: &mut SplitMix64, bound: usize) -> usize {
    random.below(bound.max(1) as u64) as usize
}

/// A sample with typical corruptions: flipped bits, invalid lengths, and truncated, repeated or spliced parts.
fn mutate(samples: &[Vec<u8>], random: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = samples[below(random, samples.len())].clone();
    for _ in 0..below(random, 6) {
        let at = below(random, bytes.len());
        match below(random, 7) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << below(random, 8),
            1 if !bytes.is_empty() => bytes[at] = [0, 0xFF, 0x7F, 0x80, b'-', b'\r', b'\n'][below(random, 7)],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.next() as u8),
            4 if bytes.len() >= at + 4 => {
                let odd = [0, 1, u32::MAX, i32::MAX as u32, 1 << 24, 4096][below(random, 6)];
                bytes[at..at + 4].copy_from_slice(&odd.to_le_bytes());
            }
            5 => {
                let other = &samples[below(random, samples.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[below(random, other.len())..]);
            }
            _ => {
                let part = bytes[at..(at + below(random, 32)).min(bytes.len())].to_vec();
                let to = below(random, bytes.len());
                bytes.splice(to..to, part);
            }
        }
    }
    bytes
}
