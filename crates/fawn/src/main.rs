//! The `fawn` binary: parses the command line, runs the command, turns its result into an exit code.
#![forbid(unsafe_code)]
// `println!` and `eprintln!` panic if the output is closed or full: `printing` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod cli;
mod client;
mod config;
mod data_dir;
mod demo;
mod dump;
mod failure;
mod load;
mod printing;
mod salvage;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
