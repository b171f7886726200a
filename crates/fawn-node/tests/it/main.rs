//! Integration tests of fawn-node: a shard, several shards, and clusters of nodes.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]
mod bounds;
mod cluster;
mod counted;
mod expiry;
mod front;
mod harness;
mod model;
mod order;
mod room;
mod shards;
mod test_harness;
mod together;
mod transcripts;
