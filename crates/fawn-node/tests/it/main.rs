//! Integration tests of fawn-node: a shard, several shards, and clusters of nodes.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]
mod blocked;
mod bounds;
mod cluster;
mod confirming;
mod counted;
mod epochs;
mod expiry;
mod front;
mod harness;
mod idle;
mod model;
mod order;
mod room;
mod shards;
mod test_harness;
mod together;
mod transcripts;
mod waiting;

use fawn_types::{MemberId, NodeId, ShardId};

/// The member of a node with one shard.
const fn member(node: u32) -> MemberId {
    MemberId::new(NodeId(node), ShardId(0))
}
