//! Tests of the simulator: seeds pass, runs are deterministic, failures are reproducible. That planted bugs are detected
//! is a step of the gate.
use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } = match Command::new(env!("CARGO_BIN_EXE_fawn-sim")).args(arguments).output()
    {
        Ok(output) => output,
        Err(error) => panic!("the simulator does not run: {error}"),
    };
    (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

#[test]
fn the_first_seeds_pass() {
    let (passed, said) = simulate(&["--seeds", "16"]);
    assert!(passed && said.contains("16 seeds"), "{said}");
}

#[test]
fn a_seed_is_one_story_in_every_process() {
    for seed in ["8125326", "any text"] {
        let trace = |(passed, said): (bool, String)| {
            assert!(passed, "{said}");
            said.lines().find(|line| line.starts_with("seed ")).expect("the trace is printed").to_owned()
        };
        let first = trace(simulate(&["--seed", seed]));
        assert!(first.contains("trace "), "{first}");
        assert_eq!(first, trace(simulate(&["--seed", seed])), "seed {seed} has two different traces");
    }
}

#[test]
fn a_failure_says_how_to_repeat_it() {
    let (passed, said) = simulate(&["--seed", "1", "--canary", "gap-ignored"]);
    assert!(!passed);
    assert!(said.contains("reproduce: cargo run --release -p fawn-sim -- --seed 1 --canary gap-ignored"), "{said}");
}

#[test]
fn unknown_words_are_refused() {
    for words in [&["--sead", "1"][..], &["--seeds", "many"], &["--canary", "budgie"], &["--seed"]] {
        let (passed, said) = simulate(words);
        assert!(!passed && said.contains("--seeds N"), "{words:?}: {said}");
    }
}
