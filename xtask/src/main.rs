//! FAWN's automation: one read-only gate (`ci`, `test`), its short form (`quick`), one fixer (`fix`), lint rules (`tidy`).
#![forbid(unsafe_code)]

mod clients;
mod eval;
mod fix;
mod fuzz;
mod peers;
mod server;
mod steps;
mod test;
mod tidy;
mod tree;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// FAWN's automation.
#[derive(Parser)]
#[command(name = "cargo xtask", version, about)]
struct XtaskArgs {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// The gate, read-only: format, lints, tidy, every test, real clients; prints its time.
    Ci,
    /// Everything `ci` does; the README's own test command. Installs the peers that tests need, or says what to install.
    Test {
        /// Only the steps whose name contains this.
        #[arg(long)]
        only: Option<String>,
    },
    /// The part of the gate to run while working: lint rules, format, lints, all tests of the crates.
    Quick,
    /// Formats, and regenerates pages that derive from code.
    Fix,
    /// The fuzz targets under libFuzzer, with the nightly toolchain and a C++ compiler; the gate's seeded driver needs
    /// neither.
    Fuzz {
        /// Time per target.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Targets [default: all].
        targets: Vec<String>,
    },
    /// Experiments of the evaluation: rows into a new folder of `eval/results`, pictures into `eval/figures`. The store's
    /// take about four hours on a quiet machine.
    Eval {
        /// The experiments.
        #[arg(long)]
        only: String,
        /// One figure of them.
        #[arg(long)]
        figure: Option<String>,
        /// A small run into `target/eval`, to see that everything works; its timings mean nothing.
        #[arg(long)]
        trial: bool,
    },
    /// The lint rules alone.
    Tidy,
}

fn main() -> ExitCode {
    let outcome = match XtaskArgs::parse().command {
        XtaskCommand::Ci => test::run(None),
        XtaskCommand::Test { only } => test::run(only.as_deref()),
        XtaskCommand::Quick => test::quick(),
        XtaskCommand::Fix => fix::run(),
        XtaskCommand::Fuzz { seconds, targets } => fuzz::fuzz(seconds, &targets),
        XtaskCommand::Eval { only, figure, trial } => eval::run(&only, figure.as_deref(), trial),
        XtaskCommand::Tidy => tidy::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\nFAILED: {message}");
            ExitCode::FAILURE
        }
    }
}
