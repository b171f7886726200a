//! FAWN's automation: one read-only gate (`ci`, `test`), its short form (`quick`), one fixer (`fix`), lint rules (`tidy`).
#![forbid(unsafe_code)]

mod clients;
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
    /// The part of the gate to run while working: lint rules, format, lints, unit and model tests.
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
