//! Benchmarks at three levels (device, store, server), the peers to compare with, and the result rows.
//!
//! A comparison is a ratio within one run: our side and the peer alternate, with at least five pairs, and the result is
//! the median with minimum and maximum. A load is verified before reads are measured. Each rate is reported with
//! operation counts and CPU time, which vary less between runs.
#![forbid(unsafe_code)]
// `println!` and `eprintln!` panic if the output is closed or full, in the middle of a measurement.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod client;
pub mod device;
pub mod disk;
pub mod footprint;
mod groups;
pub mod machine;
pub mod pairs;
pub mod process;
pub mod report;
pub mod row;
pub mod server;
pub mod server_ladder;
pub mod sink;
pub mod stops;
pub mod store;
pub mod sut;
pub mod units;
pub mod workload;

pub use row::Row;
use std::io::Write;

/// The reason why a benchmark failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A program is missing.
    #[error("{program} is not installed; install Debian's package `{package}` and run again")]
    MissingPeer {
        /// Name of the program.
        program: &'static str,
        /// Debian package that contains it.
        package: &'static str,
    },
    /// A peer or the operating system failed.
    #[error("{what}: {detail}")]
    Failed {
        /// The failed action.
        what: String,
        /// Details of the failure.
        detail: String,
    },
    /// The loaded data is wrong, so measurements of reads would be meaningless.
    #[error("the load did not verify: {0}")]
    Unverified(String),
    /// FAWN's device failed.
    #[error(transparent)]
    Device(#[from] fawn_flash::DeviceError),
}

/// Prints a message on standard error, if that can be written.
pub(crate) fn print_note(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

impl BenchError {
    /// A failure with any printable detail.
    pub fn failed(what: impl Into<String>, detail: impl std::fmt::Display) -> Self {
        Self::Failed { what: what.into(), detail: detail.to_string() }
    }

    /// The failure to start `program`, which Debian's `package` contains: it is missing only if it was not found.
    pub(crate) fn of_start(error: &std::io::Error, program: &'static str, package: &'static str) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::MissingPeer { program, package },
            _ => Self::failed(format!("starting {program}"), error),
        }
    }
}
