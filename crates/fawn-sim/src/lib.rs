//! Simulator: a whole cluster in one deterministic thread, with its network, faults and oracles.
//!
//! | module | contents |
//! |---|---|
//! | [`world`] | machines with real shards and stores on simulated disks, the virtual clock, the oracles |
//! | [`scenario`] | parameters of a run, drawn from its seed: sizes, durability, kinds of faults |
//! | [`faults`] | the schedule of faults: crashes, pauses, cuts and their times |
//! | [`clients`] | connections with pipelines in both protocols, and the meaning of replies |
//! | [`history`], [`chain_time`] | linearizability check of a key's history, with its expiry |
//! | [`network`] | byte streams with delay, loss, duplication, splits |
//! | [`transport`], [`canary`] | outgoing frames, and planted bugs |
//! | [`tally`] | how often each kind of fault occurs |
//! | [`trace`], [`seed`] | determinism: the hash on which two processes with one seed must agree |
//!
//! Clients speak RESP and memcached to sessions (`fawn_node::Shard`): on front-ends, on back-ends, or on both. In a
//! local cluster one process runs all nodes, as in the demo.
//! Not simulated: leases and clock drift ([`faults`] bounds silences until they exist), joins of new machines, several
//! managers.
#![forbid(unsafe_code)]

pub mod canary;
pub mod chain_time;
pub mod clients;
pub mod faults;
pub mod history;
pub mod in_order;
pub mod network;
pub mod scenario;
pub mod seed;
pub mod tally;
pub mod trace;
pub mod transport;
pub mod world;

pub use canary::Canary;
pub use in_order::in_order;
pub use scenario::Scenario;
pub use seed::Seed;
pub use world::{RunReport, run};
