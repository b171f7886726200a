//! The `fawn` binary: parses the command line, runs the command, turns its result into an exit code.
#![forbid(unsafe_code)]

mod admin;
mod cli;
mod client;
mod config;
mod data_dir;
mod demo;
mod dump;
mod failure;
mod load;
mod salvage;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
