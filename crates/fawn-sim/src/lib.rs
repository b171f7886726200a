//! Owns the simulator: a whole cluster in one deterministic thread, its network, its faults and its oracles.
//!
//! | module | owns |
//! |---|---|
//! | [`world`] | machines with real nodes and stores on simulated disks, the virtual clock, the oracles |
//! | [`scenario`] | what a seed decides before its run: sizes, durability, which faults |
//! | [`faults`] | the schedule: who crashes, stands still, is cut off, when |
//! | [`clients`] | what logical clients ask, and what answers mean |
//! | [`history`] | whether a key's history is linearizable |
//! | [`network`] | byte streams with delay, loss, duplication, cuts |
//! | [`transport`], [`canary`] | frames on their way out, and planted bugs |
//! | [`trace`], [`seed`] | one seed, one story: the hash that two processes must agree on |
//!
//! Not here, and where it will go: leases and clock drift ([`faults`] bounds silences until they exist), full disks,
//! joins of new machines, several managers.
#![forbid(unsafe_code)]

pub mod canary;
pub mod clients;
pub mod faults;
pub mod history;
pub mod in_order;
pub mod network;
pub mod scenario;
pub mod seed;
pub mod trace;
pub mod transport;
pub mod world;

pub use canary::Canary;
pub use in_order::in_order;
pub use scenario::Scenario;
pub use seed::Seed;
pub use world::{RunReport, run};
