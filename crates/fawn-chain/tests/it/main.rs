//! Integration tests of fawn-chain, in one binary.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test that meets what it does not expect should stop")]

use fawn_types::{MemberId, NodeId, ShardId};

mod admission;
mod cluster;
mod codec;
mod completions;
mod copies;
mod frames;
mod idle;
mod manager;
mod manager_rounds;
mod planner;
mod random;
mod ring;
mod routing;
mod script;
mod single;

/// The member of a node with one shard.
const fn member(node: u32) -> MemberId {
    MemberId::new(NodeId(node), ShardId(0))
}
