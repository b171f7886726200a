//! Owns measuring: the ladder of benchmarks (device, store, server), the peers they run against, and their rows.
//!
//! Rules of the house: ratios in one run, ours and the peer's in turn, at least five pairs, median with min and max;
//! a load is verified before its reads are believed; next to each rate stand counted work and CPU, which do not drift.
#![forbid(unsafe_code)]

pub mod cli;
pub mod client;
pub mod device;
pub mod footprint;
mod groups;
pub mod machine;
pub mod medium;
pub mod pairs;
pub mod process;
pub mod report;
pub mod row;
pub mod server;
pub mod server_ladder;
pub mod sink;
pub mod store;
pub mod sut;
pub mod units;
pub mod workload;

pub use row::Row;

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A program is missing.
    #[error("{program} is not installed; install Debian's package `{package}` and run again")]
    MissingPeer {
        /// What was to be run.
        program: &'static str,
        /// What brings it.
        package: &'static str,
    },
    /// A peer or the system failed.
    #[error("{what}: {detail}")]
    Failed {
        /// What was tried.
        what: String,
        /// What came of it.
        detail: String,
    },
    /// The load read back wrong, so its reads mean nothing.
    #[error("the load did not verify: {0}")]
    Unverified(String),
    /// Our device failed.
    #[error(transparent)]
    Device(#[from] fawn_flash::DeviceError),
}

impl BenchError {
    /// From anything that prints.
    pub fn failed(what: impl Into<String>, detail: impl std::fmt::Display) -> Self {
        Self::Failed { what: what.into(), detail: detail.to_string() }
    }
}
