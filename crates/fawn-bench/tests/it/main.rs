//! Tests of the benchmarks: tiny complete runs, and detection of a wrong load.
mod cli;
mod figures;
mod peers;
mod servers;
mod stores;
