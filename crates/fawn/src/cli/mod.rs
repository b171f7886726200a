//! Command line: one file per command, the manual that `--help` prints, the exit of a command.
mod backup;
mod check;
mod config;
mod data_copy;
mod del;
mod demo;
mod dump;
mod get;
mod load;
mod logs;
mod restore;
mod serve;
mod set;
mod target;

use crate::failure::{Exit, Failure, MANUAL};
use crate::printing;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A durable, replicated, flash-first key-value store that speaks Redis's and memcached's protocols.
///
/// It keeps far more data than fits in memory on flash, answers a lookup with one flash read, and loses nothing that
/// it acknowledged. `fawn demo` runs a replicated store with real data; `fawn serve` is a complete one-node
/// store; the other commands talk to a server or to a store's files.
///
/// Each command has its own page: `fawn serve --help`.
#[derive(Parser)]
#[command(name = "fawn", version, after_long_help = MANUAL, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    Demo(demo::Demo),
    Serve(serve::Serve),
    Get(get::Get),
    Set(set::Set),
    Del(del::Del),
    Load(load::Load),
    Dump(dump::Dump),
    Check(check::Check),
    Backup(backup::Backup),
    Restore(restore::Restore),
    Config(config::Config),
    Bench(fawn_bench::cli::Bench),
}

/// Parses, runs, reports.
pub(crate) fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        CliCommand::Demo(command) => command.run(),
        CliCommand::Serve(command) => command.run(),
        CliCommand::Get(command) => command.run(),
        CliCommand::Set(command) => command.run(),
        CliCommand::Del(command) => command.run(),
        CliCommand::Load(command) => command.run(),
        CliCommand::Dump(command) => command.run(),
        CliCommand::Check(command) => command.run(),
        CliCommand::Backup(command) => command.run(),
        CliCommand::Restore(command) => command.run(),
        CliCommand::Config(command) => command.run(),
        CliCommand::Bench(bench) => fawn_bench::cli::run(bench).map_err(|error| Failure::new(Exit::Failed, error)),
    };
    match outcome.and_then(|()| check_printed()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The failure of a command whose result was not printed as a whole.
fn check_printed() -> Result<(), Failure> {
    let Some(error) = printing::first_error() else { return Ok(()) };
    let words = "the command is done, and only its output is incomplete";
    Err(Failure::new(Exit::Failed, format!("standard output: {error}; {words}")))
}
