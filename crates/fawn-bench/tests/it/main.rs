//! Owns the benchmarks' own tests: tiny runs end to end, and proof that a wrong load is found.
mod cli;
mod servers;
mod stores;
