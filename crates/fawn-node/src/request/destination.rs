//! Destinations of requests that are not executed by call.
use fawn_types::{RangeId, ShardId};

/// Receiver of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    /// A shard of the node, by its message batch.
    Shard(ShardId),
    /// The chain of a range, by frames: updates to its head, reads to its tail.
    Chain(RangeId),
}
