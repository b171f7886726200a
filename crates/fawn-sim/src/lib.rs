//! Owns the simulator: a whole cluster in one deterministic thread, its network, its faults and its oracles.
#![forbid(unsafe_code)]

pub mod history;
pub mod network;
