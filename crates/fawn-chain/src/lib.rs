//! Replication protocol [FAWN09 §3.4]: ring, cluster map and epochs, manager, chain replicas, routing.
//!
//! Pure: no I/O, clock, thread or ambient randomness, hence `no_std` with `alloc`. Each state machine takes events
//! through `handle_*(now, …)` and returns effects through `poll_output()`. Payload bytes never enter: a replica decides
//! on versions, watermarks, roles and epochs. The host appends records to its log and replays them from there, so
//! forwarding and retransmission share one path ("the log is the retransmission buffer").
//!
//! | module | contents |
//! |---|---|
//! | [`ring`] | virtual IDs, and the shards that form each range's chain |
//! | [`map`] | the cluster map: nodes, ranges, chains, epochs, last active members |
//! | [`manager`] | commits `Prepare` and `Active` through a [`manager::Consensus`]; the planner of chain changes |
//! | [`replica`] | one member of one chain: head, middle, tail, acks, repair, handshake |
//! | [`router`] | routing, retries and timeouts of operations |
//! | [`boots`] | the present process of each shard, for the heads that take its updates |
//! | [`completions`] | exactly-once execution: the result of each tagged operation |
//! | [`message`] | peer frames, byte-exact (`docs/formats/peer-frames.md`) |
//! | [`invariants`] | one predicate per invariant, for asserts, simulator and tests |
//!
//! Not implemented, with their future places: leases between machines (`replica/read.rs` and `replica/head.rs` admit,
//! the manager waits before it activates), Raft (another `Consensus`), joins with pre-copy (planner).
//! Without leases, a member that was *paused* and dropped may reply to reads from its old epoch when it resumes.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod boots;
pub mod completions;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod invariants;
pub mod manager;
pub mod map;
pub mod message;
pub mod replica;
pub mod ring;
pub mod router;

pub use boots::{BootTable, BootsMessage, KnownBoots};
pub use completions::{Admission, CompletedUpdate, Completions};
pub use fawn_types::bytes::DecodeError;
pub use manager::{DropReason, FileConsensus, Manager, ManagerOptions, ManagerOutput};
pub use map::{ChainMember, ChainState, ClusterMap, MemberRole, NodeEntry, RangeEntry};
pub use message::{Body, Frame, Header, TransferCursor};
pub use replica::{
    Closed, FrameVerdict, LogProgress, PersistedState, ReadTime, Rejection, Replayed, Replica, ReplicaConfig,
    ReplicaOptions, ReplicaOutput, Role,
};
pub use ring::{Ring, RingOptions};
pub use router::{Intent, OpId, Router, RouterOptions, RouterOutput};
