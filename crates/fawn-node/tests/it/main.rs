//! Owns the tests of a shard: transcripts of both protocols, order, bounds, crashes, and a model under random load.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]
mod bounds;
mod cluster;
mod counted;
mod front;
mod harness;
mod model;
mod order;
mod room;
mod shards;
mod test_harness;
mod together;
mod transcripts;
